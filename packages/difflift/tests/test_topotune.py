"""TopoTune: neighbourhoods against dense matrices, weighted attention against PyG and the formula, weights of 0."""

import pytest
import torch
from difflift.complexes import Complex, Incidence, edge_incidence
from difflift.networks import projection_sum
from difflift.topotune import (
    NEIGHBOURHOODS,
    Neighbourhood,
    TopoTune,
    WeightedGAT,
    WeightedGIN,
    neighbourhood,
    pairs_within,
)
from torch_geometric.nn import GATConv, GINConv

D = 6
# A square with a diagonal, two triangles on it, the square itself, and a vertex of its own.
EDGES = torch.tensor([[0, 1, 2, 0, 0], [1, 2, 3, 3, 2]])
CELLS = ((0, 1, 4), (4, 2, 3), (0, 1, 2, 3))
ALL = (*NEIGHBOURHOODS, "up_incidence-0", "up_incidence-1")


def square(s_1=(1, 1, 1, 1, 1), s_2=(1, 1, 1)):
    s_1, s_2 = (torch.as_tensor(s, dtype=torch.float64) for s in (s_1, s_2))
    row = torch.tensor([e for cell in CELLS for e in cell])
    col = torch.tensor([c for c, cell in enumerate(CELLS) for _ in cell])
    b2 = Incidence(row, col, torch.ones(len(row), dtype=torch.float64), s_2, 5)
    zeros = (torch.zeros(n, dtype=torch.long) for n in (5, 5, 3))
    return Complex(edge_incidence(EDGES, s_1, 5), b2, *zeros, 1, 0, s_1, s_2)


