"""Static liftings by hand, and against loops over the definition."""

from itertools import combinations

import networkx as nx
import pytest
import torch
from difflift.baselines import CliqueLifting, CycleLifting, FeatureKNNLifting, KHopLifting, NoLifting
from torch_geometric.data import Batch, Data

LIFTINGS = {
    "none": NoLifting(3),
    "cycle cells": CycleLifting(3),
    "induced cells": CycleLifting(3, cycles="induced", longest=5),
    "cycle hyperedges": CycleLifting(3, cells=False),
    "cliques": CliqueLifting(3),
    "triangles": CliqueLifting(3, cells=True),
    "1 hop": KHopLifting(3),
    "2 hops": KHopLifting(3, hops=2),
    "knn": FeatureKNNLifting(3, k=3),
    "knn cells": FeatureKNNLifting(3, k=3, cells=True),
}
each_lifting = pytest.mark.parametrize("lifting", LIFTINGS.values(), ids=LIFTINGS)


def data_of(graph, seed=0):
    """A PyG graph of a networkx graph on 0 .. n - 1, with random features."""
    edges = torch.tensor(list(graph.edges), dtype=torch.long).reshape(-1, 2).T
    x = torch.randn(len(graph), 3, generator=torch.Generator().manual_seed(seed))
    return Data(x=x, edge_index=torch.cat([edges, edges.flip(0)], dim=1))


def random_data(vertices, edges, seed):
    return data_of(nx.gnm_random_graph(vertices, edges, seed=seed), seed)


def columns(b):
    """Members of each column, in order."""
    return [(b.to_dense()[:, c] != 0).nonzero().squeeze(1).tolist() for c in range(b.shape[1])]


def added(lifted):
    """Members of the 1-cells that are not the graph's own edges."""
    return columns(lifted.b1)[lifted.edges :]


def distinct(candidates, edges):
    """The member sets of two or more vertices, each once, that are no edges; in order of appearance."""
    seen, kept = {tuple(edge) for edge in edges}, []
    for members in candidates:
        if len(members) > 1 and tuple(sorted(members)) not in seen:
            seen.add(tuple(sorted(members)))
            kept.append(sorted(members))
    return kept


def kite():
    """The square 0-1-2-3 with the diagonal 0-2, the triangle 3-4-5 and the pendant 6 at 5."""
    edges = [(0, 1), (1, 2), (2, 3), (0, 3), (0, 2), (3, 4), (4, 5), (3, 5), (5, 6)]
    return data_of(nx.Graph(edges))


EDGES = [[0, 1], [0, 2], [0, 3], [1, 2], [2, 3], [3, 4], [3, 5], [4, 5], [5, 6]]


def test_no_lifting_returns_the_edges():
    lifted = NoLifting(3)(kite())
    assert columns(lifted.b1) == EDGES
    assert lifted.edges == 9
    assert lifted.b2.shape == (9, 0)


def test_cycle_lifting_fills_the_three_triangles_of_the_kite():
    lifted = CycleLifting(3)(kite())
    assert columns(lifted.b1) == EDGES
    assert columns(lifted.b2) == [[0, 1, 3], [1, 2, 4], [5, 6, 7]]


def test_cycle_lifting_adds_cycles_as_hyperedges():
    assert added(CycleLifting(3, cells=False)(kite())) == [[0, 1, 2], [0, 2, 3], [3, 4, 5]]


def test_cycle_lifting_keeps_the_lengths_it_is_told():
    ring = data_of(nx.disjoint_union(nx.cycle_graph(5), nx.cycle_graph(7)))
    assert [len(c) for c in columns(CycleLifting(3)(ring).b2)] == [5, 7]
    assert columns(CycleLifting(3, longest=5)(ring).b2) == [[0, 1, 2, 3, 4]]
    assert added(CycleLifting(3, cells=False, shortest=6)(ring)) == [[5, 6, 7, 8, 9, 10, 11]]


def test_clique_lifting_adds_maximal_cliques_of_three_vertices_or_more():
    graph = nx.disjoint_union(nx.complete_graph(4), nx.path_graph(2))
    graph.add_edges_from([(3, 4), (3, 5)])
    assert added(CliqueLifting(3)(data_of(graph))) == [[3, 4, 5], [0, 1, 2, 3]]
    assert added(CliqueLifting(3, largest=3)(data_of(graph))) == [[3, 4, 5]]


