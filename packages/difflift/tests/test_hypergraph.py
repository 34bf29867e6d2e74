"""The hypergraph branch against loops over candidates, and its gradients by hand and by differences."""

import math

import pytest
import torch
from difflift.complexes import Incidence
from difflift.graphs import Graphs
from difflift.hypergraph import HyperedgeBranch, distinct
from difflift.neighbours import Neighbourhoods, NeighbourhoodSize, nearest
from difflift.unignn import UniGCNII
from hypothesis import given, settings
from hypothesis import strategies as st

D, K = 2, 4


def branch(selection="sample", dim=D, training=False):
    torch.manual_seed(0)
    return HyperedgeBranch(dim, hidden=8, dropout=0.5, selection=selection).double().train(training)


def graphs_of(h, pairs, sizes):
    """Graphs with the given edges, those between two graphs left out."""
    batch = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    edges = sorted({(min(u, v), max(u, v)) for u, v in pairs if u != v and batch[u] == batch[v]})
    return Graphs(h, torch.tensor(edges, dtype=torch.long).view(-1, 2).T, batch, len(sizes))


def neighbourhoods(h, sizes, k):
    """The k_v nearest vertices of each, among columns for K."""
    index = nearest(h, torch.tensor(sizes), K)
    mask = ((torch.arange(K) < torch.as_tensor(k)[:, None]) & (index >= 0)).double()
    return Neighbourhoods(index, mask, mask.sum(1).long())


def random_case(seed=0, sizes=(6, 9, 1, 2)):
    rng, n = torch.Generator().manual_seed(seed), sum(sizes)
    h = torch.randn(n, D, generator=rng, dtype=torch.float64)
    pairs = torch.randint(n, (2 * n, 2), generator=rng).tolist()
    k = torch.randint(2, K + 1, (n,), generator=rng).tolist()
    return h, graphs_of(h, pairs, sizes), neighbourhoods(h, sizes, k)


def member_sets(b):
    """The members of each column, whether it is included or not."""
    sets = [set() for _ in range(b.shape[1])]
    for v, c, m in zip(b.row.tolist(), b.col.tolist(), b.member.tolist(), strict=True):
        if m:
            sets[c].add(v)
    return sets


@st.composite
def cases(draw):
    """Up to 8 vertices on a small grid, so that many candidates are equal; with edges and sizes k_v from 1 on."""
    sizes = draw(st.lists(st.integers(1, 8), min_size=1, max_size=3).filter(lambda s: sum(s) <= 8))
    n = sum(sizes)
    coordinate = st.integers(-1, 1)
    at = draw(st.lists(st.tuples(coordinate, coordinate), min_size=n, max_size=n))
    pairs = draw(st.lists(st.tuples(st.integers(0, n - 1), st.integers(0, n - 1)), max_size=8))
    k = draw(st.lists(st.integers(1, K), min_size=n, max_size=n))
    h = torch.tensor(at, dtype=torch.float64)
    return h, graphs_of(h, pairs, sizes), neighbourhoods(h, sizes, k), sizes, k


@settings(deadline=None, max_examples=100)
@given(cases())
def test_candidates_are_those_of_loops_over_vertices(case):
    """Member sets of two or more that are no edge and not those of an earlier vertex; p and b of their mean."""
    h, graphs, hoods, sizes, k = case
    at, batch, start = h.tolist(), graphs.batch.tolist(), [0]
    for size in sizes:
        start.append(start[-1] + size)
    net = branch()
    columns, p = [set(pair) for pair in graphs.edges.T.tolist()], []
    for v in range(len(h)):
        mates = range(start[batch[v]], start[batch[v] + 1])
        members = set(sorted(mates, key=lambda u, v=v: (u != v, math.dist(at[u], at[v]), u))[: k[v]])
        if len(members) > 1 and members not in columns:
            columns.append(members)
            p.append(torch.sigmoid(net.scorer(h[sorted(members)].mean(0))).item())
    lifted = net(h, graphs, hoods)
    assert member_sets(lifted.b1) == columns
    torch.testing.assert_close(lifted.p_1[lifted.edges :].tolist(), p)
    own = graphs.edges.shape[1]
    s = [1.0] * own + [float(q > 0.5) for q in p]
    assert lifted.b1.weight.tolist() == s
    dense = [[float(v in column) * i for column, i in zip(columns, s, strict=True)] for v in range(len(h))]
    assert lifted.b1.to_dense().tolist() == dense
    assert lifted.batch_1.tolist() == [batch[min(column)] for column in columns]
    assert (lifted.candidates, lifted.edges, lifted.b2.shape) == (len(p), own, (len(columns), 0))


