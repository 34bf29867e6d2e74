"""Random instances of the experiments: an environment, two policies, a hidden reward and feedback on it (Sec. 3.6).

The question is always how much better the first policy is than the second under the true reward, which the methods do
not see. All draws are functions of (seed, purpose), so that an instance with more comparisons holds those of the same
instance with fewer.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from robrel.environments import Environment, from_gym, gridworld, random_features
from robrel.estimation import empirical_occupancies, estimated_mdp, slack
from robrel.exact import Pool
from robrel.feasible import FeasibleSet
from robrel.feedback import Demonstration, Item, PolicyComparison, TrajectoryComparison, build, simulate_comparisons
from robrel.mdp import MDP, occupancies, plan, policy_of, random_policy, rollouts
from robrel.space import Kind, RewardSpace

Array = NDArray[np.float64]
Estimate: TypeAlias = Callable[[Array], Array]  # a policy -> its occupancy (H, S, A), as it is known
SlackOption = Literal["none", "relax", "conservative"]
PURPOSES = ("reward", "policies", "comparisons", "episodes", "exploration", "baselines", "demonstrations")


@dataclass
class ProblemOptions:
    """What instances are drawn from.

    Attributes:
        environment: `gridworld`, or a toy-text environment of Gymnasium with its own reward: FrozenLake, CliffWalking,
            Taxi.
        size: side of the grid world.
        slip: probability of slipping there.
        map_name: of FrozenLake: 4x4 or 8x8.
        horizon: H.
        reward: `linear`, `stationary` or `stage`; Gymnasium's are stationary.
        features: k, of linear rewards.
        radius: of an l2 ball that the parameters lie in besides the box [-1, 1]; null for none.
        kind: what is compared: `policy` or `trajectory`.
        flip: probability that an answer is wrong.
        expert: demonstrations of an optimal policy: `none`, `exact` (its occupancy), or `sampled`.
        demonstrations: number of episodes of a sampled expert.
        epsilon: ε of its optimality.
        episodes: N of each policy, from which occupancies are estimated; 0 for exact ones.
        estimate: from `rollouts` of each policy, or from a `model` estimated from N exploratory episodes.
        slack: `none`; `relax` the feedback by β; `conservative` widens the interval by β as well.
        delta: δ of β.

    Raises:
        ValueError: if an option is out of range.
    """

    environment: str = "gridworld"
    size: int = 5
    slip: float = 0.1
    map_name: str = "4x4"
    horizon: int = 10
    reward: Kind = "linear"
    features: int = 6
    radius: float | None = None
    kind: Literal["policy", "trajectory"] = "policy"
    flip: float = 0.0
    expert: Literal["none", "exact", "sampled"] = "none"
    demonstrations: int = 20
    epsilon: float = 0.0
    episodes: int = 0
    estimate: Literal["rollouts", "model"] = "rollouts"
    slack: SlackOption = "none"
    delta: float = 0.05

    def __post_init__(self) -> None:
        least = {"size": 1, "horizon": 1, "features": 1, "demonstrations": 1, "episodes": 0}
        for option, smallest in least.items():
            if getattr(self, option) < smallest:
                raise ValueError(f"{option} must be at least {smallest}, got {getattr(self, option)}")
        for option in ("slip", "flip"):
            if not 0 <= getattr(self, option) <= 1:
                raise ValueError(f"{option} must lie in [0, 1], got {getattr(self, option)}")
        if not 0 < self.delta < 1:
            raise ValueError(f"delta must lie in (0, 1), got {self.delta}")
        if not 0 <= self.epsilon < math.inf:
            raise ValueError(f"epsilon must be a finite number of at least 0, got {self.epsilon}")
        if self.radius is not None and not 0 < self.radius < math.inf:
            raise ValueError(f"radius must be a finite number > 0 or null, got {self.radius}")
        if self.environment != "gridworld" and self.reward != "stationary":
            raise ValueError(f"reward must be stationary for {self.environment}, which has its own, got {self.reward}")


@dataclass(frozen=True, eq=False)
class Problem:
    """One instance.

    Attributes:
        environment: where it lies.
        space: what the parameters stand for.
        d: (k,) coefficients of the first policy's return minus those of the second's, as the methods know them.
        feasible: R_F, as the methods know it.
        widening: what a conservative interval adds on both sides.
        exact_d: (k,) the same from exact occupancies.
        exact_feasible: R_F from exact occupancies, without slack.
        expert: (k,) coefficients of the expert's occupancy; None without one.
        planning: the MDP that plans are made in: the true one, or its estimate.
        x_true: (k,) the true reward.
        pool: rows that the expert's oracle has given for `feasible`.
        exact_pool: the same for `exact_feasible`.
    """

    environment: Environment
    space: RewardSpace
    d: Array
    feasible: FeasibleSet
    widening: float
    exact_d: Array
    exact_feasible: FeasibleSet
    expert: Array | None
    planning: MDP
    x_true: Array
    pool: Pool = field(default_factory=Pool)
    exact_pool: Pool = field(default_factory=Pool)

    @property
    def truth(self) -> float:
        """g(r*): how much better the first policy is."""
        return float(self.exact_d @ self.x_true)


def draw_problem(options: ProblemOptions, comparisons: int, seed: int) -> Problem:
    """Draw an instance.

    Args:
        options: what from.
        comparisons: n_c.
        seed: of everything.

    Raises:
        ValueError: if an option does not fit the environment.
    """
    if comparisons < 0:
        raise ValueError(f"comparisons must be at least 0, got {comparisons}")
    environment, space, x_true = _environment(options, _rng(seed, "reward"))
    mdp = environment.mdp
    first, second, optimal = _policies(environment, space, x_true, _rng(seed, "policies"))
    items = simulate_comparisons(
        mdp, space, x_true, comparisons, _rng(seed, "comparisons"), options.kind, flip=options.flip
    )
    d_pair = occupancies(mdp, np.stack([np.broadcast_to(p, optimal.shape) for p in (first, second)]))
    experts: list[Demonstration] = []
    if options.expert != "none":
        experts = [Demonstration(occupancies(mdp, optimal), options.epsilon)]
    exact = build(space, mdp, [*items, *experts], radius=options.radius)
    exact_d = space.coefficients(d_pair[0] - d_pair[1])
    if options.episodes == 0 and options.expert != "sampled":  # nothing is estimated
        expert = space.coefficients(experts[0].occupancy) if experts else None
        return Problem(environment, space, exact_d, exact, 0.0, exact_d, exact, expert, mdp, x_true)

    planning, estimated = _estimator(options, mdp, seed)
    pair = np.stack([estimated(policy) for policy in (first, second)])
    items = [_estimated(item, estimated) for item in items]
    beta = 0.0
    if options.episodes and options.slack != "none":
        beta = slack(
            mdp.states, mdp.actions, mdp.horizon, options.episodes, comparisons, options.delta, _largest(space)
        )
    seen = None
    if experts:
        seen = estimated(optimal) if options.expert == "exact" else _frequencies(options, mdp, optimal, seed)
        experts = [Demonstration(seen, options.epsilon + beta)]
    feasible = build(space, planning, [*items, *experts], radius=options.radius)
    if beta:
        feasible = replace(feasible, lower=feasible.lower - beta, upper=feasible.upper + beta)
    return Problem(
        environment=environment,
        space=space,
        d=space.coefficients(pair[0] - pair[1]),
        feasible=feasible,
        widening=beta if options.slack == "conservative" else 0.0,
        exact_d=exact_d,
        exact_feasible=exact,
        expert=None if seen is None else space.coefficients(seen),
        planning=planning,
        x_true=x_true,
    )


def _rng(seed: int, purpose: str) -> np.random.Generator:
    return np.random.default_rng([seed, PURPOSES.index(purpose)])


def _environment(options: ProblemOptions, rng: np.random.Generator) -> tuple[Environment, RewardSpace, Array]:
    environment = _place(options.environment, options.size, options.slip, options.map_name, options.horizon)
    mdp = environment.mdp
    if environment.reward is not None:
        x = environment.reward.ravel()
        if options.radius is not None and options.radius < (norm := float(np.linalg.norm(x))):
            raise ValueError(f"radius must be at least {norm:.4g}, the norm of the game's reward, got {options.radius}")
        return environment, RewardSpace("stationary", mdp.states, mdp.actions, mdp.horizon), x
    features = None
    if options.reward == "linear":
        features = random_features(mdp.states, mdp.actions, options.features, rng)
    space = RewardSpace(options.reward, mdp.states, mdp.actions, mdp.horizon, features)
    x = rng.uniform(-1, 1, space.dim)
    if options.radius is not None:
        x *= min(1.0, options.radius / float(np.linalg.norm(x)))
    return environment, space, x


@lru_cache(maxsize=2)  # all instances of a run lie in the same one
def _place(name: str, size: int, slip: float, map_name: str, horizon: int) -> Environment:
    if name == "gridworld":
        return gridworld(size, slip, horizon)
    return from_gym(name, horizon, **({"map_name": map_name} if name.startswith("FrozenLake") else {}))


def _policies(
    environment: Environment, space: RewardSpace, x_true: Array, rng: np.random.Generator
) -> tuple[Array, Array, Array]:
    """Choose the two policies of the question, and the expert: each (H, S, A) or (S, A), the last (H, S, A)."""
    mdp = environment.mdp
    optimal = plan(mdp, space.reward(x_true)).policy
    if environment.reward is None:
        first, second = (random_policy(mdp.states, mdp.actions, 0.2, rng) for _ in range(2))
        return first, second, optimal
    uniform = np.full((mdp.states, mdp.actions), 1 / mdp.actions)
    return 0.9 * optimal + 0.1 * uniform, uniform, optimal


def _estimator(options: ProblemOptions, mdp: MDP, seed: int) -> tuple[MDP, Estimate]:
    """Return the MDP to plan in, and how occupancies are estimated."""
    if options.episodes == 0:
        return mdp, lambda policy: occupancies(mdp, policy)
    if options.estimate == "model":
        uniform = np.full((mdp.states, mdp.actions), 1 / mdp.actions)
        walks = rollouts(mdp, uniform, options.episodes, _rng(seed, "exploration"))
        model = estimated_mdp(*walks, mdp.states, mdp.actions)
        return model, lambda policy: occupancies(model, policy)
    rng = _rng(seed, "episodes")

    def estimate(policy: Array) -> Array:
        return empirical_occupancies(*rollouts(mdp, policy, options.episodes, rng), mdp.states, mdp.actions)

    return mdp, estimate


def _frequencies(options: ProblemOptions, mdp: MDP, policy: Array, seed: int) -> Array:
    walks = rollouts(mdp, policy, options.demonstrations, _rng(seed, "demonstrations"))
    return empirical_occupancies(*walks, mdp.states, mdp.actions)


def _estimated(item: Item, estimate: Estimate) -> Item:
    """Replace the exact occupancies of a comparison by estimated ones; trajectories are what they are."""
    if isinstance(item, TrajectoryComparison | Demonstration):
        return item
    return PolicyComparison(
        estimate(policy_of(item.better)), estimate(policy_of(item.worse)), item.margin_low, item.margin_high
    )


def _largest(space: RewardSpace) -> float:
    """‖r‖_∞ over the box [-1, 1]."""
    return 1.0 if space.features is None else float(np.abs(space.features).sum(1).max())
