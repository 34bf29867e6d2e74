"""Complexes as JSON and in TopoNetX, whose own incidence matrices are the reference."""

import copy
import json

import numpy as np
import pytest
import toponetx as tnx
import torch
from difflift import CycleLifting, DiffLift, FeatureKNNLifting
from difflift.interop import course, extract, from_json, from_toponetx, sparse_matrices, to_json, to_toponetx
from torch_geometric.data import Batch, Data

TARGETS = ("hypergraph", "cell", "simplicial")


def graphs(seed=0):
    """Three random graphs; the second has an isolated vertex, the third is a single vertex."""
    draw = torch.Generator().manual_seed(seed)
    found = []
    for n, pairs in ((7, [(0, 1), (1, 2), (2, 3), (0, 3), (3, 4)]), (6, [(0, 1), (1, 2), (0, 2), (3, 4)]), (1, [])):
        ends = torch.tensor(pairs, dtype=torch.long).reshape(-1, 2).t()
        found.append(Data(x=torch.randn(n, 3, generator=draw), edge_index=torch.cat([ends, ends.flip(0)], dim=1)))
    return Batch.from_data_list(found)


def lifted(target, seed=0, **options):
    """The graphs lifted; to complexes with all candidates, as an untrained scorer may close no cycle."""
    options = options if target == "hypergraph" else {"selection": "all"} | options
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return DiffLift(3, target=target, encoder="none", k_max=4, **options).eval()(graphs())


def dense(complex):
    return complex.b1.to_dense().detach().numpy(), complex.b2.to_dense().detach().numpy()


def same(a, b):
    """Whether two complexes of one graph are equal, cell by cell."""
    for x, y in zip(dense(a), dense(b), strict=True):
        np.testing.assert_array_equal(x, y)
    torch.testing.assert_close(a.p_1, b.p_1, rtol=0, atol=0)
    torch.testing.assert_close(a.p_2, b.p_2, rtol=0, atol=0)
    assert a.edges == b.edges


def from_their_matrices(source, target):
    """B_1 and B_2 of TopoNetX, and which cell each row and column is."""
    if target == "hypergraph":
        rows, cols, b1 = source.incidence_matrix(0, 1, index=True)
        return [next(iter(node)) for node, _ in rows], [cell for cell, _ in cols], b1.toarray(), [], None
    rows, cols, b1 = source.incidence_matrix(1, signed=False, index=True)
    vertices = [next(iter(row)) if isinstance(row, tuple | frozenset) else row for row in rows]
    _, twos, b2 = source.incidence_matrix(2, signed=False, index=True)
    return vertices, [frozenset(col) for col in cols], b1.toarray(), [frozenset(cell) for cell in twos], b2.toarray()


@pytest.mark.parametrize("target", TARGETS)
def test_toponetx_has_the_same_incidence_matrices_up_to_the_order_of_cells(target):
    one = extract(lifted(target, selection="all", learn_k=False), 0)
    b1, b2 = dense(one)
    vertices, edges, theirs_1, polygons, theirs_2 = from_their_matrices(to_toponetx(one), target)
    ours = {frozenset(np.flatnonzero(column).tolist()): e for e, column in enumerate(b1.T)}
    assert len(ours) == b1.shape[1] == len(edges)
    place = [ours[edge] for edge in edges]
    np.testing.assert_array_equal(theirs_1, b1[vertices][:, place])
    assert (b1.sum(0) > 2).any() == (target == "hypergraph")
    if target == "hypergraph":
        return
    assert b2.shape[1] >= 4
    around = [frozenset(np.flatnonzero(b1 @ column).tolist()) for column in b2.T]  # vertices of each 2-cell
    assert sorted(map(sorted, polygons)) == sorted(map(sorted, around))
    # 2-cells may share their vertices, so columns are compared as a set.
    assert {tuple(column) for column in theirs_2.T} == {tuple(column[place]) for column in b2.T}
    assert not ((theirs_1 @ theirs_2) % 2).any()
    assert not ((b1 @ b2) % 2).any()


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("graph", [0, 1, 2])
def test_what_was_written_is_read_as_it_was(target, graph):
    complex = lifted(target)
    content = to_json(complex, graph, target)
    back = from_json(json.loads(json.dumps(content)))
    same(extract(complex, graph), back)
    torch.testing.assert_close(back.k, complex.k[complex.batch_0 == graph])
    assert to_json(back, 0, target) == content


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("graph", [0, 1, 2])
def test_toponetx_gives_the_same_cells_back_with_their_probabilities(target, graph):
    complex = lifted(target)

    def cells(content):
        return sorted(json.dumps(cell) for cell in content["cells"]), sorted(content["edges"])

    back = from_toponetx(to_toponetx(complex, graph, target))
    assert cells(to_json(back, 0, target)) == cells(to_json(complex, graph, target))


