"""What the verbs of the command do; their options are explained in `cli`."""

from __future__ import annotations

import itertools
import json
import zipfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table
from rich.text import Text

from robrel import environments, estimation, feedback, files, framework
from robrel.estimation import empirical_occupancies
from robrel.exact import Conflict, Pool, chebyshev_center, conflict, relaxed
from robrel.feasible import FeasibleSet
from robrel.framework import Assessment
from robrel.mdp import MDP, check_reward, occupancies, plan, random_policies, random_policy, returns, rollouts
from robrel.space import Kind, RewardSpace

Array = NDArray[np.float64]
OnConflict = Literal["stop", "relax"]
SlackUse = Literal["none", "relax", "conservative"]

NOISE = 0.1  # how often the policy `noisy` of `from-gym` acts at random
CONCENTRATION = 0.2  # of random policies' Dirichlet rows
SHARES = 101  # mixtures that are tried to find an expert

console = Console(stderr=True)  # that of `shared.logs` takes seconds to import, because of torch


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
    centre = float(d @ chebyshev_center(feasible, pool=pool)[0]) + 0.0
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
        "chebyshev": {"answer": centre, "worst_case_error": found.W(centre)},
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

    draw_interval(found, {"Chebyshev centre": centre}, out / "interval.png")
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
    now = framework.assess(d, feasible, solver, pool=pool).half_width
    rows = np.stack([visits[a] - visits[b] for a, b in pairs])
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


def from_gym(name: str, folder: Path, horizon: int) -> None:
    """Write a game's MDP, its reward and three policies; print sizes and returns."""
    require_folder(folder, "folder")
    game = environments.from_gym(name, horizon)
    mdp, reward = game.mdp, game.reward
    assert reward is not None  # every game has one
    optimal, uniform = plan(mdp, reward).policy, np.full((mdp.states, mdp.actions), 1 / mdp.actions)
    policies = {"optimal": optimal, "noisy": (1 - NOISE) * optimal + NOISE * uniform, "uniform": uniform}
    files.write_mdp(folder / "mdp.npz", mdp)
    files.write_policies(folder / "policies.npz", policies)
    write_arrays(folder / "reward.npz", r=reward)
    say(f"{game.name}: S = {mdp.states} with the end, A = {mdp.actions}, H = {mdp.horizon}, rewards / {game.scale:g}")
    for policy, pi in policies.items():
        say(f"return of {policy}: {float(returns(occupancies(mdp, pi), reward)):.6g}")
    say(f"written: {', '.join(str(folder / file) for file in ('mdp.npz', 'policies.npz', 'reward.npz'))}")


def simulate_feedback(
    mdp: Path,
    out: Path,
    count: int,
    kind: Literal["policy", "trajectory"],
    demonstrations: int,
    epsilon: float,
    reward: Path | None,
    seed: int,
) -> None:
    """Write comparisons and demonstrations by a judge and experts who know the reward, and that reward."""
    require_folder(out, "out")
    for option, number in {"count": count, "demonstrations": demonstrations, "seed": seed}.items():
        if number < 0:
            raise ValueError(f"{option} must be at least 0, got {number}")
    if not 0 <= epsilon < np.inf:
        raise ValueError(f"epsilon must be a number of at least 0, got {epsilon}")
    model, features = files.read_mdp(mdp)
    rng = np.random.default_rng(seed)
    truth = draw_reward(model, features, rng) if reward is None else read_reward(reward, model)
    named: dict[str, Array] = {}
    if kind == "policy":
        named, lines = shown_policies(model, truth, count, demonstrations, epsilon, rng)
    else:
        lines = shown_episodes(model, truth, count, demonstrations, epsilon, rng)
    text = "".join(f"{json.dumps(line, allow_nan=False)}\n" for line in lines)
    if named:
        file = out / "policies.npz"
        others = files.read_policies(file, model) if file.exists() else {}
        files.write_policies(file, {**others, **named})
        say(f"written: {file}, where q0 to q{len(named) - 1} are new")
    write_arrays(out / "true_reward.npz", r=truth)
    write_text(out / "feedback.jsonl", text)
    say(f"written: {out / 'true_reward.npz'}, {out / 'feedback.jsonl'}")


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
    lines = ", ".join(clash.labels)
    return f"the feedback conflicts: no reward agrees with {lines} unless each gives way by τ = {clash.tau:.6g}"


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
        "feedback that matters": ", ".join(found.active) or "none",
    }
    table = Table(title=Text(f"return of {first} minus that of {second}"), title_justify="left", show_header=False)
    for name, value in rows.items():
        table.add_row(name, Text(value))
    return table


