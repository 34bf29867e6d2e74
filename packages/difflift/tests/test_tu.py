"""TU folders: what is read from small ones written here and from two real ones, and what is said of wrong ones."""

import re
import sys
from importlib import metadata
from pathlib import Path

import networkx as nx
import numpy as np
import pytest
import torch
from difflift.tu import mutag, node_kinds, read_numbers, read_tu, tu_folder
from torch_geometric.io import read_tu_data

# Three graphs: a path 0-1-2 given in one direction, with a loop and a repeated edge; one vertex; two without an edge.
SMALL = {
    "A": "1, 2\n3, 2\n3, 2\n1, 1\n",
    "graph_indicator": "1\n1\n1\n2\n3\n3\n",
    "graph_labels": "7\n-1\n7\n",
    "node_labels": "5\n2\n5\n9\n2\n2\n",
    "node_attributes": "0.5, 1\n1.5, 2\n2.5, 3\n3.5, 4\n4.5, 5\n5.5, -6e-1\n",
}


def write(folder: Path, name: str = "TOY", **changes: str | None) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for kind, text in (SMALL | changes).items():
        if text is not None:
            (folder / f"{name}_{kind}.txt").write_text(text)
    return folder


def grakel(name: str) -> Path:
    return Path(str(metadata.distribution("grakel").locate_file(f"grakel/tests/data/{name}")))


needs_grakel = pytest.mark.skipif(sys.version_info >= (3, 13), reason="grakel has no wheel for Python 3.13")


def test_edges_are_read_in_both_directions_once_and_without_loops(tmp_path):
    graphs = read_tu(write(tmp_path))
    assert graphs[0].edge_index.tolist() == [[0, 1, 1, 2], [1, 0, 2, 1]]
    assert graphs[0].edge_index.dtype == torch.int64
    assert [graph.num_edges for graph in graphs] == [4, 0, 0]
    assert graphs[1].edge_index.shape == (2, 0)


def test_graph_labels_become_classes_in_ascending_order(tmp_path):
    graphs = read_tu(write(tmp_path))
    assert [graph.y.tolist() for graph in graphs] == [[1], [0], [1]]


def test_features_are_labels_one_hot_then_attributes(tmp_path):
    graphs = read_tu(write(tmp_path))
    assert graphs[0].x.tolist() == [[0, 1, 0, 0.5, 1], [1, 0, 0, 1.5, 2], [0, 1, 0, 2.5, 3]]
    torch.testing.assert_close(graphs[2].x, torch.tensor([[1, 0, 0, 4.5, 5], [1, 0, 0, 5.5, -0.6]]))


def test_several_labels_a_vertex_are_one_hot_column_by_column(tmp_path):
    folder = write(tmp_path, node_labels="0, 3\n1, 3\n0, 4\n0, 4\n0, 4\n0, 4\n", node_attributes=None)
    assert node_kinds(folder) == [[0, 1], [3, 4]]
    assert read_tu(folder)[0].x.tolist() == [[1, 0, 1, 0], [0, 1, 1, 0], [1, 0, 0, 1]]


def test_attributes_alone_are_features(tmp_path):
    assert read_tu(write(tmp_path, node_labels=None))[1].x.tolist() == [[3.5, 4]]


def test_kinds_of_another_folder_give_its_columns(tmp_path):
    folder = write(tmp_path, node_attributes=None)
    assert read_tu(folder, kinds=[[0, 2, 5, 9, 11]])[0].x.tolist() == [
        [0, 0, 1, 0, 0],
        [0, 1, 0, 0, 0],
        [0, 0, 1, 0, 0],
    ]
    with pytest.raises(ValueError, match=r"node_labels.txt, line 4: label 9 is none of \[2, 5\]"):
        read_tu(folder, kinds=[[2, 5]])
    with pytest.raises(ValueError, match="has 1 labels a line, expected 2"):
        read_tu(folder, kinds=[[2, 5, 9], [0]])


def test_degree_features_count_each_neighbour_once(tmp_path):
    graphs = read_tu(write(tmp_path), features="degree")
    assert graphs[0].x.tolist() == [[0, 1, 0], [0, 0, 1], [0, 1, 0]]
    assert graphs[1].x.tolist() == [[1, 0, 0]]


