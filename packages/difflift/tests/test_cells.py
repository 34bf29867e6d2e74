"""The branch of edges and cycles: candidates against loops, scores by hand, boundaries of boundaries."""

import pytest
import torch
from difflift.cells import CellBranch, candidate_edges, pair_label, projected
from difflift.complexes import Incidence, edge_incidence
from difflift.cwn import CWN
from difflift.graphs import Graphs
from difflift.neighbours import Neighbourhoods, NeighbourhoodSize, nearest
from difflift.readout import PropagateDown
from hypothesis import given, settings
from hypothesis import strategies as st

D, K = 3, 4


def branch(selection="threshold", training=False, **options):
    """With a scorer whose probabilities lie on both sides of one half."""
    torch.manual_seed(0)
    return CellBranch(D, hidden=8, selection=selection, **options).double().train(training)


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


def columns(b):
    """Rows of the entries of each column, as sets."""
    return [set(b.row[b.col == c].tolist()) for c in range(b.shape[1])]


def vertices_of(lifted):
    """Vertices of each 2-cell, from those of its edges."""
    edges = columns(lifted.b1)
    return [set().union(*(edges[e] for e in cell)) for cell in columns(lifted.b2)]


@st.composite
def proposals(draw):
    """For up to 8 vertices of one graph: who proposes whom, and edges."""
    n = draw(st.integers(1, 8))
    lists = [draw(st.permutations([u for u in range(n) if u != v])) for v in range(n)]
    counts = draw(st.lists(st.integers(0, K - 1), min_size=n, max_size=n))
    vertex = st.integers(0, n - 1)
    pairs = draw(st.lists(st.tuples(vertex, vertex), max_size=8))
    index = torch.tensor([([v, *others] + [-1] * K)[:K] for v, others in enumerate(lists)])
    mask = ((torch.arange(K) <= torch.tensor(counts)[:, None]) & (index >= 0)).double()
    return index, mask, pairs


@settings(deadline=None, max_examples=100)
@given(proposals())
def test_candidates_are_the_proposed_pairs_that_are_no_edges(case):
    index, mask, pairs = case
    n = len(index)
    edges = sorted({(min(u, v), max(u, v)) for u, v in pairs if u != v})
    ends = torch.tensor(edges, dtype=torch.long).view(-1, 2).T
    proposers = {}
    for v in range(n):
        for u, m in zip(index[v].tolist(), mask[v].tolist(), strict=True):
            if m and u != v and (min(u, v), max(u, v)) not in edges:
                proposers.setdefault((min(u, v), max(u, v)), []).append((v, index[v].tolist().index(u)))
    mask.requires_grad_()
    found, m = candidate_edges(Neighbourhoods(index, mask, mask.sum(1).long()), ends)
    assert list(map(tuple, found.T.tolist())) == sorted(proposers)
    assert m.tolist() == [1.0] * len(proposers)
    expected = torch.zeros(n, K, dtype=torch.float64)
    for i, pair in enumerate(sorted(proposers)):
        if len(proposers[pair]) == 1:  # where both propose, one less changes nothing
            expected[proposers[pair][0]] = i + 1
    if len(m):
        (m * torch.arange(1, len(m) + 1)).sum().backward()
        assert (mask.grad if mask.grad is not None else torch.zeros(n, K)).tolist() == expected.tolist()


def test_pairs_of_vertices_are_numbered_without_gaps():
    pairs = [(u, v) for v in range(6) for u in range(v)]
    u, v = torch.tensor(pairs).T
    assert pair_label(u, v).tolist() == list(range(15))


@pytest.mark.parametrize("seed", range(3))
def test_probabilities_are_those_of_one_scorer_on_mean_embeddings(seed):
    """Of the two ends of an edge, and of the vertices of a cycle: softmax(10 W_2 ReLU(W_1 z))_1."""
    h, graphs, hoods = random_case(seed)
    net = branch()
    lifted = net(h, graphs, hoods)
    own = lifted.edges
    cells = columns(lifted.b1)[own:] + vertices_of(lifted)
    first, _, second = net.scorer
    expected = []
    for cell in cells:
        z = h[sorted(cell)].mean(0)
        a, b = (second.weight @ (first.weight @ z + first.bias).relu() + second.bias).tolist()
        expected.append(torch.sigmoid(torch.tensor(10 * (b - a), dtype=torch.float64)))
    p, s = torch.cat([lifted.p_1[own:], lifted.p_2]), torch.cat([lifted.b1.weight[own:], lifted.b2.weight])
    torch.testing.assert_close(p, torch.stack(expected))
    assert s.tolist() == (p > 0.5).double().tolist()
    assert lifted.p_1[:own].tolist() == lifted.b1.weight[:own].tolist() == [1.0] * own
    assert lifted.candidates == len(p)


