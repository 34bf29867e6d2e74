"""EGNO: symmetries, independence of samples, padding, edges, the temporal convolution, and that it can learn."""

import math

import numpy as np
import pytest
import torch
from atom.egno import EGNO, EGNOLayer, gaussian_basis, hop_edges, spectral_convolution, time_embedding
from scipy.stats import ortho_group

P = 5
CHAIN = ((0, 1), (1, 2), (2, 3))


def adjacency(atoms, pairs):
    bonds = torch.zeros(atoms, atoms)
    for i, j in pairs:
        bonds[i, j] = bonds[j, i] = 1
    return bonds


def state(dtype=torch.float64):
    """Three samples: a chain of four atoms, a pair with an isolated third atom, and one atom; padded to four."""
    gen = torch.Generator().manual_seed(0)
    mask = torch.arange(4) < torch.tensor([[4], [3], [1]])
    x = torch.randn(3, 4, 3, generator=gen, dtype=dtype) * mask.unsqueeze(2)
    v = 0.05 * torch.randn(3, 4, 3, generator=gen, dtype=dtype) * mask.unsqueeze(2)
    z = torch.tensor([[6, 6, 8, 7], [8, 7, 6, 0], [7, 0, 0, 0]])
    lags = torch.cumsum(3 * torch.rand(3, P, generator=gen, dtype=dtype) + 1, 1)
    bonds = torch.stack((adjacency(4, CHAIN), adjacency(4, ((0, 1),)), adjacency(4, ()))).to(dtype)
    return x, v, z, lags, bonds, mask


def lively(dtype=torch.float64, **options):
    """A network whose parameters are all of the size of trained ones, so that no term hides by being near zero."""
    torch.manual_seed(1)
    network = EGNO(**{"depth": 3, "width": 16, "time_width": 8, **options})
    with torch.no_grad():
        for layer in network.layers:
            layer.conv_x.normal_(std=0.3)
            layer.phi_x[-1].weight.normal_(std=0.3)
            layer.phi_v[-1].weight.normal_(std=0.3)
    return network.to(dtype)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-10)])
@pytest.mark.parametrize("determinant", [1, -1])
@pytest.mark.parametrize("clamp", [100.0, 1e-2])
def test_rotations_reflections_and_translations_of_the_state_move_the_prediction_alike(
    dtype, tolerance, determinant, clamp
):
    x, v, z, lags, bonds, mask = state(dtype)
    q = torch.from_numpy(ortho_group(3, seed=np.random.default_rng(0)).rvs()).to(dtype)
    q = q * torch.linalg.det(q).sign() * determinant
    shift = torch.tensor([3.0, -2.0, 1.0], dtype=dtype)
    network = lively(dtype, clamp=clamp)
    expected = (network(x, v, z, lags, bonds, mask) @ q.T + shift) * mask[:, None, :, None]
    moved = network((x @ q.T + shift) * mask.unsqueeze(2), v @ q.T, z, lags, bonds, mask)
    assert (expected - x.unsqueeze(1)).abs().max() > 0.1  # there is something to compare
    torch.testing.assert_close(moved, expected, rtol=tolerance, atol=tolerance)


def test_permuted_atoms_give_permuted_predictions_wherever_the_padding_is():
    x, v, z, lags, bonds, mask = state()
    order = torch.tensor([2, 0, 3, 1])
    network = lively()
    expected = network(x, v, z, lags, bonds, mask)[:, :, order]
    bonds = bonds[:, order][:, :, order]
    actual = network(x[:, order], v[:, order], z[:, order], lags, bonds, mask[:, order])
    torch.testing.assert_close(actual, expected, rtol=1e-12, atol=1e-12)


def test_a_batch_gives_what_its_samples_give_alone():
    inputs = state()
    network = lively()
    together = network(*inputs)
    for b in range(3):
        alone = network(*(part[b : b + 1] for part in inputs))
        torch.testing.assert_close(together[b : b + 1], alone, rtol=1e-12, atol=1e-12)