@pytest.mark.parametrize("seed", range(5))
def test_columns_are_distinct_and_as_large_as_chosen(seed):
    h, graphs, hoods = random_case(seed)
    lifted = branch("all")(h, graphs, hoods)
    sets, own = member_sets(lifted.b1), graphs.edges.shape[1]
    assert len({frozenset(members) for members in sets}) == len(sets)
    assert lifted.b1.to_dense().sum(0)[:own].tolist() == [2] * own
    for v in distinct(hoods, graphs.edges).tolist():
        members = set(hoods.index[v][hoods.mask[v] == 1].tolist())
        assert v in members
        assert len(members) == hoods.k[v] <= K
        assert members in sets[own:]
    assert torch.equal(lifted.k, hoods.k)


def test_members_of_a_candidate_are_in_its_column_not_in_its_row():
    """On a line 0, 1, 3: the two nearest of 2 are {1, 2}, but 2 is in the neighbourhood of none of the others."""
    h = torch.tensor([[0.0, 0], [1, 0], [3, 0]], dtype=torch.float64)
    lifted = branch("all")(h, graphs_of(h, [], [3]), neighbourhoods(h, [3], [2, 2, 2]))
    assert lifted.b1.to_dense().tolist() == [[1, 0], [1, 1], [0, 1]]


def test_vertices_in_another_order_permute_rows_and_columns():
    h, graphs, hoods = random_case(sizes=(9,))
    order = torch.randperm(9, generator=torch.Generator().manual_seed(1))
    place = order.argsort()
    moved_edges = place[graphs.edges].T.tolist()
    moved = branch()(h[order], graphs_of(h[order], moved_edges, [9]), neighbourhoods(h[order], [9], hoods.k[order]))
    lifted = branch()(h, graphs, hoods)
    sets, moved_sets = member_sets(lifted.b1), member_sets(moved.b1)
    column = {frozenset(place[list(members)].tolist()): c for c, members in enumerate(sets)}
    to = torch.tensor([column[frozenset(members)] for members in moved_sets])
    assert sorted(to.tolist()) == list(range(len(sets)))
    assert torch.equal(moved.b1.to_dense(), lifted.b1.to_dense()[order][:, to])
    torch.testing.assert_close(moved.p_1, lifted.p_1[to])
    assert torch.equal(moved.k, lifted.k[order])


def test_draws_differ_while_training_and_follow_the_seed():
    h, graphs, hoods = random_case()
    net = branch(training=True)
    torch.manual_seed(3)
    first = [net(h, graphs, hoods).b1.weight.tolist() for _ in range(5)]
    torch.manual_seed(3)
    assert [net(h, graphs, hoods).b1.weight.tolist() for _ in range(5)] == first
    assert len(set(map(tuple, first))) > 1
    net.eval()
    assert net(h, graphs, hoods).b1.weight.tolist() == net(h, graphs, hoods).b1.weight.tolist()


def test_soft_selection_weighs_by_the_probability():
    h, graphs, hoods = random_case()
    lifted = branch("soft", training=True)(h, graphs, hoods)
    assert torch.equal(lifted.b1.weight, lifted.p_1)
    assert ((lifted.p_1[lifted.edges :] > 0) & (lifted.p_1[lifted.edges :] < 1)).all()


