"""UniGCNII and UniGIN: the formulas evaluated densely, excluded hyperedges, isolated vertices, TopoModelX's layers."""

import math

import pytest
import torch
from difflift.complexes import Complex, Incidence, empty_incidence
from difflift.unignn import UniGCNII, UniGIN
from topomodelx.nn.hypergraph.unigcnii_layer import UniGCNIILayer
from topomodelx.nn.hypergraph.unigin_layer import UniGINLayer

D = 4
NETWORKS = {
    "unigcnii": lambda: UniGCNII(D, layers=3),
    "unigin": lambda: UniGIN(D, layers=2, eps=0.25),
}
# Vertex 5 is in no hyperedge, vertex 6 only in the last one.
HYPEREDGES = ((0, 1), (1, 2), (0, 2, 3), (2, 3, 4, 1), (6, 4, 0))


def hypergraph(n=7, hyperedges=HYPEREDGES, s=None, dropped=()):
    """A complex of one graph; `dropped` are (vertex, column) entries whose membership is 0."""
    row = torch.tensor([v for e in hyperedges for v in e], dtype=torch.long)
    col = torch.tensor([c for c, e in enumerate(hyperedges) for _ in e], dtype=torch.long)
    member = torch.tensor(
        [float((v, c) not in dropped) for v, c in zip(row.tolist(), col.tolist(), strict=True)], dtype=torch.float64
    )
    s = torch.ones(len(hyperedges), dtype=torch.float64) if s is None else s
    b1 = Incidence(row, col, member, s, n)
    zeros = torch.zeros(n, dtype=torch.long), torch.zeros(len(s), dtype=torch.long), torch.zeros(0, dtype=torch.long)
    return Complex(b1, empty_incidence(len(s), s), *zeros, 1, 2, torch.ones_like(s), s.new_empty(0))


