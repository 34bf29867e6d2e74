"""EGNO (Xu et al., 2024, arXiv 2401.11037), the equivariant baseline: EGNN layers joined by convolutions over time.

The state is copied to P time slots. Each layer convolves over the slots in Fourier space, then passes messages between
atoms of one slot. Symbols: h scalars (P, M, C), x centred positions and v velocities (P, M, 3), M the real atoms of all
samples of the batch in a row, e the E directed edges among them. Slots come first throughout (time-major), an edge
joins two atoms of one sample, and every slot has the same edges, so neither samples nor slots can mix.

Why it is E(3)-equivariant: h sees lengths only, x and v are changed by adding vectors times scalars, and the
convolution mixes the channels (x, v) with the same weights for all three coordinates, without bias or nonlinearity.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor, nn

from .operators import SolutionOperator

ELEMENTS = 119
"""Rows of the element table: Z = 1 to 118; row 0 is padding and never read."""


def hop_edges(bonds: Tensor, mask: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Directed 1-hop and 2-hop edges of a batch, between its real atoms numbered in order (sample by sample).

    Args:
        bonds: adjacency (B, N, N), 0 or 1, zero on the diagonal.
        mask: (B, N) bool, True for real atoms.

    Returns:
        receivers (E,) and senders (E,), int64 in [0, M); hops (E, 2), one-hot in the dtype of `bonds`: (1, 0) between
        bonded atoms, (0, 1) between atoms that share a neighbour and are not bonded.
    """
    real = mask.unsqueeze(2) & mask.unsqueeze(1)
    one = (bonds > 0) & real
    paths = one.to(bonds.dtype) @ one.to(bonds.dtype)
    itself = torch.eye(bonds.shape[1], dtype=torch.bool, device=bonds.device)
    two = (paths > 0) & ~one & ~itself
    sample, i, j = (one | two).nonzero(as_tuple=True)
    number = mask.flatten().cumsum(0).view_as(mask) - 1
    hops = torch.stack((one[sample, i, j], two[sample, i, j]), 1).to(bonds.dtype)
    return number[sample, i], number[sample, j], hops


def time_embedding(times: Tensor, width: int) -> Tensor:
    """sin(ω_k t) and cos(ω_k t) for frequencies ω_k that fall geometrically from 1 to 10⁻⁴.

    Args:
        times: (...), in units of τ.
        width: even, at least 4.

    Returns:
        (..., width): all sines, then all cosines.
    """
    half = width // 2
    omega = torch.exp(-math.log(10_000) / (half - 1) * torch.arange(half, device=times.device, dtype=times.dtype))
    angles = times.unsqueeze(-1) * omega
    return torch.cat((angles.sin(), angles.cos()), -1)


def gaussian_basis(distance: Tensor, count: int) -> Tensor:
    """exp(−(d − c_k)² / s²) for `count` centres c_k spread evenly over the distances of 1- and 2-hop pairs.

    Args:
        distance: (E, 1), Å.
        count: K, number of centres from 0.8 to 3.2 Å; the width s is 1.5 spacings.

    Returns:
        (E, K), in [0, 1].
    """
    centres = torch.linspace(0.8, 3.2, count, device=distance.device, dtype=distance.dtype)
    spacing = 2.4 / max(count - 1, 1)
    return torch.exp(-(((distance - centres) / (1.5 * spacing)) ** 2))


