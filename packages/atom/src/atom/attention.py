"""Heterogeneous temporal attention: queries of one stream, keys and values of three (Sec. 3.4).

    out = Σ_F γ_F softmax(Q K_F^T / s) V_F,   F in {X, V, Z},   γ = softmax(w)

Symbols: B batch, h heads, S = P N tokens, d width, d_h = d / h, s scale of the scores. The two functions give the same
numbers; `heterogeneous_attention` never holds a B h S S matrix where torch has a fused kernel, and
`explicit_attention` is the formula as it is written.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .rope import rotate

Scale = Literal["sqrt", "linear"]


def heterogeneous_attention(
    q: Tensor,
    keys: Sequence[Tensor],
    values: Sequence[Tensor],
    gamma: Tensor,
    key_mask: Tensor,
    scale: float,
    dropout: float = 0.0,
) -> Tensor:
    """Attend to each stream by torch's fused attention and mix the answers.

    Args:
        q: queries (B, h, S, d_h).
        keys: K_F (B, h, S', d_h) of each stream.
        values: V_F (B, h, S', d_h) of each stream.
        gamma: γ (F,), the shares of the streams.
        key_mask: (B, S') bool, True for keys that exist; at least one in each sample.
        scale: 1 / s.
        dropout: probability with which a weight is dropped.

    Returns:
        (B, h, S, d_h).
    """
    allowed = key_mask[:, None, None, :]
    out = torch.zeros_like(q)
    for share, k, value in zip(gamma.unbind(), keys, values, strict=True):
        attended = F.scaled_dot_product_attention(q, k, value, attn_mask=allowed, dropout_p=dropout, scale=scale)
        out = torch.addcmul(out, attended, share.to(attended.dtype))
    return out


def explicit_attention(
    q: Tensor,
    keys: Sequence[Tensor],
    values: Sequence[Tensor],
    gamma: Tensor,
    key_mask: Tensor,
    scale: float,
    dropout: float = 0.0,
) -> Tensor:
    """Compute `heterogeneous_attention` with every matrix of weights written out: the reference."""
    out = torch.zeros_like(q)
    for share, k, value in zip(gamma, keys, values, strict=True):
        scores = (q @ k.transpose(-1, -2) * scale).masked_fill(~key_mask[:, None, None, :], -math.inf)
        out = out + share * (F.dropout(scores.softmax(dim=-1), dropout) @ value)  # Sec. 3.4, step 4
    return out


class HeterogeneousAttention(nn.Module):
    """Queries of Z, keys and values of X, V and Z by the same maps, rotated by their times.

    Streams whose slots are all alike are given with a single slot: they are projected once and repeated after.

    Args:
        width: d.
        heads: h.
        streams: number of streams that are attended to: 3, or 1 for the ablation that attends to X alone.
        scale: s = √d_h (`sqrt`, the paper's) or d_h (`linear`, the released code's).
        learn_scale: multiply the scores by a learnt factor per head, 1 at the start.
        dropout: of the attention's weights.
    """

    def __init__(
        self,
        width: int,
        heads: int,
        streams: int = 3,
        scale: Scale = "sqrt",
        learn_scale: bool = False,
        dropout: float = 0.2,
    ) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.rotate: Callable[[Tensor, Tensor], Tensor] = rotate  # may be replaced by a kernel of the same signature
        head_width = width // heads
        self.scale = 1 / (math.sqrt(head_width) if scale == "sqrt" else head_width)
        self.q, self.k, self.v = nn.Linear(width, width), nn.Linear(width, width), nn.Linear(width, width)
        self.out = nn.Linear(width, width)
        self.w = nn.Parameter(0.1 * torch.randn(streams))
        self.head_scale = nn.Parameter(torch.ones(heads, 1, 1)) if learn_scale else None

    @property
    def gamma(self) -> Tensor:
        """γ_F = softmax(w) (F,): the share of each stream."""
        return self.w.softmax(dim=0)

    def forward(
        self, queries: Tensor, streams: Sequence[Tensor], mask: Tensor, theta: Tensor, key_theta: Tensor
    ) -> Tensor:
        """Attend.

        Args:
            queries: lifted Z (B, 1 or P, N, d), not normalised.
            streams: the normalised streams, each (B, 1 or P', N, d).
            mask: (B, N) bool, atoms that exist; a sample without any attends to its padding.
            theta: angles of the queries' slots (B, P, d_h / 2).
            key_theta: angles of the keys' slots (B, P', d_h / 2).

        Returns:
            (B, P, N, d).
        """
        slots, (batch, atoms) = theta.shape[1], mask.shape
        q = self._tokens(self.q(queries), theta)
        if self.head_scale is not None:
            q = q * self.head_scale
        keys = [self._tokens(self.k(f), key_theta) for f in streams]
        values = [self._tokens(self.v(f), key_theta, turn=False) for f in streams]
        seen = (mask | ~mask.any(dim=1, keepdim=True)).repeat(1, key_theta.shape[1])
        dropout = self.dropout if self.training else 0.0
        attended = heterogeneous_attention(q, keys, values, self.gamma, seen, self.scale, dropout)
        return self.out(
            attended.view(batch, self.heads, slots, atoms, -1).permute(0, 2, 3, 1, 4).reshape(batch, slots, atoms, -1)
        )

    def _tokens(self, projected: Tensor, theta: Tensor, turn: bool = True) -> Tensor:
        """Split (B, 1 or P, N, d) into heads, rotate, and flatten time-major: (B, h, P N, d_h), token p N + i."""
        split = projected.view(*projected.shape[:3], self.heads, -1).permute(0, 3, 1, 2, 4)  # (B, h, 1 or P, N, d_h)
        if turn:
            split = self.rotate(split, theta[:, None, :, None, :])
        return split.expand(-1, -1, theta.shape[1], -1, -1).flatten(2, 3)
