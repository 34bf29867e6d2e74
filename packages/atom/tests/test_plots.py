"""The renderer's geometry, what the figures draw, and that equal data give equal files."""

import atom.plots as plots
import matplotlib
import numpy as np
import pytest
from ase.build import molecule
from atom.plots import draw_bonds, draw_gamma, draw_lags, draw_overlay, principal_axes
from atom.rendering import Ball, Layer, Stick, View, compose, render
from matplotlib.image import imread

RED, BLUE = np.array([1.0, 0, 0]), np.array([0, 0, 1.0])
VIEW = View(-2, 2, -2, 2, 50)  # 200 x 200 pixels
LAGS = np.array([4.0, 8, 12, 16])


@pytest.fixture
def drawn(monkeypatch):
    """Figures as they are saved, so that a test can ask what is drawn."""
    figures = []
    drawing = plots.drawing

    class Kept:
        def __init__(self, path, size):
            self.inner = drawing(path, size)

        def __enter__(self):
            figures.append(self.inner.__enter__())
            return figures[-1]

        def __exit__(self, *error):
            return self.inner.__exit__(*error)

    monkeypatch.setattr(plots, "drawing", Kept)
    return figures


def at(layer_part, x, y):
    """The value of the pixel that holds a point."""
    return layer_part[int((VIEW.top - y) * VIEW.scale), int((x - VIEW.left) * VIEW.scale)]


def area(layer):
    """Å² that a layer covers."""
    return np.isfinite(layer.depth).sum() / VIEW.scale**2


def test_a_ball_is_a_disc_whose_front_is_a_radius_nearer_than_its_centre():
    layer = render([Ball(np.array([0.5, -0.25, 0.3]), 1.0, RED)], [], VIEW)
    assert area(layer) == pytest.approx(np.pi, rel=2e-3)
    assert at(layer.depth, 0.5, -0.25) == pytest.approx(1.3, abs=1e-3)
    assert at(layer.depth, 1.3, -0.25) == pytest.approx(0.3 + 0.6, abs=0.03)  # 0.8 aside: sqrt(1 - 0.64)
    assert at(layer.depth, -1.5, 1.5) == -np.inf


def test_a_stick_in_the_plane_is_a_rectangle_of_two_colours():
    layer = render([], [Stick(np.array([-1.0, 0, 0]), np.array([1.0, 0, 0]), 0.2, (RED, BLUE))], VIEW)
    assert area(layer) == pytest.approx(2 * 0.4, rel=0.02)
    assert at(layer.depth, 0.7, 0.0) == pytest.approx(0.2, abs=2e-3)
    left, right = at(layer.colour, -0.5, 0.0), at(layer.colour, 0.5, 0.0)
    assert left[0] > left[2]
    assert right[2] > right[0]


def test_a_tilted_stick_rises_along_its_axis():
    # At 45 degrees its front lies r sqrt(2) above its axis, which rises as x does.
    layer = render([], [Stick(np.array([-1.0, 0, -1]), np.array([1.0, 0, 1]), 0.1, (RED, BLUE))], VIEW)
    for x in (-0.5, 0.0, 0.6):
        assert at(layer.depth, x, 0.0) == pytest.approx(x + 0.1 * np.sqrt(2), abs=0.02)


def test_what_is_nearer_hides_what_is_behind_in_either_order():
    near, far = Ball(np.array([0, 0, 1.0]), 0.5, RED), Ball(np.array([0, 0, -1.0]), 0.5, BLUE)
    one, other = render([near, far], [], VIEW), render([far, near], [], VIEW)
    np.testing.assert_array_equal(one.colour, other.colour)
    assert at(one.colour, 0, 0)[0] > at(one.colour, 0, 0)[2]


def test_the_side_towards_the_light_is_the_brighter_one():
    layer = render([Ball(np.zeros(3), 1.0, RED)], [], VIEW)
    assert at(layer.colour, -0.5, 0.5)[0] > at(layer.colour, 0.5, -0.5)[0] + 0.2


