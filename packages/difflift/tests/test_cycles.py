"""Cycles by hand, against the cycle space's own algebra, and against networkx."""

from collections import Counter
from importlib.metadata import distribution
from itertools import combinations

import difflift.cycles as module
import networkx as nx
import numpy as np
import pytest
import torch
from difflift.cycles import Cycles, find_cycles, ragged_ranges
from hypothesis import given, settings
from hypothesis import strategies as st

KINDS = ["basis", "minimum", "induced", "triangles"]


def pairs(graph):
    return sorted(tuple(sorted(edge)) for edge in graph.edges)


def batch_of(graphs, order=None):
    """Edges (2, E) and sizes (G,) of networkx graphs on 0 .. n - 1; the edges in a given order."""
    offsets = np.cumsum([0, *map(len, graphs)])
    edges = [(u + o, v + o) for graph, o in zip(graphs, offsets, strict=False) for u, v in pairs(graph)]
    edges = torch.tensor(edges, dtype=torch.long).reshape(-1, 2).T
    edges = edges if order is None else edges[:, order(edges.shape[1])]
    return edges, torch.tensor([len(graph) for graph in graphs])


def members(cycles: Cycles):
    """The vertices of each cycle."""
    lengths = torch.bincount(cycles.cell, minlength=len(cycles.batch)).tolist()
    return [part.tolist() for part in cycles.vertex.split(lengths)]


def of(graph, kind="minimum", shortest=3, longest=None):
    return members(find_cycles(*batch_of([graph]), kind, shortest, longest))


def rank_mod_2(rows):
    basis = []
    for row in rows:
        for other in basis:
            row = min(row, row ^ other)
        if row:
            basis.append(row)
    return len(basis)


def independence(cycles: Cycles):
    rows = [0] * len(cycles.batch)
    for edge, cell in zip(cycles.edge.tolist(), cycles.cell.tolist(), strict=True):
        rows[cell] ^= 1 << edge
    return rank_mod_2(rows)


def random_graph(vertices, edges, seed):
    return nx.gnm_random_graph(vertices, edges, seed=seed)


@st.composite
def graphs(draw, most=8):
    n = draw(st.integers(1, most))
    graph = nx.empty_graph(n)
    possible = list(combinations(range(n), 2))
    if possible:
        graph.add_edges_from(draw(st.lists(st.sampled_from(possible), unique=True)))
    return graph


def mutag():
    """Edges and sizes of the 188 molecules, read from their raw files."""
    files = {file.name: file for file in distribution("grakel").files if "MUTAG" in str(file)}
    edges = np.loadtxt(files["MUTAG_A.txt"].locate(), delimiter=",", dtype=np.int64).T - 1
    sizes = np.bincount(np.loadtxt(files["MUTAG_graph_indicator.txt"].locate(), dtype=np.int64))[1:]
    return torch.from_numpy(edges[:, edges[0] < edges[1]]), torch.from_numpy(sizes)


def test_two_fused_rings_are_found_by_hand():
    #  0 - 1 - 2
    #  |   |   |    and a tail 5 - 6
    #  3 - 4 - 5
    edges = torch.tensor([[0, 1], [1, 2], [0, 3], [1, 4], [2, 5], [3, 4], [4, 5], [5, 6]]).T
    found = find_cycles(edges, torch.tensor([7]))
    assert found.vertex.tolist() == [0, 1, 4, 3, 1, 2, 5, 4]
    assert found.edge.tolist() == [0, 3, 5, 2, 1, 4, 6, 3]
    assert found.cell.tolist() == [0] * 4 + [1] * 4
    assert found.batch.tolist() == [0, 0]


def test_mutag_has_538_basis_cycles_of_which_68_of_length_five_and_470_of_length_six():
    edges, sizes = mutag()
    assert (len(sizes), edges.shape[1]) == (188, 3721)
    found = find_cycles(edges, sizes)
    assert Counter(torch.bincount(found.cell).tolist()) == {5: 68, 6: 470}
    assert len(find_cycles(edges, sizes, "basis").batch) == 538


@pytest.mark.parametrize("kind", ["basis", "minimum"])
@settings(max_examples=80, deadline=None)
@given(graph=graphs())
def test_a_basis_is_independent_and_has_edges_minus_vertices_plus_components_cycles(kind, graph):
    found = find_cycles(*batch_of([graph]), kind)
    expected = graph.number_of_edges() - len(graph) + nx.number_connected_components(graph)
    assert len(found.batch) == independence(found) == expected


@settings(max_examples=150, deadline=None)
@given(graph=graphs())
def test_no_basis_is_shorter_than_the_minimum_basis(graph):
    assert sorted(map(len, of(graph))) == sorted(map(len, nx.minimum_cycle_basis(graph)))