def test_seven_more_padded_atoms_change_nothing_and_are_predicted_at_zero():
    x, v, z, lags, bonds, mask = state()
    network = lively()
    expected = network(x, v, z, lags, bonds, mask)
    pad = torch.nn.functional.pad
    actual = network(
        pad(x, (0, 0, 0, 7)), pad(v, (0, 0, 0, 7)), pad(z, (0, 7)), lags, pad(bonds, (0, 7, 0, 7)), pad(mask, (0, 7))
    )
    torch.testing.assert_close(actual[:, :, :4], expected, rtol=1e-12, atol=1e-12)
    assert (actual[:, :, 4:] == 0).all()
    assert (expected[~mask.unsqueeze(1).expand(-1, P, -1)] == 0).all()


def test_gradients_are_finite_and_reach_every_parameter_with_isolated_atoms_and_a_fully_padded_sample():
    x, v, z, lags, bonds, mask = state()
    mask = mask & torch.tensor([[True], [True], [False]])
    x, v, z = x * mask.unsqueeze(2), v * mask.unsqueeze(2), z * mask
    v[1, 2] = 0  # an atom at rest: the length of v has no gradient there
    network = EGNO(depth=3, width=16, time_width=8).double()
    x.requires_grad_()
    v.requires_grad_()
    out = network(x, v, z, lags, bonds, mask)
    assert (out[2] == 0).all()
    out.square().sum().backward()
    for name, parameter in network.named_parameters():
        assert parameter.grad is not None and parameter.grad.isfinite().all(), name
        assert (parameter.grad != 0).any(), name
    assert x.grad.isfinite().all() and v.grad.isfinite().all()


def test_a_batch_without_any_edge_or_any_atom_works():
    x, v, z, lags, bonds, mask = state()
    network = lively()
    network(x, v, z, lags, torch.zeros_like(bonds), mask).sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in network.parameters())
    nothing = network(0 * x, 0 * v, 0 * z, lags, 0 * bonds, torch.zeros_like(mask))
    assert (nothing == torch.zeros(3, P, 4, 3)).all()


def test_the_untrained_network_is_close_to_the_identity():
    torch.manual_seed(0)
    x, v, z, lags, bonds, mask = state()
    out = EGNO().double()(x, v, z, lags, bonds, mask)
    assert (out - x.unsqueeze(1)).abs().max() < 0.02


@pytest.mark.parametrize("slots", [1, 2])
def test_fewer_slots_than_modes_still_give_one_prediction_each(slots):
    """Conditioned on its own lag only, slot 1 of 1 must equal any slot of a network whose slots all have that lag."""
    x, v, z, lags, bonds, mask = state()
    network = lively(modes=3)
    lag = lags[:, 2:3]
    few = network(x, v, z, lag.expand(-1, slots), bonds, mask)
    many = network(x, v, z, lag.expand(-1, 6), bonds, mask)
    torch.testing.assert_close(few, many[:, :slots], rtol=1e-10, atol=1e-10)


def test_only_the_real_lags_tell_horizons_apart():
    x, v, z, lags, bonds, mask = state()
    for time, same in (("index", True), ("lag", False)):
        network = lively(time=time)
        one, other = network(x, v, z, lags, bonds, mask), network(x, v, z, 3 * lags, bonds, mask)
        assert torch.equal(one, other) is same
    a, b = lively(tau=8.0), lively(tau=4.0)
    torch.testing.assert_close(a(x, v, z, 2 * lags, bonds, mask), b(x, v, z, lags, bonds, mask))


