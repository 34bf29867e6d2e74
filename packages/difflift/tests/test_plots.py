"""What the figures draw, where vertices are placed, and that equal data give equal files."""

import difflift.plots as plots
import matplotlib
import numpy as np
import pytest
from difflift.plots import draw_cell_sizes, draw_complex, draw_inclusion, draw_k, hull, molecule_positions, positions
from matplotlib.colors import to_hex
from matplotlib.image import imread
from matplotlib.patches import Polygon

SQUARE = np.array([[0.0, 0], [1, 0], [1, 1], [0, 1]])
CONTENT = {
    "vertices": 4,
    "edges": [[0, 1], [1, 2], [0, 3]],
    "cells": [
        {"kind": "edge", "vertices": [0, 2], "probability": 0.9},
        {"kind": "polygon", "vertices": [0, 1, 2], "probability": 0.8},
        {"kind": "hyperedge", "vertices": [1, 3], "probability": 0.7},
    ],
}


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


def benzene():
    return [6] * 6, [[i, (i + 1) % 6] for i in range(6)]


def test_own_edges_are_solid_learned_ones_dashed_and_2_cells_shaded(tmp_path, drawn):
    draw_complex(CONTENT, SQUARE, tmp_path / "graph.png", ["C", "N", "Cl", "O"], "a title")
    (axes,) = drawn[0].axes
    lines = {tuple(map(tuple, line.get_xydata())): line.is_dashed() for line in axes.lines}
    ends = {tuple(map(tuple, SQUARE[pair])): pair == [0, 2] for pair in ([0, 1], [1, 2], [0, 3], [0, 2])}
    assert lines == ends
    shaded, hulls, outlines = [patch for patch in axes.patches if isinstance(patch, Polygon)]
    np.testing.assert_allclose(shaded.get_xy()[:-1], SQUARE[:3])
    assert shaded.get_facecolor()[3] == pytest.approx(0.35)
    np.testing.assert_allclose(hulls.get_xy(), outlines.get_xy())
    assert [text.get_text() for text in axes.texts] == ["C", "N", "Cl", "O"]
    assert axes.get_title() == "a title"
    legend = [text.get_text() for text in drawn[0].legends[0].get_texts()]
    assert legend == ["edge", "learned edge", "2-cell", "hyperedge"]


def test_what_is_not_there_is_not_in_the_legend_and_vertices_are_numbered(tmp_path, drawn):
    draw_complex({"vertices": 4, "edges": [[0, 1]], "cells": []}, SQUARE, tmp_path / "graph.png")
    assert [text.get_text() for text in drawn[0].legends[0].get_texts()] == ["edge"]
    assert [text.get_text() for text in drawn[0].axes[0].texts] == ["0", "1", "2", "3"]


def test_a_hull_keeps_a_distance_from_its_points():
    # Of one point a circle, of two a stadium: area π r² and π r² + 2 r d, less what a polygon of 24 sides lacks.
    def area(corners):
        x, y = corners.T
        return abs(np.dot(x, np.roll(y, 1)) - np.dot(y, np.roll(x, 1))) / 2

    lacking = 12 * np.sin(np.pi / 12) / np.pi
    assert area(hull(SQUARE[:1], 0.5)) == pytest.approx(np.pi * 0.25 * lacking)
    assert area(hull(SQUARE[:2], 0.5)) == pytest.approx(np.pi * 0.25 * lacking + 1.0)
    assert area(hull(SQUARE, 0.25)) == pytest.approx(1 + 4 * 0.25 + np.pi * 0.0625 * lacking)


def test_a_ring_of_six_is_drawn_as_a_regular_hexagon_in_the_order_of_its_atoms():
    for points in (molecule_positions(*benzene()), positions(6, benzene()[1])):
        sides = np.linalg.norm(points - np.roll(points, 1, axis=0), axis=1)
        np.testing.assert_allclose(sides, 1, rtol=1e-3)
        np.testing.assert_allclose(np.linalg.norm(points - points.mean(0), axis=1), 1, rtol=1e-3)