@pytest.mark.parametrize("cycles", ["minimum", "basis", "induced", "triangles"])
@pytest.mark.parametrize("selection", ["threshold", "all", "sample"])
def test_boundary_of_a_boundary_is_zero(cycles, selection):
    h, graphs, hoods = random_case()
    torch.manual_seed(1)
    lifted = branch(selection, True, cycles=cycles, longest=6)(h, graphs, hoods)
    members = [Incidence(b.row, b.col, b.member, torch.ones_like(b.weight), b.rows) for b in (lifted.b1, lifted.b2)]
    b1, b2 = (b.to_dense() for b in members)
    assert lifted.b2.shape[1] > 0
    assert ((b1 @ b2) % 2).count_nonzero() == 0
    assert b1.sum(0).unique().tolist() == [2]
    assert set(b1.flatten().tolist()) == set(b2.flatten().tolist()) == {0.0, 1.0}
    edges = list(map(frozenset, columns(lifted.b1)))
    assert len(set(edges)) == len(edges)
    cells = list(map(frozenset, columns(lifted.b2)))
    assert len(set(cells)) == len(cells)


def test_cycles_are_those_of_the_included_edges():
    """Number of basis cycles = included edges - vertices + components; excluded edges bound no cell."""
    h, graphs, hoods = random_case(sizes=(9,))
    lifted = branch()(h, graphs, hoods)
    included = lifted.b1.weight > 0
    assert 0 < included[lifted.edges :].sum() < lifted.candidates
    assert included[lifted.b2.row].all()
    laplacian = lifted.b1.to_dense() @ lifted.b1.to_dense().T
    laplacian = 2 * laplacian.diag().diag() - laplacian
    components = 9 - int(torch.linalg.matrix_rank(laplacian))
    assert lifted.b2.shape[1] == int(included.sum()) - 9 + components > 0


def test_accepting_no_one_leaves_the_graph():
    h, graphs, hoods = random_case()
    lifted = branch("none")(h, graphs, hoods).pruned()
    assert (
        lifted.b1.to_dense().tolist() == edge_incidence(graphs.edges, h.new_ones(lifted.edges), 18).to_dense().tolist()
    )
    assert lifted.b2.shape == (lifted.edges, 0)


def test_accepting_all_includes_every_candidate():
    h, graphs, hoods = random_case()
    lifted = branch("all")(h, graphs, hoods)
    pairs = torch.cat([graphs.edges, candidate_edges(hoods, graphs.edges)[0]], dim=1)
    assert columns(lifted.b1) == [set(pair) for pair in pairs.T.tolist()]
    assert lifted.b1.weight.unique().tolist() == lifted.b2.weight.unique().tolist() == [1.0]


def test_lengths_of_cycles_are_within_their_bounds():
    h, graphs, hoods = random_case()
    for shortest, longest in ((3, 3), (4, 4), (4, 6)):
        lifted = branch("all", shortest=shortest, longest=longest)(h, graphs, hoods)
        lengths = lifted.b2.sizes.tolist()
        assert lengths
        assert all(shortest <= length <= longest for length in lengths)


def test_soft_selection_weighs_by_the_probability():
    h, graphs, hoods = random_case()
    lifted = branch("soft", training=True)(h, graphs, hoods)
    assert torch.equal(lifted.b1.weight, lifted.p_1)
    assert torch.equal(lifted.b2.weight, lifted.p_2)
    assert len(lifted.p_2.unique()) > 1


@pytest.mark.parametrize("selection", ["threshold", "random"])
def test_cells_of_a_graph_are_those_in_any_batch(selection):
    sizes = (6, 9, 1, 2)
    h, graphs, hoods = random_case(sizes=sizes)
    together = branch(selection)(h, graphs, hoods)
    start = 0
    for g, size in enumerate(sizes):
        part = slice(start, start + size)
        inside = graphs.edges[:, graphs.batch[graphs.edges[0]] == g] - start
        alone = branch(selection)(
            h[part], graphs_of(h[part], inside.T.tolist(), [size]), neighbourhoods(h[part], [size], hoods.k[part])
        )
        of_1, of_2 = together.batch_1 == g, together.batch_2 == g
        assert torch.equal(alone.b1.to_dense(), together.b1.to_dense()[part][:, of_1])
        assert torch.equal(alone.b2.to_dense(), together.b2.to_dense()[of_1][:, of_2])
        start += size


def test_vertices_in_another_order_permute_rows_and_columns():
    h, graphs, hoods = random_case(sizes=(9,))
    order = torch.randperm(9, generator=torch.Generator().manual_seed(1))
    place = order.argsort()
    graphs_moved = graphs_of(h[order], place[graphs.edges].T.tolist(), [9])
    net = branch(cycles="induced", longest=6)
    lifted, moved = net(h, graphs, hoods), net(h[order], graphs_moved, neighbourhoods(h[order], [9], hoods.k[order]))
    edge = {frozenset(place[list(ends)].tolist()): c for c, ends in enumerate(columns(lifted.b1))}
    to_1 = torch.tensor([edge[frozenset(ends)] for ends in columns(moved.b1)])
    cell = {frozenset(members): c for c, members in enumerate(columns(lifted.b2))}
    to_2 = torch.tensor([cell[frozenset(to_1[list(members)].tolist())] for members in columns(moved.b2)])
    assert sorted(to_1.tolist()) == list(range(len(edge)))
    assert sorted(to_2.tolist()) == list(range(len(cell)))
    assert torch.equal(moved.b1.to_dense(), lifted.b1.to_dense()[order][:, to_1])
    assert torch.equal(moved.b2.to_dense(), lifted.b2.to_dense()[to_1][:, to_2])
    torch.testing.assert_close(moved.p_2, lifted.p_2[to_2])


