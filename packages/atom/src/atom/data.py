"""The LightningDataModule: windows of molecules' trajectories, made by GFN2-xTB or read from files."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import torch
from lightning.pytorch import LightningDataModule
from shared.seeding import EvalBatchSampler, TrainSampler, coming_epoch, generator, worker_init
from torch import Tensor
from torch.utils.data import DataLoader

from atom.files import find_file, molecules_in
from atom.horizons import lags_of
from atom.molecules import canonical_smiles, same_molecules
from atom.samples import Batch, Hydrogens, Molecule, Split, Windows, choose, molecule_of, split_starts
from atom.simulate import Recipe, cache_folder, file_name, make
from atom.trajectories import Order, Trajectory, read_trajectory

log = logging.getLogger(__name__)

EVERY = "*"
PARTS = ("train", "val", "test")


def as_is(batch: Any) -> Any:
    """Return a batch as it is: the collate function of `Windows`, which index whole batches."""
    return batch


class MoleculeData(LightningDataModule):
    """Batches of windows for training, validation and test.

    Molecules of `train` are trained on; with the defaults they are also validated and, in blocks of their
    trajectories that were not trained on, tested. Molecules of `val` and `test` are unseen in training. Splits depend
    on `split_seed` only. Every window is scored once, over all processes.

    Args:
        train: molecules to train on. Without `root`: names of ASE's molecules, SMILES, or structure files. `["*"]`
            are all of `root` that are in neither `val` nor `test`.
        val: unseen molecules to validate on; when empty, blocks of those trained on.
        test: unseen molecules to test on, zero-shot; when empty, blocks of those trained on.
        root: folder of trajectories (MD17, rMD17, MD22, TG80 or anything ASE reads); when null, trajectories are
            made by `recipe`, once, and kept in the user's cache.
        recipe: how trajectories are made.
        workers: processes that make them; when null, as many as cores.
        cache: folder of the trajectories made; when null, `atom` in the user's cache.
        frame_fs: time between frames of `root`'s files, fs, where they do not tell.
        order: of rMD17's frames: the `original` order in time, with gaps, or the `file`'s, which has none.
        horizon: ΔT of validation, test and, without `horizon_range`, training; frames.
        horizon_range: train on ΔT drawn log-uniformly from this range, frames.
        lags: P, number of future states.
        hydrogens: `drop` them; keep them as `input`, unscored; or `score` them too.
        cutoff: of the graph of near atoms, Å.
        skip: frames left out at both ends of a trajectory.
        split: of a trajectory: `block`, or `random` as published, which leaks (see the README).
        train_samples: windows of each molecule to train on; fewer where it has fewer.
        val_samples: likewise to validate on.
        test_samples: likewise to test on.
        test_on: what the test loop scores: the `test` windows, or those of `val`, for tuning.
        strict_split: refuse a molecule that is on both sides of a split under two names; else warn.
        batch_size: windows of a training batch on each process; an epoch's last may be smaller.
        eval_batch_size: likewise of validation and test.
        num_workers: processes that make batches; has no influence on them.
        split_seed: of the splits and the choice of windows.
        seed: the run's seed: of the order and of random horizons.

    Raises:
        ValueError: if an option is out of range.
    """

    def __init__(
        self,
        train: Sequence[str],
        val: Sequence[str] = (),
        test: Sequence[str] = (),
        root: Path | None = None,
        recipe: Recipe = Recipe(),  # noqa: B008
        workers: int | None = None,
        cache: Path | None = None,
        frame_fs: float | None = None,
        order: Order = "original",
        horizon: int = 32,
        horizon_range: tuple[int, int] | None = None,
        lags: int = 8,
        hydrogens: Hydrogens = "drop",
        cutoff: float = 1.6,
        skip: int = 0,
        split: Split = "block",
        train_samples: int = 500,
        val_samples: int = 500,
        test_samples: int = 500,
        test_on: Literal["test", "val"] = "test",
        strict_split: bool = False,
        batch_size: int = 64,
        eval_batch_size: int = 256,
        num_workers: int = 0,
        split_seed: int = 0,
        seed: int = 0,
    ) -> None:
        super().__init__()
        names = [*train, *val, *test]
        if not train:
            raise ValueError("train must name at least one molecule, got none")
        if EVERY in names and (list(train) != [EVERY] or names.count(EVERY) > 1):
            raise ValueError(f"{EVERY!r} stands alone in train and in no other list, got {', '.join(names)}")
        if EVERY in names and root is None:
            raise ValueError(f"train is {EVERY!r}, all molecules of a folder: set root to it")
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"a molecule can be named once in train, val and test, got {name} again")
        lags_of(horizon, lags)
        if horizon_range is not None:
            low, high = horizon_range
            if not lags <= low <= high:
                raise ValueError(f"horizon_range must satisfy {lags} (lags) <= low <= high, got {low} and {high}")
        for option, value, least in (
            ("workers", workers, 1),
            ("train_samples", train_samples, 1),
            ("val_samples", val_samples, 1),
            ("test_samples", test_samples, 1),
            ("batch_size", batch_size, 1),
            ("eval_batch_size", eval_batch_size, 1),
            ("num_workers", num_workers, 0),
            ("skip", skip, 0),
        ):
            if value is not None and value < least:
                raise ValueError(f"{option} must be at least {least}, got {value}")
        if frame_fs is not None and not 0 < frame_fs < float("inf"):
            raise ValueError(f"frame_fs must be a positive number of femtoseconds, got {frame_fs}")
        if not 0 < cutoff <= 10:
            raise ValueError(f"cutoff must lie in (0, 10] Å, got {cutoff}")
        if frame_fs is not None and root is None:
            raise ValueError(f"frame_fs is for the files of root; recipe.frame_fs is that of made ones, got {frame_fs}")
        self.train, self.val_names, self.test_names = tuple(train), tuple(val), tuple(test)
        self.root = None if root is None else Path(root).expanduser()
        self.recipe, self.workers, self.cache, self.frame_fs = recipe, workers, cache, frame_fs
        self.order: Order = order
        self.horizon, self.lags, self.horizon_range = horizon, lags, horizon_range
        self.hydrogens, self.cutoff, self.skip, self.split = hydrogens, cutoff, skip, split
        self.counts = train_samples, val_samples, test_samples
        self.test_on, self.strict_split = test_on, strict_split
        self.batch_size, self.eval_batch_size, self.num_workers = batch_size, eval_batch_size, num_workers
        self.split_seed, self.seed = split_seed, seed

    @cached_property
    def train_names(self) -> tuple[str, ...]:
        """The molecules that are trained on."""
        if self.root is None or self.train != (EVERY,):
            return self.train
        return tuple(molecules_in(self.root, without=(*self.val_names, *self.test_names)))

    @cached_property
    def names(self) -> tuple[str, ...]:
        """All molecules: those trained on, then those of `val` and of `test`."""
        return (*self.train_names, *self.val_names, *self.test_names)

    @property
    def unseen(self) -> Tensor:
        """Which of `names` are not trained on (M,), bool."""
        return torch.tensor([name not in self.train_names for name in self.names])

    @property
    def present(self) -> Tensor:
        """Which of `names` have windows that the test loop scores (M,), bool."""
        return torch.bincount(self.scored.molecule, minlength=len(self.names)) > 0

    def prepare_data(self) -> None:
        """Make the trajectories that are missing; one process does."""
        if self.root is None:
            make(self.names, cache_folder(self.recipe, self.cache), self.recipe, workers=self.workers)

    @cached_property
    def trajectories(self) -> list[Trajectory]:
        """The trajectories of all molecules, with their hydrogens.

        Raises:
            FileNotFoundError: if a file is missing.
            ValueError: if one is not as its format says, or their frames differ in spacing.
        """
        if self.root is None:
            folder = cache_folder(self.recipe, self.cache)
            paths = [folder / file_name(name) for name in self.names]
        else:
            paths = [find_file(self.root, name) for name in self.names]
        resolved = [path.resolve() for path in paths]
        for path, place in zip(paths, resolved, strict=True):
            if resolved.count(place) > 1:
                raise ValueError(f"{path} is named twice in train, val and test, under two names of one trajectory")
        found = [read_trajectory(path, frame_fs=self.frame_fs, order=self.order) for path in paths]
        spacings = {t.frame_fs for t in found}
        if len(spacings) > 1:
            listed = ", ".join(f"{t.name} {t.frame_fs}" for t in found)
            raise ValueError(f"trajectories must have one spacing of frames, for velocities to agree; in fs: {listed}")
        return found

    @cached_property
    def molecules(self) -> list[Molecule]:
        """All molecules, in the order of `names`, as the networks are given them."""
        longest = max(self.horizon, 0 if self.horizon_range is None else self.horizon_range[1])
        return [molecule_of(t, longest, self.hydrogens, self.cutoff, self.skip) for t in self.trajectories]

    @cached_property
    def parts(self) -> Mapping[str, Windows]:
        """The windows to train, validate and test on."""
        self.check_identity()
        fs = self.molecules[0].frame_fs
        parts = {
            part: Windows(
                self.molecules, self.chosen(part), self.horizon, self.lags, seed=self.seed, epoch=self._epoch,
                horizon_range=self.horizon_range if part == "train" else None,
            )
            for part in PARTS
        }  # fmt: skip
        log.info(
            "%d, %d and %d windows to train, validate and test on; horizon %d frames = %g fs, %d lags",
            *map(len, parts.values()), self.horizon, self.horizon * fs, self.lags,
        )  # fmt: skip
        return parts

    def chosen(self, part: str) -> list[Tensor]:
        """Return the starts of the windows of a part (train, val or test), for each molecule."""
        place, found = PARTS.index(part), []
        for name, molecule in zip(self.names, self.molecules, strict=True):
            if name in self.train_names:
                starts = split_starts(molecule, self.split, generator(self.split_seed, "split", name))[place]
                used = part != "val" or not self.val_names
            else:
                starts, used = molecule.starts, part == ("val" if name in self.val_names else "test")
            draws = generator(self.split_seed, "windows", part, name)
            found.append(choose(starts, self.counts[place] if used else 0, draws))
        return found

    def check_identity(self) -> None:
        """Warn of compounds that are in two of train, val and test, under two names.

        Raises:
            ValueError: if there are any and the split is strict.
        """
        smiles = {
            name: canonical_smiles(t.numbers, t.positions[0])
            for name, t in zip(self.names, self.trajectories, strict=True)
        }
        val, test = ({name: smiles.pop(name) for name in names} for names in (self.val_names, self.test_names))
        pairs = same_molecules(smiles, val | test) + same_molecules(val, test)
        if not pairs:
            return
        listed = ", ".join(f"{a} and {b}" for a, b in pairs)
        if self.strict_split:
            raise ValueError(f"the same compound stands on both sides of a split: {listed}")
        log.warning("the same compound stands on both sides of a split (strict_split refuses it): %s", listed)

    def setup(self, stage: str | None = None) -> None:
        """Read the trajectories and choose the windows.

        Raises:
            FileNotFoundError: if a file is missing.
            ValueError: if a file or a split is not usable.
        """
        if not len(self.scored):
            raise ValueError("there is no window to test on")

    @property
    def scored(self) -> Windows:
        """The windows that the test loop scores."""
        return self.parts[self.test_on]

    def _epoch(self) -> int:
        return coming_epoch(self.trainer)

    @property
    def _shard(self) -> tuple[int, int]:
        """This process's rank and the number of processes."""
        return (0, 1) if self.trainer is None else (self.trainer.global_rank, self.trainer.world_size)

    def train_dataloader(self) -> DataLoader[Batch]:
        """Return batches of the windows to train on, in an order that is a function of (seed, epoch)."""
        rank, world_size = self._shard
        windows = self.parts["train"]
        order = TrainSampler(len(windows), self.seed, rank=rank, world_size=world_size, epoch=self._epoch())
        return self._loader(windows, batch_size=self.batch_size, sampler=order)

    def val_dataloader(self) -> DataLoader[Batch]:
        """Return the windows to validate on, each once over all processes."""
        return self._evaluation_loader(self.parts["val"])

    def test_dataloader(self) -> DataLoader[Batch]:
        """Return the windows of `test_on`, each once over all processes."""
        return self._evaluation_loader(self.scored)

    def _evaluation_loader(self, windows: Windows) -> DataLoader[Batch]:
        rank, world_size = self._shard
        batches = EvalBatchSampler(len(windows), self.eval_batch_size, rank=rank, world_size=world_size)
        return self._loader(windows, batch_sampler=batches)

    def _loader(self, windows: Windows, **batching: Any) -> DataLoader[Batch]:
        return DataLoader(
            windows,
            collate_fn=as_is,
            num_workers=self.num_workers,
            pin_memory=torch.cuda.is_available(),
            worker_init_fn=worker_init,
            generator=generator(self.seed, "workers"),  # without it, each epoch would draw a global number
            **batching,
        )