def test_random_features_depend_on_the_seed_and_the_graphs_index_alone(tmp_path):
    full = read_tu(write(tmp_path / "a"), features="random", seed=3)
    fewer = read_tu(
        write(tmp_path / "b", A="1, 2\n", graph_indicator="1\n1\n1\n2\n", graph_labels="0\n1\n"),
        features="random",
        seed=3,
    )
    assert torch.equal(full[0].x, fewer[0].x) and torch.equal(full[1].x, fewer[1].x)
    assert not torch.equal(full[0].x[:1], full[1].x)
    assert not torch.equal(full[0].x, read_tu(tmp_path / "a", features="random", seed=4)[0].x)


@needs_grakel
def test_random_features_are_normal_with_deviation_a_tenth():
    x = torch.cat([graph.x for graph in read_tu(grakel("MUTAG"), features="random")])
    assert x.shape == (3371, 10)  # 33710 draws: the mean is within 0.1 / sqrt(33710) = 0.0005 of 0 two times in three
    assert abs(x.mean()) < 0.0025
    assert abs(x.std() - 0.1) < 0.002
    assert abs((x.abs() < 0.1).float().mean() - 0.6827) < 0.01


def test_constant_features_are_one(tmp_path):
    assert [graph.x.tolist() for graph in read_tu(write(tmp_path), features="constant")] == [
        [[1]] * 3,
        [[1]],
        [[1]] * 2,
    ]


def test_a_data_set_without_any_edge_is_read(tmp_path):
    graphs = read_tu(write(tmp_path, A=""), features="degree")
    assert [graph.num_edges for graph in graphs] == [0, 0, 0]
    assert graphs[0].x.tolist() == [[1]] * 3


def test_graphs_do_not_share_memory(tmp_path):
    graphs = read_tu(write(tmp_path))
    assert graphs[1].x.untyped_storage().nbytes() == graphs[1].x.numel() * 4


@needs_grakel
def test_mutag_is_what_its_publishers_count():
    graphs = mutag()
    assert len(graphs) == 188
    assert sum(graph.num_nodes for graph in graphs) == 3371
    assert sum(graph.num_edges for graph in graphs) == 2 * 3721
    assert torch.cat([graph.y for graph in graphs]).bincount().tolist() == [63, 125]
    assert {graph.x.shape[1] for graph in graphs} == {7}
    assert (min(graph.num_nodes for graph in graphs), max(graph.num_nodes for graph in graphs)) == (10, 28)
    cycles = 0
    for graph in graphs:
        net = nx.Graph(graph.edge_index.t().tolist())
        cycles += net.number_of_edges() - graph.num_nodes + nx.number_connected_components(net)
    assert cycles == 538


@needs_grakel
@pytest.mark.parametrize("name", ["MUTAG", "Cuneiform"])
def test_real_folders_are_read_as_pyg_reads_them(name):
    folder = grakel(name)
    graphs = read_tu(folder)
    whole, slices, sizes = read_tu_data(str(folder), name)
    wanted = sizes["num_node_labels"]
    labels = whole.x[:, sizes["num_node_attributes"] :]  # PyG puts the attributes first
    assert len(graphs) == len(slices["y"]) - 1 == {"MUTAG": 188, "Cuneiform": 267}[name]
    assert torch.equal(torch.cat([graph.x[:, :wanted] for graph in graphs]), labels)
    assert torch.equal(torch.cat([graph.x[:, wanted:] for graph in graphs]), whole.x[:, : sizes["num_node_attributes"]])
    assert torch.equal(torch.cat([graph.y for graph in graphs]), whole.y)
    assert torch.equal(torch.cat([graph.edge_index for graph in graphs], dim=1), whole.edge_index)


@needs_grakel
def test_grakel_itself_is_not_imported():
    mutag()
    assert "grakel" not in sys.modules


def test_without_grakel_the_wheel_and_the_way_out_are_named(monkeypatch):
    def absent(name: str) -> metadata.Distribution:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "distribution", absent)
    with pytest.raises(ImportError, match=r"wheel grakel, which is not installed .* MUTAG with a root"):
        mutag()


def test_missing_files_are_named_with_all_that_are_expected(tmp_path):
    folder = write(tmp_path, graph_labels=None)
    with pytest.raises(FileNotFoundError) as caught:
        read_tu(folder)
    message = str(caught.value)
    assert message.startswith(f"{folder} lacks TOY_graph_labels.txt; expected are ")
    assert all(f"TOY_{kind}.txt" in message for kind in SMALL)


