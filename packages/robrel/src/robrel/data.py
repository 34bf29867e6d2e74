"""The LightningDataModule: a batch of instances, all solved at once."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from lightning.pytorch import LightningDataModule
from shared.seeding import EvalBatchSampler
from torch import Tensor
from torch.utils.data import DataLoader

from robrel.problems import Problem, ProblemOptions, draw_problem


class Stacked(NamedTuple):
    """The instances as one batch, float64; B of them with k parameters and as many rows as the largest has.

    Attributes:
        d: (B, k).
        rows: (B, m, k); missing ones are 0.
        lower: (B, m); of missing ones -inf.
        upper: (B, m); of missing ones inf.
        low: (k,) of the box.
        high: (k,) of the box.
        radius: of an l2 ball, or None.
    """

    d: Tensor
    rows: Tensor
    lower: Tensor
    upper: Tensor
    low: Tensor
    high: Tensor
    radius: float | None


class RobRelData(LightningDataModule):
    """Instances of one kind, `instances` for each number of comparisons.

    A training batch is a number: what there is to train on is the instances themselves, all in every step.

    Args:
        comparisons: n_c, one number or several.
        instances: how many for each; the i-th is drawn with seed + i.
        problem: what they are drawn from.
        blocks: training batches of an epoch.
        eval_batch_size: instances of a test batch.
        seed: the run's seed.

    Raises:
        ValueError: if an option is out of range.
    """

    def __init__(
        self,
        comparisons: int | list[int] = 20,
        instances: int = 30,
        problem: ProblemOptions = ProblemOptions(),  # noqa: B008
        blocks: int = 10,
        eval_batch_size: int = 8,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.comparisons = [comparisons] if isinstance(comparisons, int) else list(comparisons)
        if not self.comparisons or min(self.comparisons) < 0 or len(set(self.comparisons)) < len(self.comparisons):
            raise ValueError(f"comparisons must be different numbers of at least 0, got {comparisons}")
        for option, value in {"instances": instances, "blocks": blocks, "eval_batch_size": eval_batch_size}.items():
            if value < 1:
                raise ValueError(f"{option} must be at least 1, got {value}")
        self.instances, self.blocks, self.eval_batch_size = instances, blocks, eval_batch_size
        self.options = replace(problem)
        self.seed = seed
        self.problems: list[Problem] = []

    def setup(self, stage: str | None = None) -> None:
        """Draw the instances, those of one number of comparisons after those of another."""
        if not self.problems:
            self.problems = [
                draw_problem(self.options, count, self.seed + i)
                for count in self.comparisons
                for i in range(self.instances)
            ]

    def group(self, index: int) -> int:
        """Return the number of comparisons of an instance."""
        return self.comparisons[index // self.instances]

    def stacked(self) -> Stacked:
        """Stack the instances."""
        sets = [problem.feasible for problem in self.problems]
        m, k = max(len(s.rows) for s in sets), sets[0].dim

        def pad(arrays: list[Any], fill: float) -> Tensor:
            out = np.full((len(arrays), m, *arrays[0].shape[1:]), fill)
            for row, array in zip(out, arrays, strict=True):
                row[: len(array)] = array
            return torch.from_numpy(out)

        return Stacked(
            d=torch.from_numpy(np.stack([problem.d for problem in self.problems])),
            rows=pad([s.rows for s in sets], 0.0) if m else torch.zeros(len(sets), 0, k, dtype=torch.float64),
            lower=pad([s.lower for s in sets], -np.inf),
            upper=pad([s.upper for s in sets], np.inf),
            low=torch.tensor(sets[0].low),
            high=torch.tensor(sets[0].high),
            radius=sets[0].radius,
        )

    def train_dataloader(self) -> DataLoader[Any]:
        """Return the numbers of an epoch's blocks of steps."""
        return DataLoader(range(self.blocks), batch_size=None)  # type: ignore[arg-type]

    def test_dataloader(self) -> DataLoader[Any]:
        """Return the numbers of the instances, each once."""
        batches = EvalBatchSampler(len(self.problems), self.eval_batch_size)
        return DataLoader(range(len(self.problems)), batch_sampler=batches)  # type: ignore[arg-type]
