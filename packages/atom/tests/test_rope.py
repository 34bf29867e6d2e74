"""T-RoPE: its angles, its numbers, and that scores depend on differences of times alone."""

import math

import pytest
import torch
from atom.rope import angles, rotate
from torch.autograd import gradcheck

Q, K = torch.tensor([1.0, 2.0, 3.0, 4.0]).double(), torch.tensor([0.5, -1.0, 2.0, 0.1]).double()


def score(query_time, key_time):
    theta = angles(torch.tensor([query_time, key_time], dtype=torch.float64), 4, base=1000.0)
    return float(rotate(Q, theta[0]) @ rotate(K, theta[1]))


@pytest.mark.parametrize(
    ("times", "expected"),
    [((0, 0), 4.9), ((6, 6), 4.9), ((3, 5), 9.31668554), ((10, 12), 9.31668554), ((5, 3), 4.70616350)],
)
def test_scores_of_a_worked_example(times, expected):
    assert score(*times) == pytest.approx(expected, abs=1e-8)


def test_scores_of_real_times_depend_on_their_difference_alone():
    assert score(1.7, 4.2) == pytest.approx(score(101.7, 104.2), abs=1e-10)
    assert abs(score(1.7, 4.2) - score(1.7, 4.3)) > 1e-2


def test_angles_fall_off_with_the_pair_and_grow_with_the_time_in_units_of_tau():
    theta = angles(torch.tensor([[4.0, 12.0]]).double(), 6, base=1000.0, tau=8.0)
    expected = [[0.5, 0.05, 0.005], [1.5, 0.15, 0.015]]  # base^(-2 / 6) = 1 / 10
    torch.testing.assert_close(theta, torch.tensor([expected]).double())


def test_a_pair_of_neighbours_turns_counter_clockwise():
    turned = rotate(torch.tensor([1.0, 0.0, 0.0, 1.0]).double(), torch.tensor([math.pi / 6, math.pi / 2]).double())
    torch.testing.assert_close(turned, torch.tensor([math.sqrt(3) / 2, 0.5, -1.0, 0.0]).double())


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_norms_and_types_are_kept(dtype):
    gen = torch.Generator().manual_seed(0)
    x = torch.randn(2, 3, 5, 8, generator=gen).to(dtype)
    theta = 100 * torch.randn(2, 1, 5, 4, generator=gen)
    turned = rotate(x, theta)
    assert turned.dtype == dtype
    assert not torch.equal(turned, x)
    tolerance = {torch.float64: 1e-6, torch.float32: 1e-5, torch.bfloat16: 2e-2}[dtype]  # the angles are float32
    torch.testing.assert_close(turned.norm(dim=-1), x.norm(dim=-1), rtol=tolerance, atol=tolerance)


def test_a_broadcast_rotation_is_the_product_with_its_matrix():
    gen = torch.Generator().manual_seed(0)
    x = torch.randn(2, 1, 4, generator=gen).double()
    theta = torch.randn(3, 2, generator=gen).double()
    blocks = [torch.block_diag(*(torch.tensor([[math.cos(t), -math.sin(t)], [math.sin(t), math.cos(t)]])
                                 for t in row.tolist())).double() for row in theta]  # fmt: skip
    expected = torch.stack([x[:, 0] @ r.T for r in blocks], dim=1)
    torch.testing.assert_close(rotate(x, theta), expected, rtol=1e-6, atol=1e-6)


def test_gradients_are_those_of_finite_differences():
    gen = torch.Generator().manual_seed(0)
    x = torch.randn(2, 3, 4, generator=gen).double().requires_grad_()
    theta = torch.randn(3, 2, generator=gen).double().requires_grad_()
    assert gradcheck(rotate, (x, theta))


@pytest.mark.parametrize("width", [0, 3])
def test_a_width_without_pairs_is_refused(width):
    with pytest.raises(ValueError, match=f"a head's width must be even for its pairs to rotate, got {width}"):
        angles(torch.zeros(1), width)
