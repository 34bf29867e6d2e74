"""ATOM: one molecular state in, the positions at P later times out, in one forward pass (Sec. 3).

The P slots start with the same features and differ by their rotary angles alone. Of the three streams only X is
updated from block to block; V and Z stay as they were lifted (Sec. 3.4, step 7), the same in every slot, so they are
projected once and not P times.

Symbols: B batch, P slots, N atoms, d width, h heads, K random-walk steps, H output heads, τ unit of time (fs).
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from e3nn import o3
from torch import Tensor, nn

from .attention import HeterogeneousAttention, Scale
from .features import centre, rrwp, with_norm
from .lifting import Lifting, LiftingKind, hidden_irreps
from .operators import SolutionOperator
from .rope import angles


class SwiGLU(nn.Module):
    """silu(W_a u) ⊙ (W_b u), the width kept (Sec. 3.4, step 5)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, u: Tensor) -> Tensor:
        """Map (..., d) to (..., d)."""
        return nn.functional.silu(self.a(u)) * self.b(u)


def mlp(width: int, hidden: int, out: int, dropout: float = 0.1) -> nn.Sequential:
    """Build a perceptron of two hidden layers with SwiGLU, and dropout before the last map (Sec. 3.4, step 5)."""
    return nn.Sequential(
        nn.Linear(width, hidden),
        SwiGLU(hidden),
        nn.Linear(hidden, hidden),
        SwiGLU(hidden),
        nn.Dropout(dropout),
        nn.Linear(hidden, out),
    )


class Block(nn.Module):
    """Heterogeneous temporal attention, then a perceptron; updates the X stream (Sec. 3.4).

    Args:
        width: d.
        norm: one for all three streams: `rms` or `layer`, or `none`.
        norm_eps: added to the mean square; large against a stream's, it keeps the stream's magnitude.
        residual: what the attention's answer is added to: the `normed` stream, as the released code does, or `raw`.
        attention: the attention.
        dropout: of the perceptron.
    """

    def __init__(
        self,
        width: int,
        norm: Literal["rms", "layer", "none"],
        norm_eps: float,
        residual: Literal["normed", "raw"],
        attention: HeterogeneousAttention,
        dropout: float,
    ) -> None:
        super().__init__()
        norms: dict[str, nn.Module] = {
            "rms": nn.RMSNorm(width, eps=norm_eps),
            "layer": nn.LayerNorm(width, eps=norm_eps),
            "none": nn.Identity(),
        }
        self.norm, self.residual, self.attention = norms[norm], residual, attention
        self.mlp = mlp(width, width, width, dropout)

    def forward(
        self, x: Tensor, v: Tensor, z: Tensor, mask: Tensor, theta: Tensor, anchor: Tensor | None = None
    ) -> Tensor:
        """Update X.

        Args:
            x: (B, 1 or P, N, d), the stream that is updated.
            v: (B, 1, N, d).
            z: (B, 1, N, d).
            mask: (B, N), atoms that exist.
            theta: angles of the slots (B, P, d_h / 2).
            anchor: X as it was lifted (B, 1, N, d), to add keys of the initial state at angle 0; None for none.

        Returns:
            (B, P, N, d).
        """
        normed = self.norm(x)
        streams, key_theta = [normed, self.norm(v), self.norm(z)], theta
        if anchor is not None:
            slots = theta.shape[1]
            first = [self.norm(anchor), *streams[1:]]
            streams = [torch.cat((a, f.expand(-1, slots, -1, -1)), dim=1) for a, f in zip(first, streams, strict=True)]
            key_theta = torch.cat((torch.zeros_like(theta[:, :1]), theta), dim=1)
        streams = streams[: len(self.attention.w)]
        y = (normed if self.residual == "normed" else x) + self.attention(z, streams, mask, theta, key_theta)
        return y + self.mlp(y) * mask[:, None, :, None]


