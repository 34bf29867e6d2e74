"""The one-cycle factor against torch's schedule, and where epochs differ in length."""

import itertools
import math

import pytest
import torch
from orderdp.schedule import one_cycle
from torch.optim.lr_scheduler import OneCycleLR


def factors(lengths, **options):
    """The factor of every step of epochs with these numbers of steps."""
    return [
        one_cycle(epoch, step, steps=steps, epochs=len(lengths), **options)
        for epoch, steps in enumerate(lengths)
        for step in range(steps)
    ]


def torch_factors(total, pct_start, div, final_div):
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=1.0)
    schedule = OneCycleLR(
        optimizer, 1.0, total_steps=total, pct_start=pct_start, div_factor=div, final_div_factor=final_div,
        cycle_momentum=False, anneal_strategy="cos", three_phase=False,
    )  # fmt: skip
    rates = []
    for _ in range(total):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    return rates


@pytest.mark.parametrize(
    ("epochs", "steps", "pct_start", "div", "final_div"),
    [
        (20, 19, 0.3, 25.0, 1e4),
        (1, 10, 0.3, 25.0, 1e4),
        (7, 3, 0.1, 25.0, 1e4),
        (5, 1, 0.5, 10.0, 100.0),
        (90, 4, 0.85, 4.0, 1e3),
        (3, 8, 0.07, 25.0, 1e4),
    ],
)
def test_factors_are_torchs_where_epochs_are_equally_long(epochs, steps, pct_start, div, final_div):
    ours = factors([steps] * epochs, pct_start=pct_start, div=div, final_div=final_div)
    # The absolute part is torch's own rounding near the end, where it subtracts two numbers of size 1.
    assert ours == pytest.approx(torch_factors(epochs * steps, pct_start, div, final_div), rel=1e-9, abs=1e-14)


def test_cycle_starts_at_one_over_div_peaks_at_one_and_ends_at_the_final_rate():
    ours = factors([10] * 10, div=20.0, final_div=500.0)
    assert ours[0] == pytest.approx(1 / 20, rel=1e-12)
    assert max(ours) == ours[29] == pytest.approx(1.0, rel=1e-12)  # the last step of the 30% that warm up
    assert ours[-1] == pytest.approx(1 / (20 * 500), rel=1e-9)
    assert ours[14] == pytest.approx(1 / 20 + (1 - 1 / 20) * (1 - math.cos(math.pi * 14 / 29)) / 2, rel=1e-12)


@pytest.mark.parametrize("lengths", [[19, 6, 7, 5, 6, 19], [40, 13, 21, 9, 33, 10, 40, 40], [5, 50, 5, 50]])
def test_epochs_of_different_length_join_without_a_jump_and_end_at_the_end(lengths):
    epochs, shortest, ours = len(lengths), min(lengths), factors(lengths)
    assert ours[-1] == pytest.approx(1 / (25 * 1e4), rel=1e-9)
    assert 0.97 < max(ours) <= 1
    peak = ours.index(max(ours))
    assert ours[: peak + 1] == sorted(ours[: peak + 1])
    # The steepest slope of a cosine is π/2 over its length; a step is at most one of the shortest epoch,
    # and the peak moves by less than that between epochs.
    slope = math.pi / 2 / min(0.3 * epochs - 1 / shortest, 0.7 * epochs)
    steps = [abs(b - a) for a, b in itertools.pairwise(ours)]
    assert max(steps) <= 2 * slope / shortest


def test_equal_places_have_nearly_equal_rates_whatever_the_length_of_epochs():
    coarse = one_cycle(6, 2, steps=4, epochs=10)
    fine = one_cycle(6, 500, steps=1000, epochs=10)
    assert coarse == pytest.approx(fine, abs=math.pi / 2 / 7 / 4)


def test_a_warm_up_shorter_than_a_step_starts_at_the_peak():
    assert factors([2, 2], pct_start=0.2)[0] == pytest.approx(1.0, abs=0.02)
