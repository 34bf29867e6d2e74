"""The data sets by name: the embedded ones, and the paper's own in the files of their publishers (Sec. 5 and 7).

What is below a root is laid out as PyG and OGB do it, so that folders they have downloaded can be used:

    root/MUTAG/raw/MUTAG_A.txt ...                         TU data sets (see tu.py)
    root/Cora/raw/ind.cora.{x,tx,allx,y,ty,ally,graph,test.index}
    root/texas/raw/{out1_node_feature_label.txt,out1_graph_edges.txt,texas_split_0.6_0.2_{0..9}.npz}
    root/squirrel/geom_gcn/raw/                            likewise
    root/{CS,Physics}/raw/ms_academic_{cs,phy}.npz
    root/ZINC/raw/{train,val,test}.{pickle,index}
    root/ogbg_molhiv/{raw/*.csv.gz,split/scaffold/*.csv.gz}

The files of Planetoid and ZINC are pickles, which can run code when they are opened: take them from their publishers.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data, InMemoryDataset, download_url, extract_zip
from torch_geometric.datasets import ZINC, Coauthor, Planetoid, WebKB, WikipediaNetwork
from torch_geometric.transforms import NormalizeFeatures

from difflift.molecules import solubility
from difflift.planted import planted
from difflift.tu import Features, mutag, read_numbers, read_tu, separate, symmetric, tu_folder

TU_URL = "https://www.chrsmrrs.com/graphkerneldatasets"
MOLHIV_URL = "https://snap.stanford.edu/ogb/data/graphproppred/csv_mol_download/hiv.zip"

EMBEDDED = ("solubility", "mutag", "planted")
TU = ("MUTAG", "ENZYMES", "PROTEINS", "NCI1", "NCI109", "DD", "IMDB-BINARY", "REDDIT-BINARY")
TU_FEATURES: dict[str, Features] = {"IMDB-BINARY": "degree", "REDDIT-BINARY": "random"}  # the others have labels
PLANETOID = ("Cora", "Citeseer", "Pubmed")
WEBKB = ("Cornell", "Texas", "Wisconsin")
WIKIPEDIA = ("chameleon", "squirrel")
COAUTHOR = ("CS", "Physics")
NAMES = (*EMBEDDED, *TU, *PLANETOID, *WEBKB, *WIKIPEDIA, *COAUTHOR, "ogbg-molhiv", "ZINC")

ZINC_KINDS = 28  # of atoms in all of ZINC; the subset has 21 of them
# Values of OGB's nine features of an atom: element, chirality, degree, charge, hydrogens, radical electrons,
# hybridisation, aromatic, in a ring.
MOLHIV_KINDS = (119, 5, 12, 12, 10, 6, 6, 2, 2)

Task = Literal["graph", "node", "regression", "binary"]


@dataclass(frozen=True)
class Splits:
    """A data set.

    Attributes:
        graphs: each with x (N, features), edge_index and y.
        split: indices of the graphs `train`, `val` and `test`; None where the data set gives no such split, or gives
            it as masks of vertices. Solubility has no `val`.
        task: classes of graphs or of vertices (accuracy), regression of graphs (mean absolute error), or two classes of
            graphs, judged by ROC-AUC.
        classes: number of classes; 1 for regression.
        features: F.
    """

    graphs: list[Data]
    split: dict[str, list[int]] | None
    task: Task
    classes: int
    features: int


def load(
    name: str, root: Path | None = None, seed: int = 0, download: bool = True, planted_noise: float = 2.0
) -> Splits:
    """Load a data set by its name.

    Args:
        name: one of `NAMES`; mutag is the copy of MUTAG that needs no root.
        root: folder of the files; not used for solubility, mutag and planted.
        seed: of what is drawn: the graphs of planted, the features of REDDIT-BINARY.
        download: whether files that are missing may be downloaded to root.
        planted_noise: standard deviation of the noise that hides planted's groups.

    Raises:
        ValueError: if the name is unknown, or there is no root but the data set needs one, or a file is malformed.
        FileNotFoundError: if files are missing and cannot, or may not, be downloaded.
        ImportError: if the wheel that holds an embedded data set is not installed.
    """
    if name not in NAMES:
        raise ValueError(f"name must be one of {', '.join(NAMES)}, got {name!r}")
    if name == "solubility":
        train, test = solubility()
        return splits_of(train + test, "graph", {"train": train, "test": test})
    if name == "mutag":
        return splits_of(mutag(), "graph")
    if name == "planted":
        graphs = planted(noise=planted_noise, seed=seed)
        return splits_of(graphs, "node", {"train": graphs[:160], "val": graphs[160:200], "test": graphs[200:]})
    if root is None:
        raise ValueError(f"root must name the folder of {name}, got None; {', '.join(EMBEDDED)} need none")
    if name in TU:
        folder = _tu_or_download(root, name, download)
        return splits_of(read_tu(folder, name, TU_FEATURES.get(name, "labels"), seed), "graph")
    if name == "ZINC":
        parts = read_zinc(root, download)
        return splits_of([graph for part in parts.values() for graph in part], "regression", parts)
    if name == "ogbg-molhiv":
        graphs, split = read_molhiv(root, download)
        return Splits(graphs, split, "binary", 2, sum(MOLHIV_KINDS))
    if name in PLANETOID:
        return splits_of(read_planetoid(root, name, download), "node")
    if name in COAUTHOR:
        return splits_of(read_coauthor(root, name, download), "node")
    return splits_of((read_webkb if name in WEBKB else read_wikipedia)(root, name, download), "node")


def splits_of(graphs: list[Data], task: Task, parts: dict[str, list[Data]] | None = None) -> Splits:
    """Count classes and features; `parts` are consecutive pieces of the graphs."""
    split, start = None, 0
    if parts is not None:
        split = {}
        for part, members in parts.items():
            split[part] = list(range(start, start + len(members)))
            start += len(members)
    classes = 1 if task == "regression" else int(max(graph.y.max() for graph in graphs)) + 1
    return Splits(graphs, split, task, classes, graphs[0].x.shape[1])


def read_planetoid(root: Path, name: str, download: bool = True) -> list[Data]:
    """Read Cora, Citeseer or Pubmed: the split `full`, every row of x divided by its sum.

    Returns:
        One graph with y (N,) and train_mask, val_mask and test_mask (N,).

    Raises:
        FileNotFoundError: if files are missing and not downloaded.
        ValueError: if a file is malformed, or there is no such data set.
    """
    name = _known(name, PLANETOID)
    # PyG spells them CiteSeer and PubMed, and names the folder as its user did.
    spelt = [path.name for path in root.glob("*") if path.name.lower() == name.lower()]
    folder = spelt[0] if spelt else name
    return _node_graph(_open(Planetoid, root, download, name=folder, split="full", transform=NormalizeFeatures()))


def read_webkb(root: Path, name: str, download: bool = True) -> list[Data]:
    """Read Cornell, Texas or Wisconsin; the masks are the first of ten splits (see `read_planetoid`)."""
    return _node_graph(_open(WebKB, root, download, name=_known(name, WEBKB)))


def read_wikipedia(root: Path, name: str, download: bool = True) -> list[Data]:
    """Read chameleon or squirrel; the masks are the first of ten splits (see `read_planetoid`)."""
    return _node_graph(_open(WikipediaNetwork, root, download, name=_known(name, WIKIPEDIA)))


def read_coauthor(root: Path, name: str, download: bool = True) -> list[Data]:
    """Read CS or Physics, which have no masks (see `read_planetoid`)."""
    return _node_graph(_open(Coauthor, root, download, name=_known(name, COAUTHOR)))


def read_zinc(root: Path, download: bool = True) -> dict[str, list[Data]]:
    """Read the 12,000 molecules of ZINC's subset.

    Args:
        root: holds ZINC/raw, or is itself the folder of raw.
        download: whether missing files may be downloaded.

    Returns:
        Graphs of `train`, `val` and `test`: x (N, 28), the kind of atom one-hot, and y (1,), the penalised logP.

    Raises:
        FileNotFoundError: if files are missing and not downloaded.
        ValueError: if a file is malformed.
    """
    home = root if (root / "raw" / "train.pickle").is_file() else root / "ZINC"
    parts: dict[str, list[Data]] = {}
    for part in _PARTS:
        parts[part] = []
        for number, molecule in enumerate(_open(ZINC, home, download, subset=True, split=part)):
            kind = molecule.x.flatten()
            if not 0 <= int(kind.min()) <= int(kind.max()) < ZINC_KINDS:
                raise ValueError(
                    f"{home / 'raw' / part}.pickle: atom types must lie in [0, {ZINC_KINDS}), got {kind.tolist()} "
                    f"in molecule {number} of the subset"
                )
            x = torch.nn.functional.one_hot(kind, ZINC_KINDS).float()
            parts[part].append(Data(x=x, edge_index=symmetric(molecule.edge_index, len(x)), y=molecule.y.float()))
    return parts


def read_molhiv(root: Path, download: bool = True) -> tuple[list[Data], dict[str, list[int]]]:
    """Read ogbg-molhiv: 41,127 molecules, of which 1,443 are active against HIV.

    All nine of OGB's features are one-hot, side by side: a linear layer on them is OGB's own encoder of atoms, a sum of
    embeddings. The graphs take 0.8 GB.

    Args:
        root: holds ogbg_molhiv, or is that folder.
        download: whether missing files may be downloaded.

    Returns:
        Graphs with x (N, 174) and y (1,), and the scaffold split: indices of `train`, `val` and `test`.

    Raises:
        FileNotFoundError: if files are missing and not downloaded.
        ValueError: if a file is malformed, or does not fit another.
    """
    home = root if (root / "raw" / "edge.csv.gz").is_file() else root / "ogbg_molhiv"
    names = [f"raw/{kind}.csv.gz" for kind in ("num-node-list", "num-edge-list", "node-feat", "edge", "graph-label")]
    parts = {
        part: f"split/scaffold/{file}.csv.gz" for part, file in zip(_PARTS, ("train", "valid", "test"), strict=True)
    }
    missing = [file for file in (*names, *parts.values()) if not (home / file).is_file()]
    if missing:
        text = f"{home} lacks {', '.join(missing)}; expected are {', '.join((*names, *parts.values()))}"
        _fetch(MOLHIV_URL, "hiv", home, text, download)

    nodes_path, edges_path, features_path, ends_path, labels_path = (home / file for file in names)
    nodes = torch.from_numpy(read_numbers(nodes_path, 1)[:, 0])
    edges = torch.from_numpy(read_numbers(edges_path, 1, rows=len(nodes))[:, 0])
    code = read_numbers(features_path, len(MOLHIV_KINDS), rows=int(nodes.sum()))
    ends = torch.from_numpy(read_numbers(ends_path, 2, rows=int(edges.sum()))).t()
    y = torch.from_numpy(read_numbers(labels_path, 1, rows=len(nodes))[:, 0])
    for path, values, limit in ((features_path, code, MOLHIV_KINDS), (labels_path, y.numpy()[:, None], (2,))):
        wrong = np.argwhere((values < 0) | (values >= np.array(limit)))
        if len(wrong):
            row, column = wrong[0]
            raise ValueError(
                f"{path}, line {row + 1}: number {column + 1} must lie in [0, {limit[column]}), "
                f"got {values[row, column]}"
            )
    graph = torch.arange(len(nodes)).repeat_interleave(edges)
    outside = ((ends < 0) | (ends >= nodes[graph])).any(0).nonzero()
    if len(outside):
        line = int(outside[0])
        raise ValueError(
            f"{ends_path}, line {line + 1}: vertices of graph {int(graph[line])} must lie in "
            f"[0, {int(nodes[graph[line]])}), got {ends[:, line].tolist()}"
        )
    starts = nodes.cumsum(0) - nodes
    first = torch.tensor([0, *MOLHIV_KINDS[:-1]]).cumsum(0)  # column of each feature's value 0
    columns = torch.split(torch.from_numpy(code) + first, nodes.tolist())
    x = [torch.zeros(len(part), sum(MOLHIV_KINDS)).scatter_(1, part, 1.0) for part in columns]
    split = {part: read_numbers(home / file, 1)[:, 0].tolist() for part, file in parts.items()}
    if sorted(index for part in split.values() for index in part) != list(range(len(nodes))):
        raise ValueError(f"{home / 'split' / 'scaffold'}: the parts must hold each index in [0, {len(nodes)}) once")
    return separate(x, symmetric(ends + starts[graph], int(nodes.sum())), y), split


_PARTS = ("train", "val", "test")


def _known(name: str, names: tuple[str, ...]) -> str:
    for known in names:
        if known.lower() == name.lower():
            return known
    raise ValueError(f"name must be one of {', '.join(names)}, got {name!r}")


def _node_graph(dataset: InMemoryDataset) -> list[Data]:
    """Return the one graph of a data set; of several splits, the first (Sec. 5)."""
    data = dataset[0]
    graph = Data(x=data.x, edge_index=symmetric(data.edge_index, len(data.x)), y=data.y)
    for part in _PARTS:
        mask: Tensor | None = data.get(f"{part}_mask")
        if mask is not None:
            graph[f"{part}_mask"] = mask[:, 0].clone() if mask.ndim == 2 else mask
    return [graph]


def _open(kind: type[InMemoryDataset], root: Path, download: bool, **options: Any) -> InMemoryDataset:
    """Open a data set of PyG so that whatever fails is told in one sentence and leaves nothing half-written."""
    root = root.expanduser()
    present = _present(root)

    class Reader(kind):
        def download(self) -> None:
            folder, files = Path(self.raw_dir), [Path(path).name for path in self.raw_paths]
            missing = [file for file in files if not (folder / file).is_file()]
            text = f"{folder} lacks {', '.join(missing)}; expected are {', '.join(files)}"
            home: str = self.root  # type: ignore[has-type]
            try:
                if not download:
                    raise FileNotFoundError(text)
                with TemporaryDirectory(dir=folder) as staged:
                    self.root = staged
                    Path(self.raw_dir).mkdir(parents=True)
                    try:
                        super().download()
                    except Exception as error:  # of several libraries
                        raise FileNotFoundError(f"{text}; they could not be downloaded: {error}") from error
                    for file in missing:
                        (Path(self.raw_dir) / file).replace(folder / file)
            finally:
                self.root = home
                _prune(folder, present)

        def process(self) -> None:
            try:
                super().process()
            except Exception as error:  # a damaged pickle can raise nearly anything
                shutil.rmtree(self.processed_dir, ignore_errors=True)
                _prune(Path(self.processed_dir).parent, root)
                raise ValueError(f"{self.raw_dir} cannot be read as {kind.__name__}: {error}") from error

        @classmethod
        def save(cls, data_list: Any, path: str) -> None:
            for data in data_list:
                last = int(data.edge_index.max()) if data.edge_index.numel() else 0
                if last >= len(data.x):
                    raise ValueError(f"edges must join vertices in [0, {len(data.x)}), got {last}")
            super().save(data_list, f"{path}.part")
            Path(f"{path}.part").replace(path)

    return Reader(str(root), **options)


def _tu_or_download(root: Path, name: str, download: bool) -> Path:
    try:
        return tu_folder(root, name)
    except FileNotFoundError as error:
        _fetch(f"{TU_URL}/{name}.zip", name, root / name / "raw", str(error), download)
        return root / name / "raw"


def _fetch(url: str, inner: str, folder: Path, missing: str, download: bool) -> None:
    """Download an archive and move what is in its folder `inner` to a folder.

    Raises:
        FileNotFoundError: with the sentence `missing`, if that is not allowed or fails.
    """
    if not download:
        raise FileNotFoundError(missing)
    present = _present(folder)
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with TemporaryDirectory(dir=folder) as staged:
            extract_zip(download_url(url, staged, log=False), staged, log=False)
            for path in sorted((Path(staged) / inner).rglob("*")):
                target = folder / path.relative_to(Path(staged) / inner)
                if path.is_file() and not target.exists():
                    target.parent.mkdir(parents=True, exist_ok=True)
                    path.replace(target)
    except Exception as error:  # of the network, or of the archive
        raise FileNotFoundError(f"{missing}; {url} could not be downloaded: {error}") from error
    finally:
        _prune(folder, present)


def _present(folder: Path) -> Path:
    """Return the innermost folder on a path that exists."""
    return next(path for path in (folder, *folder.resolve().parents) if path.is_dir())


def _prune(folder: Path, last: Path) -> None:
    """Remove a folder and those around it, up to `last`, which stays, for as long as they are empty."""
    folder, last = folder.resolve(), last.resolve()
    while folder != last and folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()
        folder = folder.parent
