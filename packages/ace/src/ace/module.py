"""The LightningModule: it carries the loop of adaptation, without an optimiser.

A training step is a step of the method on a batch of samples, an epoch a pass over the training samples. Validation
chooses the context that is kept, step 0 and the end of training included. The test loop scores the test samples, or
goes through them online: answer a window, then learn from it.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from lightning.pytorch import LightningModule
from shared.checkpoints import atomic_write
from torchmetrics import SumMetric

from ace.adaptation import ACE, Learner, StepReport
from ace.appworld import AppWorldTask
from ace.completion import Backend
from ace.prompts import Prompts
from ace.recording import Recorder
from ace.roles import Attempt, Chat, Roles, is_right
from ace.tasks import Sample, contains

if TYPE_CHECKING:
    from ace.data import AceData

FLOOR, CEILING = 0.05, 0.95  # accuracies without a context, between which a context can be expected to help
# What a run's folder holds: completions, steps, and what it started from.
CALLS, STEPS, START, TEMPLATES = "calls.jsonl", "steps.jsonl", "start.json", "templates"

log = logging.getLogger(__name__)


def identity(sample: Sample) -> str:
    """Return what tells a sample from all others; an id alone may be that of another one in another file."""
    return hashlib.sha256("\n".join((sample.id, sample.question, sample.context)).encode()).hexdigest()


class ACEModule(LightningModule):
    """Adapt a context to a task, with a language model that stays as it is.

    Args:
        method: what is adapted: `ace.ACE`, or a baseline: `ace.NoContext`, `ace.InContext`, `ace.Rewrite`,
            `ace.FullHistory`, `ace.Gepa`.
        roles: `ace.JsonRoles`, the paper's, or `ace.TinyRoles` for the smallest models.
        backend: the model: `ace.OpenAIBackend`, `ace.TransformersBackend`, `ace.LlamaCppBackend`.
        templates: folder of prompt templates of yours, in place of the package's own.
        keep: the context to test and to save: the `best` on validation data, or the `last`.
        cache: answer a request that was made before from the run's log.
        seed: the run's seed: of draws at a temperature above 0.

    Raises:
        ValueError: if an option is out of range.
    """

    def __init__(
        self,
        method: Callable[[Roles], Learner],
        roles: Callable[[Chat], Roles],
        backend: Backend,
        templates: Path | None = None,
        keep: Literal["best", "last"] = "best",
        cache: bool = True,
        seed: int = 0,
    ) -> None:
        super().__init__()
        if keep not in ("best", "last"):
            raise ValueError(f"keep must be best or last, got {keep!r}")
        self.automatic_optimization = False
        self.make_method, self.make_roles, self.backend = method, roles, backend
        self.prompts, self.keep, self.cache, self.seed = Prompts(templates), keep, cache, seed
        self.templates = templates
        self.folder: Path | None = None  # of the run; nothing is written without
        self.learner: Learner | None = None
        self.step = 0
        self.best: dict[str, Any] = {}  # score, step and state of the best context
        self.history: list[dict[str, float]] = []  # validation against steps
        self.validated = -1  # step of the last validation
        self.reflected: set[str] = set()  # identities of the samples that have been learned from
        self.last_error = ""  # of an answer in the test
        self.right: dict[str, bool] = {}  # whether each test sample was answered rightly, on this process
        self.logging_steps = False  # whether this process has written a step's line
        self.loaded: dict[str, Any] = {}  # state of a checkpoint, until there is a learner
        self.counts = {name: SumMetric() for name in ("correct", "n", "matched", "parts", "n_failed")}

    @property
    def data(self) -> AceData:
        """The datamodule."""
        return cast("AceData", self.trainer.datamodule)  # type: ignore[attr-defined]

    def build(self) -> Learner:
        """Make recorder, roles and method, once the data and the run's folder are known."""
        if self.learner is None:
            log_file = None if self.folder is None else self.folder / CALLS
            self.recorder = Recorder(self.backend, log_file, self.cache)
            self.chat = Chat(self.recorder, self.prompts, self.data.task, self.seed)
            self.learner = self.make_method(self.make_roles(self.chat))
            self.keep_sources()
            if self.loaded:
                self.take_over(self.loaded)
        return self.learner

    def keep_sources(self) -> None:
        """Copy what a run starts from into its folder: the files may change, or go, before it is resumed."""
        if self.folder is None or not self.trainer.is_global_zero:
            return
        texts = {}
        if isinstance(self.learner, ACE) and len(self.learner.playbook):
            texts[START] = self.learner.playbook.to_json()
        if self.templates is not None:
            texts |= {f"{TEMPLATES}/{file.name}": file.read_text("utf-8") for file in self.templates.glob("*.jinja")}
        for name, text in texts.items():
            if not (self.folder / name).exists():
                (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
                with atomic_write(self.folder / name) as file:
                    file.write(text.encode())

    def setup(self, stage: str) -> None:
        """Refuse to learn on several processes, and make what is needed."""
        online = stage == "test" and self.data.protocol == "online"
        if self.trainer.world_size > 1 and (stage == "fit" or online):
            raise ValueError("a playbook grows sample by sample: train on one process (--trainer.devices 1)")
        self.build()

    @property
    def method(self) -> Learner:
        """What is adapted; `build` makes it."""
        assert self.learner is not None
        return self.learner

    def score(self, samples: Sequence[Sample]) -> list[Attempt]:
        """Answer samples for a score.

        Raises:
            ValueError: if one of them has been learned from.
        """
        seen = [sample.id for sample in samples if identity(sample) in self.reflected]
        if seen:
            raise ValueError(f"sample {seen[0]} was learned from: an answer to it is no fair score")
        return self.method.answer(samples, step=self.step)

    def learn(self, samples: Sequence[Sample], steps: int) -> StepReport:
        """Learn from samples; none of them can be scored from then on."""
        self.step += 1
        self.reflected |= set(map(identity, samples))
        report = self.method.learn(samples, step=self.step, steps=steps)
        if self.folder is not None:
            line = {"step": self.step, **vars(report), **self.size()}
            self.log_step(self.folder / STEPS, json.dumps(line, ensure_ascii=False) + "\n")
        return report

    def log_step(self, file: Path, line: str) -> None:
        """Append a step's line; what an earlier process wrote beyond the step that was resumed from is cut."""
        if not self.logging_steps and file.is_file():
            lines = file.read_bytes().splitlines(keepends=True)[: self.step - 1]
            with atomic_write(file) as whole:
                whole.writelines(lines)
        self.logging_steps = True
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("a", encoding="utf-8") as log_file:
            log_file.write(line)

    def size(self) -> dict[str, float]:
        """Measure the context: tokens, bullets, and the share of the learned facts that are still in it."""
        text = self.method.text()
        kept = [all(contains(text, fact) for fact in facts) for facts in self.method.learned]
        sizes = {"tokens": float(self.recorder.count_tokens(text)) if text else 0.0, "learned": float(len(kept))}
        if isinstance(self.method, ACE):
            sizes["bullets"] = float(len(self.method.playbook))
        return sizes | ({"retention": sum(kept) / len(kept)} if kept else {})

    def on_train_start(self) -> None:
        """Validate the context as it is before the first step."""
        if self.step == 0 and self.validated < 0 and self.trainer.enable_validation:
            self.validate()

    def training_step(self, batch: list[Sample], batch_index: int) -> None:
        """Make a step of the method (Sec. 3)."""
        steps = self.trainer.estimated_stepping_batches  # infinite for an endless training
        report = self.learn(batch, int(steps) if math.isfinite(steps) else self.step + 1)
        # Lightning counts the steps of optimisers, and names and skips checkpoints by their number.
        progress = self.trainer.fit_loop.epoch_loop.manual_optimization.optim_step_progress
        progress.increment_ready()
        progress.increment_completed()
        if report.before:
            right = sum(report.before) / len(report.before)
            self.log("train/right_before", right, prog_bar=True, on_step=True, batch_size=len(batch))
        if report.after:
            right = sum(report.after) / len(report.after)
            self.log("train/right_after", right, prog_bar=True, on_step=True, batch_size=len(batch))
        for name, value in self.size().items():
            self.log(f"context/{name}", value, prog_bar=name == "tokens", on_step=True, batch_size=len(batch))

    def validation_step(self, batch: list[Sample], batch_index: int) -> None:
        """Leave it to the epoch's end: the samples are answered together."""

    def on_validation_epoch_end(self) -> None:
        """Score the validation samples, and keep the context if it is the best so far; ties go to the earlier."""
        if self.trainer.sanity_checking:
            return
        if self.validated < self.step:
            self.validate()
        self.log("val/accuracy", self.history[-1]["accuracy"], prog_bar=True)

    def validate(self) -> None:
        """Score the validation samples with the context as it is."""
        samples = self.data.samples("val")
        size = self.data.eval_batch_size  # what is asked for at a time is logged at a time
        limit = self.trainer.limit_val_batches  # a number of batches, or a share of them
        batches = limit if isinstance(limit, int) else int(limit * math.ceil(len(samples) / size))
        samples = samples[: batches * size]
        attempts = [a for start in range(0, len(samples), size) for a in self.score(samples[start : start + size])]
        right = [is_right(self.data.task, s, a) for s, a in zip(samples, attempts, strict=True)]
        accuracy = sum(right) / len(right)
        failed = [attempt.error for attempt in attempts if attempt.error is not None]
        if len(failed) == len(attempts):
            raise ValueError(f"the model answered none of {len(failed)} validation samples: {failed[0]}")
        if self.step == 0:
            log.info("accuracy on %d validation samples before the first step: %.1f %%", len(samples), 100 * accuracy)
            if not FLOOR <= accuracy <= CEILING:
                log.warning(
                    "the model is at %.0f %% already: where it can do nothing, or everything, a context hardly helps",
                    100 * accuracy,
                )
        self.validated = self.step
        self.history.append({"step": float(self.step), "accuracy": accuracy, **self.size()})
        if not self.best or accuracy > self.best["score"]:
            self.best = {"score": accuracy, "step": self.step, "state": self.method.state()}

    def on_train_epoch_end(self) -> None:
        """Validate the context at the end of training too, unless that has just been done.

        It is done here, at the end of each epoch, since the last checkpoint is written right after this.
        """
        if self.validated < self.step and self.trainer.enable_validation:
            self.validate()

    def restore(self) -> None:
        """Take the context that is kept."""
        if self.keep == "best" and self.best:
            self.method.load_state(self.best["state"])

    def on_test_start(self) -> None:
        """Test the context that is kept."""
        self.restore()

    def test_step(self, batch: list[Sample], batch_index: int) -> None:
        """Score samples; online, learn from them afterwards."""
        attempts = self.score(batch)
        task = self.data.task
        for sample, attempt in zip(batch, attempts, strict=True):
            right = is_right(task, sample, attempt)
            matched, parts = task.count(sample, attempt.answer) if attempt.passed is None else (int(right), 1)
            self.right[sample.id] = right
            self.counts["correct"].update(float(right))
            self.counts["matched"].update(float(matched))
            self.counts["parts"].update(float(parts))
            self.counts["n_failed"].update(float(attempt.error is not None))
            self.counts["n"].update(1.0)
            self.last_error = attempt.error or self.last_error
        if self.data.protocol == "online":
            windows = int(sum(self.trainer.num_test_batches))
            self.learn(batch, self.step - batch_index + windows)

    def on_test_epoch_end(self) -> None:
        """Log what was counted, what is in the context, and what it cost."""
        totals = {name: float(metric.compute()) for name, metric in self.counts.items()}
        for metric in self.counts.values():
            metric.reset()
        if totals["n_failed"] == totals["n"]:
            raise ValueError(f"the model answered none of {totals['n']:.0f} test samples: {self.last_error}")
        results = {
            "accuracy": totals["correct"] / totals["n"],
            "micro_accuracy": totals["matched"] / totals["parts"],
            "n": totals["n"],
            "n_failed": totals["n_failed"],
            **self.size(),
            "steps": float(self.step),
        }
        if isinstance(self.data.task, AppWorldTask) and self.trainer.world_size == 1:
            results |= self.data.task.summary(self.right)
        usage = self.recorder.usage
        for name in ("calls", "prompt_tokens", "completion_tokens", "cached_tokens"):
            results[name] = float(sum(getattr(role, name) for role in usage.values()))
        results["unreadable"] = float(sum(self.chat.unreadable.values()))
        if self.history and "retention" in self.history[-1]:
            results["final_retention"] = self.history[-1]["retention"]
        for point in self.history:
            for name in ("accuracy", "tokens", "retention"):
                if name in point:
                    results[f"{name}@{int(point['step'])}"] = point[name]
        for name, value in results.items():
            self.log(f"test/{name}", value)

    def state(self) -> dict[str, Any]:
        """Return what a resumed run goes on from."""
        return {
            "step": self.step,
            "validated": self.validated,
            "context": self.method.state(),
            "best": self.best,
            "history": self.history,
            "reflected": sorted(self.reflected),
            "usage": self.recorder.state(),
            "unreadable": dict(self.chat.unreadable),
        }

    def take_over(self, state: dict[str, Any]) -> None:
        """Take over what `state` returned.

        Raises:
            ValueError: if it is of another method, or no such state.
        """
        try:
            self.step, self.validated, self.best = state["step"], state["validated"], state["best"]
            self.history, self.reflected = state["history"], set(state["reflected"])
            self.method.load_state(state["context"])
            self.recorder.load_state(state["usage"])
            self.chat.unreadable.clear()
            self.chat.unreadable.update(state["unreadable"])
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"the checkpoint does not fit {type(self.method).__name__}: {error!r}") from error

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add the context and what belongs to it."""
        checkpoint["ace"] = self.state()

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Take both over, now or as soon as there is a method."""
        if "ace" not in checkpoint:
            raise ValueError("the checkpoint holds no context of a run of ace")
        self.loaded = checkpoint["ace"]
        if self.learner is not None:
            self.take_over(self.loaded)

    def configure_optimizers(self) -> None:
        """Return no optimiser: no weight is trained."""