def test_the_clique_complex_has_all_triangles_of_a_tetrahedron_and_the_cycle_basis_one_less():
    tetrahedron = data_of(nx.complete_graph(4))
    triangles = [[0, 1, 3], [0, 2, 4], [1, 2, 5], [3, 4, 5]]  # edges 01 02 03 12 13 23
    assert columns(CliqueLifting(3, cells=True)(tetrahedron).b2) == triangles
    assert len(columns(CycleLifting(3)(tetrahedron).b2)) == 3


def test_one_hop_adds_closed_neighbourhoods():
    path = data_of(nx.path_graph(4))  # the balls around the ends are edges
    assert added(KHopLifting(3)(path)) == [[0, 1, 2], [1, 2, 3]]


def test_many_hops_add_each_component_once():
    graph = nx.disjoint_union_all([nx.path_graph(4), nx.cycle_graph(3), nx.path_graph(2), nx.path_graph(1)])
    assert added(KHopLifting(3, hops=9)(data_of(graph))) == [[0, 1, 2, 3], [4, 5, 6]]


@pytest.mark.parametrize("hops", [1, 2, 3])
@pytest.mark.parametrize("seed", range(4))
def test_balls_are_those_of_a_breadth_first_search(hops, seed):
    graph = nx.gnm_random_graph(14, 15, seed=seed)
    balls = [sorted(nx.single_source_shortest_path_length(graph, v, cutoff=hops)) for v in range(14)]
    edges = [sorted(edge) for edge in graph.edges]
    assert added(KHopLifting(3, hops=hops)(data_of(graph))) == distinct(balls, edges)


