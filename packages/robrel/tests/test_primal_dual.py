"""The primal-dual method against linear programs, closed forms, and itself (batched, resumed)."""

import math

import numpy as np
import pytest
import torch
from robrel.exact import extreme
from robrel.feasible import box
from robrel.primal_dual import BatchCut, Domain, PrimalDual, solve

INF = torch.inf


def tensor(values):
    return torch.tensor(values, dtype=torch.float64)


def draw(seed, k=6, m=20):
    """Plain comparisons that a random reward agrees with."""
    rng = np.random.default_rng(seed)
    truth = rng.uniform(-1, 1, k)
    rows = rng.standard_normal((m, k))
    return rng.standard_normal(k), rows * np.sign(rows @ truth)[:, None]


def batch(seeds, m=20):
    """The problem's tensors for several seeds, and their exact minima."""
    drawn = [draw(seed, m=m) for seed in seeds]
    c, rows = np.stack([c for c, _ in drawn]), np.stack([rows for _, rows in drawn])
    exact = [extreme(c, box(6).with_rows(rows)).value for c, rows in drawn]
    lower, upper = torch.zeros(m, dtype=torch.float64), torch.full((m,), INF, dtype=torch.float64)
    one = torch.ones(6, dtype=torch.float64)
    return (tensor(c), tensor(rows), lower, upper, -one, one), tensor(exact)


def scalar(c, row, lower, upper, low=-1.0, high=1.0, radius=None, **options):
    """One instance of one parameter, or of the k of `c`, with one row."""
    k = len(c)
    args = tensor([c]), tensor([row]), tensor([lower]), tensor([upper]), torch.full((k,), low), torch.full((k,), high)
    return PrimalDual(*(a.double() for a in args), radius, **options)


def polytope(pieces, bound):
    """max over pieces of piece @ x <= bound, pieces (q, k), as an oracle for all instances."""

    def oracle(x):
        values = x @ pieces.T
        best = values.argmax(1)
        return values.gather(1, best[:, None])[:, 0], pieces[best]

    return BatchCut(oracle, bound)


def test_the_average_meets_the_linear_program():
    problem, exact = batch(range(8))
    found = solve(*problem, steps=10_000)
    assert (found.value - exact).abs().max() <= 2e-2
    assert found.violation.max() <= 2e-2
    assert (exact - found.dual_bound).max() <= 2e-2
    torch.testing.assert_close(found.gap, found.value - found.dual_bound, atol=0, rtol=0)


@pytest.mark.parametrize("steps", [1, 3, 30, 300, 3000])
def test_the_dual_bound_holds_after_any_number_of_steps(steps):
    problem, exact = batch(range(8))
    assert (solve(*problem, steps=steps).dual_bound <= exact + 1e-12).all()


def test_the_error_falls_like_the_inverse_root_of_the_steps():
    problem, exact = batch(range(12))
    errors = []
    steps = [100, 400, 1600, 6400]
    for t in steps:
        found = solve(*problem, steps=t)
        errors.append(float((torch.maximum(exact - found.dual_bound, found.violation)).mean()))
    slope = np.polyfit(np.log(steps), np.log(errors), 1)[0]
    assert -0.65 < slope < -0.35


def test_the_last_iterate_circles_while_the_average_converges():
    # min 0 subject to x = 0 has the saddle x = λ = 0; with c = 0.5 the saddle is x = 0, λ = 0.5.
    state = scalar([0.5], [1.0], 0.0, 0.0, steps=10_000, step_size=0.1).run(9_000)
    late = []
    for _ in range(1_000):
        state.run(1)
        late.append(float(state.x[0, 0, 0]))
    assert max(late) > 0.3
    assert min(late) < -0.3
    found = state.result()
    assert abs(float(found.x[0, 0])) < 5e-3
    assert float(found.duals[0, 0]) == pytest.approx(0.5, abs=5e-3)  # d min / d bound = c


def test_two_steps_by_hand():
    # min x subject to x >= 0.5 in [-1, 1] with α = 0.25, from x = λ = 0: λ1 = 0.25 (0.5 + 0.25).
    found = scalar([1.0], [1.0], 0.5, INF, steps=1000, step_size=0.25).run(2).result()
    x1, lam1 = -0.25, 0.1875
    x2 = x1 - 0.25 * (1 - lam1)
    lam2 = lam1 + 0.25 * (0.5 - x2)
    x, lam = (x1 + x2) / 2, (lam1 + lam2) / 2
    assert found.x.item() == pytest.approx(x, abs=1e-15)
    assert found.duals.item() == pytest.approx(lam, abs=1e-15)
    assert found.violation.item() == pytest.approx(0.5 - x, abs=1e-15)
    assert found.dual_bound.item() == pytest.approx(lam * 0.5 - abs(1 - lam), abs=1e-15)


