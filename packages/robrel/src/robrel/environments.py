"""Tabular environments: the grid world of the experiments and Gymnasium's toy-text games (Sec. 3.6 and 5)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from robrel.mdp import MDP

Array = NDArray[np.float64]

MOVES = {"right": (0, 1), "left": (0, -1), "up": (-1, 0), "down": (1, 0), "stay": (0, 0)}  # row, column
DENSE_STATES = 2000  # transitions of more states are sparse


@dataclass(frozen=True, eq=False)
class Environment:
    """An MDP with names, and its own reward where it has one.

    Attributes:
        name: what it is called.
        mdp: the MDP.
        reward: r* (S, A) or (H, S, A), in [-1, 1]; None if the environment has none.
        scale: the environment's own units: what to multiply `reward` by to get them.
        state_names: S names.
        action_names: A names.
    """

    name: str
    mdp: MDP
    reward: Array | None
    scale: float
    state_names: tuple[str, ...]
    action_names: tuple[str, ...]


def gridworld(size: int = 5, slip: float = 0.1, horizon: int = 10) -> Environment:
    """Build the grid world without reward: right, left, up, down, stay; walls block.

    What slipping does and where episodes start could not be read; both are (inferred): with probability `slip` the
    move is that of a uniformly random action, the chosen one included, and the first cell is uniform.

    Args:
        size: cells along each side; the state of (row, column) is row * size + column, row 0 on top.
        slip: probability in [0, 1].
        horizon: H.

    Raises:
        ValueError: if an argument is out of range.
    """
    if size < 1:
        raise ValueError(f"size must be at least 1, got {size}")
    if not 0 <= slip <= 1:
        raise ValueError(f"slip must lie in [0, 1], got {slip}")
    cells = [(row, column) for row in range(size) for column in range(size)]
    moved = np.zeros((size * size, len(MOVES), size * size))
    for s, (row, column) in enumerate(cells):
        for a, (down, right) in enumerate(MOVES.values()):
            to = min(max(row + down, 0), size - 1), min(max(column + right, 0), size - 1)
            moved[s, a, to[0] * size + to[1]] = 1.0
    transitions = (1 - slip) * moved + slip * moved.mean(1, keepdims=True)
    mdp = MDP(transitions, np.full(size * size, 1 / size**2), horizon)
    names = tuple(f"({row}, {column})" for row, column in cells)
    return Environment(f"gridworld {size}x{size}", mdp, None, 1.0, names, tuple(MOVES))


def random_features(states: int, actions: int, k: int, rng: np.random.Generator) -> Array:
    """Draw features of the state alone, uniform on [0, 1] and the same for every action, (S * A, k)."""
    return np.repeat(rng.random((states, k)), actions, axis=0)


def from_gym(name: str, horizon: int, **kwargs: Any) -> Environment:
    """Read the exact table of a Gymnasium toy-text environment: FrozenLake, CliffWalking, Taxi.

    A transition that ends the game leads to one more, absorbing state of reward 0, which comes last: with a fixed
    horizon, the length of an episode then says nothing about the reward. Next states that the table lists more than
    once are merged. Rewards are averaged over next states, and divided by the largest of the table if that exceeds 1.

    Args:
        name: its id, as FrozenLake-v1, or without version, as Taxi, for the newest that is installed.
        horizon: H. The environment's own time limit is not used.
        **kwargs: its own options, such as map_name="8x8".

    Returns:
        The environment under its full id, with S + 1 states and r* (S + 1, A).

    Raises:
        ValueError: if there is no such environment, an option does not fit, or it has no table.
        ModuleNotFoundError: if gymnasium is not installed.
    """
    import gymnasium  # not needed for the grid world

    versions = [spec for spec in gymnasium.registry.values() if name in (spec.id, spec.id.rpartition("-v")[0])]
    if not versions:
        known = ", ".join(sorted(k for k, spec in gymnasium.registry.items() if "toy_text" in str(spec.entry_point)))
        raise ValueError(f"no environment {name} in gymnasium {gymnasium.__version__}, its toy-text ones are {known}")
    full_name = max(versions, key=lambda spec: spec.version or 0).id
    try:
        env = gymnasium.make(full_name, **kwargs).unwrapped
    except (TypeError, ValueError, KeyError, gymnasium.error.Error) as error:
        raise ValueError(f"{full_name} could not be made with options {kwargs}: {error}") from None
    table: dict[int, dict[int, list[tuple[float, int, float, bool]]]] | None = getattr(env, "P", None)
    initial = getattr(env, "initial_state_distrib", None)
    env.close()
    if table is None or initial is None:
        raise ValueError(f"{full_name} has no table of transitions, expected a toy-text environment such as FrozenLake")
    transitions, reward, scale = _tables(table)
    mdp = MDP(transitions, np.append(np.asarray(initial, dtype=np.float64), 0.0), horizon)
    names = (*(str(s) for s in range(len(table))), "end")
    return Environment(full_name, mdp, reward, scale, names, tuple(str(a) for a in range(len(table[0]))))


def _tables(table: dict[int, dict[int, list[tuple[float, int, float, bool]]]]) -> tuple[Any, Array, float]:
    end, actions = len(table), len(table[0])
    entries = [
        (s * actions + a, end if done else int(to), probability, reward)
        for s, row in table.items()
        for a, outcomes in row.items()
        for probability, to, reward, done in outcomes
    ]
    rows, to, probability, reward = (np.array(column) for column in zip(*entries, strict=True))
    rows = np.append(rows, end * actions + np.arange(actions))
    to = np.append(to, np.full(actions, end))
    probability = np.append(probability, np.ones(actions))
    reward = np.append(reward, np.zeros(actions))
    states = end + 1
    scale = max(1.0, float(np.abs(reward).max()))
    mean = np.bincount(rows, weights=probability * reward / scale, minlength=states * actions).astype(np.float64)
    # Building it sums what is listed twice.
    merged = sparse.csr_array((probability, (rows, to)), shape=(states * actions, states))
    dense = states <= DENSE_STATES
    return merged.toarray().reshape(states, actions, states) if dense else merged, mean.reshape(states, actions), scale