def test_cells_have_the_probability_and_the_vertices_of_their_columns():
    # A square with x so that the two diagonals are candidates, all of which are taken: four triangles among them.
    square = torch.tensor([[0, 1, 2, 3], [1, 2, 3, 0]])
    x = torch.tensor([[0.0, 0], [1, 0], [1, 1], [0, 1]])
    data = Data(x=x, edge_index=torch.cat([square, square.flip(0)], dim=1))
    complex = FeatureKNNLifting(2, k=4, cells=True, cycles="triangles")(data)
    content = to_json(complex)
    assert content["target"] == "simplicial"
    assert content["edges"] == [[0, 1], [0, 3], [1, 2], [2, 3]]
    assert [cell["vertices"] for cell in content["cells"] if cell["kind"] == "edge"] == [[0, 2], [1, 3]]
    triangles = [cell["vertices"] for cell in content["cells"] if cell["kind"] == "polygon"]
    assert triangles == [[0, 1, 2], [0, 1, 3], [0, 2, 3], [1, 2, 3]]
    assert content["k"] is None
    ring = to_json(CycleLifting(2)(data))
    assert (ring["target"], ring["cells"]) == (
        "cell",
        [{"kind": "polygon", "vertices": [0, 1, 2, 3], "probability": 1.0, "inclusion": 1.0}],
    )


def test_probabilities_are_those_of_the_batch():
    complex = lifted("cell")
    found = [cell["probability"] for graph in range(3) for cell in to_json(complex, graph, "cell")["cells"]]
    expected = torch.cat([complex.p_1[complex.edges :], complex.p_2]).tolist()
    assert sorted(found) == pytest.approx(sorted(expected))
    for graph in range(3):
        one = extract(complex, graph)
        torch.testing.assert_close(one.p_2, complex.p_2[complex.batch_2 == graph])
        torch.testing.assert_close(one.p_1, complex.p_1[complex.batch_1 == graph])
    assert len(complex.p_2) > 1
    assert (complex.p_2 < 1).all()


def test_soft_inclusions_are_kept():
    complex = lifted("hypergraph", selection="soft")
    cells = to_json(complex)["cells"]
    assert len(cells) > 1
    assert all(cell["inclusion"] == cell["probability"] != 1 for cell in cells)
    same(extract(complex), from_json(to_json(complex)))


def test_excluded_cells_of_a_training_batch_are_left_out():
    lifting = DiffLift(3, encoder="none", selection="none", k_max=4).train()
    complex = lifting(graphs())
    assert complex.b1.shape[1] > complex.edges
    assert to_json(complex)["cells"] == []
    b1, b2 = sparse_matrices(complex)
    assert b1.shape == (14, complex.edges)
    assert b2.shape == (complex.edges, 0)


def test_sparse_matrices_are_those_of_the_pruned_complex_and_pass_the_gradient():
    with torch.random.fork_rng():
        torch.manual_seed(1)
        complex = DiffLift(3, "cell", encoder="none", k_max=4, selection="sample").train()(graphs())
    b1, b2 = sparse_matrices(complex)
    kept_1, kept_2 = complex.b1.weight != 0, complex.b2.weight != 0
    assert not kept_1.all()
    assert kept_2.any()
    assert not kept_2.all()
    torch.testing.assert_close(b1.to_dense(), complex.b1.to_dense()[:, kept_1])
    torch.testing.assert_close(b2.to_dense(), complex.b2.to_dense()[kept_1][:, kept_2])
    (b1.values().sum() + b2.values().sum()).backward(inputs=[complex.b1.weight, complex.b2.weight])
    # d/ds of the sum of all entries is a cell's size where it is included, and nothing elsewhere.
    torch.testing.assert_close(complex.b2.weight.grad, complex.b2.sizes * kept_2)


