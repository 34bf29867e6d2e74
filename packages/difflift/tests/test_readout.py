"""Readouts by hand, and what holds of every network with its readout: symmetry, batches, excluded cells, edge cases."""

from dataclasses import replace

import pytest
import torch
from difflift.complexes import Complex, Incidence, edge_incidence
from difflift.cwn import CWN
from difflift.readout import Direct, PropagateDown, pool
from difflift.topotune import TopoTune
from difflift.unignn import UniGCNII, UniGIN
from torch import nn

D = 6
NETWORKS = {
    "unigcnii": lambda: UniGCNII(D),
    "unigin": lambda: UniGIN(D, train_eps=True),
    "cwn edges": lambda: CWN(D, update="edges"),
    "cwn all": lambda: CWN(D, update="all"),
    "topotune gat": lambda: TopoTune(D, heads=2),
    "topotune gin": lambda: TopoTune(D, gnn="gin"),
}
every_network = pytest.mark.parametrize("name", NETWORKS)


class WithReadout(nn.Module):
    def __init__(self, name):
        super().__init__()
        torch.manual_seed(0)
        self.network = NETWORKS[name]()
        self.readout = PropagateDown(D, self.network.ranks)

    def forward(self, x, c):
        return self.readout(self.network(x, c), c)


def lifted(n, edges=(), cells=(), s_1=None, s_2=None):
    """A complex of one graph: edges as pairs of vertices, cells as indices of edges."""
    s_1, s_2 = (
        torch.as_tensor([1.0] * len(c) if s is None else s, dtype=torch.float64)
        for c, s in ((edges, s_1), (cells, s_2))
    )
    ends = torch.tensor(edges, dtype=torch.long).reshape(-1, 2).T
    row = torch.tensor([e for cell in cells for e in cell], dtype=torch.long)
    col = torch.tensor([c for c, cell in enumerate(cells) for _ in cell], dtype=torch.long)
    b2 = Incidence(row, col, torch.ones(len(row), dtype=torch.float64), s_2, len(edges))
    batches = (torch.zeros(size, dtype=torch.long) for size in (n, len(edges), len(cells)))
    return Complex(edge_incidence(ends, s_1, n), b2, *batches, 1, 0, s_1, s_2)


def side_by_side(*complexes):
    """The batch of complexes of one graph each."""

    def joined(incidences):
        rows = cols = 0
        row, col = [], []
        for b in incidences:
            row.append(b.row + rows)
            col.append(b.col + cols)
            rows, cols = rows + b.rows, cols + len(b.weight)
        member, weight = (torch.cat([getattr(b, name) for b in incidences]) for name in ("member", "weight"))
        return Incidence(torch.cat(row), torch.cat(col), member, weight, rows)

    batches = (
        torch.cat([getattr(c, f"batch_{r}") + g for g, c in enumerate(complexes)]) for r in range(3)
    )  # fmt: skip
    p_1, p_2 = (torch.cat([getattr(c, name) for c in complexes]) for name in ("p_1", "p_2"))
    b1, b2 = joined([c.b1 for c in complexes]), joined([c.b2 for c in complexes])
    return Complex(b1, b2, *batches, len(complexes), 0, p_1, p_2)


# A square with both diagonals and a tail; four triangles and the square. The last two edges are in no cell.
EDGES = ((0, 1), (1, 2), (2, 3), (0, 3), (0, 2), (1, 3), (3, 4), (4, 5))
CELLS = ((0, 1, 4), (2, 3, 4), (1, 2, 5), (0, 3, 5), (0, 1, 2, 3))


def tangle(s_1=None, s_2=None):
    return lifted(6, EDGES, CELLS, s_1, s_2)


def features(n=6, seed=0):
    return torch.randn(n, D, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def close(actual, expected):
    torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-9)


def test_propagate_down_is_its_formula():
    c, signals = (
        tangle(s_1=[1, 1, 1, 0.5, 1, 1, 1, 1], s_2=[1, 0, 1, 1, 0.5]),
        (features(), features(8, 1), features(5, 2)),
    )
    readout = PropagateDown(D).double()
    x_1 = readout.steps[1](torch.cat([signals[1], c.b2.to_dense() @ signals[2]], 1))
    close(readout(signals, c), readout.steps[0](torch.cat([signals[0], c.b1.to_dense() @ x_1], 1)))
    linear, norm = readout.steps[0]
    out = linear(torch.cat([signals[0], c.b1.to_dense() @ x_1], 1))
    close(
        readout(signals, c),
        (out - out.mean(1, keepdim=True)) / (out.var(1, correction=0, keepdim=True) + norm.eps).sqrt(),
    )


def test_signals_of_vertices_alone_are_read_as_they_are():
    x = features()
    assert PropagateDown(D, ranks=1)((x,), tangle()) is x
    assert Direct()((x, features(8), features(5)), tangle()) is x


def test_propagate_down_names_a_wrong_number_of_ranks():
    with pytest.raises(ValueError, match="ranks must be 1, 2 or 3, got 4"):
        PropagateDown(D, ranks=4)
    with pytest.raises(ValueError, match="signals must be of 3 ranks, got 1"):
        PropagateDown(D)((features(),), tangle())


def test_pool_sums_or_averages_each_graph_and_gives_zero_for_an_empty_one():
    x, batch = torch.tensor([[1.0, 2], [3, 4], [10, 20]]), torch.tensor([0, 0, 2])
    assert pool(x, batch, 4, "sum").tolist() == [[4, 6], [0, 0], [10, 20], [0, 0]]
    assert pool(x, batch, 4).tolist() == [[2, 3], [0, 0], [10, 20], [0, 0]]
    with pytest.raises(ValueError, match="pooling must be 'mean' or 'sum', got 'max'"):
        pool(x, batch, 4, "max")


