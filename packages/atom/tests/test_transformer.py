"""ATOM: symmetries, padding, time, the blocks' recurrence, the output heads, gradients and options."""

import math
from functools import cache

import pytest
import torch
from atom import attention
from atom.attention import explicit_attention
from atom.lifting import hidden_irreps
from atom.transformer import ATOM, Block, SwiGLU
from torch import nn

P = 3


def network(dtype=torch.float64, **options):
    """A small network whose readout is not zero, in evaluation mode."""
    torch.manual_seed(0)
    fixed = {
        "depth": 2, "width": 16, "heads": 2, "output_heads": 3, "rrwp_steps": 4, "lifting": "equivariant",
        "rope_time": "lag", "tau": 4.0, "rope_base": 1000.0, "anchor_keys": False, "heterogeneous": True,
        "attention_scale": "sqrt", "learn_scale": False, "attention_dropout": 0.2, "dropout": 0.1, "norm": "rms",
        "norm_eps": 1e-6, "residual": "normed", "value_residual": "learned", "delta_update": False, "center": True,
        "position_scale": 1.0, "velocity_scale": 1.0, "z_scale": 0.1,
    }  # fmt: skip
    made = ATOM(**{**fixed, **options})
    return made.to(dtype).eval()


shared_network = cache(network)  # for tests that do not change it


def state(dtype=torch.float64):
    """A path of five atoms and one of three, padded."""
    gen = torch.Generator().manual_seed(0)
    mask = torch.arange(5) < torch.tensor([[5], [3]])
    x = torch.randn(2, 5, 3, generator=gen, dtype=dtype) * mask[..., None]
    v = 0.3 * torch.randn(2, 5, 3, generator=gen, dtype=dtype) * mask[..., None]
    z = torch.tensor([[6, 6, 8, 7, 6], [8, 6, 7, 0, 0]])
    path = torch.diag(torch.ones(4, dtype=dtype), 1)
    bonds = (path + path.T) * mask[:, :, None] * mask[:, None]
    return x, v, z, torch.tensor([[2.0, 5.0, 6.0], [4.0, 8.0, 12.0]], dtype=dtype), bonds, mask


def padded(inputs, more):
    x, v, z, lags, bonds, mask = inputs
    end = (0, 0, 0, more)
    pad = nn.functional.pad
    return pad(x, end), pad(v, end), pad(z, (0, more)), lags, pad(bonds, (0, more, 0, more)), pad(mask, (0, more))


def sample(b, atoms):
    """One sample of `state` without its padding."""
    x, v, z, lags, bonds, mask = (part[b : b + 1] for part in state())
    return x[:, :atoms], v[:, :atoms], z[:, :atoms], lags, bonds[:, :atoms, :atoms], mask[:, :atoms]


def centre_of(x, mask):
    """The mean position (B, 1, 3) of the atoms that exist."""
    return torch.stack([atoms[kept].mean(0, keepdim=True) for atoms, kept in zip(x, mask, strict=True)])


def stream(seed):
    return torch.randn(2, 1, 5, 16, generator=torch.Generator().manual_seed(seed)).double()


def differ(a, b):
    return (a - b).abs().max().item() > 1e-3


@pytest.mark.parametrize("anchor_keys", [False, True])
def test_permuted_atoms_give_permuted_predictions(anchor_keys):
    x, v, z, lags, bonds, mask = state()
    order = torch.tensor([3, 1, 4, 0, 2])
    model = shared_network(anchor_keys=anchor_keys)
    expected = model(x, v, z, lags, bonds, mask)[:, :, order]
    mixed = bonds[:, order][:, :, order]
    actual = model(x[:, order], v[:, order], z[:, order], lags, mixed, mask[:, order])
    torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-12)
    assert differ(actual, expected[:, :, order])


@pytest.mark.parametrize("delta_update", [False, True])
def test_a_moved_state_moves_the_prediction_with_it_if_the_centre_is_subtracted(delta_update):
    x, v, z, lags, bonds, mask = state(torch.float32)
    away = torch.tensor([3.0, -2.0, 5.0]) * mask[..., None]
    for center in (True, False):
        model = network(torch.float32, center=center, delta_update=delta_update)
        nn.init.normal_(model.readout.weight)
        expected = model(x, v, z, lags, bonds, mask) + away[:, None]
        moved = model(x + away, v, z, lags, bonds, mask)
        if center:
            torch.testing.assert_close(moved, expected, rtol=0, atol=1e-4)
        else:
            assert (moved - expected).abs().max() > 0.1


