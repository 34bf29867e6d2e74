"""What the verbs of the command do; their options are explained in `cli`."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from rich.table import Table
from rich.text import Text
from shared.records import write_text

from robrel import estimation, feedback, files, framework
from robrel.exact import Conflict, Pool, chebyshev_center, conflict, relaxed
from robrel.feasible import FeasibleSet
from robrel.framework import Assessment
from robrel.mdp import MDP, occupancies
from robrel.output import console, require_folder, say, write_arrays
from robrel.space import Kind, RewardSpace

Array = NDArray[np.float64]
OnConflict = Literal["stop", "relax"]
SlackUse = Literal["none", "relax", "conservative"]


class Case(NamedTuple):
    """A user's files, and the rewards that their feedback allows.

    Attributes:
        mdp: the MDP.
        policies: π by name.
        space: what reward parameters stand for.
        feasible: R_F before anything is relaxed; empty if the feedback conflicts.
    """

    mdp: MDP
    policies: dict[str, Array]
    space: RewardSpace
    feasible: FeasibleSet

    def visits(self, name: str) -> Array:
        """Compute the coefficients (k,) of a named policy's return."""
        return self.space.coefficients(occupancies(self.mdp, pick(self.policies, name)))


def assess(
    case: Case,
    first: str,
    second: str,
    solver: framework.Solver | None,
    on_conflict: OnConflict,
    episodes: int | None,
    delta: float,
    slack: SlackUse,
    tolerance: float,
    out: Path | None,
) -> None:
    """Print [m, M], the robust answer and what is certain; write them, the robust reward and a picture."""
    if out is not None:
        require_folder(out, "out")
    if slack != "none" and episodes is None:
        raise ValueError(f"slack {slack} needs episodes, the number of them that each policy was estimated from")
    d, pool = case.visits(first) - case.visits(second), Pool()
    beta = 0.0 if episodes is None else statistical_slack(case, episodes, delta)
    loosened = case.feasible if slack == "none" else relaxed(case.feasible, beta)
    feasible, clash = settle(loosened, on_conflict, tolerance, pool)
    solver = solver or linear_solver(feasible)
    with console.status("looking for m and M"):
        found = framework.assess(d, feasible, solver, tolerance=tolerance, pool=pool)
    if slack == "conservative":
        found = widened(found, beta)
    console.print(assessment_table(found, first, second))
    if episodes is not None:
        say(f"statistical slack β = {beta:.6g} from {episodes} episodes of each policy, slack: {slack}")
    if found.zero_feasible:
        say("WARNING r = 0 agrees with all of this, so no certificate can be strict: give margins, or --anchor NAME")
    if out is None:
        return
    answers: dict[str, float] = {}
    if not feasible.cuts:  # with demonstrations the centre takes as long again as m and M
        answers["Chebyshev centre"] = float(d @ chebyshev_center(feasible, pool=pool)[0]) + 0.0
    record = {
        "first": first,
        "second": second,
        **{name: float(getattr(found, name)) for name in ("m", "M", "answer", "half_width", "violation", "gap")},
        "decision": found.decision,
        "certificate": found.certificate,
        "tolerance": tolerance,
        "zero_feasible": bool(found.zero_feasible),
        "active": list(found.active),
        "duals_min": dict(zip(feasible.labels, found.duals_min.tolist(), strict=True)),
        "duals_max": dict(zip(feasible.labels, found.duals_max.tolist(), strict=True)),
        "others": {name: {"answer": y, "worst_case_error": found.W(y)} for name, y in answers.items()},
        "conflict": None if clash is None else {"tau": clash.tau, "labels": list(clash.labels)},
        "slack": None if episodes is None else {"use": slack, "beta": beta, "episodes": episodes, "delta": delta},
        "space": case.space.kind,
        "solver": solver,
        "low": float(feasible.low.min()),
        "high": float(feasible.high.max()),
        "radius": feasible.radius,
    }
    text = json.dumps(record, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    from robrel.plots import draw_interval

    draw_interval(found, answers, out / "interval.png")
    write_arrays(out / "robust_reward.npz", x=found.x, r=case.space.reward(found.x))
    write_text(out / "assessment.json", text)
    say(f"written: {', '.join(str(out / name) for name in ('assessment.json', 'robust_reward.npz', 'interval.png'))}")


def next_question(
    case: Case, first: str, second: str, candidates: list[str] | None, on_conflict: OnConflict, top: int
) -> None:
    """Print the comparisons of two candidates that narrow [m, M] most, whatever the answer."""
    if top < 1:
        raise ValueError(f"top must be at least 1, got {top}")
    d, pool = case.visits(first) - case.visits(second), Pool()
    names = [name for name in case.policies if name not in (first, second)] if candidates is None else candidates
    if len(names) < 2 or len(set(names)) < len(names):
        raise ValueError(f"a question needs at least two different candidates, got {', '.join(names) or 'none'}")
    visits = {name: case.visits(name) for name in names}
    pairs = list(itertools.combinations(names, 2))
    feasible, _ = settle(case.feasible, on_conflict, 1e-6, pool)
    solver = linear_solver(feasible)
    rows = np.stack([visits[a] - visits[b] for a, b in pairs])
    with console.status(f"trying both answers to {len(pairs)} questions"):
        now = framework.assess(d, feasible, solver, pool=pool).half_width
        questions = framework.next_question(d, feasible, rows, solver=solver, pool=pool)
    table = Table(title=f"half-width now {now:.6g}, and after asking which is better", title_justify="left")
    table.add_column("question")
    for heading in ("at most", "if the first", "if the second"):
        table.add_column(heading, justify="right")
    for question in questions[:top]:
        widths = (question.half_width, question.if_first, question.if_second)
        texts = ("impossible" if np.isnan(width) else f"{width:.6g}" for width in widths)
        table.add_row(Text(" or ".join(pairs[question.position])), *texts)
    console.print(table)
    if len(questions) > top:
        say(f"and {len(questions) - top} questions that narrow it no more than these")


def check(
    mdp: Path,
    policies: Path | None,
    feedback: Path | None,
    space: Kind | None,
    low: float,
    high: float,
    radius: float | None,
) -> int:
    """Print all faults of the files, or what of the feedback conflicts; returns 1 if there is any of it."""
    for path in (mdp, policies, feedback):
        if path is not None and not path.is_file():
            raise FileNotFoundError(f"there is no file {path}")
    faults = files.validate(mdp, policies, feedback)
    if not faults:
        case = read_case(mdp, policies, feedback, space, low, high, radius, None)
        sizes = f"S = {case.mdp.states}, A = {case.mdp.actions}, H = {case.mdp.horizon}"
        items = f"{len(case.feasible.rows)} comparisons and anchors, {len(case.feasible.cuts)} demonstrations"
        say(f"{sizes}, {len(case.policies)} policies, {items}")
        clash = conflict(case.feasible)
        faults = [] if clash is None else [described(clash)]
    for fault in faults:
        say(fault)
    if not faults:
        say("no faults" if feedback is None else "no faults, and some reward agrees with all of the feedback")
    return int(bool(faults))


def read_case(
    mdp: Path,
    policies: Path | None,
    file: Path | None,
    space: Kind | None,
    low: float,
    high: float,
    radius: float | None,
    anchor: str | None,
) -> Case:
    """Read a user's files and build R_F.

    Args:
        mdp: mdp.npz.
        policies: policies.npz.
        file: feedback.jsonl; None for no feedback.
        space: kind of rewards; None for linear where there are features, else stationary.
        low: smallest reward parameter.
        high: largest reward parameter.
        radius: of the l2 ball, if any.
        anchor: name of a policy whose return is 1, if any.

    Raises:
        FileNotFoundError: if a file is missing.
        ValueError: if one is not in the format, or an option does not fit.
    """
    model, features = files.read_mdp(mdp)
    named = {} if policies is None else files.read_policies(policies, model)
    items, labels = ([], []) if file is None else files.read_feedback(file, model, named)
    kind: Kind = space or ("stationary" if features is None else "linear")
    if kind == "linear" and features is None:
        raise ValueError(f"space linear needs an array features in {mdp}")
    sizes = model.states, model.actions, model.horizon
    rewards = RewardSpace(kind, *sizes, features if kind == "linear" else None)
    if anchor is not None:
        items.append(feedback.anchor(occupancies(model, pick(named, anchor))))
        labels.append(f"the anchor {anchor}")
    return Case(model, named, rewards, feedback.build(rewards, model, items, low, high, radius, labels))


def pick(policies: Mapping[str, Array], name: str) -> Array:
    """Return a policy by name; the ValueError of an unknown one lists the names."""
    if name not in policies:
        raise ValueError(f"there is no policy {name!r}, the file of policies has {', '.join(policies) or 'none'}")
    return policies[name]


def settle(
    feasible: FeasibleSet, on_conflict: OnConflict, tolerance: float, pool: Pool
) -> tuple[FeasibleSet, Conflict | None]:
    """Make sure that some reward is feasible (Sec. 3.7, step 2).

    Returns:
        The set, all of its feedback loosened by τ + tolerance if it conflicts; and what conflicted.

    Raises:
        ValueError: if it conflicts and must not be relaxed.
    """
    clash = conflict(feasible, pool=pool)
    if clash is None:
        return feasible, None
    if on_conflict == "stop":
        raise ValueError(f"{described(clash)} (--on_conflict relax goes on with all of it loosened by τ)")
    say(f"WARNING {described(clash)}; all of it is loosened by τ")
    # The tolerance leaves the solvers room: at τ itself the set is as thin as a point.
    return relaxed(feasible, clash.tau + tolerance), clash


def described(clash: Conflict) -> str:
    """Say what conflicts."""
    parts = listed(clash.labels)
    return f"the feedback conflicts: no reward agrees with {parts} unless each gives way by τ = {clash.tau:.6g}"


def listed(labels: Sequence[str]) -> str:
    """List names of feedback, those of one file together: "feedback.jsonl line 1, 3, the anchor a"."""
    grouped: dict[str, list[str]] = {}
    for label in labels:
        before, _, last = label.rpartition(" ")
        grouped.setdefault(before, []).append(last)
    return ", ".join(f"{before} {', '.join(ends)}" for before, ends in grouped.items())


def linear_solver(feasible: FeasibleSet) -> Literal["lp", "cone"]:
    """Choose the exact solver: linear programs cannot hold an l2 ball."""
    return "lp" if feasible.radius is None else "cone"


def statistical_slack(case: Case, episodes: int, delta: float) -> float:
    """Compute β if every policy was estimated from so many episodes, with ‖r‖_∞ over box and ball (Sec. 3.5)."""
    features, feasible = case.space.features, case.feasible
    reach = np.maximum(np.abs(feasible.low), np.abs(feasible.high))
    bound = float(reach.max() if features is None else (np.abs(features) @ reach).max())
    if feasible.radius is not None:
        longest = 1.0 if features is None else float(np.linalg.norm(features, axis=1).max())
        bound = min(bound, feasible.radius * longest)
    rows = len(feasible.rows) + len(feasible.cuts)
    mdp = case.mdp
    return estimation.slack(mdp.states, mdp.actions, mdp.horizon, episodes, rows, delta, bound)


def widened(found: Assessment, beta: float) -> Assessment:
    """Widen [m, M] by β on each side, and decide anew."""
    m, M = found.m - beta, found.M + beta
    decision, certificate = framework.decide(m, M, found.tolerance)
    return replace(found, m=m, M=M, half_width=found.half_width + beta, decision=decision, certificate=certificate)


def assessment_table(found: Assessment, first: str, second: str) -> Table:
    """Lay an assessment out as a table."""
    better = {"first": f"{first} is better", "second": f"{second} is better"}
    equal = found.certificate == "weak" and found.decision == "undetermined"
    decision = "equally good" if equal else better.get(found.decision, "undetermined")
    certainty = {
        "strict": "strict, for every reward that agrees",
        "weak": f"weak, for every reward that agrees, up to {found.tolerance:g}",
        "none": "none",
    }
    rows = {
        "m": f"{found.m:z.6g}",
        "M": f"{found.M:z.6g}",
        "robust answer ŷ": f"{found.answer:z.6g}",
        "worst-case error W*": f"{found.half_width:.6g}",
        "decision": decision,
        "certificate": certainty[found.certificate],
        "violation": f"{found.violation:.3g}",
        "gap of the solver": f"{found.gap:.3g}",
        "feedback that matters": listed(found.active) or "none",
    }
    table = Table(title=Text(f"return of {first} minus that of {second}"), title_justify="left", show_header=False)
    for name, value in rows.items():
        table.add_row(name, Text(value))
    return table