@every_network
def test_relabelled_vertices_and_cells_give_relabelled_outputs(name):
    model, x, c = WithReadout(name).double(), features(), tangle(s_1=[1] * 5 + [0, 1, 1])
    g = torch.Generator().manual_seed(1)
    p, q, t = (torch.randperm(n, generator=g) for n in (6, 8, 5))  # new place of each old cell
    b1 = replace(c.b1, row=p[c.b1.row], col=q[c.b1.col], weight=c.b1.weight[q.argsort()])
    b2 = replace(c.b2, row=q[c.b2.row], col=t[c.b2.col], weight=c.b2.weight[t.argsort()])
    out = model(x[p.argsort()], replace(c, b1=b1, b2=b2))
    close(out, model(x, c)[p.argsort()])
    assert (model(x, c)[0] - model(x, c)[1]).abs().max() > 1e-3  # vertices differ, so order matters


@every_network
def test_a_graph_has_the_same_outputs_alone_and_in_a_batch(name):
    model = WithReadout(name).double()
    triangle = lifted(3, ((0, 1), (1, 2), (0, 2)), ((0, 1, 2),))
    parts = [lifted(1), tangle(s_2=[1, 0, 1, 1, 0]), lifted(4, ((0, 1), (2, 3)), s_1=[1, 0]), triangle, lifted(2)]
    xs = [features(c.b1.rows, seed) for seed, c in enumerate(parts)]
    together = model(torch.cat(xs), side_by_side(*parts))
    alone = [model(x, c) for x, c in zip(xs, parts, strict=True)]
    close(together, torch.cat(alone))


@every_network
@pytest.mark.parametrize("seed", range(4))
def test_excluded_cells_count_as_little_as_absent_ones(name, seed):
    model = WithReadout(name).double()
    g = torch.Generator().manual_seed(seed)
    s_1, s_2 = ((torch.rand(n, generator=g) < 0.6).double() for n in (8, 5))
    x, c = features(), tangle(s_1, s_2)
    close(model(x, c), model(x, c.pruned()))
    on = (torch.ones(6), s_1, s_2)
    for signal, absent, kept in zip(model.network(x, c), model.network(x, c.pruned()), on, strict=False):
        close(signal[kept != 0], absent)


@every_network
def test_gradients_of_excluded_cells_are_those_of_differences_and_tell_cells_apart(name):
    model, x, r = WithReadout(name).double(), features(), features(seed=1)
    for key, parameter in model.named_parameters():
        if "att_" in key:  # attention that is not even has a bound on this gradient
            parameter.data.zero_()
    s_1, s_2 = torch.tensor([1.0, 1, 1, 1, 1, 0, 0, 0]).double(), torch.tensor([1.0, 0, 0, 0, 0]).double()

    def loss(s):
        return (model(x, tangle(s[:8], s[8:])) * r).sum()

    s = torch.cat([s_1, s_2])
    leaf = s.clone().requires_grad_()
    gradient = torch.autograd.grad(loss(leaf), leaf)[0]
    # Of the excluded 2-cells the third and fourth have an excluded edge, the others have not.
    for cell in [5, 6, 7, 9, 10, 11, 12] if model.network.ranks == 3 else [5, 6, 7]:
        step = torch.zeros_like(s)
        step[cell] = 1e-7
        slope = (loss(s + step) - loss(s)) / 1e-7
        assert gradient[cell].item() == pytest.approx(slope.item(), rel=1e-4, abs=1e-5)
        assert abs(gradient[cell].item()) > 1e-3
    assert (gradient[[5, 6, 7]].diff().abs() > 1e-3).all()


@pytest.mark.parametrize("network", [CWN, TopoTune])
def test_an_excluded_edge_has_the_signal_that_it_would_have_if_it_were_included(network):
    net, x = network(D, layers=1).double(), features(3)
    off, on = (net(x, lifted(3, ((0, 1),), s_1=[s])) for s in (0.0, 1.0))
    close(off[1], on[1])


@every_network
@pytest.mark.parametrize(
    "c",
    [
        lifted(1),
        lifted(4),
        lifted(4, ((0, 1), (1, 2), (0, 2))),
        tangle([0] * 8, [0] * 5),
        lifted(2, ((0, 1),), s_1=[0]),
    ],
    ids=["one vertex", "no edges", "no 2-cells", "all excluded", "one excluded edge"],
)
def test_degenerate_complexes_have_finite_outputs_and_gradients(name, c):
    model, n = WithReadout(name).double(), c.b1.rows
    s = c.b1.weight.clone().requires_grad_()
    x = features(n).requires_grad_()
    out = model(x, replace(c, b1=replace(c.b1, weight=s)))
    assert out.shape == (n, D)
    assert out.isfinite().all()
    gradients = torch.autograd.grad((out * features(n, 1)).sum(), [x, s])
    assert all(g.isfinite().all() for g in gradients)
    if not (c.b1.weight > 0).any():  # without cells the vertices are on their own
        alone = torch.cat([model(x[v : v + 1], lifted(1)) for v in range(n)])
        close(out, alone)


@every_network
def test_every_parameter_receives_a_gradient(name):
    model = WithReadout(name).double()
    (model(features(), tangle()) * features(seed=1)).sum().backward()
    silent = [key for key, p in model.named_parameters() if p.grad is None or not (p.grad != 0).any()]
    assert silent == []