@pytest.mark.parametrize(("vertices", "edges"), [(12, 20), (25, 40), (20, 60), (30, 33)])
@pytest.mark.parametrize("seed", range(4))
def test_the_minimum_basis_of_larger_graphs_is_as_short_as_that_of_networkx(vertices, edges, seed):
    graph = random_graph(vertices, edges, seed)
    assert sorted(map(len, of(graph))) == sorted(map(len, nx.minimum_cycle_basis(graph)))


@pytest.mark.parametrize(
    ("graph", "lengths"),
    [
        (nx.complete_graph(6), [3] * 10),
        (nx.petersen_graph(), [5] * 6),
        (nx.grid_2d_graph(3, 4), [4] * 6),
        (nx.complete_bipartite_graph(2, 4), [4] * 3),
        (nx.cycle_graph(9), [9]),
        (nx.hypercube_graph(3), [4] * 5),
        (nx.disjoint_union(nx.cycle_graph(3), nx.cycle_graph(5)), [3, 5]),
        (nx.random_labeled_tree(12, seed=0), []),
        (nx.empty_graph(4), []),
        (nx.path_graph(1), []),
    ],
    ids=["K6", "Petersen", "grid", "K2,4", "C9", "cube", "two rings", "tree", "no edges", "one vertex"],
)
def test_known_graphs_have_their_minimum_basis(graph, lengths):
    assert [len(cycle) for cycle in of(nx.convert_node_labels_to_integers(graph))] == lengths


@settings(max_examples=60, deadline=None)
@given(graph=graphs(7))
def test_induced_cycles_are_the_vertex_sets_whose_induced_graph_is_a_cycle(graph):
    longest = 6
    expected = {
        subset
        for size in range(3, longest + 1)
        for subset in combinations(range(len(graph)), size)
        if nx.is_connected(part := graph.subgraph(subset)) and all(degree == 2 for _, degree in part.degree)
    }
    found = [tuple(sorted(cycle)) for cycle in of(graph, "induced", longest=longest)]
    assert set(found) == expected
    assert len(found) == len(expected)


@pytest.mark.parametrize("seed", range(3))
def test_induced_cycles_are_those_of_networkx(seed):
    graph = random_graph(14, 28, seed)
    expected = [tuple(sorted(cycle)) for cycle in nx.chordless_cycles(graph, length_bound=7)]
    assert sorted(tuple(sorted(cycle)) for cycle in of(graph, "induced", longest=7)) == sorted(expected)


def test_the_longest_induced_cycle_has_the_length_allowed():
    rings = nx.disjoint_union_all([nx.cycle_graph(n) for n in (3, 4, 5, 6, 7)])
    for longest in (3, 4, 5, 6):
        assert [len(cycle) for cycle in of(rings, "induced", longest=longest)] == list(range(3, longest + 1))


@settings(max_examples=60, deadline=None)
@given(graph=graphs())
def test_triangles_are_all_triples_joined_pairwise(graph):
    expected = [
        list(triple)
        for triple in combinations(range(len(graph)), 3)
        if all(graph.has_edge(*pair) for pair in combinations(triple, 2))
    ]
    assert of(graph, "triangles") == expected


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(3))
def test_each_edge_joins_its_vertex_to_the_next_around_a_simple_cycle(kind, seed):
    # With B_1 the vertices of edges and B_2 the edges of cycles this is B_1 B_2 = 0 mod 2, and more.
    graph = random_graph(14, 30, seed)
    edges, sizes = batch_of([graph, nx.complete_graph(5)])
    found = find_cycles(edges, sizes, kind, longest=6 if kind == "induced" else None)
    assert len(found.batch)
    b1 = torch.zeros(19, edges.shape[1], dtype=torch.long).scatter(0, edges, 1)
    b2 = torch.zeros(edges.shape[1], len(found.batch), dtype=torch.long)
    b2[found.edge, found.cell] = 1
    assert not ((b1 @ b2) % 2).any()
    assert int(b2.sum()) == len(found.edge)
    place = 0
    for cycle in members(found):
        assert len(set(cycle)) == len(cycle) >= 3
        for u, v in zip(cycle, cycle[1:] + cycle[:1], strict=True):
            assert sorted((u, v)) == edges[:, found.edge[place]].tolist()
            place += 1