class ATOM(SolutionOperator):
    """The paper's operator; its defaults are those of the embedded experiment, `configs` has the published ones.

    Args:
        depth: L, number of blocks.
        width: d; with the equivariant lifting not divisible by 3, and d / heads even.
        heads: h.
        output_heads: H, linear maps to the positions, mixed by weights of the molecule; 1 for a single task.
        rrwp_steps: K, random-walk steps; 0 for a single task.
        lifting: `equivariant`, `no_tensor_product` or `none` (Sec. 3.3).
        rope_time: what turns the queries and keys: the real `lag`, the slot's `index` as in the released code, or
            `none`.
        tau: τ (fs) of `lag`.
        rope_base: of the frequencies.
        anchor_keys: add keys and values of the initial state at angle 0, so that absolute lags count (inferred).
        heterogeneous: attend to X, V and Z; else to X alone.
        attention_scale: divide scores by √d_h (`sqrt`) or by d_h (`linear`, as the released code).
        learn_scale: a learnt factor of the scores per head.
        attention_dropout: of the weights of the attention.
        dropout: of the perceptrons.
        norm: `rms`, `layer` or `none`, one for the three streams of a block.
        norm_eps: of the norms.
        residual: `normed` or `raw`: what the attention's answer is added to.
        value_residual: mix of each later block with the first one's output: `learned`, `fixed` or `none`.
        delta_update: predict the displacement from x_0; the last map starts at 0, which makes the untrained network
            the identity.
        center: subtract the mean position of the state, and add it to the prediction.
        position_scale: multiplies x (Å) before the lifting.
        velocity_scale: multiplies v (Å per frame) before the lifting.
        z_scale: multiplies the atomic number before the lifting.

    Raises:
        ValueError: if an option is out of range.
    """

    def __init__(
        self,
        depth: int = 3,
        width: int = 104,
        heads: int = 4,
        output_heads: int = 4,
        rrwp_steps: int = 8,
        lifting: LiftingKind = "equivariant",
        rope_time: Literal["lag", "index", "none"] = "lag",
        tau: float = 8.0,
        rope_base: float = 1000.0,
        anchor_keys: bool = False,
        heterogeneous: bool = True,
        attention_scale: Scale = "sqrt",
        learn_scale: bool = False,
        attention_dropout: float = 0.2,
        dropout: float = 0.1,
        norm: Literal["rms", "layer", "none"] = "rms",
        norm_eps: float = 1e-6,
        residual: Literal["normed", "raw"] = "normed",
        value_residual: Literal["learned", "fixed", "none"] = "learned",
        delta_update: bool = True,
        center: bool = True,
        position_scale: float = 1.0,
        velocity_scale: float = 1.0,
        z_scale: float = 1.0,
    ) -> None:
        super().__init__()
        for option, value, least in (
            ("depth", depth, 1),
            ("heads", heads, 1),
            ("output_heads", output_heads, 1),
            ("rrwp_steps", rrwp_steps, 0),
        ):
            if value < least:
                raise ValueError(f"{option} must be at least {least}, got {value}")
        if width % heads or (width // heads) % 2:
            raise ValueError(f"width must be an even multiple of heads, {heads}, for pairs to rotate, got {width}")
        for option, number in (
            ("tau", tau),
            ("norm_eps", norm_eps),
            ("position_scale", position_scale),
            ("velocity_scale", velocity_scale),
            ("z_scale", z_scale),
        ):
            if not 0 < number < math.inf:
                raise ValueError(f"{option} must be a finite number > 0, got {number}")
        if not 1 < rope_base < math.inf:
            raise ValueError(f"rope_base must be a finite number > 1, got {rope_base}")
        for option, rate in (("attention_dropout", attention_dropout), ("dropout", dropout)):
            if not 0 <= rate < 1:
                raise ValueError(f"{option} must lie in [0, 1), got {rate}")
        self.head_width, self.rrwp_steps = width // heads, rrwp_steps
        self.rope_time, self.tau, self.rope_base, self.anchor_keys = rope_time, tau, rope_base, anchor_keys
        self.value_residual, self.delta_update, self.center = value_residual, delta_update, center
        self.scales = position_scale, velocity_scale, z_scale
        self.lift = Lifting(width, 1 + rrwp_steps, lifting)
        streams = 3 if heterogeneous else 1
        self.blocks = nn.ModuleList(
            Block(
                width, norm, norm_eps, residual,
                HeterogeneousAttention(width, heads, streams, attention_scale, learn_scale, attention_dropout), dropout,
            )
            for _ in range(depth)
        )  # fmt: skip
        mixes = torch.full((depth - 1,), 0.5)
        self.mix = nn.Parameter(mixes, requires_grad=value_residual == "learned")  # λ of the later blocks
        self.readout = o3.Linear(hidden_irreps(width), o3.Irreps([(output_heads, (1, -1))]))
        self.gate = mlp(width, max(width // 4, 1), output_heads, dropout) if output_heads > 1 else None
        if delta_update:
            nn.init.zeros_(self.readout.weight)

    def forward(self, x: Tensor, v: Tensor, z: Tensor, lags: Tensor, bonds: Tensor, mask: Tensor) -> Tensor:
        """Predict positions; see `SolutionOperator`.

        Raises:
            ValueError: for a single lag without anchored keys: relative times cannot tell when it lies.
        """
        if lags.shape[1] == 1 and not self.anchor_keys and self.rope_time == "lag":
            raise ValueError("a single lag is invisible to relative times; ask for two lags or more, or anchor_keys")
        origin = centre(x, mask) if self.center else x.new_zeros(len(x), 1, 3)
        start = (x - origin) * mask[..., None]
        lifted = self.streams(start, v, z, bonds)
        hidden = self.encode(*lifted, self.slot_angles(lags), mask)
        moved = self.read_out(hidden, lifted[-1], mask)
        base = x if self.delta_update else origin
        return (moved + base[:, None]) * mask[:, None, :, None]

    def streams(self, x: Tensor, v: Tensor, z: Tensor, bonds: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Lift a centred state to X, V and Z, (B, 1, N, d) each: the same for all slots."""
        of_x, of_v, of_z = self.scales
        # e3nn knows no autocast, and half precision would round positions to hundredths of an Å.
        with torch.autocast(x.device.type, enabled=False):
            scalars = torch.cat((of_z * z[..., None].to(x.dtype), rrwp(bonds.to(x.dtype), self.rrwp_steps)), dim=-1)
            lifted = self.lift(with_norm(of_x * x), with_norm(of_v * v), scalars)
        return lifted[0][:, None], lifted[1][:, None], lifted[2][:, None]

    def slot_angles(self, lags: Tensor) -> Tensor:
        """Return the angles of the slots (B, P, d_h / 2), in float32 at least."""
        times = lags.to(torch.promote_types(lags.dtype, torch.float32))
        if self.rope_time == "index":
            times = torch.arange(lags.shape[1], device=lags.device, dtype=times.dtype).expand(lags.shape)
        elif self.rope_time == "none":
            times = torch.zeros_like(times)
        return angles(times, self.head_width, self.rope_base, self.tau if self.rope_time == "lag" else 1.0)

    def encode(self, x: Tensor, v: Tensor, z: Tensor, theta: Tensor, mask: Tensor) -> Tensor:
        """Run the blocks: the hidden state of each slot and atom (B, P, N, d)."""
        anchor, first = (x if self.anchor_keys else None), x
        for index, block in enumerate(self.blocks):
            x = block(x, v, z, mask, theta, anchor)
            if index == 0:
                first = x
            elif self.value_residual != "none":
                share = self.mix[index - 1].sigmoid()
                x = share * x + (1 - share) * first  # Sec. 3.4, step 6
        return x

    def read_out(self, hidden: Tensor, z: Tensor, mask: Tensor) -> Tensor:
        """Map the hidden state to vectors (B, P, N, 3), mixing the heads by weights of the molecule (Sec. 3.6)."""
        with torch.autocast(hidden.device.type, enabled=False):
            vectors = self.readout(hidden.to(self.readout.weight)).unflatten(-1, (-1, 3))  # (B, P, N, H, 3)
        if self.gate is None:
            return vectors[..., 0, :]
        atoms = mask[:, None, :, None]
        mean = (z * atoms).sum(dim=(1, 2)) / mask.sum(dim=1, keepdim=True).clamp(min=1)  # without padded atoms
        weights = self.gate(mean).softmax(dim=-1)
        with torch.autocast(hidden.device.type, enabled=False):
            return torch.einsum("bpnhc,bh->bpnc", vectors, weights.to(vectors))