def features(n=7, seed=0):
    return torch.randn(n, D, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def network(name):
    torch.manual_seed(0)
    return NETWORKS[name]().double()


def literal_unigcnii(net, x, b, tiny=1e-6):
    """The formulas of Sec. 3.7 with sums over a dense B, whose columns are not all zero."""
    d_v = b.sum(1)
    size = b.sum(0)
    d_e = (b * d_v[:, None]).sum(0) / size
    x0 = x
    for layer, weight in enumerate(net.weights, 1):
        beta = math.log(0.5 / layer + 1)
        z = (b.T @ x) / size[:, None]
        y = d_v.clamp(min=tiny)[:, None] ** -0.5 * (b @ (d_e[:, None] ** -0.5 * z))
        q = 0.9 * y + 0.1 * x0
        x = ((1 - beta) * q + beta * q @ weight.weight.T).relu()
    return x


def literal_unigin(net, x, b):
    for layer, update in enumerate(net.updates):
        x = x.relu() if layer else x
        x = update((1 + 0.25) * x + b @ (b.T @ x))
    return x


LITERAL = {"unigcnii": literal_unigcnii, "unigin": literal_unigin}


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("dropped", [(), ((1, 3), (2, 2))], ids=["full", "members dropped"])
def test_output_is_that_of_the_formulas_on_a_dense_matrix(name, dropped):
    net, x, c = network(name), features(), hypergraph(dropped=dropped)
    torch.testing.assert_close(net(x, c)[0], LITERAL[name](net, x, c.b1.to_dense()), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", NETWORKS)
def test_excluded_hyperedges_count_as_little_as_absent_ones(name):
    net, x, s = network(name), features(), torch.tensor([1.0, 1, 0, 1, 0], dtype=torch.float64)
    kept = [e for e, on in zip(HYPEREDGES, s.tolist(), strict=True) if on]
    excluded, absent = net(x, hypergraph(s=s))[0], net(x, hypergraph(hyperedges=kept))[0]
    torch.testing.assert_close(excluded, absent, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(excluded, LITERAL[name](net, x, hypergraph(hyperedges=kept).b1.to_dense()))
    assert (excluded - net(x, hypergraph())[0]).abs().max() > 1e-2  # they would count


@pytest.mark.parametrize("name", NETWORKS)
def test_gradient_in_the_inclusion_of_an_excluded_hyperedge_is_the_change_of_the_loss_as_it_enters(name):
    net, x, r = network(name), features(), features(seed=1)
    s = torch.tensor([1.0, 1, 0, 1, 0], dtype=torch.float64)

    def loss(s):
        return (net(x, hypergraph(s=s))[0] * r).sum()

    leaf = s.clone().requires_grad_()
    gradient = torch.autograd.grad(loss(leaf), leaf)[0]
    for column in (2, 4):
        step = torch.zeros_like(s)
        step[column] = 1e-6
        slope = (loss(s + step) - loss(s)) / 1e-6
        assert gradient[column].abs() > 1e-3
        assert gradient[column].item() == pytest.approx(slope.item(), rel=1e-4)


def test_first_hyperedge_of_some_vertices_has_the_gradient_of_its_whole_effect():
    # With beta = 0 the layer gives (y + x) / 2. A hyperedge alone at its vertices gives y = s z, here 2 s for both.
    net = UniGCNII(1, layers=1, alpha=0.5, theta=0.0).double()
    x = torch.tensor([[1.0], [3.0], [7.0]], dtype=torch.float64)
    s = torch.zeros(1, dtype=torch.float64, requires_grad=True)
    out = net(x, hypergraph(3, ((0, 1),), s=s))[0]
    assert out.flatten().tolist() == [0.5, 1.5, 3.5]
    assert torch.autograd.grad(out.sum(), s)[0].item() == pytest.approx(1 + 1)
    assert net(x, hypergraph(3, ((0, 1),)))[0].flatten().tolist() == pytest.approx([1.5, 2.5, 3.5])


def test_vertices_without_hyperedges_keep_the_share_of_the_first_layer():
    # y = 0, so q = alpha x and with beta = 0 each layer gives ReLU(0.1 x).
    x, none = features(), torch.zeros(5, dtype=torch.float64)
    for c in (hypergraph(hyperedges=()), hypergraph(s=none)):
        out = UniGCNII(D, layers=2, theta=0.0).double()(x, c)[0]
        torch.testing.assert_close(out, (0.1 * x).relu())
        net = network("unigin")
        torch.testing.assert_close(net(x, c)[0], net.updates[1](1.25 * net.updates[0](1.25 * x).relu()))


def test_unigcnii_is_that_of_topomodelx_on_hyperedges_of_one_size():
    # TopoModelX adds members up where the formula averages, a factor of 3 here; alpha = 0 leaves nothing else.
    hyperedges = ((0, 1, 2), (1, 2, 3), (4, 3, 0))
    net = UniGCNII(D, layers=1, alpha=0.0).double()
    theirs = UniGCNIILayer(D, D, alpha=0.0, beta=math.log(1.5)).double()
    theirs.linear.load_state_dict(net.weights[0].state_dict())
    x, c = features(5), hypergraph(5, hyperedges)
    torch.testing.assert_close(3 * net(x, c)[0], theirs(x, c.b1.to_dense())[0].relu())


def test_unigin_is_that_of_topomodelx():
    # Its update is one linear map, where ours is an MLP.
    net, theirs = UniGIN(D, layers=1, eps=0.25).double(), UniGINLayer(D, eps=0.25).double()
    net.updates[0] = theirs.linear
    x, c = features(), hypergraph()
    torch.testing.assert_close(net(x, c)[0], theirs(x, c.b1.to_dense())[0])


def test_epsilon_is_learned_only_when_asked_for():
    assert "eps" not in dict(UniGIN(D).named_parameters())
    net = UniGIN(D, layers=2, train_eps=True).double()
    net(features(), hypergraph())[0].sum().backward()
    assert (net.eps.grad != 0).all()


def test_dropout_acts_while_training_only():
    net = UniGIN(D, dropout=0.5).double()
    x, c = features(), hypergraph()
    assert not torch.equal(net(x, c)[0], net(x, c)[0])
    net.eval()
    assert torch.equal(net(x, c)[0], net(x, c)[0])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"layers": 0}, "layers must be at least 1, got 0"),
        ({"dropout": 1.0}, r"dropout must lie in \[0, 1\), got 1.0"),
        ({"alpha": 1.5}, r"alpha must lie in \[0, 1\], got 1.5"),
        ({"theta": -1.0}, "theta must be a finite number >= 0, got -1.0"),
    ],
)
def test_options_outside_their_ranges_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        UniGCNII(D, **options)
