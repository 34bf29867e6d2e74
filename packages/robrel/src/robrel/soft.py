"""Maximum-entropy control: the soft-optimal policy of a reward, for the baseline `max_entropy` (Sec. 4)."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import logsumexp, softmax

from robrel.mdp import MDP, check_reward

Array = NDArray[np.float64]


def soft_policy(mdp: MDP, rewards: ArrayLike) -> Array:
    """Find the policy of largest return plus entropy, by soft backward induction.

        V_h(s) = log Σ_a exp Q_h(s, a),   Q_h(s, a) = r_h(s, a) + Σ_{s'} p_h(s'|s, a) V_{h+1}(s'),   π = exp(Q - V)

    Args:
        mdp: the MDP.
        rewards: r (H, S, A), (1, S, A) or (S, A).

    Returns:
        π (H, S, A).

    Raises:
        ValueError: if the reward does not fit the MDP or is not finite.
    """
    r = np.broadcast_to(check_reward(mdp, rewards), (mdp.horizon, mdp.states, mdp.actions))
    policy, v = np.empty(r.shape), np.zeros(mdp.states)
    for h in reversed(range(mdp.horizon)):
        q = r[h] + np.asarray(mdp.table(h) @ v).reshape(mdp.states, mdp.actions)
        policy[h], v = softmax(q, axis=-1), logsumexp(q, axis=-1)
    return policy
