"""UniGCNII and UniGIN (Huang & Yang, 2021, arXiv 2105.00956), networks on hypergraphs with inclusions (Sec. 3.7).

Symbols:

    B      incidence (N, E), entries m · s: membership of vertex v in hyperedge e, times the hyperedge's inclusion
    x_v    signal of a vertex (D,), z_e of a hyperedge
    d_v    number of included hyperedges at v, d_e the mean of d_v over the members of e

Where the formulas have B twice around one hyperedge, the inner sum is over members, by m: for s of 0 or 1 the product
s · s is s, but its gradient at s = 0 is nothing.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from difflift.complexes import Complex
from difflift.networks import Network, member_sum, mlp
from difflift.options import check_number


def inverse_root(degrees: Tensor) -> Tensor:
    """Return max(d, 1)^(-1/2), of the shape of d, with the gradient of d^(-1/2) from d = 1 on.

    Degrees around an included hyperedge are at least 1, so for s of 0 or 1 the bound changes no output. One near 0
    would give vertices that have no hyperedge yet a gradient in s of up to 1 / bound.
    """
    return torch.where(degrees >= 1, degrees, 1.0).rsqrt()


class UniGCNII(Network):
    """GCNII on hypergraphs: means over members, normalised by degrees, with a residual to the first layer's input.

    Args:
        width: D.
        layers: L.
        alpha: α, share of the network's input in every layer, in [0, 1].
        theta: θ, at least 0; the weights of layer l count β_l = log(θ / l + 1).
        dropout: probability that a value of a layer's input is dropped while training.

    Raises:
        ValueError: if an option is outside its range.
    """

    ranks = 1

    def __init__(
        self, width: int, layers: int = 2, alpha: float = 0.1, theta: float = 0.5, dropout: float = 0.0
    ) -> None:
        super().__init__(width, layers, dropout)
        if not 0 <= alpha <= 1:
            raise ValueError(f"alpha must lie in [0, 1], got {alpha}")
        check_number("theta", theta, least=0)
        self.alpha = alpha
        self.betas = [math.log(theta / layer + 1) for layer in range(1, layers + 1)]
        self.weights = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in self.betas)

    def forward(self, x: Tensor, complex: Complex) -> tuple[Tensor]:
        """Return x_0 (N, D) from the hidden features of the vertices (N, D)."""
        b = complex.b1
        d_v = b.degrees
        d_e = b.member_mean(d_v[:, None])  # (E, 1)
        scale_v, scale_e = inverse_root(d_v)[:, None], inverse_root(d_e)
        start = x
        for weight, beta in zip(self.weights, self.betas, strict=True):
            z = b.member_mean(self.dropout(x))  # z_e = Σ_v B_ve x_v / Σ_v B_ve
            y = scale_v * b.down(scale_e * z)  # y_v = d_v^(-1/2) Σ_e B_ve d_e^(-1/2) z_e
            q = (1 - self.alpha) * y + self.alpha * start
            x = torch.relu((1 - beta) * q + beta * weight(q))
        return (x,)


class UniGIN(Network):
    """GIN on hypergraphs: x_v' = MLP((1 + ε) x_v + Σ_e B_ve Σ_u B_ue x_u), with a ReLU between layers.

    Args:
        width: D.
        layers: L.
        eps: ε, or where it starts.
        train_eps: learn ε, one for each layer.
        dropout: probability that a value of a layer's input is dropped while training.

    Raises:
        ValueError: if an option is outside its range.
    """

    ranks = 1

    def __init__(
        self, width: int, layers: int = 2, eps: float = 0.0, train_eps: bool = False, dropout: float = 0.0
    ) -> None:
        super().__init__(width, layers, dropout)
        check_number("eps", eps)
        self.eps: Tensor
        if train_eps:
            self.eps = nn.Parameter(torch.full((layers,), eps))
        else:
            self.register_buffer("eps", torch.full((layers,), eps))
        self.updates = nn.ModuleList(mlp(width, width) for _ in range(layers))

    def forward(self, x: Tensor, complex: Complex) -> tuple[Tensor]:
        """Return x_0 (N, D) from the hidden features of the vertices (N, D)."""
        b = complex.b1
        for layer, (update, eps) in enumerate(zip(self.updates, self.eps, strict=True)):
            x = self.dropout(torch.relu(x) if layer else x)
            x = update((1 + eps) * x + b.down(member_sum(b, x)))
        return (x,)
