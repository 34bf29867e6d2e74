"""The datamodule: which graphs or vertices go where, in what order, and what it refuses."""

from collections import Counter
from types import SimpleNamespace

import pytest
import torch
from difflift.data import PARTS, GraphData
from difflift.datasets import Splits, load
from shared.seeding import derive
from torch_geometric.data import Data


def ring(size, label, features=2, **more):
    """A ring whose vertices are marked by their graph's size and label."""
    vertex = torch.arange(size)
    one_way = torch.stack([vertex, (vertex + 1) % size])
    x = torch.tensor([float(size), float(label)]).expand(size, features)
    return Data(x=x, edge_index=torch.cat([one_way, one_way.flip(0)], 1), y=torch.tensor([label]), **more)


def given(data, graphs, split=None, task="graph", classes=2):
    """Give a datamodule graphs in place of those of its files."""
    data.__dict__["splits"] = Splits(graphs, split, task, classes, graphs[0].x.shape[1])
    return data


def labels_of(data, part):
    return [int(data.splits.graphs[i].y) for i in data.indices[part]]


def test_a_split_is_disjoint_covers_all_and_has_eight_one_and_one_tenth_of_each_class():
    data = given(GraphData(seed=3), [ring(3 + i, i % 10 // 7) for i in range(200)])  # 140 and 60
    parts = data.indices
    assert list(parts) == list(PARTS)
    assert sorted(sum(parts.values(), [])) == list(range(200))
    assert all(part == sorted(part) for part in parts.values())
    assert [Counter(labels_of(data, part)) for part in PARTS] == [{0: 112, 1: 48}, {0: 14, 1: 6}, {0: 14, 1: 6}]
    # A part holds what its indices name.
    assert [len(graph.x) - 3 for graph in data.parts["test"].graphs] == parts["test"]


def test_a_split_depends_on_the_seed_alone():
    graphs = [ring(3, i % 2) for i in range(100)]
    first, again, other = (given(GraphData(seed=seed), graphs).indices for seed in (0, 0, 1))
    assert first == again
    assert first["test"] != other["test"] and first["val"] != other["val"]
    assert given(GraphData(seed=0, val_fraction=0.2), graphs).indices["test"] == first["test"]


def test_the_test_folds_of_five_seeds_part_the_data_and_those_of_the_next_five_in_another_way():
    found = [GraphData("mutag", folds=5, seed=seed) for seed in range(10)]
    for data in found[1:]:
        data.__dict__["splits"] = found[0].splits
    divisions = [[frozenset(data.indices["test"]) for data in found[start : start + 5]] for start in (0, 5)]
    for folds in divisions:
        assert sorted(sum(map(list, folds), [])) == list(range(188))
        assert sorted(map(len, folds)) == [37, 37, 38, 38, 38]
    assert not set(divisions[0]) & set(divisions[1])
    for data in found:
        parts = data.indices
        assert sorted(sum(parts.values(), [])) == list(range(188))
        assert Counter(labels_of(data, "test"))[1] in (25, 26)  # a fifth of 125; 63 are of the other class
        assert Counter(labels_of(data, "test"))[0] in (12, 13)
        assert len(parts["val"]) == -(-(188 - len(parts["test"])) // 10)  # a tenth of what is left, rounded up


def test_solubility_is_tested_on_the_257_molecules_it_gives_and_validated_on_a_tenth_of_the_rest():
    data = GraphData(seed=0)
    assert data.indices["test"] == list(range(1025, 1282))
    assert Counter(labels_of(data, "test")) == {0: 102, 1: 115, 2: 40}
    assert sorted(data.indices["train"] + data.indices["val"]) == list(range(1025))
    assert len(data.indices["val"]) == 103
    fifth = given(GraphData(seed=1, val_fraction=0.2), data.splits.graphs, data.splits.split, classes=3)
    assert fifth.indices["test"] == data.indices["test"]
    assert len(fifth.indices["val"]) == 205
    assert Counter(labels_of(fifth, "val")) == {0: 84, 1: 80, 2: 41}  # 417, 402 and 206 in 1025


def test_planted_graphs_are_drawn_by_the_seed_and_kept_apart_as_drawn():
    first, again, other = (GraphData("planted", seed=seed) for seed in (0, 0, 1))
    assert first.indices == {"train": [*range(160)], "val": [*range(160, 200)], "test": [*range(200, 240)]}
    expected = load("planted", seed=0).graphs[200]
    for data in (first, again):
        assert torch.equal(data.parts["test"].graphs[0].x, expected.x)
    assert not torch.equal(other.parts["test"].graphs[0].x, expected.x)
    assert first.parts["test"].graphs[0].y.shape == (40,)
    assert "scored" not in first.parts["test"].graphs[0]  # every vertex counts


def test_a_given_split_is_kept_whatever_the_seed():
    split = {"train": [4, 2], "val": [0], "test": [1, 3]}
    data = given(GraphData(seed=5, folds=2), [ring(3 + i, 0) for i in range(5)], split, "regression", 1)
    assert data.indices == split
    assert [len(graph.x) for graph in data.parts["train"].graphs] == [7, 5]


def vertices(n=50, **masks):
    return Data(x=torch.zeros(n, 2), edge_index=torch.empty(2, 0, dtype=torch.long), y=torch.arange(n) % 2, **masks)


def test_vertices_are_scored_by_the_data_sets_masks():
    masks = {f"{part}_mask": torch.arange(50) % 3 == i for i, part in enumerate(PARTS)}
    data = given(GraphData("Cora", seed=2), [vertices(**masks)], task="node")
    for part in PARTS:
        (graph,) = data.parts[part].graphs
        assert torch.equal(graph.scored, masks[f"{part}_mask"])
        assert set(graph.keys()) == {"x", "edge_index", "y", "scored"}


def test_without_masks_three_two_and_two_tenths_of_each_class_of_vertices_are_drawn_by_the_seed():
    def masks(seed):
        parts = given(GraphData("CS", seed=seed), [vertices(100)], task="node").parts
        return torch.stack([parts[part].graphs[0].scored for part in PARTS])

    found = masks(0)
    assert (found.sum(0) == 1).all()
    y = vertices(100).y
    assert [[int((mask & (y == c)).sum()) for c in (0, 1)] for mask in found] == [[30, 30], [10, 10], [10, 10]]
    assert torch.equal(masks(0), found) and not torch.equal(masks(1), found)


def test_dropped_edges_leave_vertices_and_targets_and_the_data_sets_own_graphs():
    graphs = [ring(4, i % 2) for i in range(40)]
    data = given(GraphData(drop_edges=True), graphs)
    batch = next(iter(data.test_dataloader()))
    assert batch.edge_index.shape == (2, 0) and batch.edge_index.dtype == torch.long
    assert batch.x.shape == (16, 2) and batch.y.tolist() == labels_of(data, "test")
    assert all(graph.edge_index.shape == (2, 8) for graph in graphs)
    kept = next(iter(given(GraphData(), graphs).test_dataloader()))
    assert kept.edge_index.shape == (2, 32)


def orders(data, epochs):
    """Sizes of the training graphs, each of another size, in the order of each epoch."""
    loader = data.train_dataloader()
    found = []
    for epoch in range(epochs):
        loader.sampler.set_epoch(epoch)
        found.append([size for batch in loader for size in batch.ptr.diff().tolist()])
    return found


def test_the_order_of_training_is_a_function_of_seed_and_epoch():
    split = {"train": [*range(20)], "val": [20], "test": [21]}
    graphs = [ring(3 + i, 0) for i in range(22)]
    first, again = (orders(given(GraphData(batch_size=6), graphs, split), 2) for _ in range(2))
    assert first == again
    assert first[0] != first[1]
    assert orders(given(GraphData(batch_size=6, seed=1), graphs, split), 1)[0] != first[0]
    for order in first:
        assert sorted(order) == [*range(3, 23)]
    expected = torch.randperm(20, generator=torch.Generator().manual_seed(derive(0, "order", 1)))
    assert first[1] == (expected + 3).tolist()


@pytest.mark.parametrize("part", ["val", "test"])
@pytest.mark.parametrize("processes", [1, 2, 3])
def test_seven_graphs_in_batches_of_two_are_met_once_each_on_any_number_of_processes(part, processes):
    split = {"train": [0], "val": [*range(1, 8)], "test": [*range(8, 15)]}
    data = given(GraphData(eval_batch_size=2), [ring(3 + i, 0) for i in range(15)], split)
    sizes, found = [], []
    for rank in range(processes):
        data.trainer = SimpleNamespace(global_rank=rank, world_size=processes)
        batches = list(data.val_dataloader() if part == "val" else data.test_dataloader())
        sizes.append(len(batches))
        found += [size for batch in batches for size in batch.ptr.diff().tolist()]
    assert len(set(sizes)) == 1  # or a process would wait for another for ever
    assert sorted(found) == [3 + i for i in split[part]]


def test_a_tuning_run_is_scored_on_validation_graphs():
    data = given(GraphData(test_on="val"), [ring(3 + i, i % 2) for i in range(40)])
    (batch,) = data.test_dataloader()
    assert (batch.ptr.diff() - 3).tolist() == data.indices["val"]


def test_processes_that_make_batches_do_not_change_them():
    graphs = [ring(3 + i, i % 2) for i in range(60)]
    alone, together = (list(given(GraphData(num_workers=n, batch_size=16), graphs).train_dataloader()) for n in (0, 2))
    assert [batch.num_graphs for batch in alone] == [16, 16, 16]
    for one, other in zip(alone, together, strict=True):
        assert all(torch.equal(one[key], other[key]) for key in ("x", "edge_index", "y", "batch"))


def write_tu(folder, graphs=30):
    """Pairs of vertices with labels 5 and 9, graph by graph of class -1 or 1, and a single vertex each."""
    files = {
        "A": [f"{3 * g + 1}, {3 * g + 2}\n{3 * g + 2}, {3 * g + 1}" for g in range(graphs)],
        "graph_indicator": [g + 1 for g in range(graphs) for _ in range(3)],
        "graph_labels": [(-1) ** g for g in range(graphs)],
        "node_labels": [label for _ in range(graphs) for label in (5, 9, 9)],
    }
    folder.mkdir(exist_ok=True)
    for kind, lines in files.items():
        (folder / f"OWN_{kind}.txt").write_text("".join(f"{line}\n" for line in lines))
    return folder


def test_a_tu_folder_of_ones_own_is_read_by_its_path(tmp_path, monkeypatch):
    write_tu(tmp_path / "own")
    monkeypatch.chdir(tmp_path)
    for name in (str(tmp_path / "own"), "./own", "own"):
        data = GraphData(name)
        found = data.splits
        assert (found.task, found.classes, found.features, found.split) == ("graph", 2, 2, None)
        assert [int(graph.y) for graph in found.graphs[:3]] == [1, 0, 1]
        assert found.graphs[4].x.tolist() == [[1, 0], [0, 1], [0, 1]]
        assert found.graphs[4].edge_index.tolist() == [[0, 1], [1, 0]]
        assert {part: len(graphs) for part, graphs in data.parts.items()} == {"train": 24, "val": 3, "test": 3}
    degrees = GraphData(str(tmp_path / "own"), features="degree").splits.graphs[4]
    assert degrees.x.argmax(1).tolist() == [1, 1, 0]


def test_a_folder_does_not_hide_the_data_set_of_its_name(tmp_path, monkeypatch):
    write_tu(tmp_path / "mutag")
    monkeypatch.chdir(tmp_path)
    assert len(GraphData("mutag").splits.graphs) == 188
    assert len(GraphData("./mutag").splits.graphs) == 30


def test_a_missing_folder_names_the_files_that_are_expected(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"nowhere is no folder, .*NAME_A\.txt, NAME_graph_indicator\.txt"):
        _ = GraphData(str(tmp_path / "nowhere")).splits
    with pytest.raises(FileNotFoundError, match=r"holds no data set MUTAG, expected MUTAG_A\.txt"):
        _ = GraphData("MUTAG", root=tmp_path, download=False).splits


def test_an_unknown_name_is_told_the_known_ones():
    with pytest.raises(ValueError, match=r"name must be one of solubility, mutag, planted, .*, got 'Mutagen'"):
        _ = GraphData("Mutagen").splits
    with pytest.raises(ValueError, match="root must name the folder of Cora, got None"):
        _ = GraphData("Cora").splits


@pytest.mark.parametrize("folds", [None, 13])
def test_too_few_graphs_of_a_class_are_told(folds):
    graphs = [ring(3, int(i < 1)) for i in range(12)]
    with pytest.raises(ValueError, match="solubility: 12 graphs cannot be divided by class"):
        _ = given(GraphData(folds=folds), graphs).indices


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"val_fraction": 0.0}, r"val_fraction must lie in \(0, 1\), got 0.0"),
        ({"val_fraction": 1.0}, r"val_fraction must lie in \(0, 1\), got 1.0"),
        ({"batch_size": 0}, "batch_size must be at least 1, got 0"),
        ({"eval_batch_size": 0}, "eval_batch_size must be at least 1, got 0"),
        ({"num_workers": -1}, "num_workers must be at least 0, got -1"),
        ({"folds": 1}, "folds must be at least 2, got 1"),
    ],
    ids=str,
)
def test_an_option_out_of_range_is_named(options, message):
    with pytest.raises(ValueError, match=message):
        GraphData(**options)


def test_a_share_to_validate_on_that_leaves_nothing_to_train_on_is_told():
    graphs = [ring(3, i % 2) for i in range(40)]
    with pytest.raises(ValueError, match="solubility: 40 graphs cannot be divided by class"):
        _ = given(GraphData(val_fraction=0.95), graphs).indices
