"""Heterogeneous attention: its formula, its fast form, time and token order, masks, and what is learnt."""

import math

import pytest
import torch
import torch.nn.functional as F
from atom import attention
from atom.attention import HeterogeneousAttention, explicit_attention, heterogeneous_attention
from atom.rope import angles

B, P, N, D, H = 2, 3, 4, 12, 2
FORMS = pytest.mark.parametrize("form", [heterogeneous_attention, explicit_attention])


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def layer(**options):
    torch.manual_seed(0)
    options = {"streams": 3, "scale": "sqrt", "learn_scale": False, "dropout": 0.0, **options}
    return HeterogeneousAttention(D, H, **options).double()


def inputs(slots=P):
    """Queries, three streams, a mask with one padded atom in the second sample, and no rotation."""
    mask = torch.ones(B, N, dtype=torch.bool)
    mask[1, -1] = False
    streams = [normal(B, slots, N, D, seed=seed) for seed in (1, 2, 3)]
    theta = torch.zeros(B, P, D // H // 2, dtype=torch.float64)
    return normal(B, slots, N, D), streams, mask, theta


def rotation(times):
    return angles(torch.as_tensor(times, dtype=torch.float64).expand(B, -1), D // H, base=1000.0, tau=4.0)


@FORMS
def test_two_streams_of_two_keys_are_mixed_as_by_hand(form):
    q = torch.ones(1, 1, 1, 1).double()
    keys = [torch.tensor([0, math.log(2)]).double().view(1, 1, 2, 1), torch.zeros(1, 1, 2, 1).double()]
    values = [torch.tensor([3.0, 6.0]).double().view(1, 1, 2, 1), torch.tensor([10.0, 20.0]).double().view(1, 1, 2, 1)]
    gamma = torch.tensor([0.25, 0.75]).double()
    every = torch.ones(1, 2, dtype=torch.bool)
    # softmax(0, log 2) = (1/3, 2/3); with half the scale it is (1, √2) / (1 + √2).
    assert form(q, keys, values, gamma, every, 1.0).item() == pytest.approx(0.25 * 5 + 0.75 * 15, rel=1e-6)
    first = (3 + 6 * math.sqrt(2)) / (1 + math.sqrt(2))
    assert form(q, keys, values, gamma, every, 0.5).item() == pytest.approx(0.25 * first + 0.75 * 15, rel=1e-6)
    one = torch.tensor([[False, True]])
    assert form(q, keys, values, gamma, one, 1.0).item() == pytest.approx(0.25 * 6 + 0.75 * 20)


@FORMS
def test_dropout_drops_or_doubles_the_weight_of_a_single_key(form):
    torch.manual_seed(0)
    q, value = torch.zeros(1, 1, 400, 1), torch.ones(1, 1, 1, 1)
    out = form(q, [value], [value], torch.ones(1), torch.ones(1, 1, dtype=torch.bool), 1.0, dropout=0.5)
    assert set(out.flatten().tolist()) == {0.0, 2.0}
    assert abs(out.mean().item() - 1) < 0.2  # four standard deviations


def test_the_fast_form_equals_the_explicit_one_forward_and_backward_with_masks():
    mask = torch.tensor([[True] * 6 + [False], [True, False, True, False, True, False, False]])
    cotangent = normal(B, H, 5, 4, seed=9)
    found = []
    for form in (heterogeneous_attention, explicit_attention):
        q = normal(B, H, 5, 4).requires_grad_()
        keys = [normal(B, H, 7, 4, seed=seed).requires_grad_() for seed in (1, 2, 3)]
        values = [normal(B, H, 7, 4, seed=seed).requires_grad_() for seed in (4, 5, 6)]
        w = normal(3, seed=7).requires_grad_()
        out = form(q, keys, values, w.softmax(0), mask, 0.7)
        out.backward(cotangent)
        found.append([out, *(leaf.grad for leaf in (q, *keys, *values, w))])
    for fast, explicit in zip(*found, strict=True):
        torch.testing.assert_close(fast, explicit, rtol=1e-10, atol=1e-12)
    assert not found[0][2][0, :, 6].any()  # a masked key gets no gradient
    assert found[0][2][1, :, 2].any()


def test_with_all_weight_on_z_and_no_rotation_it_is_torch_s_attention_on_z():
    attend = layer()
    z, streams, mask, theta = inputs()
    with torch.no_grad():
        attend.w.copy_(torch.tensor([-math.inf, -math.inf, 0]))
    tokens = [t.flatten(1, 2).unflatten(-1, (H, -1)).transpose(1, 2)
              for t in (attend.q(z), attend.k(streams[2]), attend.v(streams[2]))]  # fmt: skip
    allowed = mask.repeat(1, P)[:, None, None]
    expected = F.scaled_dot_product_attention(*tokens, attn_mask=allowed)  # its scale is 1 / √d_h
    expected = attend.out(expected.transpose(1, 2).flatten(-2)).unflatten(1, (P, N))
    torch.testing.assert_close(attend(z, streams, mask, theta, theta), expected, rtol=1e-10, atol=1e-12)


def test_slot_constant_streams_are_given_once_or_for_each_slot_alike():
    attend = layer()
    z, streams, mask, _ = inputs(slots=1)
    theta = rotation([1.0, 3.0, 4.0])
    once = attend(z, streams, mask, theta, theta)
    repeated = attend(z.expand(-1, P, -1, -1), [f.expand(-1, P, -1, -1) for f in streams], mask, theta, theta)
    torch.testing.assert_close(once, repeated, rtol=1e-12, atol=1e-12)
    assert (once[:, 0] - once[:, 1]).abs().max() > 1e-3  # slots differ by their rotation


def test_tokens_are_ordered_by_time_and_then_by_atom(monkeypatch):
    seen = {}

    def spy(q, keys, values, gamma, key_mask, scale, dropout):
        seen.update(q=q, k=keys[1], v=values[0], mask=key_mask)
        return q

    monkeypatch.setattr(attention, "heterogeneous_attention", spy)
    attend = layer()
    z, streams, mask, theta = inputs()
    out = attend(z, streams, mask, theta, theta)
    for name, projected in (("q", attend.q(z)), ("k", attend.k(streams[1])), ("v", attend.v(streams[0]))):
        for p in range(P):
            for i in range(N):
                token = seen[name][:, :, p * N + i].flatten(1)  # heads side by side
                torch.testing.assert_close(token, projected[:, p, i])
    assert seen["mask"].tolist() == [[True] * 12, [True, True, True, False] * 3]
    torch.testing.assert_close(out, attend.out(attend.q(z)))  # and back again


def test_values_are_not_rotated():
    attend = layer()
    z, streams, mask, _ = inputs()
    with torch.no_grad():  # all keys alike, so that every query averages the values
        attend.q.weight.zero_()
        attend.q.bias.zero_()
    still, turned = (attend(z, streams, mask, theta, theta) for theta in (rotation([0, 0, 0]), rotation([1, 5, 9])))
    torch.testing.assert_close(still, turned, rtol=1e-10, atol=1e-12)


def test_the_answer_depends_on_differences_of_times_alone():
    attend = layer()
    z, streams, mask, _ = inputs()
    at, later, other = (attend(z, streams, mask, t, t) for t in map(rotation, ([1, 2, 4], [8, 9, 11], [1, 2, 5])))
    torch.testing.assert_close(at, later, rtol=1e-9, atol=1e-10)
    assert (at - other).abs().max() > 1e-3


def test_padded_atoms_are_no_keys():
    attend = layer()
    z, streams, mask, theta = inputs()
    changed = [f.clone() for f in streams]
    for f in changed:
        f[1, :, -1] = 1e3
    assert torch.equal(attend(z, streams, mask, theta, theta), attend(z, changed, mask, theta, theta))


@FORMS  # a softmax over no key is not a number, which only some of torch's fused kernels hide
def test_a_sample_without_atoms_has_finite_gradients_and_leaves_the_others_alone(monkeypatch, form):
    monkeypatch.setattr(attention, "heterogeneous_attention", form)
    attend = layer()
    z, streams, _, theta = inputs()
    mask = torch.tensor([[True] * N, [False] * N])
    for leaf in (z, *streams):
        leaf.requires_grad_()
    out = attend(z, streams, mask, theta, theta)
    out.square().sum().backward()
    assert out.isfinite().all()
    assert all(leaf.grad.isfinite().all() for leaf in (z, *streams, *attend.parameters()))
    alone = attend(z[:1], [f[:1] for f in streams], mask[:1], theta[:1], theta[:1])
    torch.testing.assert_close(out[:1], alone, rtol=1e-12, atol=1e-12)


def test_the_shares_of_the_streams_sum_to_one_and_are_learnt():
    attend = layer()
    z, streams, mask, theta = inputs()
    attend(z, streams, mask, theta, theta).square().sum().backward()
    assert attend.gamma.sum().item() == pytest.approx(1, abs=1e-12)
    assert attend.w.grad.abs().min() > 1e-6
    assert attend.w.grad.sum().item() == pytest.approx(0, abs=1e-10)  # softmax ignores a shift of w


def test_the_first_shares_are_softmax_of_normal_weights_of_a_tenth():
    torch.manual_seed(0)
    w = torch.cat([HeterogeneousAttention(4, 1).w.detach() for _ in range(300)])
    assert w.std().item() == pytest.approx(0.1, rel=0.1)
    assert abs(w.mean().item()) < 0.02


def test_the_linear_scale_divides_by_the_width_of_a_head_and_a_learnt_one_by_head_multiplies():
    z, streams, mask, theta = inputs()
    root, linear = layer(scale="sqrt"), layer(scale="linear", learn_scale=True)
    linear.load_state_dict(root.state_dict() | {"head_scale": torch.ones(H, 1, 1)})
    expected = root(z, streams, mask, theta, theta)
    assert (linear(z, streams, mask, theta, theta) - expected).abs().max() > 1e-4
    with torch.no_grad():
        linear.head_scale.fill_(math.sqrt(D // H))
    torch.testing.assert_close(linear(z, streams, mask, theta, theta), expected, rtol=1e-10, atol=1e-12)
    with torch.no_grad():
        linear.head_scale[1] = 0.5  # the second head's answer alone changes
        root.out.weight[:, D // H :] = 0
        linear.out.weight[:, D // H :] = 0
    torch.testing.assert_close(linear(z, streams, mask, theta, theta), root(z, streams, mask, theta, theta))


def test_the_weights_are_dropped_in_training_only():
    z, streams, mask, theta = inputs()
    attend = layer(dropout=0.5)
    expected = layer(dropout=0.0)(z, streams, mask, theta, theta)
    assert (attend(z, streams, mask, theta, theta) - expected).abs().max() > 1e-3
    torch.testing.assert_close(attend.eval()(z, streams, mask, theta, theta), expected)


def test_a_stream_alone_takes_part_whole():
    z, streams, mask, theta = inputs()
    attend = layer(streams=1)
    assert attend.gamma.item() == 1
    out = attend(z, streams[:1], mask, theta, theta)
    three = layer()
    three.load_state_dict(attend.state_dict() | {"w": torch.zeros(3)})
    torch.testing.assert_close(three(z, streams[:1] * 3, mask, theta, theta), out)
