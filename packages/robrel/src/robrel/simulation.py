"""What `from-gym` and `simulate-feedback` do: games as files, and feedback by those who know the reward."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from shared.records import write_text

from robrel import environments, feedback, files
from robrel.estimation import empirical_occupancies
from robrel.mdp import MDP, check_reward, occupancies, plan, random_policies, random_policy, returns, rollouts
from robrel.output import require_folder, say, write_arrays
from robrel.space import RewardSpace

Array = NDArray[np.float64]

NOISE = 0.1  # how often the policy `noisy` of `from-gym` acts at random
CONCENTRATION = 0.2  # of random policies' Dirichlet rows
SHARES = 101  # mixtures that are tried to find an expert


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
    arrays = files.read_npz(path)
    if "r" not in arrays:
        raise ValueError(f"{path} must hold an array r, as from-gym writes it, got {', '.join(arrays) or 'none'}")
    reward = arrays["r"]
    checked = check_reward(mdp, reward, f"{path}: r")
    if checked.ndim != 3:
        raise ValueError(f"{path}: r must be one reward, (S, A) or (H, S, A), got shape {checked.shape}")
    return reward