def test_edges_are_bonds_and_pairs_two_bonds_apart_within_each_sample():
    # Two triangles with a common side and a tail, and the same molecule with the tail's last atom padded away.
    molecule = adjacency(6, ((0, 1), (1, 2), (2, 3), (3, 0), (0, 2), (0, 4), (4, 5)))
    mask = torch.tensor([[True] * 6, [True] * 5 + [False]])
    receivers, senders, hops = hop_edges(torch.stack((molecule, molecule)), mask)
    one, two = set(), set()
    for i, j, kind in zip(receivers.tolist(), senders.tolist(), hops.tolist(), strict=True):
        (one if kind == [1, 0] else two).add((i, j))
    ones = [(0, 1), (1, 2), (2, 3), (0, 3), (0, 2), (0, 4), (4, 5)]
    twos = [(1, 3), (1, 4), (2, 4), (3, 4), (0, 5)]
    numbered = {5: [*range(6)], 4: [6, 7, 8, 9, 10]}  # the second sample's atoms follow the first's
    for pairs, found in ((ones, one), (twos, two)):
        expected = set()
        for last, number in numbered.items():
            expected |= {(number[a], number[b]) for i, j in pairs for a, b in ((i, j), (j, i)) if max(a, b) <= last}
        assert found == expected
    assert len(receivers) == len(one) + len(two)


@pytest.mark.parametrize(("slots", "modes"), [(8, 2), (8, 5), (8, 9), (7, 3), (7, 4), (2, 2), (1, 2)])
def test_the_spectral_convolution_equals_the_real_fft(slots, modes):
    gen = torch.Generator().manual_seed(slots * modes)
    f = torch.randn(slots, 4, 3, 2, generator=gen, dtype=torch.float64)
    weights = torch.randn(modes, 2, 5, 2, generator=gen, dtype=torch.float64)
    spectrum = torch.fft.rfft(f, dim=0)[:modes]
    mixed = torch.einsum("k...c,kco->k...o", spectrum, torch.view_as_complex(weights)[: len(spectrum)])
    expected = torch.fft.irfft(mixed, n=slots, dim=0)
    torch.testing.assert_close(spectral_convolution(f, weights), expected, rtol=1e-12, atol=1e-12)


def test_the_time_embedding_has_frequencies_one_to_a_ten_thousandth():
    out = time_embedding(torch.tensor([0.0, 2.0], dtype=torch.float64), 6)
    assert out[0].tolist() == [0, 0, 0, 1, 1, 1]
    expected = [math.sin(2), math.sin(2e-2), math.sin(2e-4), math.cos(2), math.cos(2e-2), math.cos(2e-4)]
    np.testing.assert_allclose(out[1], expected, rtol=1e-12)


def test_gaussians_are_one_at_their_centre_and_fall_by_the_spacing():
    out = gaussian_basis(torch.tensor([[0.8], [1.4]], dtype=torch.float64), 5)  # centres 0.6 Å apart, width 0.9 Å
    np.testing.assert_allclose(out, np.exp(-((np.array([[0, 1, 2, 3, 4], [1, 0, 1, 2, 3]]) / 1.5) ** 2)), rtol=1e-12)
    assert gaussian_basis(torch.ones(3, 1), 0).shape == (3, 0)


def test_a_layer_is_the_equations_written_as_loops():
    gen = torch.Generator().manual_seed(3)
    torch.manual_seed(3)
    layer = EGNOLayer(width=4, modes=2, edge_width=3, clamp=0.2, last=False).double()
    with torch.no_grad():
        layer.phi_x[-1].weight.normal_()
        layer.conv_h.zero_()  # the convolution has its own test
    h, x, v = (torch.randn(3, 3, size, generator=gen, dtype=torch.float64) for size in (4, 3, 3))
    receivers, senders = torch.tensor([0, 0, 1]), torch.tensor([1, 2, 0])
    attributes = torch.randn(3, 3, generator=gen, dtype=torch.float64)
    new_h, new_x, new_v = layer(h, x, v, receivers, senders, attributes, torch.tensor([[2.0], [1.0], [1.0]]))
    first = torch.cat((layer.receiver.weight, layer.sender.weight, layer.squared.weight, layer.edge.weight), 1)
    for p in range(3):
        pushes, messages = torch.zeros(3, 3, 3, dtype=torch.float64), torch.zeros(3, 4, dtype=torch.float64)
        for n, (i, j) in enumerate(((0, 1), (0, 2), (1, 0))):
            r = x[p, i] - x[p, j]
            m = layer.phi_e(first @ torch.cat((h[p, i], h[p, j], (r @ r).view(1), attributes[n])) + layer.receiver.bias)
            pushes[i, j] = r * layer.phi_x(m).clamp(-0.2, 0.2)
            messages[i] += m
        neighbours = torch.tensor([[2.0], [1.0], [1.0]])
        expected = x[p] + layer.phi_v(h[p]) * v[p] + pushes.sum(1) / neighbours
        torch.testing.assert_close(new_x[p], expected)
        torch.testing.assert_close(new_h[p], h[p] + layer.phi_h(torch.cat((h[p], messages), 1)))
    assert (new_v == v).all()


