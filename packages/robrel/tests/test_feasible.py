"""The feasible set: violations by hand, oracles, and bad input."""

import math

import numpy as np
import pytest
from robrel.feasible import Cut, FeasibleSet, ball, box


def triangle():
    """X + y <= 1 in [0, 1]², with 0.2 <= x - y."""
    return box(2, 0.0, 1.0).with_rows([[1.0, 1.0], [1.0, -1.0]], [-math.inf, 0.2], [1.0, math.inf], ["sum", "order"])


def square(x):
    return float(x @ x), 2 * x


@pytest.mark.parametrize(
    ("x", "expected"),
    [
        ([0.5, 0.1], 0.0),
        ([0.9, 0.3], 0.2),  # the sum is 1.2
        ([0.5, 0.4], 0.1),  # the difference is 0.1
        ([-0.3, -0.7], 0.7),  # the second parameter leaves the box by 0.7
        ([1.4, 0.0], 0.4),
    ],
)
def test_the_violation_is_the_largest_excess(x, expected):
    assert triangle().violation(x) == pytest.approx(expected, abs=1e-12)
    assert triangle().contains(x, 1e-9) == (expected == 0)
    assert triangle().contains(x, expected + 1e-9)


def test_the_violation_counts_ball_and_oracles():
    assert ball(2, 0.5).violation([0.3, 0.4]) == pytest.approx(0.0)
    assert ball(2, 0.5).violation([0.5, 0.5]) == pytest.approx(math.sqrt(0.5) - 0.5)
    assert box(2).with_cuts(Cut("energy", square, 0.25)).violation([0.5, 0.5]) == pytest.approx(0.25)


def test_a_cut_implies_a_row_that_separates_the_point_and_keeps_the_set():
    cut = Cut("energy", square, 0.25)
    x = np.array([0.9, -0.8])
    excess, g, limit = cut.row(x)
    assert excess == pytest.approx(0.81 + 0.64 - 0.25)
    assert g @ x - limit == pytest.approx(excess)
    rng = np.random.default_rng(0)
    inside = rng.standard_normal((200, 2))
    inside *= 0.5 * rng.random((200, 1)) / np.linalg.norm(inside, axis=1, keepdims=True)
    assert (inside @ g <= limit).all()


def test_extending_leaves_the_original_and_names_rows_by_position():
    first = box(2).with_rows([1.0, 0.0])
    second = first.with_rows([[0.0, 1.0], [1.0, 1.0]], 0.5).with_cuts(Cut("c", square, 1.0))
    assert first.labels == ("row 0",)
    assert len(first.cuts) == 0
    assert second.labels == ("row 0", "row 1", "row 2")
    assert second.lower.tolist() == [0.0, 0.5, 0.5]
    assert second.upper.tolist() == [math.inf] * 3
    assert [cut.name for cut in second.cuts] == ["c"]


def test_no_comparisons_are_allowed():
    assert box(3).with_rows(np.zeros((0, 3))).rows.shape == (0, 3)


def test_the_callers_arrays_are_copied_and_the_sets_own_are_read_only():
    rows = np.ones((1, 2))
    feasible = box(2).with_rows(rows)
    rows[:] = 7
    assert feasible.rows.tolist() == [[1.0, 1.0]]
    with pytest.raises(ValueError, match="read-only"):
        feasible.rows[0, 0] = 2


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: box(2).with_rows([1.0, 0.0, 0.0]), r"new rows must have 2 numbers each, got shape \(1, 3\)"),
        (lambda: box(2).with_rows([1.0, math.nan], labels=["line 3"]), r"row 0 \(line 3\) holds a number"),
        (
            lambda: box(2).with_rows([1.0, 0.0], 0.5, 0.2, ["line 4"]),
            r"row 0 \(line 4\) needs lower <= upper, got 0.5 and",
        ),
        (lambda: box(2).with_rows([1.0, 0.0], math.nan), r"needs lower <= upper, got nan"),
        (lambda: box(2).with_rows([1.0, 0.0], labels=["a", "b"]), "2 labels"),
        (lambda: box(2, 1.0, -1.0), "low <= high"),
        (lambda: box(2, -math.inf), "finite"),
        (lambda: box(0), "at least one parameter"),
        (lambda: ball(2, 0.0), "low <= high|radius must be positive"),
        (lambda: box(2).violation([1.0]), r"expected x \(2,\), got \(1,\)"),
        (lambda: Cut("line 9", lambda x: (math.nan, x), 0.0).row(np.ones(2)), "oracle of line 9"),
        (lambda: Cut("line 9", lambda x: (0.0, x[:1]), 0.0).row(np.ones(2)), "oracle of line 9"),
        (
            lambda: FeasibleSet(np.zeros((1, 2)), [0.0], [0.0, 1.0], ("a",), [0, 0], [1, 1]),
            r"expected bounds \(1,\) and 1 labels",
        ),
    ],
)
def test_bad_input_is_refused(build, message):
    with pytest.raises(ValueError, match=message):
        build()