def test_an_empty_folder_and_one_of_two_data_sets_are_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"lacks NAME_A.txt, NAME_graph_indicator.txt"):
        read_tu(tmp_path)
    write(tmp_path, "TOY")
    write(tmp_path, "ZOO", graph_labels="1\n2\n3\n")
    with pytest.raises(ValueError, match=r"several data sets, TOY, ZOO: give each a folder"):
        read_tu(tmp_path)
    assert [int(graph.y) for graph in read_tu(tmp_path, "ZOO")] == [0, 1, 2]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"A": "1, 2\n3, x\n"}, "TOY_A.txt, line 2: expected 2 whole numbers, got '3, x'"),
        ({"A": "1, 2\n3\n"}, "TOY_A.txt, line 2: expected 2 whole numbers, got '3'"),
        ({"A": "1, 2\n3, 2, 1\n"}, "TOY_A.txt, line 2: expected 2 whole numbers, got '3, 2, 1'"),
        ({"A": "1\n2\n"}, "TOY_A.txt, line 1: expected 2 whole numbers, got '1'"),
        ({"A": "1, 2\n\n2.5, 3\n"}, "TOY_A.txt, line 3: expected 2 whole numbers, got '2.5, 3'"),
        ({"A": "1, 2\n2, 7\n"}, "TOY_A.txt, line 2: vertices must lie in 1..6, got [2 7]"),
        ({"A": "0, 1\n"}, "TOY_A.txt, line 1: vertices must lie in 1..6, got [0 1]"),
        ({"A": "1, 2\n3, 4\n"}, "TOY_A.txt, line 2: edge 3, 4 joins graphs 1 and 2"),
        ({"graph_indicator": "1\n2\n1\n2\n3\n3\n"}, "TOY_graph_indicator.txt, line 3: graphs must ascend from 1"),
        ({"graph_indicator": "1\n1\n1\n3\n3\n3\n"}, "TOY_graph_indicator.txt, line 4: graphs must ascend from 1"),
        ({"graph_indicator": "0\n1\n1\n2\n3\n3\n"}, "TOY_graph_indicator.txt, line 1: graphs must ascend from 1"),
        ({"graph_indicator": ""}, "TOY_graph_indicator.txt is empty, expected the graph of each vertex"),
        ({"graph_labels": "7\n1\n"}, "TOY_graph_indicator.txt names 3 graphs, expected 2"),
        ({"graph_labels": "7\nred\n7\n"}, "TOY_graph_labels.txt, line 2: expected 1 whole numbers, got 'red'"),
        ({"node_labels": "5\n2\n"}, "TOY_node_labels.txt has 2 lines, expected 6"),
        ({"node_attributes": "1\n2\nnan\n4\n5\n6\n"}, "TOY_node_attributes.txt, line 3: expected 1 finite numbers"),
        ({"node_attributes": "1\n2\n"}, "TOY_node_attributes.txt has 2 lines, expected 6"),
    ],
)
def test_a_wrong_file_is_named_with_its_line(tmp_path, changes, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        read_tu(write(tmp_path, **changes))


def test_a_binary_file_is_refused_by_name(tmp_path):
    write(tmp_path)
    (tmp_path / "TOY_A.txt").write_bytes(b"\xff\xfe\x00\x01\n\x00")
    with pytest.raises(ValueError, match=r"TOY_A.txt, line 1: expected 2 whole numbers"):
        read_tu(tmp_path)


def test_features_that_need_absent_files_or_are_unknown_are_refused(tmp_path):
    folder = write(tmp_path, node_labels=None, node_attributes=None)
    with pytest.raises(FileNotFoundError, match=r"lacks TOY_node_labels.txt and TOY_node_attributes.txt"):
        read_tu(folder)
    with pytest.raises(ValueError, match="features must be labels, degree, random or constant, got 'colour'"):
        read_tu(folder, features="colour")  # type: ignore[arg-type]
    with pytest.raises(FileNotFoundError, match=r"node_labels.txt is missing"):
        node_kinds(folder)


@pytest.mark.parametrize("place", ["TOY/raw", "TOY", "."])
def test_the_folder_is_found_where_pyg_or_a_user_puts_it(tmp_path, place):
    folder = write(tmp_path / place)
    assert tu_folder(tmp_path, "TOY").resolve() == folder.resolve()
    with pytest.raises(FileNotFoundError, match=r"holds no data set ZOO, expected ZOO_A.txt"):
        tu_folder(tmp_path, "ZOO")


def test_numbers_are_read_to_the_last_digit(tmp_path):
    values = np.random.default_rng(0).normal(size=(50, 3)) * 10.0 ** np.arange(-3, 6, 3)
    path = tmp_path / "numbers.txt"
    path.write_text("\n".join(", ".join(map(repr, map(float, row))) for row in values))
    np.testing.assert_allclose(read_numbers(path, 3, integers=False), values, rtol=1e-15)