def spectral_convolution(f: Tensor, weights: Tensor) -> Tensor:
    """irfft(R_k · rfft(f)_k) over the slots, with modes k beyond the K of the weights set to zero.

    The transforms are written as products with K rows of the Fourier matrix, which is faster than an FFT for a few
    modes and short P, and runs in every dtype. Where P has fewer than K modes (⌊P/2⌋ + 1), the last weights are unused.

    Args:
        f: real signal (P, ..., C).
        weights: R (K, C, C', 2), real and imaginary parts.

    Returns:
        (P, ..., C'), real.
    """
    slots = f.shape[0]
    modes = min(weights.shape[0], slots // 2 + 1)
    k = torch.arange(modes, device=f.device, dtype=f.dtype)
    angle = (2 * math.pi / slots) * k.unsqueeze(1) * torch.arange(slots, device=f.device, dtype=f.dtype)
    cos, sin = angle.cos(), angle.sin()
    # Modes other than 0 and P/2 stand for a pair of conjugate frequencies, so they count twice on the way back.
    twice = torch.where((k == 0) | (2 * k == slots), 1.0, 2.0).to(f.dtype).unsqueeze(1) / slots
    a, b = torch.einsum("kp,p...c->k...c", cos, f), torch.einsum("kp,p...c->k...c", -sin, f)
    re, im = weights[:modes].unbind(-1)
    c = torch.einsum("k...c,kco->k...o", a, re) - torch.einsum("k...c,kco->k...o", b, im)
    d = torch.einsum("k...c,kco->k...o", a, im) + torch.einsum("k...c,kco->k...o", b, re)
    return torch.einsum("kp,k...o->p...o", twice * cos, c) - torch.einsum("kp,k...o->p...o", twice * sin, d)


class EGNOLayer(nn.Module):
    """One temporal convolution of h and (x, v), then one EGNN layer with velocities.

    m_ij = φ_e(h_i, h_j, ‖x_i − x_j‖², e_ij), x_i += φ_v(h_i) v_i + mean_j (x_i − x_j) φ_x(m_ij),
    h_i += φ_h(h_i, Σ_j m_ij).

    Args:
        width: C, of h and of the messages.
        modes: K, Fourier modes kept.
        edge_width: A, number of attributes e_ij.
        clamp: bound on |φ_x|. EGNN bounds each coordinate of (x_i − x_j) φ_x instead, which depends on the frame.
        last: leave φ_h out: nothing reads h after the last layer.
    """

    def __init__(self, width: int, modes: int, edge_width: int, clamp: float, last: bool) -> None:
        super().__init__()
        self.clamp = clamp
        self.conv_h = nn.Parameter(torch.randn(modes, width, width, 2) / width)
        self.conv_x = nn.Parameter(torch.zeros(modes, 2, 2, 2))
        # φ_e's first Linear acts on (h_i, h_j, ‖·‖², e_ij); as a sum it runs on h per atom, not per
        # edge, and on e_ij once for all slots.
        self.receiver = nn.Linear(width, width)
        self.sender = nn.Linear(width, width, bias=False)
        self.squared = nn.Linear(1, width, bias=False)
        self.edge = nn.Linear(edge_width, width, bias=False)
        self.phi_e = nn.Sequential(nn.SiLU(), nn.Linear(width, width), nn.SiLU())
        self.phi_x = nn.Sequential(nn.Linear(width, width), nn.SiLU(), nn.Linear(width, 1, bias=False))
        self.phi_v = nn.Sequential(nn.Linear(width, width), nn.SiLU(), nn.Linear(width, 1, bias=False))
        for phi in (self.phi_x, self.phi_v):  # so that the untrained network is close to the identity
            nn.init.xavier_uniform_(phi.get_parameter("2.weight"), gain=1e-3)
        self.phi_h = None if last else nn.Sequential(nn.Linear(2 * width, width), nn.SiLU(), nn.Linear(width, width))

    def forward(
        self, h: Tensor, x: Tensor, v: Tensor, receivers: Tensor, senders: Tensor, attributes: Tensor, degree: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Update one layer.

        Args:
            h: (P, M, C).
            x: positions relative to the centre of their sample (P, M, 3), Å.
            v: (P, M, 3), any unit.
            receivers: i of each edge (E,).
            senders: j of each edge (E,).
            attributes: e_ij, the same in all slots (E, A).
            degree: number of edges into each atom, at least 1 (M, 1).

        Returns:
            h, x and v.
        """
        h = h + nn.functional.leaky_relu(spectral_convolution(h, self.conv_h))
        vectors = torch.stack((x, v), -1)
        x, v = (vectors + spectral_convolution(vectors, self.conv_x)).unbind(-1)

        r = x.index_select(1, receivers) - x.index_select(1, senders)
        at_i, at_j = self.receiver(h).index_select(1, receivers), self.sender(h).index_select(1, senders)
        lengths = self.squared(r.square().sum(-1, keepdim=True))
        m = self.phi_e(at_i + at_j + lengths + self.edge(attributes))

        push = r * self.phi_x(m).clamp(-self.clamp, self.clamp)
        x = x + self.phi_v(h) * v + torch.zeros_like(x).index_add(1, receivers, push.to(x.dtype)) / degree
        if self.phi_h is not None:
            total = torch.zeros_like(h).index_add(1, receivers, m.to(h.dtype))
            h = h + self.phi_h(torch.cat((h, total), -1))
        return h, x, v


class EGNO(SolutionOperator):
    """EGNO on molecules: strictly E(3)- and permutation-equivariant, any B, P ≥ 1 and N.

    h_0 is a linear map of ‖v‖, the element (one-hot) and the time embedding. Slots are treated as evenly spaced by
    the convolution, whatever the lags are. The weights that are imaginary parts of mode 0 cannot act on a real signal.

    Args:
        depth: number of layers.
        width: C, of the scalars and messages.
        modes: Fourier modes over the slots that each convolution keeps.
        time_width: of the sin/cos embedding of the lag; even, at least 4.
        tau: fs, the unit of time of the embedding; ignored with `time="index"`.
        time: embed the real `lag` Δ_p / τ, or the slot's `index` 0..P−1 as the released code does, to which the
            horizon is invisible.
        velocity_scale: factor on v inside the network. Å per frame is a small unit: with 1 fs frames, 8 makes v the
            displacement over 8 fs, which is as large as what is to be predicted. 1 is the released code.
        radial: number of Gaussians of the initial distance that join its square in e_ij. 0 is the released code, in
            which a change of a bond by 0.03 Å hardly shows; ours learns vibrations much faster.
        clamp: bound on the factor φ_x of a relative position.

    Raises:
        ValueError: where an option is out of range.
    """

    def __init__(
        self,
        depth: int = 5,
        width: int = 64,
        modes: int = 2,
        time_width: int = 32,
        tau: float = 8.0,
        time: Literal["lag", "index"] = "lag",
        velocity_scale: float = 8.0,
        radial: int = 32,
        clamp: float = 100.0,
    ) -> None:
        super().__init__()
        for name, value in (("depth", depth), ("width", width), ("modes", modes)):
            if value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        for name, number in (("tau", tau), ("velocity_scale", velocity_scale), ("clamp", clamp)):
            if not (math.isfinite(number) and number > 0):
                raise ValueError(f"{name} must be a positive number, got {number}")
        if radial < 0:
            raise ValueError(f"radial must not be negative, got {radial}")
        if time_width < 4 or time_width % 2:
            raise ValueError(f"time_width must be even and at least 4, got {time_width}")
        if time not in ("lag", "index"):
            raise ValueError(f"time must be 'lag' or 'index', got {time!r}")
        self.time_width, self.tau, self.time, self.velocity_scale = time_width, tau, time, velocity_scale
        self.element = nn.Embedding(ELEMENTS, width)
        self.embed = nn.Linear(1 + time_width, width)
        self.radial = radial
        self.layers = nn.ModuleList(
            EGNOLayer(width, modes, edge_width=3 + radial, clamp=clamp, last=i == depth - 1) for i in range(depth)
        )

    def forward(self, x: Tensor, v: Tensor, z: Tensor, lags: Tensor, bonds: Tensor, mask: Tensor) -> Tensor:
        """Predict positions, see `SolutionOperator.forward`.

        Raises:
            ValueError: where the shapes do not fit together.
        """
        with torch.autocast(x.device.type, enabled=False):  # half precision would break the equivariance
            return self._predict(x, v, z, lags, bonds, mask)

    def _predict(self, x: Tensor, v: Tensor, z: Tensor, lags: Tensor, bonds: Tensor, mask: Tensor) -> Tensor:
        if x.ndim != 3 or x.shape[2] != 3 or v.shape != x.shape:
            raise ValueError(f"x and v must both be (B, N, 3), got {tuple(x.shape)} and {tuple(v.shape)}")
        batch, atoms, _ = x.shape
        if lags.ndim != 2 or lags.shape[0] != batch or lags.shape[1] < 1:
            raise ValueError(f"lags must be ({batch}, P) with P of at least 1, got {tuple(lags.shape)}")
        slots = lags.shape[1]

        count = mask.sum(1).clamp(min=1).view(batch, 1, 1)
        centre = (x * mask.unsqueeze(2)).sum(1, keepdim=True) / count
        sample = mask.nonzero()[:, 0]
        x0, v0 = (x - centre)[mask], v[mask] * self.velocity_scale
        receivers, senders, hops = hop_edges(bonds.to(x.dtype), mask)
        distance = torch.linalg.vector_norm(x0[receivers] - x0[senders], dim=1, keepdim=True)
        attributes = torch.cat((hops, distance.square(), gaussian_basis(distance, self.radial)), 1)
        degree = torch.bincount(receivers, minlength=len(x0)).clamp(min=1).unsqueeze(1).to(x.dtype)

        if self.time == "lag":
            times = lags.to(x.dtype) / self.tau
        else:
            times = torch.arange(slots, device=x.device, dtype=x.dtype).expand(batch, slots)
        clock = time_embedding(times, self.time_width).transpose(0, 1)[:, sample]
        speed = torch.linalg.vector_norm(v0, dim=1).view(1, -1, 1).expand(slots, -1, -1)
        h = self.embed(torch.cat((speed, clock), 2)) + self.element(z[mask])

        state = h, x0.expand(slots, -1, -1), v0.expand(slots, -1, -1)
        for layer in self.layers:
            state = layer(*state, receivers, senders, attributes, degree)

        out = x.new_zeros(slots, batch, atoms, 3)
        out[:, mask] = state[1]
        return (out + centre * mask.unsqueeze(2)).transpose(0, 1)
