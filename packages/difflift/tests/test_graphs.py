"""Reading PyG graphs: each edge once, and clear errors."""

import warnings

import pytest
import torch
from difflift.graphs import Graphs, undirected
from hypothesis import given, settings
from hypothesis import strategies as st
from torch_geometric.data import Batch, Data


def features(n, f=2):
    return torch.arange(n * f, dtype=torch.float32).view(n, f)


def both_ways(*edges):
    ends = torch.tensor(edges, dtype=torch.long).view(-1, 2).T
    return torch.cat([ends, ends.flip(0)], dim=1)


def data(n, *edges):
    return Data(x=features(n), edge_index=both_ways(*edges))


@pytest.fixture(autouse=True)
def no_warnings():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def test_loops_and_repetitions_are_left_out_without_a_warning():
    graphs = Graphs.of(data(4, (2, 1), (0, 3), (1, 2), (2, 2), (3, 0), (0, 1)))
    assert graphs.edges.tolist() == [[0, 0, 1], [1, 3, 2]]
    assert graphs.directed.tolist() == [[0, 0, 1, 1, 3, 2], [1, 3, 2, 0, 0, 1]]


def test_edge_in_one_direction_is_undirected_with_a_warning():
    edge_index = torch.tensor([[2, 0, 1], [0, 1, 0]])
    with pytest.warns(UserWarning, match="one direction only"):
        graphs = Graphs.of(Data(x=features(3), edge_index=edge_index))
    assert graphs.edges.tolist() == [[0, 0], [1, 2]]
    assert edge_index.tolist() == [[2, 0, 1], [0, 1, 0]]


@settings(deadline=None, max_examples=50)
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=12))
def test_edges_are_the_sorted_set_of_unordered_pairs(pairs):
    edge_index = torch.tensor(pairs, dtype=torch.long).view(-1, 2).T
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        edges = undirected(edge_index, torch.zeros(6, dtype=torch.long))
    expected = sorted({(min(u, v), max(u, v)) for u, v in pairs if u != v})
    assert list(map(tuple, edges.T.tolist())) == expected
    one_way = {(u, v) for u, v in pairs} != {(v, u) for u, v in pairs}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        undirected(edge_index, torch.zeros(6, dtype=torch.long))
    assert bool(caught) == one_way


def test_batch_of_graphs():
    graphs = Graphs.of(Batch.from_data_list([data(3, (0, 2)), data(1), data(2, (1, 0))]))
    assert graphs.edges.tolist() == [[0, 4], [2, 5]]
    assert graphs.batch.tolist() == [0, 0, 0, 1, 2, 2]
    assert graphs.graphs == 3
    assert graphs.sizes.tolist() == [3, 1, 2]


def test_batch_vector_of_a_plain_graph_is_read():
    graphs = Graphs.of(Data(x=features(3), edge_index=both_ways((1, 2)), batch=torch.tensor([0, 1, 1])))
    assert (graphs.graphs, graphs.sizes.tolist()) == (2, [1, 2])


def test_graphs_without_vertices_are_counted():
    empty = Data(x=features(0), edge_index=both_ways())
    graphs = Graphs.of(Batch.from_data_list([empty, data(2, (0, 1)), empty]))
    assert (graphs.graphs, graphs.sizes.tolist()) == (3, [0, 2, 0])


def test_graph_without_edge_index_has_no_edges():
    assert Graphs.of(Data(x=features(2))).edges.shape == (2, 0)


def test_integer_features_become_floats_and_others_keep_their_type():
    edges = both_ways((0, 1))
    assert Graphs.of(Data(x=torch.tensor([[1], [2]]), edge_index=edges)).x.dtype == torch.float32
    assert Graphs.of(Data(x=features(2).double(), edge_index=edges)).x.dtype == torch.float64


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_error_names_the_graph_whose_features_are_not_finite(value):
    graphs = [data(3, (0, 1)), data(2, (0, 1)), data(3)]
    graphs[1].x[1, 0] = value
    with pytest.raises(ValueError, match=r"data\.x of graph 1 is not finite at vertex 4"):
        Graphs.of(Batch.from_data_list(graphs))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": None}, r"data\.x must be features \(N, F\), got None"),
        ({"x": torch.ones(3)}, r"data\.x must be features \(N, F\), got \(3,\)"),
        ({"x": torch.ones(0, 2)}, r"data\.x has no vertex"),
        ({"batch": torch.tensor([0, 0])}, r"one graph for each of 3 vertices, got \(2,\)"),
        ({"batch": torch.tensor([0, 1, 0])}, "ascending"),
        ({"batch": torch.tensor([0, 1, 1])}, "joins vertices of two graphs"),
        ({"edge_index": torch.tensor([[0, 3], [3, 0]])}, r"must lie in \[0, 3\), got 0 to 3"),
        ({"edge_index": torch.tensor([[0, -1], [-1, 0]])}, r"must lie in \[0, 3\), got -1 to 0"),
        ({"edge_index": torch.tensor([0, 1])}, r"must be \(2, M\), got \(2,\)"),
        ({"edge_index": torch.ones(3, 2, dtype=torch.long)}, r"must be \(2, M\), got \(3, 2\)"),
    ],
)
def test_malformed_data_is_refused(change, message):
    arguments = {"x": features(3), "edge_index": both_ways((0, 1)), "batch": torch.zeros(3, dtype=torch.long)} | change
    with pytest.raises(ValueError, match=message):
        Graphs.of(Data(**arguments))


def test_small_integers_count_as_far_as_the_vertices_go():
    n = 60_000  # u n + v does not fit into 32 bits
    ends = torch.stack([torch.arange(n - 1), torch.arange(1, n)]).to(torch.int32)
    graphs = Graphs.of(Data(x=torch.zeros(n, 1), edge_index=torch.cat([ends, ends.flip(0)], dim=1)))
    assert torch.equal(graphs.edges, ends.long())


def test_a_sparse_adjacency_is_not_taken_for_no_edges():
    with pytest.raises(ValueError, match="edge_index is missing, and adj_t is not read"):
        Graphs.of(Data(x=features(3), adj_t=torch.eye(3).to_sparse()))


@pytest.mark.parametrize("batch", [torch.tensor([-1, 0]), torch.tensor([0.0, 1.0]), torch.tensor([1, 0])])
def test_a_batch_that_numbers_no_graphs_is_refused(batch):
    with pytest.raises(ValueError, match=r"data\.batch must be whole numbers >= 0, ascending"):
        Graphs.of(Data(x=features(2), edge_index=both_ways(), batch=batch))