def test_the_step_size_is_that_of_the_paper():
    problem, _ = batch([0])
    state = PrimalDual(*problem, steps=4000, step_size=0.3)
    expected = 0.3 * math.sqrt(1000 / 4000) / np.linalg.svd(problem[1][0].numpy())[1][0]
    assert state.alpha.item() == pytest.approx(expected, rel=1e-12)


def test_a_batch_equals_its_instances_one_by_one():
    problem, _ = batch(range(4))
    c, rows, *rest = problem
    together = solve(*problem, steps=500)
    for i in range(4):
        alone = solve(c[i : i + 1], rows[i], *rest, steps=500)
        torch.testing.assert_close(alone.x[0], together.x[i], atol=1e-9, rtol=0)
        torch.testing.assert_close(alone.dual_bound[0], together.dual_bound[i], atol=1e-9, rtol=0)
        torch.testing.assert_close(alone.duals[0], together.duals[i], atol=1e-9, rtol=0)


def test_sides_that_only_some_instances_have_do_not_touch_the_others():
    (c, rows, lower, _, low, high), _ = batch(range(3))
    upper = torch.full((3, 20), INF, dtype=torch.float64)
    upper[1, ::2] = 0.4
    mixed = solve(c, rows[0], lower, upper, low, high, steps=400)
    plain = solve(c, rows[0], lower, upper[0], low, high, steps=400)
    torch.testing.assert_close(mixed.x[[0, 2]], plain.x[[0, 2]], atol=1e-9, rtol=0)
    alone = solve(c[1:2], rows[0], lower, upper[1], low, high, steps=400)
    # α is that of both sides' norm, which the instance alone has in full.
    assert mixed.violation[1] > 0
    assert alone.dual_bound[0] == pytest.approx(float(mixed.dual_bound[1]), abs=1e-9)


def test_a_two_sided_row_has_both_signs_of_dual():
    for direction, dual in ((1.0, 1.0), (-1.0, -1.0)):  # min ±x on 0.2 <= x <= 0.6: the value moves with the bound
        found = scalar([direction], [1.0], 0.2, 0.6).run().result()
        assert found.value.item() == pytest.approx(0.2 if direction > 0 else -0.6, abs=5e-3)
        assert found.duals.item() == pytest.approx(dual, abs=5e-3)


