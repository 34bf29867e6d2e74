from __future__ import annotations

import pytest
from megs2.schedule import Schedule

PAPER = Schedule(
    densify_until=15_000, reinit_every=5000, simplify_at=15_000, lobes_from=16_000, lobes_every=1000, prune_from=25_200,
    prune_until=35_200, prune_every=50,
)  # fmt: skip


def test_one_more_lobe_is_active_every_thousand_steps() -> None:
    assert [PAPER.lobes_at(step, 3) for step in (0, 15_999, 16_000, 16_999, 17_000, 18_000, 39_000)] == [
        0, 0, 1, 1, 2, 3, 3,
    ]  # fmt: skip
    assert PAPER.lobes_at(39_000, 1) == 1


def test_proxies_are_projected_every_fifty_steps_of_pruning() -> None:
    steps = [step for step in range(40_000) if PAPER.projects_at(step)]
    assert steps == list(range(25_200, 35_200, 50))
    assert 35_199 in PAPER.pruning
    assert 35_200 not in PAPER.pruning


def test_projections_are_counted_from_the_first() -> None:
    schedule = Schedule(prune_from=7, prune_until=20, prune_every=5)
    assert [step for step in range(30) if schedule.projects_at(step)] == [7, 12, 17]


def test_without_pruning_nothing_is_projected() -> None:
    assert not any(Schedule().projects_at(step) for step in range(100))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"prune_from": 5}, "go together, got 5 and None"),
        ({"prune_from": 9, "prune_until": 5}, "densify_until <= simplify_at <= prune_from < prune_until"),
        ({"prune_from": 5, "prune_until": 5}, "prune_from < prune_until"),
        ({"densify_until": 9, "simplify_at": 5}, "densify_until <= simplify_at"),
        ({"prune_every": 0}, "prune_every must be at least 1, got 0"),
        ({"lobes_from": -1}, "lobes_from must be at least 0, got -1"),
    ],
)
def test_phases_out_of_order_are_refused(options: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Schedule(**options)