def draw_reward(mdp: MDP, features: Array | None, rng: np.random.Generator) -> Array:
    """Draw a true reward (S, A): uniform in [-1, 1], or Φθ with θ uniform in [-1, 1]^k."""
    if features is None:
        return rng.uniform(-1, 1, (mdp.states, mdp.actions))
    return (features @ rng.uniform(-1, 1, features.shape[1])).reshape(mdp.states, mdp.actions)


def shown_policies(
    mdp: MDP, truth: Array, count: int, experts: int, epsilon: float, rng: np.random.Generator
) -> tuple[dict[str, Array], list[dict[str, Any]]]:
    """Let a judge compare random policies, and experts show theirs: policies q0, q1, ... and lines of feedback.

    An expert mixes as much of a random policy into the optimal one as costs at most ε.
    """
    policies = random_policies(2 * count, mdp.states, mdp.actions, CONCENTRATION, rng)
    gains = returns(occupancies(mdp, policies), truth).tolist()
    named = {f"q{i}": pi for i, pi in enumerate(policies)}
    lines: list[dict[str, Any]] = []
    for a, b in zip(range(0, 2 * count, 2), range(1, 2 * count, 2), strict=True):
        better, worse = (a, b) if gains[a] >= gains[b] else (b, a)
        lines.append({"type": "policy", "better": f"q{better}", "worse": f"q{worse}"})
    best = plan(mdp, truth)
    share = np.linspace(0, 1, SHARES)[:, None, None, None]
    for _ in range(experts):
        mixed = (1 - share) * best.policy + share * random_policy(mdp.states, mdp.actions, CONCENTRATION, rng)
        lost = float(best.value) - returns(occupancies(mdp, mixed), truth)
        lost[0] = 0.0  # up to rounding
        lines.append({"type": "demo", "policy": f"q{len(named)}", "eps": epsilon})
        named[f"q{len(named)}"] = mixed[np.flatnonzero(lost <= epsilon)[-1]]
    return named, lines


def shown_episodes(
    mdp: MDP, truth: Array, count: int, experts: int, epsilon: float, rng: np.random.Generator
) -> list[dict[str, Any]]:
    """Let a judge compare episodes of random policies, and an optimal expert show some: lines of feedback."""
    space = RewardSpace("stage", mdp.states, mdp.actions, mdp.horizon)
    everywhere = np.broadcast_to(truth, (mdp.horizon, mdp.states, mdp.actions))
    lines: list[dict[str, Any]] = []
    for item in feedback.simulate_comparisons(
        mdp, space, everywhere.ravel(), count, rng, "trajectory", concentration=CONCENTRATION
    ):
        assert isinstance(item, feedback.TrajectoryComparison)
        better, worse = np.asarray(item.better).tolist(), np.asarray(item.worse).tolist()
        lines.append({"type": "trajectory", "better": better, "worse": worse})
    if experts:
        best = plan(mdp, truth)
        states, actions = rollouts(mdp, best.policy, experts, rng)
        shown = empirical_occupancies(states, actions, mdp.states, mdp.actions)
        lines.append({"type": "demo", "trajectories": np.stack([states, actions], -1).tolist(), "eps": epsilon})
        lost = float(best.value) - float(returns(shown, truth))
        if lost > epsilon + 1e-9:
            say(
                f"WARNING the episodes of the expert are worth {lost:.6g} less than expected, by bad luck, so that the "
                f"true reward does not agree with them: --epsilon {lost + 1e-3:.3f} would admit it"
            )
    return lines


def read_reward(path: Path, mdp: MDP) -> Array:
    """Read a reward, the array r (S, A) or (H, S, A) of an .npz file.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if it holds no such array, or one that does not fit the MDP.
    """
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}")
    try:
        with np.load(path, allow_pickle=False) as file:
            reward = file["r"]
    except (ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile):
        raise ValueError(f"{path} must be an .npz file with an array r of numbers, as from-gym writes it") from None
    checked = check_reward(mdp, reward, f"{path}: r")
    if checked.ndim != 3:
        raise ValueError(f"{path}: r must be one reward, (S, A) or (H, S, A), got shape {checked.shape}")
    return reward


def require_folder(path: Path, option: str) -> None:
    """Raise NotADirectoryError if there is something else than a folder in this place."""
    if path.exists() and not path.is_dir():
        raise NotADirectoryError(f"{option} must name a folder, got the file {path}")


def write_arrays(path: Path, **arrays: Array) -> None:
    """Write arrays by name as an .npz file."""
    from shared.checkpoints import atomic_write  # slow to import

    named: dict[str, Any] = dict(arrays)
    with atomic_write(path) as file:
        np.savez_compressed(file, **named)


def write_text(path: Path, text: str) -> None:
    """Write a text file."""
    from shared.checkpoints import atomic_write  # slow to import

    with atomic_write(path) as file:
        file.write(text.encode())


def say(sentence: str) -> None:
    """Print a sentence, unbroken."""
    console.print(sentence, markup=False, highlight=False, soft_wrap=True)
