"""The LightningDataModule: the samples of a data set by name, in lists.

A batch is a list of `tasks.Sample`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, Literal, cast, get_args

import torch
from lightning.pytorch import LightningDataModule
from shared.seeding import EvalBatchSampler, TrainSampler, coming_epoch, generator
from torch.utils.data import BatchSampler, DataLoader, Dataset, Sampler

from ace.appworld import AppWorldTask, Split, samples_of
from ace.country import Part, draw_facts, questions
from ace.finance import RELEASED, FinanceName, Finer, Formula, read_finance
from ace.jsonl import read_jsonl
from ace.options import check_positive
from ace.tasks import Contains, Metric, Numeric, Sample, Task, build_task, parse_number

log = logging.getLogger(__name__)

Name = Literal["country", "finer", "formula", "appworld", "jsonl"]
AppWorldTest = Literal["test_normal", "test_challenge"]
Protocol = Literal["offline", "online"]
TestOn = Literal["test", "val"]

PARTS: tuple[Part, ...] = ("train", "val", "test")
LEARNT_FROM = PARTS[:2]
FILELESS = ("country", "appworld")


def as_is(samples: list[Sample]) -> list[Sample]:
    """Return a batch that is one already."""
    return samples


def task_of(name: Name, metric: Metric = "exact", tolerance: float = 0.0) -> Task:
    """Return how the answers of a data set are asked for and checked.

    Args:
        name: of the data set.
        metric: of `jsonl`.
        tolerance: of `formula` and of the metric `numeric`.

    Raises:
        ValueError: if the metric is unknown or the tolerance negative.
    """
    if name == "jsonl":
        return build_task(metric, tolerance)
    if name == "formula":
        return Formula(tolerance)
    if name == "appworld":
        return AppWorldTask()
    return Finer() if name == "finer" else Contains(name="country")


class Remaining(Sampler[list[int]]):
    """Batches without those that were done before a run was interrupted; whole from the second epoch on.

    Lightning goes on with a resumed epoch's number of batches, but from the beginning of its order.

    Args:
        batches: of an epoch.
        done: how many the first epoch leaves out.
    """

    def __init__(self, batches: BatchSampler, done: int) -> None:
        self.batches, self.done = batches, done
        self.sampler = batches.sampler  # Lightning tells it the epoch

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[list[int]]:
        done, self.done = self.done, 0
        return islice(iter(self.batches), done, None)


class AceData(LightningDataModule):
    """Questions for training, validation and test.

    Args:
        name: `country`, the embedded default; `finer`, `formula` or `appworld` of the paper; or `jsonl`, files of
            yours.
        root: folder of the files; `country` and `appworld` need none.
        train_file: name of the training file in root; None for the release's name of it, or train.jsonl.
        val_file: likewise to validate on. Where there is none, a part of the training samples is held out.
        test_file: likewise to test on.
        fields: of `jsonl`: which fields are the question, target, context and id, where they have other names.
        metric: of `jsonl`: whether an answer must be the target (`exact`), contain it, or be its number (`numeric`).
        tolerance: of `formula` and `numeric`: largest difference that is right.
        countries: of `country`: how many facts.
        appworld_test: of `appworld`: the split to test on, `test_normal` or `test_challenge`. It is validated on `dev`.
        batch_size: samples of a training batch, which one delta is made from.
        eval_batch_size: samples that are answered together in validation and test.
        window: of the online protocol: samples that are answered before the playbook learns from them; 1 in the paper,
            15 in the released code.
        protocol: `offline`: train on one part of the data, test on another; `online`: go through the test samples once,
            in an order that is a function of the seed, answer first and learn after. Online, `country` asks for each
            fact twice, in the wordings of training and test, unless it was trained on before.
        train_size: use the first so many samples only; None for all.
        val_size: likewise to validate on.
        test_size: likewise to test on.
        val_fraction: share of the training samples to hold out where there is no validation file, in (0, 1).
        test_on: what the test loop scores: `test`, or `val` for tuning.
        seed: the run's seed: of the countries, of held-out samples, and of the order.

    Raises:
        ValueError: if an option is out of range.
    """

    def __init__(
        self,
        name: Name = "country",
        root: Path | None = None,
        train_file: str | None = None,
        val_file: str | None = None,
        test_file: str | None = None,
        fields: dict[str, str] | None = None,
        metric: Metric = "exact",
        tolerance: float = 0.0,
        countries: int = 30,
        appworld_test: AppWorldTest = "test_normal",
        batch_size: int = 1,
        eval_batch_size: int = 32,
        window: int = 1,
        protocol: Protocol = "offline",
        train_size: int | None = None,
        val_size: int | None = None,
        test_size: int | None = None,
        val_fraction: float = 0.1,
        test_on: TestOn = "test",
        seed: int = 0,
    ) -> None:
        super().__init__()
        for option, choice, choices in (
            ("name", name, Name),
            ("protocol", protocol, Protocol),
            ("test_on", test_on, TestOn),
            ("appworld_test", appworld_test, AppWorldTest),
        ):
            if choice not in get_args(choices):
                raise ValueError(f"{option} must be one of {', '.join(get_args(choices))}, got {choice!r}")
        check_positive(
            optional=True,
            countries=countries,
            batch_size=batch_size,
            eval_batch_size=eval_batch_size,
            window=window,
            train_size=train_size,
            val_size=val_size,
            test_size=test_size,
        )
        if not 0 < val_fraction < 1:
            raise ValueError(f"val_fraction must lie in (0, 1), got {val_fraction}")
        if name not in FILELESS and root is None:
            raise ValueError(f"root must be the folder of the files of {name}, got None")
        self.dataset, self.protocol, self.test_on, self.seed = name, protocol, test_on, seed
        self.root = None if root is None else Path(root).expanduser()
        self.files: dict[Part, str | None] = {"train": train_file, "val": val_file, "test": test_file}
        self.sizes: dict[Part, int | None] = {"train": train_size, "val": val_size, "test": test_size}
        self.fields, self.countries, self.val_fraction = fields, countries, val_fraction
        self.batch_size, self.eval_batch_size, self.window = batch_size, eval_batch_size, window
        self.splits: dict[Part, Split] = {"train": "train", "val": "dev", "test": appworld_test}
        self.task = task_of(name, metric, tolerance)
        self._contents: dict[Part, list[Sample]] = {}  # of the files
        self._parts: dict[Part, list[Sample]] = {}

    def setup(self, stage: str | None = None) -> None:
        """Read the samples that a stage needs; those to test on before training too, which costs calls of a model."""
        if stage in (None, "fit"):
            needed: tuple[Part, ...] = tuple(dict.fromkeys((*LEARNT_FROM, self.test_on if stage else "test")))
        else:
            needed = LEARNT_FROM if stage == "validate" else (self.test_on,)
        for part in needed:
            log.info("%s: %d samples to %s", self.dataset, len(self.samples(part)), part)

    def samples(self, part: Part) -> list[Sample]:
        """Return the samples of a part.

        Args:
            part: `train`, `val` or `test`.

        Raises:
            FileNotFoundError: if its file is missing.
            ValueError: if the file is not as its format says, there are fewer samples than asked for, or a question of
                the test samples is also trained or validated on.
        """
        if part not in self._parts:
            samples = self._whole(part)
            size = self.sizes[part]
            if size is not None and size > len(samples):
                raise ValueError(f"{part}_size is {size}, but {self.dataset} has {len(samples)} samples to {part}")
            self._parts[part] = samples[:size]
        return self._parts[part]

    def _whole(self, part: Part) -> list[Sample]:
        if self.dataset == "country":
            return questions(draw_facts(self.seed, self.countries), part)
        if self.dataset == "appworld":
            return samples_of(self.splits[part])
        self._check_leakage()
        if part == "test":
            return self._read(part)
        if self._path("val").is_file() or self.files["val"] is not None:
            return self._read(part)
        train, val = self._divided
        return train if part == "train" else val

    @cached_property
    def _divided(self) -> tuple[list[Sample], list[Sample]]:
        """The training file, without and with what is held out; a question that occurs twice stays in one part."""
        samples = self._read("train")
        asked = list(dict.fromkeys(map(key, samples)))
        size = max(1, round(self.val_fraction * len(asked)))
        if size >= len(asked):
            raise ValueError(f"val_fraction {self.val_fraction} of {len(asked)} questions leaves none to train on")
        order = torch.randperm(len(asked), generator=generator(self.seed, "validation")).tolist()
        held_out = {asked[i] for i in order[:size]}
        return [s for s in samples if key(s) not in held_out], [s for s in samples if key(s) in held_out]

    def _path(self, part: Part) -> Path:
        assert self.root is not None  # checked in the constructor
        chosen = self.files[part]
        released = RELEASED.get(self.dataset, {}).get(part)
        if chosen is None and released is not None and (self.root / released).is_file():
            chosen = released
        return self.root / (chosen or f"{part}.jsonl")

    def _read(self, part: Part) -> list[Sample]:
        if part not in self._contents:
            path = self._path(part)
            if self.dataset == "jsonl":
                samples = read_jsonl(path, self.fields)
            else:
                samples = read_finance(path, cast(FinanceName, self.dataset))
            for sample in samples if isinstance(self.task, Numeric) else ():
                if parse_number(sample.target) is None:
                    raise ValueError(
                        f"{path}: metric numeric needs numbers, got target {sample.target!r} of {sample.id}"
                    )
            self._contents[part] = samples
        return self._contents[part]

    def _check_leakage(self) -> None:
        """Refuse questions to score that are also learned from: test and validation must be others than training."""
        files: dict[Part, list[Sample]] = {part: self._read(part) for part in PARTS if self._path(part).is_file()}
        pairs: list[tuple[Part, Part]] = [("test", "train"), ("test", "val"), ("val", "train")]
        for scored, learned in pairs:
            seen = set(map(key, files.get(learned, [])))
            if both := [sample.id for sample in files.get(scored, []) if key(sample) in seen]:
                self._refuse(
                    f"{self._path(scored)}: {len(both)} of its questions are also in {self._path(learned).name}, "
                    f"first {both[0]}"
                )
        if self.protocol == "online":
            first: dict[tuple[str, str], str] = {}
            for sample in files.get("test", []):
                if (earlier := first.setdefault(key(sample), sample.id)) != sample.id:
                    self._refuse(
                        f"{self._path('test')}: {sample.id} asks what {earlier} asks, which is learned from by then"
                    )
                    break

    def _refuse(self, message: str) -> None:
        """Refuse files of the user's; the published figures are of the released files as they are."""
        if self.dataset == "jsonl":
            raise ValueError(message)
        log.warning("%s", message)

    @property
    def _shard(self) -> tuple[int, int]:
        """This process's rank and the number of processes."""
        return (0, 1) if self.trainer is None else (self.trainer.global_rank, self.trainer.world_size)

    def train_dataloader(self) -> DataLoader[Sample]:
        """Return batches in an order that is a function of (seed, epoch)."""
        rank, world_size = self._shard
        samples, epoch = self.samples("train"), coming_epoch(self.trainer)
        order = TrainSampler(len(samples), self.seed, rank=rank, world_size=world_size, epoch=epoch)
        batches = BatchSampler(order, self.batch_size, drop_last=False)
        progress = None if self.trainer is None else self.trainer.fit_loop.epoch_loop.batch_progress
        done = 0 if progress is None else progress.current.completed % len(batches)
        return self._loader(samples, batch_sampler=Remaining(batches, done))

    def val_dataloader(self) -> DataLoader[Sample]:
        """Return the samples to validate on, each once over all processes."""
        return self._evaluation_loader(self.samples("val"))

    def test_dataloader(self) -> DataLoader[Sample]:
        """Return the samples of `test_on`, each once: over all processes, or online in windows of a fixed order.

        Raises:
            ValueError: if the protocol is online and there are several processes.
        """
        samples = self.samples(self.test_on)
        if self.protocol == "offline":
            return self._evaluation_loader(samples)
        if self.dataset == "country" and (self.trainer is None or self.trainer.max_epochs == 0):
            samples = [*self.samples("train"), *samples]
        if self._shard[1] > 1:
            raise ValueError(f"protocol online needs one process, got {self._shard[1]}: each answer waits for the last")
        order = torch.randperm(len(samples), generator=generator(self.seed, "online")).tolist()
        windows = [order[start : start + self.window] for start in range(0, len(order), self.window)]
        return self._loader(samples, batch_sampler=windows)

    def transfer_batch_to_device(self, batch: list[Sample], device: torch.device, dataloader_idx: int) -> list[Sample]:
        """Return a batch as it is: it is text, and a sample is frozen."""
        return batch

    def _evaluation_loader(self, samples: Sequence[Sample]) -> DataLoader[Sample]:
        rank, world_size = self._shard
        batches = EvalBatchSampler(len(samples), self.eval_batch_size, rank=rank, world_size=world_size)
        return self._loader(samples, batch_sampler=batches)

    def _loader(self, samples: Sequence[Sample], **batching: Any) -> DataLoader[Sample]:
        return DataLoader(
            cast(Dataset[Sample], samples),
            collate_fn=as_is,
            generator=generator(self.seed, "workers"),  # without it, each epoch would draw a global number
            **batching,
        )


def key(sample: Sample) -> tuple[str, str]:
    """Return what makes two samples the same question: question and context, but for white space around them."""
    return sample.question.strip(), sample.context.strip()