def test_random_inclusion_of_a_graph_is_that_in_any_batch():
    sizes = (6, 9, 1, 2)
    h, graphs, hoods = random_case(sizes=sizes)
    together = branch("random")(h, graphs, hoods)
    assert 0 < together.b1.weight[together.edges :].mean() < 1
    start = 0
    for g, size in enumerate(sizes):
        part = slice(start, start + size)
        inside = graphs.edges[:, graphs.batch[graphs.edges[0]] == g] - start
        alone = branch("random")(
            h[part], graphs_of(h[part], inside.T.tolist(), [size]), neighbourhoods(h[part], [size], hoods.k[part])
        )
        assert torch.equal(alone.b1.to_dense(), together.b1.to_dense()[part][:, together.batch_1 == g])
        start += size


def test_gradient_reaches_the_scorer_and_the_choice_of_sizes():
    h, graphs, _ = random_case()
    torch.manual_seed(0)
    size = NeighbourhoodSize(D, K).double()
    net = branch(training=True)
    lifted = net(h, graphs, size(h, nearest(h, graphs.sizes, K)))
    weight = torch.randn(len(h), D, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    (lifted.b1.down(lifted.b1.member_mean(h)) * weight).sum().backward()
    for name, parameter in (*net.named_parameters(), *size.named_parameters()):
        assert parameter.grad is not None and parameter.grad.abs().sum() > 0, name


@pytest.mark.parametrize("gradient", ["cumulative", "none"])
def test_choice_of_sizes_has_a_gradient_unless_as_published(gradient):
    h, graphs, _ = random_case()
    torch.manual_seed(0)
    size = NeighbourhoodSize(D, K, gradient=gradient).double()
    lifted = branch("all")(h, graphs, size(h, nearest(h, graphs.sizes, K)))
    assert lifted.b1.value.requires_grad == (gradient == "cumulative")


def test_left_out_member_has_the_gradient_of_entering():
    """The entry of the third nearest vertex, m = 0: d/dm of Σ (B ᵀ x) is s · x there, although it is not in B."""
    h, graphs, hoods = random_case()
    mask = hoods.mask.clone().requires_grad_()
    lifted = branch("all")(h, graphs, Neighbourhoods(hoods.index, mask, hoods.k))
    lifted.b1.up(h).sum().backward()
    v = int(((hoods.k == 2) & (hoods.index[:, 2] >= 0)).nonzero()[0])
    assert v in distinct(hoods, graphs.edges)
    assert mask[v, 2] == 0
    torch.testing.assert_close(mask.grad[v, 2], h[hoods.index[v, 2]].sum())


def test_derivative_in_the_inclusion_of_excluded_hyperedges_is_that_of_a_difference():
    """Of a network's output, at s = 0, one hyperedge at a time."""
    h, graphs, hoods = random_case()
    lifted = branch("none", training=True)(h, graphs, hoods)
    torch.manual_seed(0)
    net = UniGCNII(D).double()
    weight = torch.randn(len(h), D, generator=torch.Generator().manual_seed(0), dtype=torch.float64)

    def loss(s):
        b = lifted.b1
        changed = Incidence(b.row, b.col, b.member, s, b.rows)
        return (net(h, lifted.__class__(**{**lifted.__dict__, "b1": changed}))[0] * weight).sum()

    s = lifted.b1.weight.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(loss(s), s)
    step = 1e-6
    added = range(lifted.edges, len(s))
    quotients = [(loss(s + step * torch.eye(len(s), dtype=s.dtype)[c]) - loss(s)).item() / step for c in added]
    torch.testing.assert_close(gradient[lifted.edges :], torch.tensor(quotients, dtype=s.dtype), rtol=1e-3, atol=1e-5)
    assert gradient[lifted.edges :].count_nonzero() > len(added) / 2
