from __future__ import annotations

import torch
from megs2.admm import Proxy


def top(values: torch.Tensor, count: int) -> torch.Tensor:
    kept = torch.zeros_like(values, dtype=torch.bool)
    kept[values.abs().topk(count).indices] = True
    return kept


def test_it_converges_to_the_best_sparse_solution_of_a_quadratic() -> None:
    # The problem is not convex: with rho below the curvature, 1, the choice would change for ever.
    # min 0.5 |x - t|^2 with three entries that are not 0: t itself at its three largest, 0 elsewhere
    target, rho = torch.tensor([0.9, -2.0, 0.3, 1.5, -0.1, 0.8]).double(), 3.0
    x = target.clone()
    proxy = Proxy.start(x, top(x, 3))
    for _ in range(300):
        # the minimum of 0.5 |x - t|^2 + rho / 2 |x - z + u|^2, in closed form
        x = (target + rho * (proxy.z - proxy.u)) / (1 + rho)
        proxy.update(x, top(x + proxy.u, 3))
    expected = torch.where(top(target, 3), target, torch.zeros_like(target))
    torch.testing.assert_close(proxy.z, expected, rtol=0, atol=1e-6)
    torch.testing.assert_close(x, expected, rtol=0, atol=1e-6)


def test_without_duals_it_stops_short_of_zero() -> None:
    target, rho = torch.tensor([2.0, 0.5]).double(), 0.3
    proxy = Proxy.start(target, top(target, 1))
    x = (target + rho * (proxy.z - proxy.u)) / (1 + rho)
    torch.testing.assert_close(x, torch.tensor([2.0, 0.5 / 1.3]).double())


def test_penalty_is_half_the_squared_distance_and_its_gradient_the_distance() -> None:
    x = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
    proxy = Proxy(torch.tensor([0.0, 2.0, 1.0]), torch.tensor([0.5, 0.0, 0.0]))
    penalty = proxy.penalty(x)
    assert float(penalty.detach()) == (1.5**2 + 0 + 2**2) / 2
    (grad,) = torch.autograd.grad(penalty, x)
    torch.testing.assert_close(grad, torch.tensor([1.5, 0.0, 2.0]))
    assert float(proxy.penalty(x.detach(), torch.tensor([True, True, False]))) == 1.5**2 / 2


def test_kept_entries_have_no_dual_and_removed_ones_collect_it() -> None:
    proxy = Proxy.start(torch.tensor([1.0, 0.2]), torch.tensor([True, False]))
    assert proxy.z.tolist() == [1.0, 0.0]
    assert proxy.u.tolist() == [0.0, 0.0]
    for times in (1, 2, 3):
        proxy.update(torch.tensor([0.9, 0.2]), torch.tensor([True, False]))
        torch.testing.assert_close(proxy.u, torch.tensor([0.0, 0.2 * times]))
        torch.testing.assert_close(proxy.z, torch.tensor([0.9, 0.0]))
    # What comes back is drawn to its value and all that it has collected, and owes nothing then.
    proxy.update(torch.tensor([0.9, 0.2]), torch.tensor([True, True]))
    torch.testing.assert_close(proxy.z, torch.tensor([0.9, 0.8]))
    torch.testing.assert_close(proxy.u, torch.zeros(2))
