"""Lifting: what is equivariant, why a width must hold scalars, and that the maps have the degree they are said to."""

import numpy as np
import pytest
import torch
from atom.features import with_norm
from atom.lifting import Lifting, hidden_irreps
from e3nn import o3
from scipy.stats import ortho_group

WIDTH, STEPS = 16, 3


def lifting(kind="equivariant", width=WIDTH, dtype=torch.float32):
    torch.manual_seed(0)
    return Lifting(width, 1 + STEPS, kind).to(dtype)


def state(dtype=torch.float32):
    gen = torch.Generator().manual_seed(1)
    x, v = torch.randn(2, 7, 3, generator=gen, dtype=dtype), torch.randn(2, 7, 3, generator=gen, dtype=dtype)
    return x, v, torch.randn(2, 7, 1 + STEPS, generator=gen, dtype=dtype)


def lift(network, x, v, scalars):
    return network(with_norm(x), with_norm(v), scalars)


def turn_hidden(stream, q):
    """Turn the d // 3 vectors, which come first, and leave the scalars."""
    vectors = 3 * (stream.shape[-1] // 3)
    turned = stream[..., :vectors].unflatten(-1, (-1, 3)) @ q.T
    return torch.cat((turned.flatten(-2), stream[..., vectors:]), dim=-1)


def element(determinant):
    q = torch.from_numpy(ortho_group(3, seed=np.random.default_rng(0)).rvs())
    return (q * torch.linalg.det(q).sign() * determinant).float()


@pytest.mark.parametrize("width", [16, 17])  # one scalar, two scalars
@pytest.mark.parametrize("kind", ["equivariant", "no_tensor_product"])
@pytest.mark.parametrize("determinant", [1, -1])
def test_turned_and_mirrored_states_are_lifted_to_turned_and_mirrored_vectors(determinant, kind, width):
    network, q = lifting(kind, width), element(determinant)
    x, v, scalars = state()
    streams = lift(network, x, v, scalars)
    for stream, turned in zip(streams, lift(network, x @ q.T, v @ q.T, scalars), strict=True):
        assert stream[..., : 3 * (width // 3)].abs().max() > 0.1
        torch.testing.assert_close(turned, turn_hidden(stream, q), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("determinant", [1, -1])
def test_a_plain_linear_lifting_is_not_equivariant(determinant):
    network, q = lifting("none"), element(determinant)
    x, v, scalars = state()
    for stream, turned in zip(
        lift(network, x, v, scalars), lift(network, x @ q.T, v @ q.T, scalars), strict=True
    ):  # fmt: skip
        assert (turned - turn_hidden(stream, q)).abs().max() > 0.1


@pytest.mark.parametrize(("width", "irreps"), [(128, "42x1o+2x0e"), (256, "85x1o+1x0e"), (96, "32x1o"), (2, "2x0e")])
def test_a_width_holds_as_many_vectors_as_fit(width, irreps):
    assert hidden_irreps(width) == o3.Irreps(irreps)
    assert hidden_irreps(width).dim == width


def test_a_tensor_product_of_vectors_alone_has_no_path_to_a_vector():
    x, y = torch.randn(2, 5, 12, generator=torch.Generator().manual_seed(0))
    barren = o3.FullyConnectedTensorProduct("4x1o", "4x1o", "4x1o")
    assert barren.weight_numel == 0
    assert not barren(x, y).any()
    assert o3.FullyConnectedTensorProduct("4x1o+1x0e", "4x1o+1x0e", "4x1o").weight_numel == 2 * 4 * 4


@pytest.mark.parametrize("width", [3, 96])
def test_a_width_without_scalars_is_refused_with_the_reason(width):
    message = (
        rf"width must be at least 4 and not divisible by 3 \(without scalars .* has no path to a vector\), got {width}"
    )
    with pytest.raises(ValueError, match=message):
        Lifting(width, 1, "equivariant")
    Lifting(width, 1, "no_tensor_product")


def test_z_is_bilinear_in_x_and_in_the_features_of_v():
    network = lifting(dtype=torch.float64)
    x, v, scalars = state(torch.float64)
    *_, z = lift(network, x, v, scalars)
    torch.testing.assert_close(lift(network, 2 * x, v, scalars)[2], 2 * z)
    torch.testing.assert_close(lift(network, x, 3 * v, 3 * scalars)[2], 3 * z)
    other = torch.ones_like(scalars)
    zero = torch.zeros_like(v)
    torch.testing.assert_close(
        lift(network, x, v, scalars + other)[2], z + lift(network, x, zero, other)[2]
    )  # each scalar is one more term


def test_equivariant_maps_have_no_bias_and_leave_padding_zero():
    zero = torch.zeros(1, 1, 3)
    for kind in ("equivariant", "no_tensor_product"):
        assert not any(stream.any() for stream in lift(lifting(kind), zero, zero, torch.zeros(1, 1, 1 + STEPS)))


def test_z_by_one_linear_map_is_additive_in_all_features():
    network = lifting("no_tensor_product", dtype=torch.float64)
    x, v, scalars = state(torch.float64)
    zero, none = torch.zeros_like(x), torch.zeros_like(scalars)
    parts = lift(network, x, zero, none)[2] + lift(network, zero, v, none)[2] + lift(network, zero, zero, scalars)[2]
    torch.testing.assert_close(lift(network, x, v, scalars)[2], parts)


def test_scalars_reach_z_alone():
    network = lifting()
    x, v, scalars = state()
    before, after = lift(network, x, v, scalars), lift(network, x, v, scalars + 1)
    assert torch.equal(before[0], after[0])
    assert torch.equal(before[1], after[1])
    assert (before[2] - after[2]).abs().max() > 0.1