def test_published_boundary_counts_the_vertices_that_edge_and_cycle_share():
    """A square 0 1 2 3 with the chord 0 2, the edge 3 4 that touches it and 4 5 that does not; 1 4 is excluded."""
    edges = torch.tensor([[0, 1, 2, 0, 0, 3, 4, 1], [1, 2, 3, 3, 2, 4, 5, 4]])
    b1 = edge_incidence(edges, torch.tensor([1.0, 1, 1, 1, 1, 1, 1, 0]), 6)
    around = Incidence(torch.arange(4), torch.zeros(4, dtype=torch.long), torch.ones(4), torch.tensor([1.0]), 6)
    assert projected(b1, around).to_dense().squeeze(1).tolist() == [2, 2, 2, 2, 2, 1, 0, 0]


def test_published_boundary_of_a_lift_is_the_product_of_incidences():
    h, graphs, hoods = random_case()
    exact, published = (branch("sample", True, boundary=kind) for kind in ("exact", "projected"))
    torch.manual_seed(0)
    exact = exact(h, graphs, hoods)
    torch.manual_seed(0)
    published = published(h, graphs, hoods)
    node_cell = torch.zeros(18, exact.b2.shape[1], dtype=torch.float64)
    for c, members in enumerate(vertices_of(exact)):
        node_cell[list(members), c] = 1
    expected = exact.b1.to_dense().T @ node_cell * exact.b2.weight
    torch.testing.assert_close(published.b2.to_dense(), expected)
    assert torch.equal(published.b2.weight, exact.b2.weight)
    assert exact.b2.to_dense().sum() < expected.sum() / 2


def test_gradient_reaches_the_scorer_through_edges_and_through_cycles():
    h, graphs, hoods = random_case()
    for rank in (1, 2):
        net = branch(training=True)
        lifted = net(h, graphs, hoods)
        s = (lifted.b1, lifted.b2)[rank - 1].weight[lifted.edges if rank == 1 else 0 :]
        (s * torch.randn(len(s), generator=torch.Generator().manual_seed(0))).sum().backward()
        for name, parameter in net.named_parameters():
            assert parameter.grad.abs().sum() > 0, name


@pytest.mark.parametrize("gradient", ["cumulative", "none"])
def test_choice_of_sizes_has_a_gradient_unless_as_published(gradient):
    h, graphs, _ = random_case()
    torch.manual_seed(0)
    size = NeighbourhoodSize(D, K, gradient=gradient).double()
    lifted = branch("all", True)(h, graphs, size(h, nearest(h, graphs.sizes, K)))
    assert lifted.b1.weight.requires_grad == (gradient == "cumulative")
    if gradient == "cumulative":
        (lifted.b1.down(lifted.b1.up(h)) * torch.arange(len(h))[:, None]).sum().backward()
        assert all(parameter.grad.abs().sum() > 0 for parameter in size.parameters())


def test_derivative_in_the_inclusion_of_excluded_cells_is_that_of_a_difference():
    """Of a network's output read at the vertices, every other added cell being excluded, one of these at a time."""
    h, graphs, hoods = random_case()
    lifted = branch("all", training=True)(h, graphs, hoods)
    torch.manual_seed(0)
    net, down = CWN(D).double(), PropagateDown(D).double()
    weight = torch.randn(len(h), D, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    count = len(lifted.b1.weight)

    def loss(s):
        b1, b2 = (
            Incidence(b.row, b.col, b.member, part, b.rows)
            for b, part in ((lifted.b1, s[:count]), (lifted.b2, s[count:]))
        )
        changed = lifted.__class__(**{**lifted.__dict__, "b1": b1, "b2": b2})
        return (down(net(h, changed), changed) * weight).sum()

    s = torch.cat([lifted.b1.weight, lifted.b2.weight]).detach()
    excluded = list(range(lifted.edges, len(s), 2))
    s[excluded] = 0
    s.requires_grad_()
    assert min(excluded) < count < max(excluded)
    (gradient,) = torch.autograd.grad(loss(s), s)
    step, unit = 1e-6, torch.eye(len(s), dtype=s.dtype)
    quotients = [(loss(s + step * unit[c]) - loss(s - step * unit[c])).item() / (2 * step) for c in excluded]
    torch.testing.assert_close(gradient[excluded], torch.tensor(quotients, dtype=s.dtype), rtol=1e-5, atol=1e-7)
    assert gradient[excluded].count_nonzero() > len(excluded) / 2
