"""The published formats, written here in small, and what is said where files are missing or wrong."""

import gzip
import pickle
import sys
from pathlib import Path
from urllib.error import URLError

import difflift.datasets as datasets
import numpy as np
import pytest
import scipy.sparse as sp
import torch
from difflift.datasets import (
    NAMES,
    load,
    read_coauthor,
    read_molhiv,
    read_planetoid,
    read_webkb,
    read_wikipedia,
    read_zinc,
)
from torch_geometric.datasets import ZINC, Planetoid, WebKB


def content(folder: Path) -> list[str]:
    """Return all that is below a folder."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


# Planetoid: 4 vertices for training, 500 for validation, 3 others, then 5 for the test, whose rows are in disorder.
TEST_ORDER = [509, 507, 511, 508, 510]


def write_planetoid(root: Path, folder: str = "Cora", name: str = "cora") -> np.ndarray:
    """Write the eight files; return the features (512, 3) in the order of the vertices, whose class is v mod 2."""
    raw = root / folder / "raw"
    raw.mkdir(parents=True)
    x = np.random.default_rng(0).integers(0, 3, (512, 3)).astype(np.float32)
    x[5] = 0
    y = np.eye(2, dtype=np.int32)[np.arange(512) % 2]
    graph = {v: [] for v in range(512)} | {0: [1, 1, 0], 1: [0], 2: [509], 509: [2]}
    files = {
        "x": sp.csr_matrix(x[:4]),
        "tx": sp.csr_matrix(x[TEST_ORDER]),
        "allx": sp.csr_matrix(x[:507]),
        "y": y[:4],
        "ty": y[TEST_ORDER],
        "ally": y[:507],
        "graph": graph,
    }
    for kind, value in files.items():
        (raw / f"ind.{name}.{kind}").write_bytes(pickle.dumps(value, protocol=2))
    (raw / f"ind.{name}.test.index").write_text("".join(f"{index}\n" for index in TEST_ORDER))
    return x


@pytest.mark.parametrize(("folder", "name"), [("Cora", "Cora"), ("PubMed", "Pubmed")])
def test_planetoid_trains_on_all_that_is_not_held_out_and_rows_sum_to_one(tmp_path, folder, name):
    x = write_planetoid(tmp_path, folder, name.lower())
    (graph,) = read_planetoid(tmp_path, name, download=False)
    sums = x.sum(1, keepdims=True)
    np.testing.assert_allclose(graph.x, np.divide(x, sums, where=sums > 0, out=np.zeros_like(x)), rtol=1e-6)
    assert torch.equal(graph.y, torch.arange(512) % 2)
    assert graph.edge_index.tolist() == [[0, 1, 2, 509], [1, 0, 509, 2]]
    assert graph.train_mask.nonzero().flatten().tolist() == [0, 1, 2, 3, 504, 505, 506]
    assert graph.val_mask.nonzero().flatten().tolist() == list(range(4, 504))
    assert graph.test_mask.nonzero().flatten().tolist() == sorted(TEST_ORDER)


def test_what_pyg_caches_is_whole_and_gives_the_same_graph_again(tmp_path):
    write_planetoid(tmp_path)
    first = load("Cora", tmp_path, download=False)
    assert not [path for path in content(tmp_path) if path.endswith(".part")]
    (tmp_path / "Cora" / "raw" / "ind.cora.x").write_bytes(b"not read again")
    second = load("Cora", tmp_path, download=False)
    assert all(torch.equal(value, second.graphs[0][key]) for key, value in first.graphs[0].to_dict().items())
    assert (first.task, first.classes, first.features, first.split) == ("node", 2, 3, None)
    assert len(Planetoid(str(tmp_path), "Cora")[0].x) == 512  # PyG itself takes the cache


# Four vertices; edges in one direction, one of them a loop, one in both.
PAGES = "node_id\tfeature\tlabel\n0\t1,0\t2\n1\t0,1\t0\n2\t1,1\t1\n3\t0,0\t2\n"
LINKS = "node_id\tnode_id\n0\t1\n1\t0\n2\t3\n2\t2\n3\t0\n"


def write_pages(raw: Path, name: str, links: str = LINKS) -> None:
    raw.mkdir(parents=True)
    (raw / "out1_node_feature_label.txt").write_text(PAGES)
    (raw / "out1_graph_edges.txt").write_text(links)
    for i in range(10):
        masks = {f"{part}_mask": np.roll([1, 0, 0, 1], i + shift) for part, shift in zip("abc", range(3), strict=True)}
        masks = dict(zip(("train_mask", "val_mask", "test_mask"), masks.values(), strict=True))
        np.savez(raw / f"{name}_split_0.6_0.2_{i}.npz", **masks)


@pytest.mark.parametrize(
    ("name", "raw", "read"),
    [("Texas", "texas/raw", read_webkb), ("squirrel", "squirrel/geom_gcn/raw", read_wikipedia)],
)
def test_web_pages_are_undirected_with_the_first_of_ten_splits(tmp_path, name, raw, read):
    write_pages(tmp_path / raw, name.lower())
    (graph,) = read(tmp_path, name, download=False)
    assert graph.x.tolist() == [[1, 0], [0, 1], [1, 1], [0, 0]]
    assert graph.y.tolist() == [2, 0, 1, 2]
    assert graph.edge_index.tolist() == [[0, 0, 1, 2, 3, 3], [1, 3, 0, 3, 0, 2]]
    assert graph.train_mask.tolist() == [True, False, False, True]
    assert graph.val_mask.tolist() == [True, True, False, False]
    assert graph.test_mask.tolist() == [False, True, True, False]
    loaded = load(name, tmp_path, download=False)
    assert (loaded.task, loaded.classes, loaded.features, loaded.split) == ("node", 3, 2, None)


def test_an_edge_to_no_vertex_is_refused(tmp_path):
    write_pages(tmp_path / "texas" / "raw", "texas", LINKS + "3\t4\n")
    before = content(tmp_path)
    with pytest.raises(ValueError, match=r"texas.raw cannot be read as WebKB: .* vertices in \[0, 4\), got 4"):
        read_webkb(tmp_path, "Texas", download=False)
    assert content(tmp_path) == before


@pytest.mark.parametrize(("name", "file"), [("CS", "ms_academic_cs.npz"), ("Physics", "ms_academic_phy.npz")])
def test_coauthors_are_read_from_two_sparse_matrices(tmp_path, name, file):
    raw = tmp_path / name / "raw"
    raw.mkdir(parents=True)
    x = sp.csr_matrix(np.array([[0, 2.0, 0], [1, 0, 0], [0, 0, 5]], dtype=np.float32))
    adjacency = sp.csr_matrix(np.array([[1, 1, 0], [0, 0, 1], [0, 0, 0]], dtype=np.float32))
    fields = {
        f"{key}_{part}": getattr(matrix, part)
        for key, matrix in (("attr", x), ("adj", adjacency))
        for part in ("data", "indices", "indptr", "shape")
    }
    np.savez(raw / file, labels=np.array([1, 0, 3]), **fields)
    (graph,) = read_coauthor(tmp_path, name, download=False)
    assert graph.x.tolist() == [[0, 1, 0], [1, 0, 0], [0, 0, 1]]  # whether a word occurs
    assert graph.edge_index.tolist() == [[0, 1, 1, 2], [1, 0, 2, 1]]
    assert graph.y.tolist() == [1, 0, 3] and "train_mask" not in graph
    assert load(name, tmp_path, download=False).classes == 4


def write_zinc(root: Path, kind: int = 27) -> None:
    """Write three molecules for each part, of which the subset takes the last and the first."""
    raw = root / "raw"
    raw.mkdir(parents=True)
    bonds = torch.tensor([[0, 1, 0], [1, 0, 2], [0, 2, 0]])
    for shift, part in enumerate(("train", "val", "test")):
        molecules = [
            {
                "num_atom": 3,
                "atom_type": torch.tensor([i, shift, kind]),
                "bond_type": bonds if i else torch.zeros(3, 3, dtype=torch.long),
                "logP_SA_cycle_normalized": torch.tensor([i - 0.5 * shift]),
            }
            for i in range(3)
        ]
        (raw / f"{part}.pickle").write_bytes(pickle.dumps(molecules))
        (raw / f"{part}.index").write_text("2,0\n")


@pytest.mark.parametrize("home", [".", "ZINC"])
def test_zinc_is_the_subset_with_atoms_one_hot(tmp_path, home):
    write_zinc(tmp_path / home)
    parts = read_zinc(tmp_path, download=False)
    assert list(parts) == ["train", "val", "test"]
    last, first = parts["val"]
    assert last.x.shape == (3, 28) and last.x.argmax(1).tolist() == [2, 1, 27] and last.x.sum() == 3
    assert last.edge_index.tolist() == [[0, 1, 1, 2], [1, 0, 2, 1]]
    assert first.edge_index.shape == (2, 0)
    assert last.y.tolist() == [1.5] and last.y.dtype == torch.float32
    loaded = load("ZINC", tmp_path, download=False)
    assert loaded.split == {"train": [0, 1], "val": [2, 3], "test": [4, 5]}
    assert [float(graph.y) for graph in loaded.graphs] == [2, 0, 1.5, -0.5, 1, -1]
    assert (loaded.task, loaded.classes, loaded.features) == ("regression", 1, 28)


def test_an_unknown_kind_of_atom_is_refused(tmp_path):
    write_zinc(tmp_path, kind=28)
    with pytest.raises(ValueError, match=r"train.pickle: atom types must lie in \[0, 28\), got \[2, 0, 28\]"):
        read_zinc(tmp_path, download=False)


def test_a_damaged_file_leaves_no_cache(tmp_path):
    write_zinc(tmp_path)
    (tmp_path / "raw" / "val.pickle").write_bytes((tmp_path / "raw" / "val.pickle").read_bytes()[:50])
    before = content(tmp_path)
    with pytest.raises(ValueError, match=r"raw cannot be read as ZINC: "):
        read_zinc(tmp_path, download=False)
    assert content(tmp_path) == before


MOLHIV = {  # a molecule of two atoms, one of a single atom, one of three
    "raw/num-node-list": "2\n1\n3\n",
    "raw/num-edge-list": "1\n0\n2\n",
    "raw/edge": "0,1\n1,0\n1,2\n",
    "raw/node-feat": "5,0,4,5,3,0,2,0,0\n7,0,2,5,1,0,2,0,0\n118,4,11,11,9,5,5,1,1\n" + "5,0,4,5,3,0,2,0,0\n" * 3,
    "raw/edge-feat": "0,0,0\n0,0,0\n0,0,0\n",
    "raw/graph-label": "0\n1\n0\n",
    "split/scaffold/train": "2\n",
    "split/scaffold/valid": "0\n",
    "split/scaffold/test": "1\n",
}


def write_molhiv(folder: Path, **changes: str) -> None:
    for file, text in (MOLHIV | changes).items():
        path = folder / f"{file}.csv.gz"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(gzip.compress(text.encode()))


@pytest.mark.parametrize("home", ["ogbg_molhiv", "."])
def test_molhiv_is_read_with_all_nine_features_one_hot(tmp_path, home):
    write_molhiv(tmp_path / home)
    graphs, split = read_molhiv(tmp_path, download=False)
    assert split == {"train": [2], "val": [0], "test": [1]}
    assert [graph.num_nodes for graph in graphs] == [2, 1, 3]
    # The features begin at columns 0, 119, 124, 136, 148, 158, 164, 170 and 172.
    assert graphs[0].x[0].nonzero().flatten().tolist() == [5, 119, 128, 141, 151, 158, 166, 170, 172]
    assert graphs[1].x[0].nonzero().flatten().tolist() == [118, 123, 135, 147, 157, 163, 169, 171, 173]
    assert graphs[0].edge_index.tolist() == [[0, 1], [1, 0]]
    assert graphs[1].edge_index.shape == (2, 0)
    assert graphs[2].edge_index.tolist() == [[0, 1, 1, 2], [1, 0, 2, 1]]
    assert [graph.y.tolist() for graph in graphs] == [[0], [1], [0]]
    loaded = load("ogbg-molhiv", tmp_path, download=False)
    assert (loaded.task, loaded.classes, loaded.features, loaded.split) == ("binary", 2, 174, split)


def test_a_linear_layer_on_molhiv_is_a_sum_of_embeddings(tmp_path):
    write_molhiv(tmp_path)
    graphs, _ = read_molhiv(tmp_path, download=False)
    weight = torch.randn(174, 5, generator=torch.Generator().manual_seed(0))
    tables = weight.split(datasets.MOLHIV_KINDS)
    codes = [7, 0, 2, 5, 1, 0, 2, 0, 0]  # of the second atom
    expected = sum(table[code] for table, code in zip(tables, codes, strict=True))
    torch.testing.assert_close(graphs[0].x[1] @ weight, expected)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"raw/edge": "0,1\n1,0\n1,3\n"},
            r"edge.csv.gz, line 3: .* graph 2 must lie in \[0, 3\), got \[1, 3\]",
        ),
        (
            {"raw/edge": "0,2\n1,0\n1,2\n"},
            r"edge.csv.gz, line 1: .* graph 0 must lie in \[0, 2\), got \[0, 2\]",
        ),
        ({"raw/edge": "0,1\n1,0\n"}, r"edge.csv.gz has 2 lines, expected 3"),
        ({"raw/edge": "0,1\n1,b\n1,2\n"}, r"edge.csv.gz, line 2: expected 2 whole numbers, got '1,b'"),
        ({"raw/graph-label": "0\n1\n"}, r"graph-label.csv.gz has 2 lines, expected 3"),
        ({"raw/graph-label": "0\n2\n0\n"}, r"graph-label.csv.gz, line 2: number 1 must lie in \[0, 2\), got 2"),
        (
            {"raw/node-feat": MOLHIV["raw/node-feat"].replace("118,4", "118,5")},
            r"line 3: number 2 must lie in \[0, 5\), got 5",
        ),
        ({"split/scaffold/test": "3\n"}, r"scaffold: the parts must hold each index in \[0, 3\) once"),
        ({"split/scaffold/test": "0\n"}, r"scaffold: the parts must hold each index in \[0, 3\) once"),
    ],
)
def test_a_wrong_molhiv_file_is_named(tmp_path, changes, message):
    write_molhiv(tmp_path, **changes)
    with pytest.raises(ValueError, match=message):
        read_molhiv(tmp_path, download=False)


def test_a_cut_gzip_file_is_named(tmp_path):
    write_molhiv(tmp_path)
    path = tmp_path / "raw" / "node-feat.csv.gz"
    path.write_bytes(path.read_bytes()[:30])
    with pytest.raises(ValueError, match=r"node-feat.csv.gz is no complete gzip file"):
        read_molhiv(tmp_path, download=False)


MISSING = [
    ("Cora", "Cora/raw", ["ind.cora.x", "ind.cora.test.index"]),
    ("Texas", "texas/raw", ["out1_node_feature_label.txt", "texas_split_0.6_0.2_9.npz"]),
    ("chameleon", "chameleon/geom_gcn/raw", ["out1_graph_edges.txt", "chameleon_split_0.6_0.2_0.npz"]),
    ("Physics", "Physics/raw", ["ms_academic_phy.npz"]),
    ("ZINC", "ZINC/raw", ["train.pickle", "test.index"]),
    ("ogbg-molhiv", "ogbg_molhiv", ["raw/edge.csv.gz", "split/scaffold/valid.csv.gz"]),
    ("PROTEINS", "", ["PROTEINS_A.txt", "PROTEINS_graph_labels.txt"]),
]


@pytest.mark.parametrize("network", ["forbidden", "down"])
@pytest.mark.parametrize(("name", "folder", "files"), MISSING)
@pytest.mark.parametrize("exists", [True, False])
def test_missing_files_are_one_sentence_and_leave_no_trace(tmp_path, monkeypatch, name, folder, files, network, exists):
    def down(*_: object, **__: object) -> None:
        raise URLError("no network")

    for module in ("webkb", "wikipedia_network", "coauthor", "zinc"):
        monkeypatch.setattr(f"torch_geometric.datasets.{module}.download_url", down)
    monkeypatch.setattr("torch_geometric.io.fs.cp", down)
    monkeypatch.setattr(datasets, "download_url", down)
    root = tmp_path if exists else tmp_path / "new" / "root"
    with pytest.raises(FileNotFoundError) as caught:
        load(name, root, download=network == "down")
    message = str(caught.value)
    assert str(root / folder) in message and all(file in message for file in files)
    assert ("could not be downloaded" in message and "no network" in message) == (network == "down")
    assert "\n" not in message
    assert content(tmp_path) == []


def test_a_file_that_is_there_is_kept_when_the_others_are_downloaded(tmp_path, monkeypatch):
    write_pages(tmp_path / "source", "texas")
    raw = tmp_path / "root" / "texas" / "raw"
    write_pages(raw, "texas", links=LINKS + "1\t2\n")
    (raw / "texas_split_0.6_0.2_3.npz").unlink()

    def copy(self: WebKB) -> None:
        for path in (tmp_path / "source").iterdir():
            (Path(self.raw_dir) / path.name).write_bytes(path.read_bytes())

    monkeypatch.setattr(WebKB, "download", copy)
    (graph,) = read_webkb(tmp_path / "root", "Texas")
    assert [1, 2] in graph.edge_index.t().tolist()
    assert (raw / "texas_split_0.6_0.2_3.npz").read_bytes() == (
        tmp_path / "source" / "texas_split_0.6_0.2_3.npz"
    ).read_bytes()
    assert len(content(raw)) == 12


def test_a_download_that_breaks_off_leaves_no_file(tmp_path, monkeypatch):
    def break_off(self: ZINC) -> None:
        (Path(self.raw_dir) / "train.pickle").write_bytes(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(ZINC, "download", break_off)
    with pytest.raises(KeyboardInterrupt):
        read_zinc(tmp_path / "root")
    assert content(tmp_path) == []


def test_archives_are_unpacked_where_the_readers_look(tmp_path, monkeypatch):
    toy = {"A": "1, 2\n3, 4\n", "graph_indicator": "1\n1\n2\n2\n", "graph_labels": "1\n2\n"}

    def fake_zip(url: str, folder: str, log: bool) -> str:
        inner = Path(folder) / url.split("/")[-1].removesuffix(".zip")
        if inner.name == "hiv":
            write_molhiv(inner)
        else:
            inner.mkdir()
            for kind, text in toy.items():
                (inner / f"{inner.name}_{kind}.txt").write_text(text)
        return ""

    monkeypatch.setattr(datasets, "download_url", fake_zip)
    monkeypatch.setattr(datasets, "extract_zip", lambda *_, **__: None)
    loaded = load("IMDB-BINARY", tmp_path)
    assert content(tmp_path / "IMDB-BINARY") == ["raw", *(f"raw/IMDB-BINARY_{kind}.txt" for kind in sorted(toy))]
    assert (loaded.task, loaded.classes, loaded.split) == ("graph", 2, None)
    assert [graph.x.tolist() for graph in loaded.graphs] == [[[0, 1], [0, 1]]] * 2  # one-hot degree
    assert load("ogbg-molhiv", tmp_path).split == {"train": [2], "val": [0], "test": [1]}

    one, same, other = (load("REDDIT-BINARY", tmp_path, seed=seed).graphs[0].x for seed in (1, 1, 2))
    assert one.shape == (2, 10) and torch.equal(one, same) and not torch.equal(one, other)


def test_the_embedded_data_sets_need_no_root():
    soluble = load("solubility")
    assert soluble.split == {"train": list(range(1025)), "test": list(range(1025, 1282))}
    assert (len(soluble.graphs), soluble.task, soluble.classes, soluble.features) == (1282, "graph", 3, 12)
    trees = load("planted", seed=3)
    assert {part: (indices[0], indices[-1]) for part, indices in trees.split.items()} == {
        "train": (0, 159),
        "val": (160, 199),
        "test": (200, 239),
    }
    assert (len(trees.graphs), trees.task, trees.classes, trees.features) == (240, "node", 2, 25)
    assert not torch.equal(trees.graphs[0].x, load("planted", seed=4).graphs[0].x)


@pytest.mark.skipif(sys.version_info >= (3, 13), reason="grakel has no wheel for Python 3.13")
def test_mutag_is_the_embedded_one():
    pytest.importorskip("importlib.metadata").distribution("grakel")
    loaded = load("mutag")
    assert (len(loaded.graphs), loaded.split, loaded.task, loaded.classes, loaded.features) == (
        188,
        None,
        "graph",
        2,
        7,
    )


def test_a_wrong_name_or_no_root_is_told_with_the_choices(tmp_path):
    with pytest.raises(ValueError, match=r"name must be one of solubility, mutag, planted, MUTAG.*got 'cora'"):
        load("cora", tmp_path)
    for name in NAMES[3:]:
        with pytest.raises(ValueError, match=f"root must name the folder of {name}, got None"):
            load(name)
    with pytest.raises(ValueError, match="name must be one of Cornell, Texas, Wisconsin, got 'Cora'"):
        read_webkb(tmp_path, "Cora")