def test_a_resumed_run_equals_an_unbroken_one_bit_for_bit():
    problem, _ = batch(range(3))
    pieces = torch.randn(5, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    options = {"steps": 300, "cuts": [polytope(pieces, 0.2)]}
    unbroken = PrimalDual(*problem, **options).run()
    first = PrimalDual(*problem, **options).run(120)
    saved = first.state_dict()
    first.run(7)  # what happens to the donor must not reach the saved state
    second = PrimalDual(*problem, **options)
    second.load_state_dict(saved)
    assert second.done == 120
    second.run()
    assert second.done == unbroken.done == 300
    for name, value in unbroken.state_dict().items():
        assert torch.equal(value, second.state_dict()[name]), name
    assert torch.equal(unbroken.result().x, second.result().x)
    assert torch.equal(unbroken.result().dual_bound, second.result().dual_bound)


def test_a_state_of_another_problem_is_refused():
    problem, _ = batch(range(2))
    state = PrimalDual(*problem, steps=100).run().state_dict()
    with pytest.raises(ValueError, match="another size"):
        PrimalDual(*batch(range(3))[0], steps=100).load_state_dict(state)
    with pytest.raises(ValueError, match="another step size"):
        PrimalDual(*problem, steps=200).load_state_dict(state)


def test_an_oracle_gives_what_its_rows_give_and_its_bound_is_valid():
    problem, _ = batch(range(4), m=0)
    pieces = tensor(np.random.default_rng(0).standard_normal((12, 6)))
    exact = tensor([extreme(c, box(6).with_rows(pieces.numpy(), -math.inf, 0.3)).value for c in problem[0].numpy()])
    for steps in (1, 10, 100):
        assert (solve(*problem, steps=steps, cuts=[polytope(pieces, 0.3)]).dual_bound <= exact + 1e-12).all()
    found = solve(*problem, cuts=[polytope(pieces, 0.3)])
    # Coarser than with rows: the subgradient jumps, so the step is smaller.
    assert (found.value - exact).abs().max() <= 0.15
    assert found.violation.max() <= 0.05
    assert (exact - found.dual_bound).max() <= 0.06
    assert (found.cut_duals < 0).all()


def test_every_step_asks_the_oracle_once():
    calls = 0

    def oracle(x):
        nonlocal calls
        calls += 1
        return x.square().sum(1), 2 * x

    problem, _ = batch(range(2))
    state = PrimalDual(*problem, steps=50, cuts=[BatchCut(oracle, 0.5)])
    calls = 0
    state.run()
    assert calls == 50


def test_a_ball_has_its_closed_form():
    none = torch.zeros(0, dtype=torch.float64)
    c = tensor([[3.0, -4.0], [0.0, 2.0]])
    args = c, none.reshape(0, 2), none, none, tensor([-1.0, -1.0]), tensor([1.0, 1.0])
    found = solve(*args, 0.5, steps=2000)
    torch.testing.assert_close(found.dual_bound, tensor([-2.5, -1.0]), atol=1e-12, rtol=0)
    torch.testing.assert_close(found.value, tensor([-2.5, -1.0]), atol=1e-2, rtol=0)


@pytest.mark.parametrize("radius", [0.4, 1.0, 1.3, 5.0])
def test_projection_and_minimum_over_box_and_ball_are_optimal(radius):
    low, high = tensor([-1.0, -0.2, 0.0]), tensor([0.5, 1.0, 1.0])
    domain = Domain.of(low, high, radius)
    g = torch.Generator().manual_seed(0)
    z = 2 * torch.randn(50, 3, generator=g, dtype=torch.float64)
    points = low + (high - low) * torch.rand(4000, 3, generator=g, dtype=torch.float64)
    points = points[points.norm(dim=1) <= radius]
    p = domain.project(z)
    assert (p >= low - 1e-12).all()
    assert (p <= high + 1e-12).all()
    assert (p.norm(dim=1) <= radius + 1e-12).all()
    # The projection is the point from which z lies at no acute angle to any other of the set.
    assert (((z - p)[:, None] * (points - p[:, None])).sum(-1) <= 1e-9).all()
    least = domain.least(z)
    assert (least <= (z @ points.T).amin(1) + 1e-9).all()
    step = domain.project(-1e4 * z)  # far against z, the projection tends to the minimiser
    torch.testing.assert_close(least, (z * step).sum(1), atol=1e-3, rtol=0)


@pytest.mark.parametrize(("radius", "kind"), [(None, "box"), (1.5, "box"), (1.2, "both"), (0.9, "ball")])
def test_the_domain_knows_which_of_box_and_ball_matter(radius, kind):
    one = torch.ones(2)
    assert Domain.of(-one, one, radius).kind == kind


def test_doubling_the_multiplier_bound_repairs_a_cap_that_is_too_small():
    # min x subject to 0.1 x >= 0.05 has λ = 10.
    args = [tensor([[1.0]]), tensor([[0.1]]), tensor([0.05]), tensor([INF]), tensor([-1.0]), tensor([1.0])]
    capped = solve(*args, multiplier_bound=3.0, steps=4000)
    assert capped.violation.item() == pytest.approx(0.15, abs=5e-3)  # x stays at -1, where 0.1 x = -0.1
    repaired = solve(*args, multiplier_bound=3.0, steps=4000, tolerance=0.01, doublings=3)
    assert repaired.violation.item() <= 0.01
    assert repaired.value.item() == pytest.approx(0.5, abs=0.05)


def test_the_run_stops_at_the_tolerance():
    problem, exact = batch(range(3))
    found = solve(*problem, steps=20_000, tolerance=0.02, check_every=500)
    assert found.steps < 20_000
    assert found.steps % 500 == 0
    assert found.gap.max() <= 0.02
    assert found.violation.max() <= 0.02
    assert (found.dual_bound <= exact).all()


def test_without_rows_the_bound_is_the_l1_norm():
    problem, _ = batch(range(3), m=0)
    found = solve(*problem, steps=2000)
    torch.testing.assert_close(found.dual_bound, -problem[0].abs().sum(1), atol=1e-12, rtol=0)
    assert found.duals.shape == (3, 0)


def test_the_inputs_are_left_alone():
    problem, _ = batch(range(2))
    copies = [t.clone() for t in problem]
    solve(*problem, steps=20)
    assert all(torch.equal(a, b) for a, b in zip(problem, copies, strict=True))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"c": torch.zeros(6).double()}, r"c must be floating point of shape \(B, k\)"),
        ({"rows": torch.zeros(3, 5).double()}, r"rows must have shape \(3, 6\)"),
        ({"lower": torch.zeros(4).double()}, r"lower must have shape \(20,\)"),
        ({"high": torch.zeros(6)}, "high must be torch.float64"),
        ({"high": -2 * torch.ones(6).double()}, "must not lie above"),
        ({"lower": torch.full((20,), math.nan).double()}, "must not lie above"),
        ({"low": torch.full((6,), -INF).double()}, "finite"),
        ({"steps": 0}, "must be positive, got 0"),
        ({"radius": -1.0}, "must be positive"),
        ({"multiplier_bound": 0.0}, "multiplier_bound must be positive, got 0.0"),
        ({"doublings": 2}, "doublings need a tolerance"),
        ({"tolerance": 0.0}, "tolerance and check_every must be positive"),
    ],
)
def test_bad_input_is_refused(change, message):
    names = ("c", "rows", "lower", "upper", "low", "high")
    with pytest.raises(ValueError, match=message):
        solve(**(dict(zip(names, batch([0])[0], strict=True)) | {"steps": 10} | change))


def test_an_average_of_no_steps_is_refused():
    with pytest.raises(ValueError, match="at least one step"):
        PrimalDual(*batch([0])[0]).result()
