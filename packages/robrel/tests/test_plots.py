"""What the pictures show, asked of the figures as they are saved."""

from contextlib import contextmanager

import numpy as np
import pytest
import robrel.plots as plots
from robrel.feasible import box
from robrel.framework import assess
from robrel.plots import (
    draw_convergence,
    draw_interval,
    draw_intervals,
    draw_rate,
    draw_rewards,
    fitted_slope,
)

T = np.array([100.0, 1000.0, 10000.0])
GAP = np.array([[1.0], [3.0]]) * T**-0.5  # mean 2 T^-1/2


@pytest.fixture
def drawn(monkeypatch):
    """Figures as they are saved."""
    figures = []
    drawing = plots.drawing

    @contextmanager
    def keep(path, size):
        with drawing(path, size) as figure:
            yield figure
            figures.append(figure)

    monkeypatch.setattr(plots, "drawing", keep)
    return figures


def legend(axes):
    return [text.get_text() for text in axes.get_legend().get_texts()]


def test_an_interval_is_drawn_from_m_to_M_with_every_answer_and_its_worst_case_error(tmp_path, drawn):
    """d = (1, -1, 0) and rewards in [-1, 1]: [-2, 2], so that an answer of 1.5 is up to 3.5 off."""
    draw_interval(assess([1.0, -1.0, 0.0], box(3)), {"mine": 1.5}, tmp_path / "a.png")
    axes = drawn[0].axes[0]
    zero, bar, robust, mine = axes.lines
    assert zero.get_xdata()[0] == 0
    assert list(bar.get_xdata()) == pytest.approx([-2, 2])
    assert list(robust.get_xdata()) == pytest.approx([0])
    assert list(mine.get_xdata()) == [1.5]
    assert robust.get_marker() != mine.get_marker()
    assert legend(axes) == ["robust: 0, at most 2 off", "mine: 1.5, at most 3.5 off"]


def test_intervals_are_drawn_around_their_truth_and_their_mean_half_width_falls(tmp_path, drawn):
    intervals = {20: [(0.0, 1.0, 0.5), (2.0, 2.5, 2.75)], 0: [(-3.0, 3.0, 1.0), (-1.0, 1.0, 0.0)]}
    draw_intervals(intervals, tmp_path / "a.png")
    left, right = drawn[0].axes
    spans = [[y for _, y in segment] for lines in left.collections for segment in lines.get_segments()]
    assert spans == [[-4, 2], [-1, 1], [-0.5, 0.5], [-0.75, -0.25]]
    # The last interval misses its truth, and only it has the other colour.
    colours = [tuple(lines.get_color()[0]) for lines in left.collections for _ in lines.get_segments()]
    assert colours[0] == colours[1] == colours[2] != colours[3]
    assert [label.get_text() for label in right.get_xticklabels()] == ["0", "20"]
    assert right.lines[-1].get_ydata().tolist() == [2, 0.375]
    assert [line.get_ydata().tolist() for line in right.lines[:-1]] == [[3, 1], [0.5, 0.25]]


def test_rewards_fill_the_grid_row_by_row_on_one_scale_around_zero(tmp_path, drawn):
    rewards = {"worst for the first": np.arange(6.0), "best": -np.arange(6.0) / 2, "robust": np.zeros(6)}
    draw_rewards(rewards, (2, 3), tmp_path / "a.png")
    panels = drawn[0].axes[:3]
    assert [axes.get_title() for axes in panels] == list(rewards)
    assert panels[0].images[0].get_array().tolist() == [[0, 1, 2], [3, 4, 5]]
    assert {axes.images[0].get_clim() for axes in panels} == {(-5.0, 5.0)}


@pytest.mark.parametrize("draw", [draw_convergence, draw_rate])
def test_power_laws_are_drawn_with_their_fitted_slope_beside_that_of_theory(tmp_path, drawn, draw):
    draw(T, GAP, tmp_path / "a.png")
    draw(T, np.broadcast_to(T**-0.25, (4, 3)), tmp_path / "b.png")
    axes = drawn[0].axes[0]
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    *seeds, mean, theory = axes.lines
    assert [line.get_ydata().tolist() for line in seeds] == GAP.tolist()
    assert mean.get_ydata() == pytest.approx(2 * T**-0.5)
    assert theory.get_ydata() == pytest.approx(2 * T**-0.5)
    assert legend(axes) == ["mean over seeds, fitted slope -0.50", "slope -1/2"]
    slower = drawn[1].axes[0]
    assert legend(slower)[0] == "mean over seeds, fitted slope -0.25"
    assert slower.lines[-1].get_ydata() == pytest.approx(10**-0.5 * np.array([1, 10**-0.5, 0.1]))


def test_the_slope_is_the_exponent_of_a_power_law():
    assert fitted_slope(T, 7 * T**-1.3) == pytest.approx(-1.3)
    # Three points on a least-squares line: log-log slopes 0 and -2 between equal steps average to -1.
    assert fitted_slope(np.array([1.0, 10, 100]), np.array([1.0, 1, 0.01])) == pytest.approx(-1)


def test_equal_pictures_have_equal_bytes(tmp_path):
    for name in ("a", "b"):
        draw_interval(assess([1.0, -1.0], box(2)), {"x": 0.3, "y": -1.0}, tmp_path / f"{name}1.png")
        draw_intervals({0: [(-1.0, 1.0, 0.2)], 5: [(0.0, 0.5, 0.2)]}, tmp_path / f"{name}2.png")
        draw_rewards({"r": np.arange(4.0)}, (2, 2), tmp_path / f"{name}3.png")
        draw_convergence(T, GAP, tmp_path / f"{name}4.png")
        draw_rate(T, GAP, tmp_path / f"{name}5.png")
    pictures = [[(tmp_path / f"{name}{i}.png").read_bytes() for i in range(1, 6)] for name in ("a", "b")]
    assert pictures[0] == pictures[1]
    assert pictures[0][3] != pictures[0][4]  # their axes are named differently


@pytest.mark.parametrize(
    ("draw", "message"),
    [
        (lambda path: draw_intervals({}, path), "at least one"),
        (lambda path: draw_intervals({0: [(0.0, 1.0, 0.5)], 5: []}, path), "at least one"),
        (lambda path: draw_rewards({}, (2, 2), path), "rewards are empty"),
        (lambda path: draw_rewards({"r": np.zeros(5)}, (2, 2), path), r"reward 'r' must have shape \(4,\), got \(5,\)"),
        (lambda path: draw_convergence(T, GAP[0], path), r"shape \(seeds, 3\), got \(3,\)"),
        (lambda path: draw_rate(T, -GAP, path), "positive numbers"),
        (lambda path: draw_rate(T[:1], GAP[:, :1], path), "two different values"),
    ],
)
def test_what_cannot_be_drawn_is_refused_and_leaves_no_file(tmp_path, draw, message):
    with pytest.raises(ValueError, match=message):
        draw(tmp_path / "a.png")
    assert not list(tmp_path.iterdir())
