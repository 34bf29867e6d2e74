import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from nat.geometry import (
    boundary_distance,
    effective_classes,
    entropy,
    hoyer_sparsity,
    hyperplane_distance,
    inter_boundary_distance,
    logit_margin,
)


def head(seed, n=7, d=4, k=5):
    generator = torch.Generator().manual_seed(seed)
    shapes = ((n, d), (k, d), (k,))
    tensors = [torch.randn(shape, dtype=torch.float64, generator=generator) for shape in shapes]
    return *tensors, torch.randint(k, (n,), generator=generator)


def test_entropy_matches_the_hand_computed_number():
    logits = torch.tensor([[4.0, 1.0, 0.0]], dtype=torch.float64)
    assert entropy(logits).item() == pytest.approx(0.2743131, abs=5e-8)
    assert effective_classes(logits).item() == pytest.approx(math.exp(0.2743131), abs=1e-7)


def test_uniform_and_one_hot_are_the_extremes_of_sparsity():
    logits = torch.tensor([[3.0] * 8, [1e4] + [-1e4] * 7])
    assert entropy(logits).tolist() == pytest.approx([math.log(8), 0.0], abs=1e-6)
    assert effective_classes(logits).tolist() == pytest.approx([8.0, 1.0], abs=1e-5)
    assert hoyer_sparsity(logits).tolist() == pytest.approx([0.0, 1.0], abs=1e-6)


def test_two_equal_peaks_of_four_classes():
    logits = torch.tensor([[0.0, 0.0, -200.0, -200.0]], dtype=torch.float64)
    assert effective_classes(logits).item() == pytest.approx(2.0)
    assert hoyer_sparsity(logits).item() == pytest.approx(2 - math.sqrt(2))  # (√4 − 1/√½) / (√4 − 1)


@given(st.lists(st.floats(-20, 20), min_size=3, max_size=3), st.floats(-50, 50))
@settings(max_examples=50, deadline=None)
def test_sparsity_ignores_a_constant_and_the_order_of_classes(values, shift):
    logits = torch.tensor([values], dtype=torch.float64)
    for measure in (entropy, effective_classes, hoyer_sparsity):
        torch.testing.assert_close(measure(logits + shift), measure(logits), rtol=1e-9, atol=1e-10)
        torch.testing.assert_close(measure(logits.flip(1)), measure(logits), rtol=1e-9, atol=1e-10)


def test_entropy_has_a_correct_gradient():
    assert torch.autograd.gradcheck(entropy, torch.randn(3, 4, dtype=torch.float64, requires_grad=True))


def test_margin_is_to_the_best_other_class():
    logits = torch.tensor([[4.0, 1.0, 0.0], [4.0, 1.0, 0.0], [-1.0, -2.0, -5.0]])
    assert logit_margin(logits, torch.tensor([0, 2, 1])).tolist() == [3.0, -4.0, -1.0]


def test_boundary_distance_equals_the_minimum_over_explicit_loops():
    h, w, b, y = head(0)
    expected = [
        min(
            abs((w[y[n]] - w[c]).numpy() @ h[n].numpy() + float(b[y[n]] - b[c]))
            / np.linalg.norm((w[y[n]] - w[c]).numpy())
            for c in range(5)
            if c != y[n]
        )
        for n in range(7)
    ]
    np.testing.assert_allclose(boundary_distance(h, w, b, y).numpy(), expected, rtol=1e-12)


def test_a_step_of_the_boundary_distance_reaches_a_tie():
    h, w, b, _ = head(1, n=1)
    y = (h @ w.T + b).argmax(1)
    distance = boundary_distance(h, w, b, y)
    moved = []
    for c in set(range(5)) - {y.item()}:
        direction = (w[c] - w[y[0]]) / (w[c] - w[y[0]]).norm()
        moved.append(logit_margin((h + distance * direction) @ w.T + b, y).item())
    assert min(moved) == pytest.approx(0.0, abs=1e-12)


def test_boundary_distance_does_not_change_when_all_rows_and_biases_move_together():
    h, w, b, y = head(2)
    shifted = boundary_distance(h, w + torch.arange(4), b - 3, y)
    torch.testing.assert_close(boundary_distance(h, w, b, y), shifted, rtol=1e-10, atol=1e-12)


def test_classes_with_one_row_have_a_boundary_everywhere_or_nowhere():
    h, y = torch.ones(1, 2), torch.tensor([0])
    w = torch.ones(2, 2)
    assert boundary_distance(h, w, torch.tensor([0.0, 1.0]), y).item() == math.inf
    assert boundary_distance(h, w, torch.tensor([1.0, 1.0]), y).item() == 0.0


def test_hyperplane_distance_equals_the_printed_formula():
    h, w, b, _ = head(3)
    expected = [
        [abs(float(w[c] @ h[n] + b[c])) / math.sqrt(float((w[c] ** 2).sum())) for c in range(5)] for n in range(7)
    ]
    np.testing.assert_allclose(hyperplane_distance(h, w, b).numpy(), expected, rtol=1e-12)


def test_inter_boundary_distance_of_a_hand_drawn_pair():
    # d = (1, 0): all of γ = (0, 3) remains. d = (2, 3) / √13: of γ = (0, −3) there remains 3 · 2 / √13.
    distance = inter_boundary_distance(torch.tensor([[2.0, 0.0], [2.0, 3.0]], dtype=torch.float64))
    expected = torch.tensor([[0.0, 3.0], [6 / math.sqrt(13), 0.0]], dtype=torch.float64)
    torch.testing.assert_close(distance, expected, rtol=1e-12, atol=1e-12)


def test_inter_boundary_distance_is_norm_times_sine_of_the_angle():
    _, w, _, _ = head(4)
    cosine = torch.nn.functional.cosine_similarity(w[:, None], w[None], dim=2)
    expected = w.norm(dim=1) * (1 - cosine**2).clamp(min=0).sqrt()
    torch.testing.assert_close(inter_boundary_distance(w), expected, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(
    ("function", "arguments", "message"),
    [
        (hoyer_sparsity, [torch.zeros(2, 1)], "at least 2 classes, got 1"),
        (inter_boundary_distance, [torch.tensor([[1.0], [0.0]])], r"no zero rows, got .* \[1\]"),
        (hyperplane_distance, [torch.zeros(1, 3), torch.ones(2, 4), torch.zeros(2)], r"\(1, 3\), \(2, 4\)"),
        (hyperplane_distance, [torch.zeros(1, 3), torch.ones(2, 3), torch.zeros(3)], r"\(K,\), K >= 2"),
        (
            boundary_distance,
            [torch.zeros(1, 3), torch.ones(2, 3), torch.zeros(2), torch.tensor([0, 1])],
            r"labels must have shape \(1,\), got \(2,\)",
        ),
    ],
)
def test_impossible_input_is_named(function, arguments, message):
    with pytest.raises(ValueError, match=message):
        function(*arguments)