def dimers(count, times, gen):
    """Exact motion of two equal masses on a spring: r = 1.3 + A cos(ω t + φ), period 20 fs, in random directions."""
    amplitude, phase = 0.05 * torch.rand(count, 1, generator=gen), 2 * math.pi * torch.rand(count, 1, generator=gen)
    axis = torch.nn.functional.normalize(torch.randn(count, 3, generator=gen), dim=1)
    length = 1.3 + amplitude * torch.cos(2 * math.pi / 20 * times + phase)
    end = 0.5 * length.unsqueeze(2) * axis.unsqueeze(1)
    return torch.stack((end, -end), 2)


@pytest.mark.slow
def test_it_learns_harmonic_dimers_to_a_twentieth_of_the_identity_baseline():
    torch.manual_seed(0)
    gen = torch.Generator().manual_seed(0)
    lags = torch.arange(4.0, 33.0, 4.0)
    times = torch.cat((torch.tensor([0.0, 1.0]), lags))
    network = EGNO(depth=3, width=32, time_width=16)
    optimiser = torch.optim.Adam(network.parameters(), 3e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, 300)

    def errors(count):
        path = dimers(count, times, gen)
        x, v = path[:, 0], path[:, 1] - path[:, 0]
        common = torch.full((count, 2), 6), lags.expand(count, -1), adjacency(2, ((0, 1),)).expand(count, 2, 2)
        out = network(x, v, *common, torch.ones(count, 2, dtype=torch.bool))
        return (out - path[:, 2:]).square().mean(), (x.unsqueeze(1) - path[:, 2:]).square().mean()

    for _ in range(300):
        optimiser.zero_grad()
        errors(32)[0].backward()
        optimiser.step()
        schedule.step()
    with torch.no_grad():
        error, identity = errors(500)
    assert error < 0.05 * identity


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"depth": 0}, "depth must be at least 1, got 0"),
        ({"modes": 0}, "modes must be at least 1, got 0"),
        ({"time_width": 7}, "time_width must be even and at least 4, got 7"),
        ({"time_width": 2}, "time_width must be even and at least 4, got 2"),
        ({"radial": -1}, "radial must not be negative, got -1"),
        ({"tau": 0.0}, "tau must be a positive number, got 0.0"),
        ({"clamp": math.nan}, "clamp must be a positive number, got nan"),
        ({"time": "real"}, "time must be 'lag' or 'index', got 'real'"),
    ],
)
def test_options_out_of_range_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        EGNO(**options)


def test_shapes_that_do_not_fit_are_refused():
    x, v, z, lags, bonds, mask = state()
    with pytest.raises(ValueError, match=r"x and v must both be \(B, N, 3\), got \(3, 4, 3\) and \(3, 2, 3\)"):
        EGNO(depth=1)(x, v[:, :2], z, lags, bonds, mask)
    with pytest.raises(ValueError, match=r"lags must be \(3, P\) with P of at least 1, got \(3, 0\)"):
        EGNO(depth=1)(x, v, z, lags[:, :0], bonds, mask)
