"""The LightningDataModule: graphs of a data set by name, split, in batches."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import torch
from lightning.pytorch import LightningDataModule
from shared.seeding import EvalBatchSampler, TrainSampler, coming_epoch, derive, generator, worker_init
from sklearn.model_selection import StratifiedKFold, train_test_split
from torch import Tensor
from torch.utils.data import DataLoader, Dataset
from torch_geometric.data import Batch, Data

from difflift.datasets import NAMES, Splits, load, splits_of
from difflift.options import check_choice
from difflift.tu import Features, read_tu

log = logging.getLogger(__name__)

PARTS = ("train", "val", "test")


class Graphs(Dataset[Batch]):
    """Graphs that are indexed a whole batch at a time.

    Args:
        graphs: the graphs.
    """

    def __init__(self, graphs: Sequence[Data]) -> None:
        self.graphs = graphs

    def __len__(self) -> int:
        return len(self.graphs)

    def __getitems__(self, indices: Sequence[int]) -> Batch:
        return Batch.from_data_list([self.graphs[i] for i in indices])


def as_is(batch: Batch) -> Batch:
    """Return a batch that is one already."""
    return batch


class GraphData(LightningDataModule):
    """Batches of graphs for training, validation and test.

    Graphs are classified, or their vertices. Splits that a data set comes with are kept. Otherwise, and for the
    validation part of solubility, graphs are divided by class and by the run's seed: into 80, 10 and 10 %, or folds.

    Args:
        name: of a data set, see `datasets.NAMES`, or a folder of yours in the TU format.
        root: folder of the data sets; solubility, mutag and planted need none.
        download: whether missing files may be downloaded to root.
        features: of a folder of yours: `labels` and attributes of its vertices (one-hot, and as they are), their
            `degree` (one-hot), `random` numbers, or a `constant`. The named data sets have their own.
        planted_noise: standard deviation of the noise that hides planted's groups.
        drop_edges: forget all edges: the vertices are a point cloud.
        folds: number of folds of cross-validation, of which seed s tests number s mod `folds`; the folds are drawn anew
            for every so many seeds. None for a split into 80, 10 and 10 %.
        val_fraction: share of the training graphs to validate on, where the data set does not say.
        test_on: what the test loop scores: `test`, or `val` for tuning.
        batch_size: graphs of a training batch on each process.
        eval_batch_size: likewise of validation and test.
        num_workers: processes that make batches; has no influence on them.
        seed: the run's seed: of splits, of planted's graphs, and of the order.

    Raises:
        ValueError: if an option is out of range.
    """

    def __init__(
        self,
        name: str = "solubility",
        root: Path | None = None,
        download: bool = True,
        features: Features = "labels",
        planted_noise: float = 2.0,
        drop_edges: bool = False,
        folds: int | None = None,
        val_fraction: float = 0.1,
        test_on: Literal["test", "val"] = "test",
        batch_size: int = 32,
        eval_batch_size: int = 128,
        num_workers: int = 0,
        seed: int = 0,
    ) -> None:
        super().__init__()
        if not 0 < val_fraction < 1:
            raise ValueError(f"val_fraction must lie in (0, 1), got {val_fraction}")
        for option, value, least in (
            ("batch_size", batch_size, 1),
            ("eval_batch_size", eval_batch_size, 1),
            ("num_workers", num_workers, 0),
            ("folds", folds, 2),
        ):
            if value is not None and value < least:
                raise ValueError(f"{option} must be at least {least}, got {value}")
        if not name:
            raise ValueError("name must be a data set or a folder, got nothing")
        check_choice("features", features, Features)
        self.own_features: Features = features
        self.dataset, self.download, self.drop_edges = name, download, drop_edges
        self.planted_noise = planted_noise
        self.root = None if root is None else Path(root).expanduser()
        self.folds, self.val_fraction, self.test_on, self.seed = folds, val_fraction, test_on, seed
        self.batch_size, self.eval_batch_size, self.num_workers = batch_size, eval_batch_size, num_workers

    @property
    def own_folder(self) -> Path | None:
        """The folder, if the data set is one of the user's: a name that is none of `datasets.NAMES`."""
        path = Path(self.dataset).expanduser()
        return path if self.dataset not in NAMES and (path.is_dir() or path.name != self.dataset) else None

    @cached_property
    def splits(self) -> Splits:
        """The data set.

        Raises:
            FileNotFoundError: if files are missing.
            ValueError: if one is not as its format says.
        """
        if self.own_folder is not None:
            return splits_of(read_tu(self.own_folder, features=self.own_features), "graph")
        seed = self.seed if self.dataset == "planted" else 0
        return load(self.dataset, self.root, seed, self.download, self.planted_noise)

    def prepare_data(self) -> None:
        """Download what is missing; one process does."""
        _ = self.splits

    def setup(self, stage: str | None = None) -> None:
        """Read and split the data."""
        sizes = [len(self.parts[part]) for part in PARTS]
        log.info("%s: %d, %d and %d graphs to train, validate and test on", self.dataset, *sizes)

    @cached_property
    def parts(self) -> dict[str, Graphs]:
        """The graphs to train, validate and test on."""
        graphs = [lean(graph, self.drop_edges) for graph in self.splits.graphs]
        if self.splits.task == "node" and self.splits.split is None:
            pairs = list(zip(graphs, self.splits.graphs, strict=True))
            return {part: Graphs([with_mask(*pair, part, self.seed) for pair in pairs]) for part in PARTS}
        return {part: Graphs([graphs[i] for i in indices]) for part, indices in self.indices.items()}

    @cached_property
    def indices(self) -> dict[str, list[int]]:
        """Indices of the graphs of each part.

        Raises:
            ValueError: if there are too few graphs of a class to divide.
        """
        given = self.splits.split
        if given is not None and "val" in given:
            return given
        labels = [int(graph.y) for graph in self.splits.graphs]
        everything = list(range(len(labels)))
        try:
            if given is not None:
                rest, test = given["train"], given["test"]
            elif self.folds is not None:
                smallest = min(map(labels.count, set(labels)))
                if smallest < self.folds:
                    raise ValueError(f"folds is {self.folds}, but a class has {smallest} graphs")
                repeat, fold = divmod(self.seed, self.folds)
                folds = StratifiedKFold(self.folds, shuffle=True, random_state=derive(repeat, "folds"))
                rest, test = (part.tolist() for part in list(folds.split(everything, labels))[fold])
            else:
                rest, test = stratified(everything, labels, 0.1, derive(self.seed, "test"))
            # A tenth of all is a ninth of what is left.
            share = self.val_fraction if given is not None or self.folds else self.val_fraction / 0.9
            train, val = stratified(rest, labels, share, derive(self.seed, "val"))
        except ValueError as error:
            raise ValueError(f"{self.dataset}: {len(labels)} graphs cannot be divided by class: {error}") from error
        return {"train": train, "val": val, "test": test}

    @property
    def _shard(self) -> tuple[int, int]:
        """This process's rank and the number of processes."""
        return (0, 1) if self.trainer is None else (self.trainer.global_rank, self.trainer.world_size)

    def train_dataloader(self) -> DataLoader[Batch]:
        """Return batches in an order that is a function of (seed, epoch)."""
        rank, world_size = self._shard
        graphs, epoch = self.parts["train"], coming_epoch(self.trainer)
        order = TrainSampler(len(graphs), self.seed, rank=rank, world_size=world_size, epoch=epoch)
        return self._loader(graphs, batch_size=self.batch_size, sampler=order)

    def val_dataloader(self) -> DataLoader[Batch]:
        """Return the graphs to validate on, each once over all processes."""
        return self._evaluation_loader("val")

    def test_dataloader(self) -> DataLoader[Batch]:
        """Return the graphs of `test_on`, each once over all processes."""
        return self._evaluation_loader(self.test_on)

    def _evaluation_loader(self, part: str) -> DataLoader[Batch]:
        rank, world_size = self._shard
        batches = EvalBatchSampler(len(self.parts[part]), self.eval_batch_size, rank=rank, world_size=world_size)
        return self._loader(self.parts[part], batch_sampler=batches)

    def _loader(self, graphs: Graphs, **batching: Any) -> DataLoader[Batch]:
        return DataLoader(
            graphs,
            collate_fn=as_is,
            num_workers=self.num_workers,
            pin_memory=torch.cuda.is_available(),
            worker_init_fn=worker_init,
            generator=generator(self.seed, "workers"),  # without it, each epoch would draw a global number
            **batching,
        )