@pytest.mark.parametrize("lifting", ["equivariant", "no_tensor_product", "none"])
@pytest.mark.parametrize("anchor_keys", [False, True])
def test_more_padding_changes_nothing_and_stays_zero(lifting, anchor_keys):
    inputs = state(torch.float32)
    model = network(torch.float32, lifting=lifting, anchor_keys=anchor_keys)
    expected = model(*inputs)
    actual = model(*padded(inputs, 7))
    torch.testing.assert_close(actual[:, :, :5], expected, rtol=1e-5, atol=1e-5)
    assert not actual[:, :, 5:].any()
    assert not expected[1, :, 3:].any()
    assert expected[1, :, :3].abs().min() > 0


def test_a_batch_gives_what_its_samples_give_alone():
    together = shared_network()(*state())
    for b, atoms in ((0, 5), (1, 3)):
        alone = shared_network()(*sample(b, atoms))
        torch.testing.assert_close(together[b : b + 1, :, :atoms], alone, rtol=1e-10, atol=1e-12)


def test_a_sample_without_atoms_has_a_finite_gradient_and_predicts_zeros():
    x, v, z, lags, bonds, mask = state()
    keep = torch.tensor([True, False])
    mask = mask & keep[:, None]
    x, v, bonds = ((t * keep[:, None, None]).requires_grad_() for t in (x, v, bonds))
    model = network()
    out = model(x, v, z * keep[:, None], lags, bonds, mask)
    out.square().sum().backward()
    assert not out[1].any()
    assert all(leaf.grad.isfinite().all() for leaf in (x, v, *model.parameters()))
    assert x.grad[0].any()
    assert not x.grad[1].any()


def test_the_gradient_of_the_state_is_that_of_finite_differences():
    x, v, *rest = sample(1, 3)
    model = network(depth=1)
    assert torch.autograd.gradcheck(lambda x, v: model(x, v, *rest), (x.requires_grad_(), v.requires_grad_()))


def test_the_same_lags_give_the_same_slots_and_each_slot_is_predicted_for_its_lag():
    x, v, z, lags, bonds, mask = state()
    swapped = shared_network()(x, v, z, lags[:, [2, 0, 1]], bonds, mask)
    expected = shared_network()(x, v, z, lags, bonds, mask)
    torch.testing.assert_close(swapped, expected[:, [2, 0, 1]], rtol=1e-9, atol=1e-10)
    assert differ(expected[:, 0], expected[:, 1])
    alike = shared_network()(x, v, z, torch.full_like(lags, 5), bonds, mask)
    torch.testing.assert_close(alike[:, 0], alike[:, 2], rtol=1e-10, atol=1e-12)


def test_relative_times_hide_when_the_lags_begin_and_anchored_keys_show_it():
    x, v, z, lags, bonds, mask = state()
    for anchor_keys in (False, True):
        model = shared_network(anchor_keys=anchor_keys)
        at, later = model(x, v, z, lags, bonds, mask), model(x, v, z, lags + 10, bonds, mask)
        if anchor_keys:
            assert differ(at, later)
        else:
            torch.testing.assert_close(at, later, rtol=1e-8, atol=1e-9)


def test_anchored_keys_are_one_more_slot_of_the_lifted_streams_at_the_start(monkeypatch):
    seen = []

    def spy(q, keys, values, gamma, key_mask, *rest):
        seen.append((keys, values, key_mask))
        return explicit_attention(q, keys, values, gamma, key_mask, *rest)

    monkeypatch.setattr(attention, "heterogeneous_attention", spy)
    x, v, z, lags, bonds, mask = state()
    model = network(anchor_keys=True)
    model(x, v, z, lags, bonds, mask)
    block = model.blocks[1]
    keys, values, key_mask = seen[1]  # of the second block, where X is no longer as it was lifted
    for lifted, key, value in zip(model.streams(x - centre_of(x, mask), v, z, bonds), keys, values, strict=True):
        normed = block.norm(lifted)[0, 0]  # of the molecule without padding
        for projected, found in ((block.attention.k(normed), key), (block.attention.v(normed), value)):
            torch.testing.assert_close(found[0, :, :5].transpose(0, 1).flatten(1), projected)
    assert torch.equal(key_mask, mask.repeat(1, 1 + P))


