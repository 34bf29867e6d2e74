"""The figures: what is drawn, and that equal data give equal files."""

import matplotlib
import numpy as np
import orderdp.plots as plots
import pytest
from matplotlib.image import imread
from orderdp.plots import draw_stability, draw_usage, draw_weights
from orderdp.surrogate import order_weights

GAMMA = order_weights(10, 5, 3)


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


def axes_of(figures):
    (figure,) = figures
    (axes,) = figure.axes
    return axes


def legend(axes):
    return [text.get_text() for text in axes.get_legend().get_texts()]


def test_the_curve_is_gamma_over_the_share_of_ranks_beside_chance(tmp_path, drawn):
    draw_weights(GAMMA, 0.3, tmp_path / "new" / "plan.png")
    curve, chance = axes_of(drawn).lines
    np.testing.assert_allclose(curve.get_xdata(), np.arange(1, 11) / 10)
    np.testing.assert_allclose(
        curve.get_ydata(), [1 / 2, 1 / 2, 1 / 2, 10 / 21, 5 / 12, 9 / 28, 17 / 84, 1 / 12, 0, 0], atol=1e-12
    )
    assert list(chance.get_ydata()) == [0.3, 0.3]
    assert curve.get_color() != chance.get_color()
    assert curve.get_linestyle() != chance.get_linestyle()
    assert legend(axes_of(drawn)) == ["OrderDP: γ_j", "random pruning: q / n"]
    assert (tmp_path / "new" / "plan.png").read_bytes().startswith(b"\x89PNG")


def test_a_curve_of_many_ranks_is_thinned_out_and_keeps_its_ends(tmp_path, drawn):
    n = 50_000
    gamma = np.linspace(0.5, 0, n)
    draw_weights(gamma, 0.3, tmp_path / "plan.png")
    x, y = axes_of(drawn).lines[0].get_data()
    assert len(x) == 2000
    assert (x[0], x[-1], y[0], y[-1]) == (1 / n, 1, 0.5, 0)
    np.testing.assert_allclose(y, 0.5 * (1 - (x * n - 1) / (n - 1)), atol=1e-12)


def test_bars_count_the_samples_of_each_number_of_visits(tmp_path, drawn):
    draw_usage(np.array([0, 2, 2, 5, 2, 1, 0]), 6, tmp_path / "usage.png")
    axes = axes_of(drawn)
    assert [bar.get_height() for bar in axes.patches] == [2, 1, 3, 0, 0, 1, 0]
    assert [bar.get_x() + bar.get_width() / 2 for bar in axes.patches] == pytest.approx(list(range(7)))
    (mean,) = axes.lines
    assert mean.get_xdata()[0] == pytest.approx(12 / 7)
    assert legend(axes) == ["mean 1.71"]
    assert axes.get_xlabel() == "times trained on, in 6 rounds"


def test_usage_of_an_unused_and_of_a_fully_used_set_is_one_bar(tmp_path, drawn):
    draw_usage(np.zeros(4, dtype=np.int64), 1, tmp_path / "none.png")
    draw_usage(np.full(4, 2), 2, tmp_path / "all.png")
    heights = [[bar.get_height() for bar in figure.axes[0].patches] for figure in drawn]
    assert heights == [[4, 0], [0, 0, 4]]


def test_stability_is_the_mean_with_a_band_of_one_deviation(tmp_path, drawn):
    draw_stability([3.0, 2.0, 1.5], [0.25, 1.0, 0.0], tmp_path / "stability.png")
    axes = axes_of(drawn)
    (line,) = axes.lines
    assert line.get_xydata().tolist() == [[1, 3], [2, 2], [3, 1.5]]
    (band,) = axes.collections
    edge = {tuple(point) for point in band.get_paths()[0].vertices.tolist()}
    assert edge == {(1, 2.5), (1, 3.5), (2, 1), (2, 3), (3, 1.5)}


@pytest.mark.parametrize(
    "draw",
    [
        lambda path: draw_weights(GAMMA, 0.3, path),
        lambda path: draw_usage(np.array([0, 1, 1]), 2, path),
        lambda path: draw_stability([1.0, 2.0], [0.1, 0.2], path),
    ],
    ids=["weights", "usage", "stability"],
)
def test_equal_figures_are_equal_files_that_are_not_blank(draw, tmp_path):
    backend = matplotlib.rcParams._get_backend_or_none()
    draw(tmp_path / "first.png")
    with matplotlib.rc_context({"axes.facecolor": "black", "font.size": 20}):  # a reader's own style
        draw(tmp_path / "second.png")
    first, second = ((tmp_path / name).read_bytes() for name in ("first.png", "second.png"))
    assert first == second
    assert matplotlib.__version__.encode() not in first
    assert matplotlib.rcParams._get_backend_or_none() == backend
    blue = np.array([0x00, 0x72, 0xB2]) / 255
    assert (np.abs(imread(tmp_path / "first.png")[..., :3] - blue).max(-1) < 0.01).sum() > 200


def test_a_figure_that_fails_leaves_no_file(tmp_path):
    with pytest.raises(ValueError, match="shape"):
        draw_stability([1.0, 2.0], [0.1, 0.2, 0.3], tmp_path / "stability.png")
    assert list(tmp_path.iterdir()) == []