def test_named_vertices_are_numbered_in_their_order():
    source = tnx.CellComplex()
    source.add_node("d")
    source.add_cell(["c", "a", "b"], rank=2)
    content = to_json(from_toponetx(source))
    assert content["vertices"] == 4
    assert content["edges"] == [[0, 1], [0, 2], [1, 2]]
    assert [cell["vertices"] for cell in content["cells"]] == [[0, 1, 2]]
    source.add_cell([1, "a", "b"], rank=2)  # not sortable together: the order of the source
    assert from_toponetx(source).b1.shape == (5, 5)


def test_a_users_hyperedges_of_two_vertices_are_edges_and_larger_ones_are_added():
    source = tnx.ColoredHyperGraph()
    source.add_cell([4, 2, 9], rank=1)
    source.add_cell([2, 9], rank=1, probability=0.25)
    complex = from_toponetx(source)
    np.testing.assert_array_equal(complex.b1.to_dense(), [[1, 1], [0, 1], [1, 1]])
    assert complex.edges == 1
    assert complex.p_1.tolist() == [0.25, 1]


def test_a_cycle_is_followed_from_its_lowest_vertex_towards_the_lower_neighbour():
    assert course([(5, 2), (7, 3), (2, 7), (3, 5)]) == [2, 5, 3, 7]
    for edges in ([(0, 1), (1, 2)], [(0, 1), (1, 2), (0, 2), (3, 4), (4, 5), (3, 5)], [(0, 1), (0, 2), (0, 3)]):
        with pytest.raises(ValueError, match="one simple cycle"):
            course(edges)


def test_a_projected_boundary_is_refused():
    complex = lifted("cell", boundary="projected", selection="all")
    with pytest.raises(ValueError, match="one simple cycle, as with boundary='exact'"):
        to_json(complex)


def test_a_graph_that_is_not_there_is_refused():
    with pytest.raises(ValueError, match=r"graph must lie in \[0, 3\), got 3"):
        to_json(lifted("cell"), 3)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": "other"}, "expected a complex with format"),
        ({"version": 2}, "version 1"),
        ({"vertices": 0}, "vertices must be a number of at least 1, got 0"),
        ({"vertices": "4"}, "vertices must be a number of at least 1, got '4'"),
        ({"k": [2]}, "k must be null or 3 whole numbers"),
        ({"edges": None}, "edges and cells must be lists"),
        ({"edges": [[0, 3]]}, r"edge 0 must list different vertices in \[0, 3\), got \[0, 3\]"),
        ({"edges": [[1, 1]]}, "edge 0 must list different vertices"),
        ({"edges": [[0, 1, 2]]}, "edges must have two vertices each"),
        ({"edges": [[0, 1], [1, 0]]}, "two 1-cells have the same vertices"),
        ({"cells": [{"kind": "blob", "vertices": [0, 1]}]}, "cell 0 must have the kind"),
        ({"cells": [{"kind": "edge", "vertices": [0, 2], "probability": float("nan")}]}, "cell 0: probability must"),
        ({"cells": [{"kind": "edge", "vertices": [0, 2], "inclusion": True}]}, "cell 0: inclusion must"),
        ({"cells": [{"kind": "polygon", "vertices": [0, 1, 2]}]}, "all its sides among the 1-cells"),
    ],
)
def test_malformed_json_is_refused_in_one_sentence(change, message):
    content = {"format": "difflift.complex", "version": 1, "vertices": 3, "edges": [[0, 1]], "cells": [], "k": None}
    before = copy.deepcopy(content)
    assert from_json(content).b1.shape == (3, 1)
    with pytest.raises(ValueError, match=message):
        from_json(content | change)
    assert content == before


def test_foreign_complexes_that_do_not_fit_are_refused():
    three = tnx.SimplicialComplex([[0, 1, 2, 3]])
    with pytest.raises(ValueError, match="rank 2 at most, got rank 3"):
        from_toponetx(three)
    ranked = tnx.ColoredHyperGraph()
    ranked.add_cell([0, 1, 2], rank=2)
    with pytest.raises(ValueError, match=r"hyperedges must be of rank 1, got ranks \[2\]"):
        from_toponetx(ranked)
    with pytest.raises(ValueError, match="got dict"):
        from_toponetx({})
    with pytest.raises(ValueError, match="no vertex"):
        from_toponetx(tnx.CellComplex())


def test_without_toponetx_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "toponetx", None)
    with pytest.raises(ImportError, match=r"install difflift\[toponetx\]"):
        to_toponetx(lifted("cell"))