def test_every_kind_of_graph_has_places_that_are_finite_apart_and_always_the_same():
    for n, edges in ((1, []), (5, []), (4, [[0, 1]]), (200, [[i, i + 1] for i in range(199)])):
        points = positions(n, edges)
        assert points.shape == (n, 2)
        assert np.isfinite(points).all()
        assert len(np.unique(points, axis=0)) == n
        np.testing.assert_array_equal(points, positions(n, edges))
        if edges:
            u, v = np.array(edges).T
            assert np.median(np.linalg.norm(points[u] - points[v], axis=1)) == pytest.approx(1)


def test_salts_and_unusual_valences_have_places():
    points = molecule_positions([11, 17, 6, 6, 6, 6, 6, 6], [[2, v] for v in range(3, 8)])  # five bonds at a carbon
    assert points.shape == (8, 2)
    assert np.isfinite(points).all()


def bars(axes):
    """Series -> {number: how often}, as drawn."""
    found = {}
    for container in axes.containers:
        heights = {round(bar.get_x() + bar.get_width() / 2): bar.get_height() for bar in container if bar.get_height()}
        found[container.get_label()] = heights
    return found


def test_bars_count_sizes_by_kind(tmp_path, drawn):
    draw_cell_sizes({"edge": [2, 2, 2], "polygon": [3, 6, 6], "hyperedge": []}, tmp_path / "cells.png")
    assert bars(drawn[0].axes[0]) == {"learned edge": {2: 3}, "2-cell": {3: 1, 6: 2}}
    draw_k([2, 2, 5], tmp_path / "k.png")
    assert bars(drawn[1].axes[0]) == {"vertices": {2: 2, 5: 1}}
    draw_cell_sizes({"hyperedge": []}, tmp_path / "none.png")
    assert [text.get_text() for text in drawn[2].axes[0].texts] == ["none"]


def test_inclusion_is_drawn_over_the_epochs(tmp_path, drawn):
    draw_inclusion([0, 1, 2], [0.5, 0.4, 0.3], [0.6, 0.2, 0.1], tmp_path / "inclusion.png")
    first, second = drawn[0].axes[0].lines
    np.testing.assert_allclose(first.get_xydata(), [[0, 0.5], [1, 0.4], [2, 0.3]])
    np.testing.assert_allclose(second.get_xydata(), [[0, 0.6], [1, 0.2], [2, 0.1]])
    assert first.get_linestyle() != second.get_linestyle()


def test_colours_are_those_of_okabe_and_ito():
    okabe_ito = {"#000000", "#e69f00", "#56b4e9", "#009e73", "#f0e442", "#0072b2", "#d55e00", "#cc79a7"}
    assert {to_hex(colour) for colour in plots.CELLS} <= okabe_ito
    assert {to_hex(colour) for colour, _ in plots.KINDS.values()} <= okabe_ito


@pytest.mark.parametrize(
    "draw",
    [
        lambda path: draw_complex(CONTENT, SQUARE, path),
        lambda path: draw_k([2, 3, 3], path),
        lambda path: draw_cell_sizes({"edge": [2], "polygon": [3]}, path),
        lambda path: draw_inclusion([0, 1], [0.5, 0.4], [0.6, 0.2], path),
    ],
    ids=["complex", "k", "cells", "inclusion"],
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
        (lambda path: draw_complex(CONTENT, SQUARE[:3], path), r"points must be \(4, 2\)"),
        (lambda path: draw_complex(CONTENT, SQUARE, path, ["C"]), "symbols 4 or none"),
        (lambda path: draw_k([], path), "k must have a size for each vertex"),
        (lambda path: draw_cell_sizes({"blob": [3]}, path), "some of edge, hyperedge, polygon, got blob"),
        (lambda path: draw_inclusion([0], [0.5, 0.4], [0.5], path), "of one length, at least 1, got 1, 2 and 1"),
        (lambda path: draw_inclusion([], [], [], path), "at least 1, got 0"),
    ],
)
def test_data_that_do_not_fit_are_refused_and_nothing_is_written(draw, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        draw(tmp_path / "figure.png")
    assert list(tmp_path.iterdir()) == []