@pytest.mark.parametrize("kind", KINDS)
def test_cycles_are_ordered_by_graph_then_length_then_vertices_and_begin_at_the_lowest(kind):
    graph = random_graph(14, 26, 5)
    found = find_cycles(*batch_of([graph, graph]), kind, longest=7)
    cycles = members(found)
    keys = [(g, len(cycle), cycle) for g, cycle in zip(found.batch.tolist(), cycles, strict=True)]
    assert keys == sorted(keys)
    assert all(cycle[0] == min(cycle) and cycle[1] < cycle[-1] for cycle in cycles)
    assert {v // 14 for cycle, g in zip(cycles, found.batch.tolist(), strict=True) if g for v in cycle} == {1}


@pytest.mark.parametrize("kind", KINDS)
def test_a_graph_has_the_same_cycles_alone_and_in_any_batch(kind):
    parts = [random_graph(9, 16, 1), nx.empty_graph(1), nx.cycle_graph(4), random_graph(11, 20, 2), nx.empty_graph(3)]
    together = find_cycles(*batch_of(parts), kind, longest=6)
    offset, expected, owners = 0, [], []
    for g, part in enumerate(parts):
        alone = of(part, kind, longest=6)
        expected += [[v + offset for v in cycle] for cycle in alone]
        owners += [g] * len(alone)
        offset += len(part)
    assert members(together) == expected
    assert together.batch.tolist() == owners


@pytest.mark.parametrize("kind", KINDS)
def test_the_order_of_the_edges_does_not_matter(kind):
    parts = [random_graph(10, 20, 3), random_graph(8, 14, 4)]
    edges, sizes = batch_of(parts)
    shuffle = torch.randperm(edges.shape[1], generator=torch.Generator().manual_seed(0))
    one, other = find_cycles(edges, sizes, kind, longest=6), find_cycles(edges[:, shuffle], sizes, kind, longest=6)
    assert torch.equal(one.vertex, other.vertex)
    assert torch.equal(one.cell, other.cell)
    assert torch.equal(edges[:, one.edge], edges[:, shuffle][:, other.edge])


@pytest.mark.parametrize("kind", ["minimum", "induced", "triangles"])
def test_the_lengths_do_not_depend_on_the_names_of_the_vertices(kind):
    graph = random_graph(14, 28, 6)
    names = torch.randperm(14, generator=torch.Generator().manual_seed(1)).tolist()
    renamed = nx.relabel_nodes(graph, dict(enumerate(names)))
    lengths, other = ([len(cycle) for cycle in of(g, kind, longest=6)] for g in (graph, renamed))
    assert lengths == other


@pytest.mark.parametrize("kind", ["basis", "minimum", "induced"])
def test_what_is_remembered_is_what_is_found(kind):
    edges, sizes = batch_of([nx.disjoint_union(random_graph(12, 22, s), random_graph(9, 14, s)) for s in range(5)])
    runs = []
    for _ in range(3):
        module.cycles_of_graph.cache_clear()
        runs += [find_cycles(edges, sizes, kind, longest=6) for _ in range(2)]
    assert module.cycles_of_graph.cache_info().hits == 5
    assert all(members(run) == members(runs[0]) and torch.equal(run.edge, runs[0].edge) for run in runs)


def test_a_graph_of_many_edges_is_not_remembered():
    module.cycles_of_graph.cache_clear()
    graph = nx.circular_ladder_graph(200)
    assert Counter(map(len, of(graph))) == {4: 200, 200: 1}
    assert module.cycles_of_graph.cache_info().currsize == 0


@pytest.mark.parametrize("kind", ["basis", "minimum"])
@pytest.mark.parametrize(("shortest", "longest"), [(3, 3), (4, None), (4, 5), (3, 4), (6, 6)])
def test_the_lengths_are_filtered_after_the_basis_is_found(kind, shortest, longest):
    for seed in range(4):
        graph = random_graph(16, 26, seed)
        expected = [cycle for cycle in of(graph, kind) if shortest <= len(cycle) <= (longest or 99)]
        assert of(graph, kind, shortest, longest) == expected


def test_longer_than_a_triangle_means_no_triangles():
    assert of(nx.complete_graph(4), "triangles", shortest=4) == []


def test_nothing_is_found_without_graphs_or_edges():
    for kind in KINDS:
        found = find_cycles(torch.empty(2, 0, dtype=torch.long), torch.tensor([1, 3]), kind, longest=5)
        assert [len(part) for part in (found.edge, found.vertex, found.cell, found.batch)] == [0] * 4
        assert found.edge.dtype == found.batch.dtype == torch.long


def test_ranges_are_laid_one_after_the_other():
    owner, number = ragged_ranges(torch.tensor([5, 0, 2]), torch.tensor([2, 0, 3]))
    assert owner.tolist() == [0, 0, 2, 2, 2]
    assert number.tolist() == [5, 6, 2, 3, 4]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kind": "shortest"}, r"cycles must be one of basis, minimum, induced, triangles, got 'shortest'"),
        ({"shortest": 2}, r"shortest must be at least 3, .* got 2"),
        ({"shortest": 5, "longest": 4}, r"longest must be at least 5, .* got 4"),
        ({"kind": "induced"}, r"longest must be given with induced cycles, .* got None"),
    ],
)
def test_an_option_out_of_range_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        find_cycles(torch.tensor([[0], [1]]), torch.tensor([2]), **options)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("edges", [[(0, 1), (2, 1)], [(1, 1)], [(0, 1), (1, 2), (0, 1)]])
def test_loops_and_reversed_or_repeated_edges_are_refused(kind, edges):
    with pytest.raises(ValueError, match="edges must be given once each, the lower vertex first"):
        find_cycles(torch.tensor(edges).T, torch.tensor([3]), kind, longest=5)