def lean(graph: Data, drop_edges: bool) -> Data:
    """Return what a network needs of a graph: x, edges and y."""
    edges = graph.edge_index[:, :0] if drop_edges else graph.edge_index
    return Data(x=graph.x, edge_index=edges, y=graph.y)


def stratified(indices: Sequence[int], labels: Sequence[int], share: float, seed: int) -> tuple[list[int], list[int]]:
    """Divide indices into two, the second with a share of each class; both ascending."""
    strata = [labels[i] for i in indices]
    first, second = train_test_split(list(indices), test_size=share, stratify=strata, random_state=seed)
    return sorted(first), sorted(second)


def with_mask(lean_graph: Data, graph: Data, part: str, seed: int) -> Data:
    """Return a graph whose `scored` are its vertices of a part: those of its masks, else 60, 20 and 20 % by class."""
    if f"{part}_mask" in graph:
        mask: Tensor = graph[f"{part}_mask"]
    else:
        labels = graph.y.tolist()
        rest, test = stratified(range(len(labels)), labels, 0.2, derive(seed, "test"))
        train, val = stratified(rest, labels, 0.25, derive(seed, "val"))
        mask = torch.zeros(len(labels), dtype=torch.bool)
        mask[{"train": train, "val": val, "test": test}[part]] = True
    return Data(x=lean_graph.x, edge_index=lean_graph.edge_index, y=lean_graph.y, scored=mask)