def test_layers_mix_by_their_opacity_half_of_it_in_front_of_the_opaque_and_none_behind():
    grey = np.full((1, 4, 3), 0.5)
    opaque = Layer(grey, np.array([[0.0, 0, -np.inf, -np.inf]]))
    glass = Layer(np.zeros((1, 4, 3)), np.array([[1.0, -1, 1, -np.inf]]))
    image = compose(opaque, [(glass, 0.6)])
    np.testing.assert_allclose(image[0, :, 0], [0.5 * 0.7, 0.5, 0.4, 1.0])
    np.testing.assert_allclose(compose(opaque, [(glass, 0.6)], 1).mean(1), image.mean(1))
    flat = compose(Layer(np.tile(grey, (2, 1, 1)), np.zeros((2, 4))), [], smooth=2)
    assert flat.shape == (1, 2, 3)


def test_a_planar_molecule_is_seen_face_on_and_not_mirrored():
    points = molecule("C5H5N").positions
    turned = points @ np.linalg.qr(np.random.default_rng(0).normal(size=(3, 3)))[0]
    axes = principal_axes(turned)
    np.testing.assert_allclose(axes @ axes.T, np.eye(3), atol=1e-12)
    assert np.linalg.det(axes) == pytest.approx(1)
    seen = (turned - turned.mean(0)) @ axes.T
    assert np.abs(seen[:, 2]).max() < 1e-10
    assert seen[:, 0].var() >= seen[:, 1].var()


def test_the_curves_are_the_errors_over_the_lags_each_in_its_own_line_and_mark(tmp_path, drawn):
    curves = {"ATOM": LAGS * 0.1, "identity": LAGS, "constant velocity": LAGS**2}
    draw_lags(curves, LAGS, tmp_path / "lags.png")
    (axes,) = drawn[0].axes
    for line, curve in zip(axes.lines, curves.values(), strict=True):
        np.testing.assert_allclose(line.get_xydata(), np.column_stack((LAGS, curve)))
    assert len({(line.get_color(), line.get_marker()) for line in axes.lines}) == 3
    assert [text.get_text() for text in axes.get_legend().get_texts()] == list(curves)


def test_of_many_bonds_the_six_that_vary_most_are_drawn_from_the_state_on(tmp_path, drawn):
    start, sizes = np.full(8, 1.4), np.array([1, 8, 2, 7, 3, 6, 4, 5]) / 100
    true = start + sizes * np.array([[0.0], [1], [0], [-1]])
    draw_bonds(true + 0.5, true, start, LAGS, tmp_path / "bonds.png", [f"b{e}" for e in range(8)])
    panels = drawn[0].axes
    assert [panel.get_title(loc="left") for panel in panels] == ["b1", "b3", "b4", "b5", "b6", "b7"]
    truth, guess = panels[0].lines
    np.testing.assert_allclose(truth.get_xydata(), [[0, 1.4], [4, 1.4], [8, 1.48], [12, 1.4], [16, 1.32]])
    np.testing.assert_allclose(guess.get_ydata(), [1.4, 1.9, 1.98, 1.9, 1.82])


def test_the_shares_of_a_block_fill_its_bar(tmp_path, drawn):
    gammas = np.array([[0.2, 0.3, 0.5], [0.6, 0.3, 0.1]])
    draw_gamma(gammas, tmp_path / "gamma.png")
    (axes,) = drawn[0].axes
    bars = np.array([bar.get_width() for bar in axes.patches]).reshape(3, 2)
    np.testing.assert_allclose(bars.T, gammas)
    np.testing.assert_allclose([bar.get_x() for bar in axes.patches], [0, 0, 0.2, 0.6, 0.5, 0.9])


