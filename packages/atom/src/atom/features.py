"""What the network is told of a state: norms, the graph of near atoms, random walks on it (Sec. 3.2).

Symbols: x positions (Å), v frame differences (Å per frame), A adjacency, D its degrees, M = D^-1 A, K steps.
"""

from __future__ import annotations

import torch
from torch import Tensor

CUTOFF = 1.6  # Å
WIDEST_CUTOFF = 10.0  # Å


def near_atoms(positions: Tensor, cutoff: float = CUTOFF) -> Tensor:
    """Return the graph of atoms nearer than a cutoff, which grows by half until there is an edge.

    Args:
        positions: one reference frame (N, 3), Å.
        cutoff: Å.

    Returns:
        Adjacency (N, N), float32: 1 where the distance is below the cutoff, 0 on the diagonal.

    Raises:
        ValueError: if there is none at the widest cutoff up to 10 Å.
    """
    distances = torch.cdist(positions.double(), positions.double())
    others = ~torch.eye(len(positions), dtype=torch.bool, device=positions.device)
    tried = 0.0
    while cutoff <= WIDEST_CUTOFF:
        edges = (distances < cutoff) & others
        if edges.any():
            return edges.float()
        tried, cutoff = cutoff, 1.5 * cutoff
    raise ValueError(
        f"the graph of {len(positions)} atoms needs two within {tried:.3g} Å of each other, its widest cutoff "
        f"up to {WIDEST_CUTOFF:g} Å, got none"
    )


def rrwp(bonds: Tensor, steps: int) -> Tensor:
    """Return the probabilities that a random walk is back after k = 1 .. K steps, (M^k)_ii.

    Args:
        bonds: A (..., N, N); an atom without neighbours has a row of zeros, and so only zeros here.
        steps: K.

    Returns:
        Probabilities (..., N, K).
    """
    degrees = bonds.sum(dim=-1, keepdim=True)
    walk = bonds / degrees.clamp(min=1)
    power, found = walk, []
    for k in range(steps):
        power = walk @ power if k else walk
        found.append(power.diagonal(dim1=-2, dim2=-1))
    return torch.stack(found, dim=-1) if found else bonds.new_zeros(*bonds.shape[:-1], 0)


def with_norm(u: Tensor) -> Tensor:
    """Append the norm of vectors (..., 3): a vector 1o and a scalar 0e (..., 4)."""
    return torch.cat((u, u.norm(dim=-1, keepdim=True)), dim=-1)


def centre(x: Tensor, mask: Tensor) -> Tensor:
    """Return the mean position of the atoms that exist.

    Args:
        x: (B, N, 3), 0 where padded.
        mask: (B, N).

    Returns:
        (B, 1, 3); 0 for a sample without atoms.
    """
    return x.sum(dim=1, keepdim=True) / mask.sum(dim=1).clamp(min=1)[:, None, None]
