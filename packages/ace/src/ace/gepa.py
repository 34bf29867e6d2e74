"""GEPA (Agrawal et al. 2025, arXiv 2507.19457), the strongest rival in the paper (Sec. 4): an instruction that evolves.

Candidates are whole texts. From one on the Pareto front the model writes the next, having read some attempts with their
feedback; the front holds those that answer some sample best. The search is its authors' package `gepa`, here only
connected to the roles, the task and the log that ACE uses too.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from ace.adaptation import StepReport
from ace.baselines import NOTHING, NoContext
from ace.completion import BackendError, Message
from ace.options import check_positive, check_temperature
from ace.reflection import check_feedback, judge
from ace.roles import Case, Roles
from ace.tasks import Feedback, Sample

if TYPE_CHECKING:
    from gepa import EvaluationBatch, GEPAResult
    from gepa.core.adapter import ProposalFn

TEXT = "instructions"  # the one component of a candidate

log = logging.getLogger(__name__)


class Gepa(NoContext):
    """Search for an instruction text once the samples are there.

    Samples are collected first. The search runs at the last step of training, and before that whenever `every` new
    samples have come; it starts from the text of the search before. All samples so far serve as its training and its
    Pareto set.

    Args:
        roles: of which the Generator is asked; proposals are the role `optimiser`'s.
        feedback: what a proposal is told of attempts: `label` or `match_bit`. The search cannot do without labels: it
            needs a score.
        budget: most tokens of the text.
        max_calls: answers that a search may score. It is looked at between two proposals, so that the last one may
            exceed it by a minibatch and a pass over the samples.
        minibatch: attempts that a proposal is shown.
        every: new samples after which to search before the end too, as is needed online; never when None.
        temperature: of proposals.
        instructions: text to start from.

    Attributes:
        instructions: the best text as it is now.

    Raises:
        ImportError: if gepa is not installed.
        ValueError: if an option is out of range.
    """

    def __init__(
        self,
        roles: Roles,
        feedback: Feedback = "label",
        budget: int = 2048,
        max_calls: int = 200,
        minibatch: int = 3,
        every: int | None = None,
        temperature: float = 1.0,
        instructions: str = "",
    ) -> None:
        super().__init__(roles)
        check_feedback(feedback, roles)
        if feedback not in ("label", "match_bit"):
            raise ValueError(f"feedback: GEPA needs label or match_bit, since it maximises a score, got {feedback}")
        check_positive(optional=True, budget=budget, max_calls=max_calls, minibatch=minibatch, every=every)
        check_temperature(temperature)
        if find_spec("gepa") is None:
            raise ImportError("this baseline needs the package gepa: run with `uv run --package ace --extra gepa`")
        self.feedback, self.budget, self.max_calls, self.minibatch = feedback, budget, max_calls, minibatch
        self.every, self.temperature, self.instructions = every, temperature, instructions
        self.samples: list[Sample] = []
        self.searched = 0  # samples that the last search had

    def text(self) -> str:
        """Return the instruction text."""
        return self.instructions

    def learn(self, samples: Sequence[Sample], *, step: int, steps: int) -> StepReport:
        """Collect samples, each once, and search if it is time."""
        report = super().learn(samples, step=step, steps=steps)
        known = {sample.id for sample in self.samples}
        self.samples += [sample for sample in samples if sample.id not in known]
        new = len(self.samples) - self.searched
        if step >= steps or (self.every is not None and new >= self.every):
            report.operations = [self.search(step)]
        return report

    def search(self, step: int) -> dict[str, Any]:
        """Run the search over the samples so far, and keep the best text; of equal ones the earliest.

        Args:
            step: of training, for the log.

        Returns:
            What came of it: mean score of the best text on the samples, number of texts, answers scored.

        Raises:
            BackendError: if the model cannot be reached.
        """
        from gepa import ScoreThresholdStopper, optimize

        adapter = Adapter(self, step)
        found: GEPAResult[str, int] = optimize(
            seed_candidate={TEXT: self.instructions},
            trainset=list(self.samples),
            valset=list(self.samples),
            adapter=adapter,
            reflection_lm=adapter.propose,
            reflection_minibatch_size=min(self.minibatch, len(self.samples)),
            max_metric_calls=self.max_calls,
            stop_callbacks=[ScoreThresholdStopper(1.0)],  # better than all right there is nothing
            logger=Quiet(),
            seed=self.roles.chat.seed,
        )
        if adapter.unreachable is not None:
            raise adapter.unreachable
        self.instructions = found.candidates[found.best_idx][TEXT]
        self.searched = len(self.samples)
        self.learned = list(dict.fromkeys(sample.facts for sample in self.samples if sample.facts))
        score = found.val_aggregate_scores[found.best_idx]
        return {"type": "SEARCH", "score": score, "texts": len(found.candidates), "scored": found.total_metric_calls}

    def state(self) -> dict[str, Any]:
        """Return the text and the samples."""
        samples = [asdict(sample) | {"facts": list(sample.facts)} for sample in self.samples]
        return {
            "instructions": self.instructions,
            "samples": samples,
            "searched": self.searched,
            "learned": [list(facts) for facts in self.learned],
        }

    def load_state(self, state: dict[str, Any]) -> None:
        """Take them over."""
        self.instructions, self.searched = state["instructions"], state["searched"]
        self.samples = [Sample(**{**sample, "facts": tuple(sample["facts"])}) for sample in state["samples"]]
        self.learned = [tuple(facts) for facts in state["learned"]]


class Adapter:
    """What the package asks of a system: to score a text on samples, and to show what went wrong.

    Args:
        learner: whose roles answer.
        step: of training, for the log.
    """

    propose_new_texts: ProposalFn | None = None  # the package's own prompt asks for the next text

    def __init__(self, learner: Gepa, step: int) -> None:
        self.learner, self.step = learner, step
        self.proposals = 0
        self.unreachable: BackendError | None = None

    def evaluate(
        self, batch: list[Sample], candidate: dict[str, str], capture_traces: bool = False
    ) -> EvaluationBatch[Case, str]:
        """Answer samples with a text in the context, and score each by the matching share of its parts."""
        from gepa import EvaluationBatch

        if self.unreachable is not None:  # after a proposal that failed the package goes on
            raise self.unreachable
        roles = self.learner.roles
        attempts = roles.answer(batch, [candidate[TEXT]] * len(batch), step=self.step)
        cases = judge(roles, batch, attempts, self.learner.feedback, NOTHING)
        scores = [score(roles, case) for case in cases]
        return EvaluationBatch([case.attempt.answer for case in cases], scores, cases if capture_traces else None)

    def make_reflective_dataset(
        self, candidate: dict[str, str], eval_batch: EvaluationBatch[Case, str], components_to_update: list[str]
    ) -> Mapping[str, Sequence[Mapping[str, Any]]]:
        """Return attempts with their feedback, for the package's prompt."""
        records = []
        for case in eval_batch.trajectories or []:
            inputs = {"question": case.sample.question}
            if case.sample.context:
                inputs["context"] = case.sample.context
            answer = case.attempt.answer or f"(none: {case.attempt.error})"
            outputs = {"reasoning": case.attempt.reasoning} if case.attempt.reasoning else {}
            records.append({"Inputs": inputs, "Generated Outputs": outputs | {"answer": answer},
                            "Feedback": case.feedback})  # fmt: skip
        return dict.fromkeys(components_to_update, records)

    def propose(self, prompt: str | list[dict[str, Any]]) -> str:
        """Ask the model for the next text; an answer that failed proposes nothing."""
        chat, learner = self.learner.roles.chat, self.learner
        self.proposals += 1
        try:
            [completion] = chat.ask(
                "optimiser",
                [[Message("user", str(prompt))]],
                step=self.step,
                max_tokens=learner.budget,
                temperature=learner.temperature,
                draw=[f"{self.step}/{self.proposals}"],
            )
        except BackendError as error:
            self.unreachable = error
            raise
        return completion.text


class Quiet:
    """Sends what the package says to the log, since it would print it."""

    def log(self, message: str) -> None:
        """Log a message."""
        log.debug("%s", message)


def score(roles: Roles, case: Case) -> float:
    """Return the share of the parts of a sample's target that an attempt matches; 0 or 1 where tests decide."""
    if case.attempt.passed is not None:
        return float(case.attempt.passed)
    matched, parts = roles.chat.task.count(case.sample, case.attempt.answer)
    return matched / parts
