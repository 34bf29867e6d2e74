"""The LightningModule: carries the primal-dual iteration, and measures the answers against exact ones.

There is no network and no gradient descent: a training step is a block of steps of `primal_dual.PrimalDual` on all
instances at once. Lightning brings progress, logging, checkpoints and resuming, which continues the average.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import torch
from lightning.pytorch import LightningModule
from torch import Tensor
from torch.optim import Optimizer

from robrel.data import RobRelData
from robrel.evaluate import METHODS, Bounds, Method, exact_interval, known_interval, measure, rewards_of
from robrel.primal_dual import BatchCut, PrimalDual, Solution
from robrel.problems import PURPOSES, Problem


class Blocks(Optimizer):
    """Takes blocks of steps where an optimiser would take one: Lightning saves only when an optimiser has stepped."""

    def __init__(self, take: Callable[[], object]) -> None:
        super().__init__([torch.zeros(1)], {})
        self.take = take

    def step(self, closure: object = None) -> None:  # type: ignore[override]
        """Take a block of steps."""
        self.take()


class RobRelModule(LightningModule):
    """Solve the two saddle problems of every instance, or answer by a baseline.

    Args:
        method: `robust`, the paper's; or what another reward would answer: `arbitrary`, `mle`, `chebyshev`,
            `max_margin`, `max_entropy`.
        solver: of `robust`: `pd`, the paper's, or `lp`, exact. Baselines are exact.
        block: steps of the iteration in a training step; T is epochs times blocks times this.
        step_size: c of the step α = c √(1000 / T) / ‖D‖₂; when null 0.5, or 0.03 with demonstrations.
        multiplier_bound: Λ.
        compare: measure also what these baselines would answer.
        seed: the run's seed: of the arbitrary rewards.

    Raises:
        ValueError: if an option is out of range.
    """

    def __init__(
        self,
        method: Method = "robust",
        solver: Literal["pd", "lp"] = "pd",
        block: int = 100,
        step_size: float | None = None,
        multiplier_bound: float = 20.0,
        compare: list[Method] | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.automatic_optimization = False
        if block < 1:
            raise ValueError(f"block must be at least 1, got {block}")
        for option, value in {"step_size": step_size, "multiplier_bound": multiplier_bound}.items():
            if value is not None and not 0 < value < math.inf:
                raise ValueError(f"{option} must be a finite number > 0, got {value}")
        for name in (method, *(compare or ())):
            if name not in METHODS:
                raise ValueError(f"method must be one of {', '.join(METHODS)}, got {name!r}")
        self.method, self.solver, self.compare = method, solver, compare or []
        self.block, self.step_size, self.multiplier_bound = block, step_size, multiplier_bound
        self.seed = seed
        self.iteration: PrimalDual | None = None
        self._saved: dict[str, Tensor] | None = None
        self._solution: Solution | None = None
        self._measured: dict[str, list[float]] = defaultdict(list)

    def get_extra_state(self) -> dict[str, Tensor]:
        """Return the iteration, which a checkpoint so holds among the weights: iterates, sums and their number."""
        if self.iteration is None:
            return self._saved or {}
        return self.iteration.state_dict() | {"planned": torch.tensor(self.iteration.planned)}

    def set_extra_state(self, state: dict[str, Tensor]) -> None:
        """Keep a saved iteration until the instances are there."""
        self._saved = dict(state)

    def on_fit_start(self) -> None:
        """Set up the iteration for all instances; refuse methods that lack their feedback before anything is solved."""
        methods = (self.method, *self.compare)
        if "max_entropy" in methods and self._data.options.expert == "none":
            raise ValueError("max_entropy needs demonstrations: data.problem.expert must be exact or sampled, got none")
        if "max_margin" in methods and 0 in self._data.comparisons:
            raise ValueError("max_margin needs comparisons: data.comparisons must be at least 1, got 0")
        if not self.iterates:
            return
        epochs, blocks = self.trainer.max_epochs or 0, self._data.blocks
        if epochs < 1:
            raise ValueError(f"trainer.max_epochs must be at least 1: the step size follows from T; got {epochs}")
        self.iteration = self._set_up(epochs * blocks * self.block)

    @property
    def iterates(self) -> bool:
        """Whether there is an iteration at all."""
        return self.method == "robust" and self.solver == "pd"

    def _set_up(self, steps: int) -> PrimalDual:
        s = self._data.stacked()
        # For the maximum, the objective is negated.
        d, rows, lower, upper = (torch.cat(pair).to(self.device) for pair in (
            (s.d, -s.d), (s.rows, s.rows), (s.lower, s.lower), (s.upper, s.upper),
        ))  # fmt: skip
        iteration = PrimalDual(
            d, rows, lower, upper, s.low.to(self.device), s.high.to(self.device), s.radius,
            steps=steps, step_size=self.step_size, multiplier_bound=self.multiplier_bound, cuts=self._cuts(),
        )  # fmt: skip
        if self._saved:
            iteration.load_state_dict({name: t for name, t in self._saved.items() if name != "planned"})
        return iteration

    def _cuts(self) -> list[BatchCut]:
        """Make one batched constraint of every instance's expert (Sec. 3.5, step 2)."""
        problems = self._data.problems
        if problems[0].expert is None:
            return []
        constraints = [problem.feasible.cuts[0] for problem in problems] * 2

        def oracle(x: Tensor) -> tuple[Tensor, Tensor]:
            answers = [cut.oracle(row) for cut, row in zip(constraints, x.cpu().numpy(), strict=True)]
            values, subgradients = zip(*answers, strict=True)
            return torch.tensor(values, dtype=x.dtype), torch.from_numpy(np.stack(subgradients))

        return [BatchCut(oracle, torch.tensor([cut.bound for cut in constraints], dtype=torch.float64))]

    def training_step(self, batch: int, batch_index: int) -> None:
        """Take a block of steps."""
        self.optimizers().step()  # type: ignore[union-attr]

    def on_train_epoch_end(self) -> None:
        """Log the computable gap and the violation of the averages: mean and largest over the instances."""
        if self.iteration is None:
            return
        found = self.iteration.result()
        self.log("train/gap", found.gap.abs().mean(), prog_bar=True)
        self.log("train/violation", found.violation.max(), prog_bar=True)
        self.log("train/steps", float(found.steps))

    def on_test_start(self) -> None:
        """Take up a saved iteration where nothing was trained in this process."""
        if self.iterates and self.iteration is None:
            if not self._saved:
                raise ValueError("there is nothing to test: the iteration has not begun")
            self.iteration = self._set_up(int(self._saved["planned"]))
        self._solution = None if self.iteration is None else self.iteration.result()
        self._measured.clear()

    def test_step(self, batch: Tensor, batch_index: int) -> None:
        """Measure the answers to some instances."""
        for index in batch.tolist():
            problem = self._data.problems[index]
            for name, value in self._measure(index, problem).items():
                self._measured[name].append(value)
                if len(self._data.comparisons) > 1:
                    self._measured[f"{name}_{self._data.group(index)}"].append(value)

    def _measure(self, index: int, problem: Problem) -> dict[str, float]:
        known = known_interval(problem)
        # Where nothing is estimated they are the same two programs.
        exact = known if problem.feasible is problem.exact_feasible else exact_interval(problem)
        iteration = self._iterated(index, problem, known)
        bounds = known if iteration is None else iteration[0]
        answers = np.array([(bounds.m + bounds.M) / 2])
        if self.method != "robust":
            answers = self._answers(self.method, problem)
        found = measure(answers, bounds, exact, problem.truth)
        if iteration is not None:
            found |= iteration[1]
        for method in self.compare:
            other = measure(self._answers(method, problem), known, exact, problem.truth)
            found[f"ratio_{method}"] = other["ratio"]
        return found

    def _answers(self, method: Method, problem: Problem) -> Any:
        rng = np.random.default_rng([self.seed, PURPOSES.index("baselines")])
        return rewards_of(method, problem, rng) @ problem.d

    def _iterated(self, index: int, problem: Problem, exact: Bounds) -> tuple[Bounds, dict[str, float]] | None:
        """Return the certified interval of the iteration, and how far it is from the exact solution."""
        if self._solution is None:
            return None
        found, other = self._solution, index + len(self._data.problems)
        m, M = found.dual_bound[index].item(), -found.dual_bound[other].item()
        values = found.value[index].item(), -found.value[other].item()
        ends = exact.m + problem.widening, exact.M - problem.widening
        return Bounds(m - problem.widening, M + problem.widening), {
            "pd_error": (abs(values[0] - ends[0]) + abs(values[1] - ends[1])) / 2,
            "pd_gap": (abs(found.gap[index].item()) + abs(found.gap[other].item())) / 2,
            "pd_violation": max(found.violation[index].item(), found.violation[other].item()),
        }

    def on_test_epoch_end(self) -> None:
        """Log the means over the instances, and how many there were."""
        for name, values in self._measured.items():
            self.log(f"test/{name}", float(np.mean(values)))
        self.log("test/n", float(len(self._measured["worst"])))

    def configure_optimizers(self) -> Optimizer:
        """Let the iteration take the optimiser's place; exact methods have nothing to do there."""

        def take() -> None:
            if self.iteration is not None:
                self.iteration.run(self.block)

        return Blocks(take)

    @property
    def _data(self) -> RobRelData:
        return self.trainer.datamodule  # type: ignore[attr-defined]