@pytest.mark.parametrize("k", [2, 3, 6, 20])
@pytest.mark.parametrize("seed", range(3))
def test_feature_neighbourhoods_are_the_nearest_by_brute_force(k, seed):
    data = random_data(10, 9, seed)
    x = data.x.tolist()
    hoods = []
    for v in range(10):
        squared = [sum((a - b) ** 2 for a, b in zip(x[v], x[u], strict=True)) for u in range(10)]
        hoods.append(sorted(range(10), key=lambda u: (u != v, squared[u], u))[:k])
    edges = data.edge_index[:, : data.edge_index.shape[1] // 2].sort(0).values.T.tolist()
    assert added(FeatureKNNLifting(3, k=k)(data)) == distinct(hoods, edges)

    pairs = sorted({tuple(sorted((v, u))) for v in range(10) for u in hoods[v] if u != v} - set(map(tuple, edges)))
    lifted = FeatureKNNLifting(3, k=k, cells=True)(data)
    assert added(lifted) == [list(pair) for pair in pairs]
    enlarged = nx.Graph([*edges, *pairs])
    enlarged.add_nodes_from(range(10))
    assert sorted(map(len, columns(lifted.b2))) == sorted(map(len, nx.minimum_cycle_basis(enlarged)))


def test_equal_features_are_neighbours_by_index():
    data = Data(x=torch.zeros(4, 3), edge_index=torch.empty(2, 0, dtype=torch.long))
    assert added(FeatureKNNLifting(3, k=3)(data)) == [[0, 1, 2], [0, 1, 3]]  # of 0, 1 and 2; of 3


@each_lifting
def test_the_edges_come_first_and_every_static_cell_is_certain(lifting):
    lifted = lifting(Batch.from_data_list([kite(), random_data(9, 14, 1)]))
    assert columns(lifted.b1)[: lifted.edges][:9] == EDGES
    assert lifted.edges == 23
    for b, p in ((lifted.b1, lifted.p_1), (lifted.b2, lifted.p_2)):
        assert torch.equal(p, torch.ones(b.shape[1]))
        assert torch.equal(b.value, torch.ones(len(b.row)))
    assert lifted.k is None
    assert (lifted.b2.shape[1] > 0) == (lifting.rank == 2)


@each_lifting
def test_no_two_columns_are_the_same(lifting):
    lifted = lifting(Batch.from_data_list([data_of(nx.complete_graph(5)), random_data(12, 20, 2), kite()]))
    for b in (lifted.b1, lifted.b2):
        found = columns(b)
        assert len({tuple(members) for members in found}) == len(found)
        assert all(len(members) > 1 for members in found)


@each_lifting
def test_the_boundary_of_a_boundary_is_zero(lifting):
    lifted = lifting(random_data(12, 24, 3))
    assert not ((lifted.b1.to_dense() @ lifted.b2.to_dense()) % 2).any()


@each_lifting
def test_cells_belong_to_the_graph_of_all_their_members(lifting):
    parts = [random_data(8, 12, 4), data_of(nx.path_graph(1)), kite(), data_of(nx.empty_graph(2)), random_data(6, 9, 5)]
    lifted = lifting(Batch.from_data_list(parts))
    assert lifted.graphs == 5
    assert torch.equal(lifted.batch_0[lifted.b1.row], lifted.batch_1[lifted.b1.col])
    assert torch.equal(lifted.batch_1[lifted.b2.row], lifted.batch_2[lifted.b2.col])


@each_lifting
def test_a_graph_is_lifted_alike_alone_and_in_any_batch(lifting):
    parts = [random_data(8, 12, 4), data_of(nx.path_graph(1)), kite(), data_of(nx.empty_graph(2)), random_data(6, 9, 5)]
    together = lifting(Batch.from_data_list(parts))
    for g, part in enumerate(parts):
        alone = lifting(part)
        rows, first, second = (batch == g for batch in (together.batch_0, together.batch_1, together.batch_2))
        assert torch.equal(alone.b1.to_dense(), together.b1.to_dense()[rows][:, first])
        assert torch.equal(alone.b2.to_dense(), together.b2.to_dense()[first][:, second])


@pytest.mark.parametrize("name", ["none", "induced cells", "cliques", "triangles", "1 hop", "2 hops", "knn"])
def test_renaming_the_vertices_renames_the_members(name):
    # Not so with a minimum basis, where several are equally short.
    data, lifting = random_data(12, 26, 6), LIFTINGS[name]
    new = torch.randperm(12, generator=torch.Generator().manual_seed(7))
    renamed = Data(x=torch.empty_like(data.x).index_copy(0, new, data.x), edge_index=new[data.edge_index])
    one, other = lifting(data), lifting(renamed)
    expected = {frozenset(new[members].tolist()) for members in columns(one.b1)}
    assert {frozenset(members) for members in columns(other.b1)} == expected

    def corners(lifted):
        edges = columns(lifted.b1)
        return [frozenset(v for e in cell for v in edges[e]) for cell in columns(lifted.b2)]

    assert set(corners(other)) == {frozenset(new[list(cell)].tolist()) for cell in corners(one)}


@each_lifting
@pytest.mark.parametrize("vertices", [1, 2])
def test_vertices_without_edges_have_only_what_their_features_add(lifting, vertices):
    lifted = lifting(data_of(nx.empty_graph(vertices)))
    joined = isinstance(lifting, FeatureKNNLifting) and vertices == 2
    assert columns(lifted.b1) == ([[0, 1]] if joined else [])
    assert lifted.b2.shape == (int(joined), 0)
    assert lifted.edges == 0


@each_lifting
def test_the_type_of_the_features_is_kept_and_the_data_left_alone(lifting):
    data = kite()
    data.x = data.x.double()
    before = data.clone()
    lifted = lifting(data)
    for part in (lifted.b1.weight, lifted.b1.member, lifted.b2.weight, lifted.b2.member, lifted.p_1, lifted.p_2):
        assert part.dtype == torch.float64
    assert torch.equal(data.x, before.x)
    assert torch.equal(data.edge_index, before.edge_index)


def test_all_pairs_within_a_clique_are_its_hyperedge_once():
    # Every ball of a complete graph is the whole graph.
    data = data_of(nx.complete_graph(6))
    for lifting in (KHopLifting(3), CliqueLifting(3), FeatureKNNLifting(3, k=6)):
        assert added(lifting(data)) == [list(range(6))]
    assert columns(NoLifting(3)(data).b1) == [list(pair) for pair in combinations(range(6), 2)]


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: KHopLifting(3, hops=0), "hops must be at least 1, got 0"),
        (lambda: FeatureKNNLifting(3, k=1), "k must be at least 2, .* got 1"),
        (lambda: CliqueLifting(3, largest=2), "largest must be at least 3, .* got 2"),
        (lambda: CliqueLifting(3, cells=True, largest=4), "largest must .* None with cells, got 4 and cells=True"),
        (lambda: CycleLifting(3, cycles="induced"), "longest must be given with induced cycles"),
        (lambda: FeatureKNNLifting(3, cells=True, shortest=2), "shortest must be at least 3"),
    ],
)
def test_an_option_out_of_range_is_refused(build, message):
    with pytest.raises(ValueError, match=message):
        build()
