"""The instances as one batch: padding that changes nothing, each scored once, options."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from robrel.data import RobRelData
from robrel.primal_dual import solve
from robrel.problems import ProblemOptions, draw_problem

SMALL = ProblemOptions(size=3, horizon=4, features=4)


def data(problem=SMALL, **options):
    made = RobRelData(**{"comparisons": [0, 3, 7], "instances": 2, "problem": problem, **options})
    made.setup()
    return made


def test_the_instances_of_each_number_of_comparisons_are_drawn_from_the_seeds_that_follow():
    made = data(seed=5)
    assert [made.group(i) for i in range(6)] == [0, 0, 3, 3, 7, 7]
    assert [len(p.feasible.rows) for p in made.problems] == [0, 0, 3, 3, 7, 7]
    for i, problem in enumerate(made.problems):
        np.testing.assert_array_equal(problem.x_true, draw_problem(SMALL, 3, 5 + i % 2).x_true)


def test_a_second_setup_draws_nothing():
    made = data()
    problems = list(made.problems)
    made.setup("test")
    assert all(a is b for a, b in zip(problems, made.problems, strict=True))


def test_the_callers_options_are_copied():
    options = replace(SMALL)
    made = RobRelData(problem=options)
    options.size = 1
    assert made.options == SMALL
    assert RobRelData().options == ProblemOptions()


def test_missing_rows_are_0_between_infinite_bounds():
    stacked = data().stacked()
    assert stacked.rows.shape == (6, 7, 4)
    assert torch.equal(stacked.rows[2, 3:], torch.zeros(4, 4, dtype=torch.float64))
    assert stacked.lower[2].tolist() == [0.0] * 3 + [-math.inf] * 4
    assert (stacked.upper == math.inf).all()
    assert (stacked.low.tolist(), stacked.high.tolist(), stacked.radius) == ([-1.0] * 4, [1.0] * 4, None)
    assert all(t.dtype == torch.float64 for t in stacked[:6])


def test_without_any_comparison_there_are_no_rows():
    assert data(comparisons=0).stacked().rows.shape == (2, 0, 4)


@pytest.mark.parametrize("radius", [None, 0.8])
def test_the_batch_has_the_primal_dual_answers_of_the_instances_one_by_one(radius):
    made = data(replace(SMALL, radius=radius))
    stacked = made.stacked()
    assert stacked.radius == radius
    together = solve(*stacked, steps=300)
    for i, problem in enumerate(made.problems):
        s = problem.feasible
        alone = [torch.tensor(array) for array in (problem.d[None], s.rows, s.lower, s.upper, s.low, s.high)]
        found = solve(*alone, s.radius, steps=300)
        torch.testing.assert_close(found.x[0], together.x[i], rtol=0, atol=1e-12)
        torch.testing.assert_close(found.dual_bound[0], together.dual_bound[i], rtol=0, atol=1e-12)
        torch.testing.assert_close(found.duals[0], together.duals[i, : len(s.rows)], rtol=0, atol=1e-12)
        assert (together.duals[i, len(s.rows) :] == 0).all()


def test_each_of_7_instances_is_met_once_at_batch_size_2():
    made = data(comparisons=1, instances=7, eval_batch_size=2)
    batches = [batch.tolist() for batch in made.test_dataloader()]
    assert max(map(len, batches)) == 2
    assert sum(batches, []) == list(range(7))


def test_an_epoch_has_as_many_blocks_as_asked_for():
    assert list(data(blocks=3).train_dataloader()) == [0, 1, 2]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"comparisons": []}, r"comparisons must be different numbers of at least 0, got \[\]"),
        ({"comparisons": [5, -1]}, r"comparisons must be different numbers of at least 0, got \[5, -1\]"),
        ({"comparisons": [5, 5]}, r"comparisons must be different numbers of at least 0, got \[5, 5\]"),
        ({"comparisons": -2}, "comparisons must be different numbers of at least 0, got -2"),
        ({"instances": 0}, "instances must be at least 1, got 0"),
        ({"blocks": 0}, "blocks must be at least 1, got 0"),
        ({"eval_batch_size": 0}, "eval_batch_size must be at least 1, got 0"),
    ],
)
def test_an_option_out_of_range_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        RobRelData(**options)