def test_the_slot_s_index_hides_the_horizon_and_the_real_lag_does_not():
    x, v, z, lags, bonds, mask = state()
    for rope_time, blind in (("index", True), ("none", True), ("lag", False)):
        model = shared_network(rope_time=rope_time)
        near, far = model(x, v, z, lags, bonds, mask), model(x, v, z, 3 * lags, bonds, mask)
        assert torch.equal(near, far) == blind
        if rope_time != "none":
            assert differ(near[:, 0], near[:, 2])
        else:
            torch.testing.assert_close(near[:, 0], near[:, 2])


def test_for_uniform_lags_and_tau_of_one_step_the_lag_is_the_slot_s_index():
    x, v, z, _, bonds, mask = state()
    horizon = 48.0
    lags = horizon / P * torch.arange(1, P + 1, dtype=x.dtype).expand(2, -1)
    by_lag, by_index = shared_network(tau=horizon / P), shared_network(rope_time="index")
    steps = by_lag.slot_angles(lags) - by_index.slot_angles(lags)
    torch.testing.assert_close(steps, steps[:, :1].expand_as(steps))  # a constant shift, of one slot
    torch.testing.assert_close(steps[0, 0, 0].item(), 1.0)
    torch.testing.assert_close(
        by_lag(x, v, z, lags, bonds, mask), by_index(x, v, z, lags, bonds, mask), rtol=1e-8, atol=1e-9
    )


def test_angles_are_float32_at_least():
    lags = torch.tensor([[1.0, 23_999.0]])
    exact = shared_network(torch.float32).slot_angles(lags.bfloat16().float())
    assert torch.equal(shared_network(torch.float32).slot_angles(lags.bfloat16()), exact)


def test_a_single_lag_is_refused_where_it_would_be_invisible():
    x, v, z, lags, bonds, mask = state()
    with pytest.raises(ValueError, match="a single lag is invisible to relative times"):
        shared_network()(x, v, z, lags[:, :1], bonds, mask)
    anchored = shared_network(anchor_keys=True)
    assert differ(anchored(x, v, z, lags[:, :1], bonds, mask), anchored(x, v, z, lags[:, 2:], bonds, mask))


def test_the_untrained_network_that_predicts_displacements_is_the_identity_exactly():
    x, v, z, lags, bonds, mask = state(torch.float32)
    away = 100 * mask[..., None]  # where rounding would show
    for center in (True, False):
        model = network(torch.float32, delta_update=True, center=center)
        assert torch.equal(model(x + away, v, z, lags, bonds, mask), (x + away)[:, None].expand(-1, P, -1, -1))


def test_predicting_displacements_adds_the_first_positions():
    x, *_, mask = inputs = state()
    absolute, relative = network(delta_update=False), network(delta_update=True)
    relative.load_state_dict(absolute.state_dict())
    origin = centre_of(x, mask) * mask[..., None]
    torch.testing.assert_close(relative(*inputs) - x[:, None], absolute(*inputs) - origin[:, None])


@pytest.mark.parametrize(
    ("value_residual", "share"), [("none", 1.0), ("fixed", 0.6224593312), ("learned", 0.6224593312)]
)  # σ(0.5)
def test_later_blocks_are_mixed_with_the_first_as_by_hand(value_residual, share):
    *_, lags, _, mask = state()
    model = network(value_residual=value_residual)
    x, v, z = map(stream, (1, 2, 3))
    theta = model.slot_angles(lags)
    first = model.blocks[0](x, v, z, mask, theta)
    second = model.blocks[1](first, v, z, mask, theta)
    mixed = share * second + (1 - share) * first
    torch.testing.assert_close(model.encode(x, v, z, theta, mask), mixed, rtol=1e-7, atol=1e-7)
    assert differ(first, second)
    assert model.mix.requires_grad == (value_residual == "learned")


def test_a_third_block_is_mixed_with_the_first_and_not_the_second():
    *_, lags, _, mask = state()
    model = network(depth=3)
    with torch.no_grad():
        model.mix.copy_(torch.tensor([40.0, -40.0]))  # the second block alone, then the first alone
    x, v, z = map(stream, (1, 2, 3))
    theta = model.slot_angles(lags)
    torch.testing.assert_close(model.encode(x, v, z, theta, mask), model.blocks[0](x, v, z, mask, theta))


