from __future__ import annotations

from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from megs2.budget import joint, ratios

O_COST, S_COST = 57.0, 28.0


def random_values(seed: int, n: int = 4, k: int = 2) -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    return torch.rand(n, generator=g).double() ** 3, torch.rand(n, k, generator=g).double() ** 3


def cost_of(kept: torch.Tensor, lobes: torch.Tensor) -> float:
    return O_COST * int(kept.sum()) + S_COST * int(lobes.sum())


def best_within(values: torch.Tensor, lobes: torch.Tensor, budget: float) -> float:
    """Try every subset."""
    n, k = lobes.shape
    every = torch.tensor(list(product((0.0, 1.0), repeat=n + n * k)), dtype=values.dtype)
    kept, chosen = every[:, :n], every[:, n:].view(-1, n, k)
    legal = (chosen <= kept[..., None]).all(2).all(1)
    cost = O_COST * kept.sum(1) + S_COST * chosen.sum((1, 2))
    value = kept @ values + chosen.flatten(1) @ lobes.flatten()
    return float(value[legal & (cost <= budget)].max())


@pytest.mark.parametrize("seed", range(3))
def test_no_choice_of_the_memory_used_has_more_value(seed: int) -> None:
    values, lobes = random_values(seed)
    for budget in (60.0, 130.0, 200.0, 290.0):
        kept, chosen = joint(values, lobes, O_COST, S_COST, budget)
        used = cost_of(kept, chosen)
        assert used <= budget
        assert float(values[kept].sum() + lobes[chosen].sum()) == pytest.approx(best_within(values, lobes, used))
        # what is left over is less than one Gaussian with all of its lobes
        assert budget - used < O_COST + 2 * S_COST


def by_price(values: torch.Tensor, lobes: torch.Tensor, price: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Keep what the specification's two rules keep at a price."""
    chosen = lobes > price * S_COST
    gain = values + ((lobes - price * S_COST) * chosen).sum(1)
    kept = gain > price * O_COST
    return kept, chosen & kept[:, None]


def test_it_is_bisection_on_the_price_by_the_rules() -> None:
    values, lobes = random_values(9, 200, 3)
    for budget in (1000.0, 5000.0, 12_000.0):
        low, high = 0.0, 1.0
        for _ in range(200):
            middle = (low + high) / 2
            low, high = (middle, high) if cost_of(*by_price(values, lobes, middle)) > budget else (low, middle)
        kept, chosen = joint(values, lobes, O_COST, S_COST, budget)
        expected = by_price(values, lobes, high)
        assert torch.equal(kept, expected[0])
        assert torch.equal(chosen, expected[1])


def test_a_budget_for_all_keeps_all_and_one_below_a_gaussian_keeps_none() -> None:
    values, lobes = random_values(1, 50, 3)
    lobes[:10, 1:] = 0  # not there
    everything = 50 * O_COST + int((lobes > 0).sum()) * S_COST
    kept, chosen = joint(values, lobes, O_COST, S_COST, everything)
    assert bool(kept.all())
    assert torch.equal(chosen, lobes > 0)
    kept, chosen = joint(values, lobes, O_COST, S_COST, O_COST - 1)
    assert not bool(kept.any() | chosen.any())


@settings(max_examples=20, deadline=None)
@given(
    st.lists(st.tuples(*[st.sampled_from([0.0, 1e-30, 1e-3, 1.0, 1.0, 7.0, 1e30])] * 3), min_size=1, max_size=8),
    st.floats(0, 900),
)
def test_the_budget_is_never_exceeded_and_lobes_never_stay_alone(rows: list[tuple[float, ...]], budget: float) -> None:
    table = torch.tensor(rows, dtype=torch.float32)
    kept, chosen = joint(table[:, 0], table[:, 1:], O_COST, S_COST, budget)
    assert cost_of(kept, chosen) <= budget
    assert not bool((chosen & ~kept[:, None]).any())
    assert not bool((chosen & (table[:, 1:] == 0)).any())


def test_entries_without_value_stay_only_where_all_that_there_is_fits() -> None:
    values, lobes = torch.tensor([2.0, 0.0, 0.0]), torch.tensor([[1.0], [0.0], [0.0]])
    for budget, expected in ((3 * O_COST + S_COST, [True] * 3), (3 * O_COST + S_COST - 1, [True, False, False])):
        kept, chosen = joint(values, lobes, O_COST, S_COST, budget)
        assert kept.tolist() == expected
        assert chosen.tolist() == [[True], [False], [False]]


def test_more_memory_never_removes_what_less_would_keep() -> None:
    values, lobes = random_values(4, 60, 3)
    before = joint(values, lobes, O_COST, S_COST, 0.0)
    assert not bool(before[0].any())
    for budget in range(100, 9000, 350):
        kept, chosen = joint(values, lobes, O_COST, S_COST, float(budget))
        assert not bool((before[0] & ~kept).any() | (before[1] & ~chosen).any())
        before = kept, chosen
    assert bool(before[0].all() & before[1].all())


def test_of_equal_entries_all_go_where_not_all_fit() -> None:
    values, lobes = torch.tensor([3.0, 1.0, 1.0, 1.0]), torch.zeros(4, 2)
    for budget, expected in ((4 * O_COST, 4), (3 * O_COST, 1), (O_COST, 1)):
        assert int(joint(values, lobes, O_COST, S_COST, budget)[0].sum()) == expected


def test_a_worthless_gaussian_stays_for_the_sake_of_its_lobe() -> None:
    values, lobes = torch.tensor([0.0, 0.5]), torch.tensor([[2.0], [0.0]])
    kept, chosen = joint(values, lobes, O_COST, S_COST, O_COST + S_COST)
    assert kept.tolist() == [True, False]
    assert chosen.tolist() == [[True], [False]]


def test_values_that_are_no_numbers_are_refused() -> None:
    with pytest.raises(ValueError, match="at least 0"):
        joint(torch.tensor([float("nan")]), torch.zeros(1, 0), O_COST, S_COST, 10.0)
    with pytest.raises(ValueError, match="at least 0"):
        joint(torch.ones(1), torch.tensor([[1.0, -1.0]]), O_COST, S_COST, 10.0)
    with pytest.raises(ValueError, match=r"budget at least 0, got 57\.0, 28\.0 and nan"):
        joint(torch.ones(1), torch.zeros(1, 0), O_COST, S_COST, float("nan"))
    with pytest.raises(ValueError, match=r"costs must be positive"):
        joint(torch.ones(1), torch.zeros(1, 0), 0.0, S_COST, 10.0)


def test_ratios_remove_exact_shares_of_the_lowest() -> None:
    weights = torch.tensor([3.0, 1.0, 2.0, 4.0])
    scores = torch.tensor([[9.0, 1.0], [8.0, 7.0], [2.0, 3.0], [4.0, 5.0]])
    active = torch.tensor([[True, True], [True, True], [True, True], [True, False]])
    kept, lobes = ratios(weights, scores, active, 0.5, 3 / 7)
    assert kept.tolist() == [True, False, False, True]
    # the lowest three of seven lobes go: 1, 2, 3; those of removed Gaussians go with them
    assert lobes.tolist() == [[True, False], [False, False], [False, False], [True, False]]


def test_infinite_values_are_refused() -> None:
    with pytest.raises(ValueError, match="finite numbers of at least 0"):
        joint(torch.tensor([float("inf"), 1.0, 2.0]), torch.zeros(3, 0), O_COST, S_COST, 130.0)
