"""The command `robrel`. What it needs is imported when it runs, so that every `--help` answers at once."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from shared.cli import Paper
from shared.cli import main as run


def assess(
    mdp: Path,
    policies: Path,
    feedback: Path,
    *,
    first: str,
    second: str,
    space: Literal["linear", "stationary", "stage"] | None = None,
    solver: Literal["lp", "pd", "cone"] | None = None,
    low: float = -1.0,
    high: float = 1.0,
    radius: float | None = None,
    anchor: str | None = None,
    on_conflict: Literal["stop", "relax"] = "stop",
    episodes: int | None = None,
    delta: float = 0.05,
    slack: Literal["none", "relax", "conservative"] = "none",
    tolerance: float = 1e-6,
    out: Path | None = None,
) -> None:
    """Say how much better one policy is than another under every reward that agrees with the feedback.

    Args:
        mdp: mdp.npz with P, mu0, H and optionally features.
        policies: policies.npz with arrays (S, A) or (H, S, A).
        feedback: feedback.jsonl, an object a line.
        first: name of the first policy.
        second: name of the second.
        space: what rewards there are: weights of the features, one number per state and action, or one per stage
            besides; linear if the MDP has features, else stationary, when null.
        solver: exact linear programs, the paper's primal-dual method, or an exact cone program; lp, or cone with a
            radius, when null.
        low: smallest reward parameter.
        high: largest reward parameter.
        radius: of an l2 ball that the parameters lie in besides.
        anchor: name of a policy whose return is fixed to 1, which sets the scale.
        on_conflict: what to do if no reward agrees with all of the feedback: stop, or let all of it give way by the
            least amount that admits one.
        episodes: how many each policy was estimated from, if it was; gives the statistical slack.
        delta: probability that the slack is too small, in (0, 1).
        slack: what to do about it: nothing, loosen the feedback by it, or widen the interval by it as well.
        tolerance: from which size a number counts as different from 0.
        out: folder for assessment.json, robust_reward.npz and interval.png; nothing is written when null.
    """
    from robrel.verbs import assess, read_case

    case = read_case(mdp, policies, feedback, space, low, high, radius, anchor)
    assess(case, first, second, solver, on_conflict, episodes, delta, slack, tolerance, out)


def next_question(
    mdp: Path,
    policies: Path,
    feedback: Path,
    *,
    first: str,
    second: str,
    candidates: list[str] | None = None,
    space: Literal["linear", "stationary", "stage"] | None = None,
    low: float = -1.0,
    high: float = 1.0,
    radius: float | None = None,
    anchor: str | None = None,
    on_conflict: Literal["stop", "relax"] = "stop",
    top: int = 10,
) -> None:
    """Rank the comparisons that could be asked next by how much they narrow the interval in the worse case.

    Args:
        mdp: mdp.npz.
        policies: policies.npz.
        feedback: feedback.jsonl, what is known already.
        first: name of the first policy of the interval.
        second: name of the second.
        candidates: policies to compare in pairs, as in [a,b,c]; all but the first and the second when null.
        space: as in `assess`.
        low: smallest reward parameter.
        high: largest reward parameter.
        radius: of an l2 ball that the parameters lie in besides.
        anchor: name of a policy whose return is fixed to 1.
        on_conflict: as in `assess`.
        top: how many to list.
    """
    from robrel.verbs import next_question, read_case

    case = read_case(mdp, policies, feedback, space, low, high, radius, anchor)
    next_question(case, first, second, candidates, on_conflict, top)


def check(
    mdp: Path,
    policies: Path | None = None,
    feedback: Path | None = None,
    space: Literal["linear", "stationary", "stage"] | None = None,
    low: float = -1.0,
    high: float = 1.0,
    radius: float | None = None,
) -> int:
    """List the faults of files, or say whether the feedback conflicts; exit code 1 if there is any of it.

    Args:
        mdp: mdp.npz.
        policies: policies.npz.
        feedback: feedback.jsonl.
        space: as in `assess`.
        low: smallest reward parameter.
        high: largest reward parameter.
        radius: of an l2 ball that the parameters lie in besides.
    """
    from robrel.verbs import check

    return check(mdp, policies, feedback, space, low, high, radius)


def from_gym(name: str, folder: Path, horizon: int = 20) -> None:
    """Write a toy-text game of Gymnasium as files: mdp.npz, its own reward.npz, and policies.npz.

    The policies are `optimal`, `noisy`, which acts at random with probability 0.1, and `uniform`.

    Args:
        name: of the game, such as FrozenLake-v1, CliffWalking or Taxi.
        folder: where to write.
        horizon: number of stages H.
    """
    from robrel.simulation import from_gym

    from_gym(name, folder, horizon)


def simulate_feedback(
    mdp: Path,
    out: Path,
    count: int = 20,
    kind: Literal["policy", "trajectory"] = "policy",
    demonstrations: int = 0,
    epsilon: float = 0.0,
    reward: Path | None = None,
    seed: int = 0,
) -> None:
    """Let a judge and an expert who know a reward give feedback: writes feedback.jsonl and true_reward.npz.

    Args:
        mdp: mdp.npz.
        out: folder to write to. Policies that the feedback names, q0, q1 and so on, are added to policies.npz there.
        count: number of comparisons.
        kind: compare random policies, or one trajectory of each.
        demonstrations: of kind `policy`, how many experts show their policy; else how many episodes an optimal expert
            shows. None for 0.
        epsilon: what the experts are allowed to lose, in units of the return. Those who show a policy lose at most
            that much; episodes can lose more by bad luck, which is reported.
        reward: a file with the true reward, such as the reward.npz of `from-gym`; drawn at random when null.
        seed: of all draws.
    """
    from robrel.simulation import simulate_feedback

    simulate_feedback(mdp, out, count, kind, demonstrations, epsilon, reward, seed)


PAPER = Paper(
    name="robrel",
    title="Rob-ReL: worst-case answers from partially identified rewards, with certificates",
    cli="robrel.app:RobRelCLI",
    verbs={
        "assess": assess,
        "next-question": next_question,
        "check": check,
        "from-gym": from_gym,
        "simulate-feedback": simulate_feedback,
    },
    study="robrel.comparison:study",
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    return run(PAPER, argv)