@pytest.mark.parametrize(("norm", "eps"), [("rms", 1e-6), ("rms", 0.5), ("layer", 1e-6), ("none", 1e-6)])
@pytest.mark.parametrize("residual", ["normed", "raw"])
def test_a_block_that_adds_nothing_returns_the_residual_s_stream(norm, eps, residual):
    attend = attention.HeterogeneousAttention(8, 2, 3, "sqrt", False, 0.0)
    block = Block(8, norm, eps, residual, attend, 0.0)
    for last in (attend.out, block.mlp[-1]):
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)
    x = torch.randn(2, P, 4, 8, generator=torch.Generator().manual_seed(0))
    out = block(x, x[:, :1], x[:, :1], torch.ones(2, 4, dtype=torch.bool), torch.zeros(2, P, 2))
    away = x - x.mean(-1, keepdim=True)
    normed = {
        "rms": x / (x.square().mean(-1, keepdim=True) + eps).sqrt(),
        "layer": away / (away.square().mean(-1, keepdim=True) + eps).sqrt(),
        "none": x,
    }[norm]
    torch.testing.assert_close(out, x if residual == "raw" else normed)


def test_queries_are_not_normalised_and_keys_are():
    attend = attention.HeterogeneousAttention(8, 2, 3, "sqrt", False, 0.0)
    seen = {}
    attend.register_forward_hook(lambda _, given, __: seen.update(q=given[0], streams=given[1]))
    block = Block(8, "rms", 1e-6, "normed", attend, 0.0)
    x, v, z = 7 * torch.randn(3, 2, 1, 4, 8, generator=torch.Generator().manual_seed(0))
    block(x, v, z, torch.ones(2, 4, dtype=torch.bool), torch.zeros(2, P, 2))
    assert torch.equal(seen["q"], z)
    for raw, given in zip((x, v, z), seen["streams"], strict=True):
        torch.testing.assert_close(given, nn.functional.rms_norm(raw, (8,), eps=1e-6))


def test_each_block_has_one_norm_and_two_swiglus_of_their_own():
    names = [name for name, _ in network().named_parameters() if name.startswith("blocks.0.")]
    assert [name for name in names if "norm" in name] == ["blocks.0.norm.weight"]
    assert len({id(m) for m in network().blocks[0].modules() if isinstance(m, SwiGLU)}) == 2


def test_swiglu_is_a_product_with_its_gate_s_silu():
    unit = SwiGLU(2)
    with torch.no_grad():
        unit.a.weight.copy_(torch.tensor([[1.0, 0], [0, 2]]))
        unit.b.weight.copy_(torch.tensor([[0.0, 3], [1, 0]]))
        unit.a.bias.zero_()
        unit.b.bias.copy_(torch.tensor([0.0, 1.0]))
    out = unit(torch.tensor([1.0, -1.0])).tolist()
    assert out == pytest.approx([-3 / (1 + math.exp(-1)), 2 * -2 / (1 + math.exp(2))])


@pytest.mark.parametrize("lifting", ["equivariant", "none"])
def test_the_output_heads_are_mixed_by_the_mean_of_z_over_the_atoms_that_exist(lifting):
    model = network(lifting=lifting)
    mask = state()[-1]
    hidden = torch.randn(2, P, 5, 16, generator=torch.Generator().manual_seed(1)).double()
    z = stream(2)  # not zero where padded
    vectors, out = hidden[..., :15].unflatten(-1, (5, 3)), model.read_out(hidden, z, mask)
    maps = model.readout.weight.view(5, 3) / math.sqrt(5)  # e3nn: weights (in, out), over √(number of inputs)
    for b, atoms in ((0, 5), (1, 3)):
        shares = model.gate(z[b, 0, :atoms].mean(0)).softmax(0)
        expected = torch.einsum("pnic,ih,h->pnc", vectors[b], maps, shares)
        torch.testing.assert_close(out[b], expected, rtol=1e-6, atol=1e-7)
        assert shares.max() - shares.min() > 1e-3


def test_a_single_output_head_is_the_linear_map_alone():
    model = network(output_heads=1)
    hidden = torch.randn(2, P, 5, 16, generator=torch.Generator().manual_seed(1)).double()
    assert model.gate is None
    assert torch.equal(model.read_out(hidden, hidden[:, :1], state()[-1]), model.readout(hidden))
    assert (model.readout.irreps_in, str(model.readout.irreps_out)) == (hidden_irreps(16), "1x1o")


def test_scales_multiply_what_is_lifted_and_not_what_is_predicted():
    x, v, z, lags, bonds, mask = state()
    scaled = network(position_scale=0.5, velocity_scale=4.0, z_scale=0.25, center=False)
    plain = network(position_scale=1.0, velocity_scale=1.0, z_scale=1.0, center=False)
    expected = plain(0.5 * x, 4 * v, z / 4, lags, bonds, mask)
    torch.testing.assert_close(scaled(x, v, z, lags, bonds, mask), expected, rtol=1e-10, atol=1e-12)