def features(n=5, seed=0):
    return torch.randn(n, D, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def off_diagonal(matrix):
    return (matrix - matrix.diag().diag()).clamp(max=1)


def share(m, s):
    """1 - Π_k (1 - m_ik m_jk s_k) of different i and j, from a dense m of 0 and 1."""
    return off_diagonal(1 - (1 - torch.einsum("ik,jk,k->ijk", m, m, s)).prod(2))


def dense(edges, sizes):
    """Receivers (rows) and senders of a neighbourhood."""
    matrix = torch.zeros(sizes[edges.ranks[1]], sizes[edges.ranks[0]], dtype=torch.float64)
    return matrix.index_put((edges.target, edges.source), edges.weight, accumulate=True)


def test_neighbourhoods_are_the_matrices_of_the_paper():
    c = square()
    b1, b2 = c.b1.to_dense(), c.b2.to_dense()
    expected = {
        "up_laplacian-0": off_diagonal(b1 @ b1.T),
        "down_laplacian-1": off_diagonal(b1.T @ b1),
        "down_incidence-1": b1,
        "up_laplacian-1": off_diagonal(b2 @ b2.T),
        "down_incidence-2": b2,
        "down_laplacian-2": off_diagonal(b2.T @ b2),
        "up_incidence-0": b1.T,
        "up_incidence-1": b2.T,
    }
    assert set(expected) == set(ALL)
    for name, matrix in expected.items():
        edges = neighbourhood(name, c)
        assert len(edges.weight) == int((matrix != 0).sum()), name  # each pair once
        assert torch.equal(dense(edges, (5, 5, 3)), matrix), name


def test_neighbourhoods_carry_inclusions_of_the_shared_cell_and_of_the_sender():
    s_1, s_2 = torch.tensor([1, 0.5, 1, 1, 0.25]).double(), torch.tensor([0.5, 1, 0.25]).double()
    c = square(s_1, s_2)
    m1, m2 = square().b1.to_dense(), square().b2.to_dense()
    expected = {
        "up_laplacian-0": share(m1, s_1),
        "down_laplacian-1": off_diagonal(m1.T @ m1) @ s_1.diag(),
        "down_incidence-1": m1 @ s_1.diag(),
        "up_laplacian-1": share(m2, s_2) @ s_1.diag(),
        "down_incidence-2": m2 @ s_2.diag(),
        "down_laplacian-2": share(m2.T, s_1) @ s_2.diag(),
        "up_incidence-0": m1.T,
        "up_incidence-1": m2.T @ s_1.diag(),
    }
    for name, matrix in expected.items():
        torch.testing.assert_close(dense(neighbourhood(name, c), (5, 5, 3)), matrix, msg=name)


def test_gradient_of_an_adjacency_is_its_change_as_a_shared_cell_enters_or_leaves():
    for s_2 in ([0, 0, 0], [1, 0, 0], [0, 0, 1], [1, 1, 1]):
        s = torch.tensor(s_2, dtype=torch.float64, requires_grad=True)
        edges = neighbourhood("up_laplacian-1", square(s_2=s))
        for k in range(3):
            other = [1 - b if i == k else b for i, b in enumerate(s_2)]
            change = neighbourhood("up_laplacian-1", square(s_2=other)).weight - edges.weight
            for pair, expected in enumerate((change * (1 - 2 * s_2[k])).tolist()):
                assert torch.autograd.grad(edges.weight[pair], s, retain_graph=True)[0][k].item() == expected


def test_pairs_within_groups_are_all_ordered_pairs_of_different_entries():
    group = torch.tensor([3, 0, 3, 7, 0, 3])
    pairs = list(zip(*(part.tolist() for part in pairs_within(group)), strict=True))
    expected = [(i, j) for i in range(6) for j in range(6) if i != j and group[i] == group[j]]
    assert sorted(pairs) == expected
    assert [len(part) for part in pairs_within(torch.tensor([], dtype=torch.long))] == [0, 0]


def random_edges(weight=None):
    """Edges among five nodes, each ordered pair at most once, none to node 4."""
    source, target = torch.tensor([[0, 1, 2, 3, 4, 0, 2], [1, 0, 1, 2, 3, 3, 0]])
    weight = torch.ones(7, dtype=torch.float64) if weight is None else weight
    return Neighbourhood(source, target, weight, (1, 1))


def weighted_gat(heads=2):
    torch.manual_seed(0)
    ours = WeightedGAT(D, heads).double()
    torch.nn.init.normal_(ours.bias)
    return ours


@pytest.mark.parametrize("heads", [1, 3])
def test_attention_with_weights_of_one_is_pygs(heads):
    ours, theirs, x, edges = (
        weighted_gat(heads),
        GATConv(D, D // heads, heads=heads).double(),
        features(),
        random_edges(),
    )
    with torch.no_grad():
        theirs.lin.weight.copy_(ours.linear.weight)
        theirs.att_src.copy_(ours.att_source[None])
        theirs.att_dst.copy_(ours.att_target[None])
        theirs.bias.copy_(ours.bias)
    torch.testing.assert_close(ours(x, x, edges), theirs(x, torch.stack([edges.source, edges.target])))


def test_attention_between_ranks_is_pygs_on_the_graph_of_both_ranks():
    ours, theirs = weighted_gat(1), GATConv(D, D).double()
    with torch.no_grad():
        theirs.lin.weight.copy_(ours.linear.weight)
        theirs.att_src.copy_(ours.att_source[None])
        theirs.att_dst.copy_(ours.att_target[None])
        theirs.bias.copy_(ours.bias)
    senders, receivers, edges = features(3, 1), features(5), neighbourhood("down_incidence-2", square())
    union = theirs(torch.cat([receivers, senders]), torch.stack([edges.source + 5, edges.target]))
    torch.testing.assert_close(ours(senders, receivers, edges), union[:5])


def test_attention_weights_multiply_the_softmax():
    weight = torch.tensor([1, 0.5, 0.25, 0, 1, 0.75, 1]).double()
    gat, x, edges = weighted_gat(1), features(), random_edges(weight)
    h = gat.linear(x)
    w = torch.eye(5, dtype=torch.float64).index_put((edges.target, edges.source), weight)
    logit = (h @ gat.att_target[0])[:, None] + (h @ gat.att_source[0])[None]
    e = w * torch.where(logit > 0, logit, 0.2 * logit).exp()
    torch.testing.assert_close(gat(x, x, edges), e @ h / e.sum(1, keepdim=True) + gat.bias)


def test_an_edge_of_weight_zero_does_not_count_however_strong_its_attention():
    gat, x = weighted_gat(1), features()
    with torch.no_grad():
        gat.att_source.mul_(1e4)  # the attention is far beyond what exp can hold
    weight = torch.ones(7, dtype=torch.float64)
    for edge in range(7):
        w = weight.clone()
        w[edge] = 0
        w.requires_grad_()
        edges, keep = random_edges(w), torch.arange(7) != edge
        out = gat(x, x, edges)
        without = Neighbourhood(edges.source[keep], edges.target[keep], weight[keep], (1, 1))
        torch.testing.assert_close(out, gat(x, x, without), rtol=1e-12, atol=1e-12)
        assert torch.autograd.grad(out.sum(), w)[0].isfinite().all()


def test_gradient_in_a_weight_of_zero_is_the_share_that_the_edge_would_take_up_to_that_of_the_strongest():
    gat, x = weighted_gat(1), 3 * features()
    h = gat.linear(x).detach()
    exceeding = 0
    for edge in range(7):
        weight = torch.ones(7, dtype=torch.float64)
        weight[edge] = 0
        weight.requires_grad_()
        edges, r = random_edges(weight), features(seed=1)
        i, j = edges.target[edge], edges.source[edge]
        heard = [k for k, t in zip(edges.source.tolist(), edges.target.tolist(), strict=True) if t == i and k != j]
        logits = torch.stack([(h[k] @ gat.att_source[0] + h[i] @ gat.att_target[0]) for k in (int(i), *heard, int(j))])
        strength = torch.nn.functional.leaky_relu(logits, 0.2).exp().detach()
        out = gat(x, x, edges)
        share = strength[-1].clamp(max=strength[:-1].max()) / strength[:-1].sum()
        exceeding += int(strength[-1] > strength[:-1].max())
        gradient = torch.autograd.grad((out * r).sum(), weight)[0][edge]
        torch.testing.assert_close(gradient, share * (h[j] - out[i].detach() + gat.bias.detach()) @ r[i])
    assert 0 < exceeding < 7


def test_gradients_in_weights_and_signals_are_those_of_differences():
    gat, gin, x = weighted_gat(2), WeightedGIN(D).double(), features()
    weight = torch.tensor([1, 0.5, 0.25, 0.5, 1, 0.75, 1]).double().requires_grad_()
    assert torch.autograd.gradcheck(lambda w: gat(x, x, random_edges(w)), weight)
    assert torch.autograd.gradcheck(lambda w: gin(x, x, random_edges(w)), weight)
    signals = x.clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda x: gat(x, x, random_edges()), signals)


def test_gin_with_weights_of_one_is_pygs():
    ours, x, edges = WeightedGIN(D).double(), features(), random_edges()
    theirs = GINConv(ours.mlp)
    torch.testing.assert_close(ours(x, x, edges), theirs(x, torch.stack([edges.source, edges.target])))


@pytest.mark.parametrize("gnn", ["gat", "gin"])
def test_a_layer_adds_the_relu_of_the_neighbourhoods_sum(gnn):
    torch.manual_seed(0)
    c, x, net = square(), features(), TopoTune(D, layers=1, gnn=gnn, neighbourhoods=ALL).double()
    first = projection_sum(x, c)
    heard = [0, 0, 0]
    for name, part in zip(ALL, net.layers[0], strict=True):
        edges = neighbourhood(name, c)
        source, target = edges.ranks
        heard[target] = heard[target] + part(first[source], first[target], edges)
    for new, old, total in zip(net(x, c), first, heard, strict=True):
        torch.testing.assert_close(new, old + total.relu())


def test_a_rank_that_no_neighbourhood_reaches_keeps_its_signals():
    c, x = square(), features()
    x_0, x_1, x_2 = TopoTune(D, neighbourhoods=["down_incidence-1"]).double()(x, c)
    first = projection_sum(x, c)
    assert (x_0 != first[0]).any()
    assert torch.equal(x_1, first[1])
    assert torch.equal(x_2, first[2])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"gnn": "gcn"}, "gnn must be 'gat' or 'gin', got 'gcn'"),
        ({"heads": 4}, "heads must divide the width 6, got 4"),
        ({"heads": 0}, "heads must divide the width 6, got 0"),
        ({"neighbourhoods": []}, "at least one, got"),
        ({"neighbourhoods": ["up_laplacian-0"] * 2}, "must be different names"),
        ({"neighbourhoods": ["up_laplacian-2"]}, "up_laplacian-1, .*, got 'up_laplacian-2'"),
    ],
)
def test_options_outside_their_ranges_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        TopoTune(D, **options)
