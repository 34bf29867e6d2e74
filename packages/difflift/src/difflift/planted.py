"""Planted groups: a task whose useful cells no edge shows (Sec. 7.3).

A vertex must know the values of the other vertices of its group. The groups are drawn independently of the tree that
holds the vertices, so that edges, cycles and hops say nothing about them; the group is written in the features, among
noise that drowns it for a nearest-neighbour search.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch_geometric.data import Data

from difflift.tu import symmetric


def prufer_trees(sequences: NDArray[np.int64], vertices: int) -> NDArray[np.int64]:
    """Decode Prüfer sequences, which are one to one with the labelled trees.

    Args:
        sequences: (G, N - 2), or (G, 0) if N < 3, in [0, N).
        vertices: N.

    Returns:
        Edges (G, N - 1, 2).
    """
    trees, steps = sequences.shape
    rows = np.arange(trees)
    edges = np.empty((trees, max(vertices - 1, 0), 2), dtype=np.int64)
    degree = 1 + (sequences[:, :, None] == np.arange(vertices)).sum(1)  # (G, N), of what is left of the tree
    for step in range(steps):
        leaf = (degree == 1).argmax(1)  # the lowest
        edges[:, step, 0], edges[:, step, 1] = leaf, sequences[:, step]
        degree[rows, leaf] = 0
        degree[rows, sequences[:, step]] -= 1
    if vertices > 1:
        edges[:, -1] = np.nonzero(degree == 1)[1].reshape(trees, 2)
    return edges


def planted_labels(group: NDArray[np.int64], value: NDArray[np.float64], groups: int) -> NDArray[np.int64]:
    """Return y_u = 1[mean of v over the other vertices of u's group > 0] (G, N); 0 in a group of one.

    Args:
        group: c (G, N) in [0, groups).
        value: v (G, N).
        groups: number of groups.
    """
    key = np.arange(len(group))[:, None] * groups + group
    total = np.bincount(key.ravel(), value.ravel(), minlength=len(group) * groups)
    # A mean has the sign of its sum; in a group of one the difference is exactly 0.
    return (total[key] - value > 0).astype(np.int64)


def planted(
    graphs: int = 240,
    vertices: int = 40,
    groups: int = 8,
    noise_dims: int = 16,
    noise: float = 2.0,
    seed: int = 0,
) -> list[Data]:
    """Draw trees with planted groups.

    Args:
        graphs: number of graphs, at least 1.
        vertices: N of each, at least 1.
        groups: number of groups, at least 1.
        noise_dims: features that are noise, at least 0.
        noise: their standard deviation, at least 0.
        seed: the graphs are a function of the arguments alone.

    Returns:
        Graphs with x (N, groups + 1 + noise_dims) float32 (group one-hot ‖ value ~ N(0, 1) ‖ noise), edge_index of a
        uniformly random labelled tree, y (N,) int64 and group (N,) int64.

    Raises:
        ValueError: if an argument is out of range.
    """
    for option, value, least in (
        ("graphs", graphs, 1),
        ("vertices", vertices, 1),
        ("groups", groups, 1),
        ("noise_dims", noise_dims, 0),
        ("noise", noise, 0),
    ):
        if not value >= least:
            raise ValueError(f"{option} must be at least {least}, got {value}")
    rng = np.random.default_rng(seed)
    group = rng.integers(groups, size=(graphs, vertices))
    v = rng.standard_normal((graphs, vertices))
    drowning = noise * rng.standard_normal((graphs, vertices, noise_dims))
    edges = prufer_trees(rng.integers(vertices, size=(graphs, max(vertices - 2, 0))), vertices)

    x = np.concatenate([group[:, :, None] == np.arange(groups), v[:, :, None], drowning], axis=2).astype(np.float32)
    y = planted_labels(group, v, groups)
    return [
        Data(
            x=torch.from_numpy(x[g].copy()),
            edge_index=symmetric(torch.from_numpy(edges[g].T.copy()), vertices),
            y=torch.from_numpy(y[g].copy()),
            group=torch.from_numpy(group[g].copy()),
        )
        for g in range(graphs)
    ]