def test_walks_tell_molecules_of_the_same_atoms_apart_only_if_they_are_asked_for():
    x, v, z, lags, bonds, mask = state()
    for steps in (0, 4):
        model = shared_network(rrwp_steps=steps)
        assert differ(model(x, v, z, lags, bonds, mask), model(x, v, z, lags, 0 * bonds, mask)) == (steps > 0)


def without_gradient(**options):
    model = network(**options)
    model(*state()).square().sum().backward()
    return {name for name, p in model.named_parameters() if p.grad is None or p.grad.abs().max() < 1e-12}


@pytest.mark.parametrize(
    ("options", "dead"),
    [
        ({}, set()),
        ({"anchor_keys": True, "learn_scale": True, "lifting": "no_tensor_product", "residual": "raw"}, set()),
        ({"lifting": "none", "norm": "layer", "center": False}, set()),
        ({"value_residual": "fixed"}, {"mix"}),  # a constant
        ({"value_residual": "none"}, {"mix"}),
        # Without rotation, the bias of the keys moves all scores of a query alike.
        ({"rope_time": "none"}, {"blocks.0.attention.k.bias", "blocks.1.attention.k.bias"}),
        # The stream V is not attended to, and the share of a single stream is 1.
        ({"heterogeneous": False}, {"lift.v.weight", "blocks.0.attention.w", "blocks.1.attention.w"}),
    ],
)  # fmt: skip
def test_every_parameter_gets_a_gradient_but_those_that_cannot(options, dead):
    assert without_gradient(**options) == dead


def test_before_the_first_step_a_network_of_displacements_trains_its_last_map_alone():
    every = {name for name, _ in network().named_parameters()}
    assert without_gradient(delta_update=True) == every - {"readout.weight"}


def test_attending_to_x_alone_leaves_velocities_to_the_queries_and_else_they_are_keys_too():
    x, v, z, lags, bonds, mask = state()
    model = network(heterogeneous=False)
    with torch.no_grad():
        for block in model.blocks:
            block.attention.q.weight.zero_()
    model.gate = None  # it sees the velocities through Z as well
    assert torch.equal(model(x, v, z, lags, bonds, mask), model(x, -v, z, lags, bonds, mask))
    full = network()
    with torch.no_grad():
        for block in full.blocks:
            block.attention.q.weight.zero_()
    full.gate = None
    assert differ(full(x, v, z, lags, bonds, mask), full(x, -v, z, lags, bonds, mask))


def test_dropout_acts_in_training_only():
    inputs = state()
    model = network(attention_dropout=0.0, dropout=0.5)
    expected = model(*inputs)
    assert torch.equal(model(*inputs), expected)
    torch.manual_seed(0)
    assert differ(model.train()(*inputs), expected)
    torch.testing.assert_close(network(attention_dropout=0.0, dropout=0.0).train()(*inputs), expected)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"depth": 0}, "depth must be at least 1, got 0"),
        ({"heads": 0}, "heads must be at least 1, got 0"),
        ({"output_heads": 0}, "output_heads must be at least 1, got 0"),
        ({"rrwp_steps": -1}, "rrwp_steps must be at least 0, got -1"),
        ({"width": 16, "heads": 3}, "width must be an even multiple of heads, 3, for pairs to rotate, got 16"),
        ({"width": 20, "heads": 4}, "width must be an even multiple of heads, 4, for pairs to rotate, got 20"),
        ({"width": 96, "heads": 4}, "width must be at least 4 and not divisible by 3"),
        ({"tau": 0.0}, "tau must be a finite number > 0, got 0.0"),
        ({"norm_eps": math.inf}, "norm_eps must be a finite number > 0, got inf"),
        ({"position_scale": math.nan}, "position_scale must be a finite number > 0, got nan"),
        ({"velocity_scale": -1.0}, "velocity_scale must be a finite number > 0, got -1.0"),
        ({"z_scale": 0.0}, "z_scale must be a finite number > 0, got 0.0"),
        ({"rope_base": 1.0}, "rope_base must be a finite number > 1, got 1.0"),
        ({"attention_dropout": 1.0}, r"attention_dropout must lie in \[0, 1\), got 1.0"),
        ({"dropout": -0.1}, r"dropout must lie in \[0, 1\), got -0.1"),
    ],
)
def test_options_out_of_range_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        ATOM(**options)