def overlay(path):
    atoms = molecule("CH3CHO")
    x = atoms.positions
    near = np.linalg.norm(x[:, None] - x, axis=-1)
    bonds = ((near < 1.6) & (near > 0)).astype(float)
    draw_overlay(x, x, x, atoms.numbers, bonds, path, "acetaldehyde")


def test_the_overlay_names_its_elements_and_has_a_bar_of_one_angstrom(tmp_path, drawn):
    overlay(tmp_path / "overlay.png")
    labels = [text.get_text() for text in drawn[0].legends[0].get_texts()]
    assert labels == ["H", "C", "O", "predicted", "at the start"]
    assert drawn[0].axes[0].get_title() == "acetaldehyde"
    left, right = drawn[0].axes[0].lines[0].get_xdata()
    assert right - left == pytest.approx(1)


def test_the_overlay_has_true_atoms_in_their_colours_and_predicted_ones_in_half_of_green(tmp_path, drawn):
    true = molecule("H2O").positions
    axes = principal_axes(true)
    predicted, start = true + 2 * axes[0], true - 2 * axes[0]
    draw_overlay(predicted, true, start, np.array([8, 1, 1]), np.zeros((3, 3)), tmp_path / "overlay.png")
    (picture,) = drawn[0].axes[0].images
    left, right, bottom, top = picture.get_extent()
    pixels = np.asarray(picture.get_array())
    rows, columns = pixels.shape[:2]
    assert columns / (right - left) == pytest.approx(rows / (top - bottom), rel=5e-3)

    def colour(point):
        x, y, _ = axes @ (point - true.mean(0))
        return pixels[int((top - y) / (top - bottom) * rows), int((x - left) / (right - left) * columns)]

    r, g, b = colour(true[0])
    assert r > g + 0.3 > b  # vermilion
    r, g, b = colour(predicted[0])
    assert g > r + 0.2  # green
    assert r > 0.4  # white shines through
    r, g, b = colour(start[0])
    assert 0.5 < r < 0.95
    assert g == pytest.approx(r) == pytest.approx(b)  # grey
    np.testing.assert_array_equal(pixels[0, 0], 1)


@pytest.mark.parametrize(
    "draw",
    [
        lambda path: draw_lags({"ATOM": LAGS}, LAGS, path),
        lambda path: draw_bonds(np.ones((4, 1)), np.ones((4, 1)), np.ones(1), LAGS, path),
        lambda path: draw_gamma(np.full((2, 3), 1 / 3), path),
        overlay,
    ],
    ids=["lags", "bonds", "gamma", "overlay"],
)
def test_equal_figures_are_equal_files(draw, tmp_path):
    draw(tmp_path / "first.png")
    with matplotlib.rc_context({"axes.facecolor": "black", "font.size": 20}):  # a reader's own style
        draw(tmp_path / "second.png")
    assert (tmp_path / "first.png").read_bytes() == (tmp_path / "second.png").read_bytes()
    assert imread(tmp_path / "first.png")[..., :3].std() > 0.05


@pytest.mark.parametrize(
    ("draw", "message"),
    [
        (lambda path: draw_lags({}, LAGS, path), "curves must be 1 to 6, got 0"),
        (lambda path: draw_lags({"a": LAGS[:2]}, LAGS, path), r"curve 'a' has shape \(2,\)"),
        (lambda path: draw_bonds(np.ones((4, 0)), np.ones((4, 0)), np.ones(0), LAGS, path), "with a bond at least"),
        (lambda path: draw_gamma(np.ones((2, 1)), path), r"gammas must be \(L, 3\)"),
        (
            lambda path: draw_overlay(np.ones((2, 3)), np.ones((3, 3)), np.ones((3, 3)), np.ones(3), np.eye(3), path),
            r"predicted must be \(3, 3\)",
        ),
    ],
)
def test_data_that_do_not_fit_are_refused_and_nothing_is_written(draw, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        draw(tmp_path / "figure.png")
    assert list(tmp_path.iterdir()) == []
