"""Figures of lifted graphs: cells shaded, hyperedges as hulls, sizes, inclusion while training (Sec. 12).

Colours are those of Okabe and Ito. What the lifting added differs from the graph in line or shading as well.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import networkx as nx
import numpy as np
from numpy.typing import NDArray
from shared.tables import drawing

if TYPE_CHECKING:
    from matplotlib.axis import Axis

Array = NDArray[np.float64]

BLACK, GREY, BLUE, VERMILION = "#000000", "#767676", "#0072B2", "#D55E00"
CELLS = ("#E69F00", "#56B4E9", "#009E73", "#F0E442", "#0072B2", "#D55E00", "#CC79A7")
KINDS = {"edge": (BLUE, "learned edge"), "hyperedge": ("#E69F00", "hyperedge"), "polygon": ("#009E73", "2-cell")}
ELEMENTS = {"C": "#4A4A4A", "N": BLUE, "O": VERMILION, "F": "#009E73", "Cl": "#009E73", "S": "#8A6D00", "P": "#A8497A"}
LABELLED = 60  # vertices of the largest graph whose vertices are numbered
BEST_LAYOUT = 150  # vertices of the largest graph for which every distance is fitted


def whole_numbers(axis: Axis) -> None:
    """Put an axis's ticks at whole numbers."""
    from matplotlib.ticker import MaxNLocator

    axis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))


def positions(vertices: int, edges: Sequence[Sequence[int]], seed: int = 0) -> Array:
    """Place the vertices of a graph in the plane: by all distances where it is connected and small, else by springs.

    Args:
        vertices: N.
        edges: ends of each edge.
        seed: of the springs' start.

    Returns:
        (N, 2), the median length of an edge 1.
    """
    graph = nx.Graph()
    graph.add_nodes_from(range(vertices))
    graph.add_edges_from((int(u), int(v)) for u, v in edges)
    if 1 < vertices <= BEST_LAYOUT and nx.is_connected(graph):
        layout = nx.kamada_kawai_layout(graph)
    else:
        layout = nx.spring_layout(graph, seed=seed)
    return scaled(np.array([layout[v] for v in range(vertices)], dtype=float).reshape(-1, 2), edges)


def molecule_positions(z: Sequence[int], bonds: Sequence[Sequence[int]]) -> Array:
    """Place the atoms of a molecule as rdkit draws it.

    The bonds' orders are not needed, and atoms keep their numbers, which they would not on the way through SMILES.

    Args:
        z: atomic numbers (N,).
        bonds: ends of each bond.

    Returns:
        (N, 2), the median length of a bond 1.
    """
    from rdkit import Chem, rdBase
    from rdkit.Chem.rdDepictor import Compute2DCoords

    molecule = Chem.RWMol()
    for number in z:
        atom = Chem.Atom(int(number))
        atom.SetNoImplicit(True)
        molecule.AddAtom(atom)
    for u, v in bonds:
        molecule.AddBond(int(u), int(v), Chem.BondType.SINGLE)
    with rdBase.BlockLogs():
        molecule.UpdatePropertyCache(strict=False)
        Chem.FastFindRings(molecule)
        Compute2DCoords(molecule)
    return scaled(molecule.GetConformer().GetPositions()[:, :2], bonds)


def scaled(points: Array, edges: Sequence[Sequence[int]]) -> Array:
    """Return points (N, 2) so that the median length of an edge is 1; with no edge, that of the way to the nearest."""
    if len(edges):
        u, v = np.array(edges).T
        lengths = np.linalg.norm(points[u] - points[v], axis=1)
    elif len(points) > 1:
        apart = np.linalg.norm(points[:, None] - points, axis=-1)
        lengths = (apart + np.diag(np.full(len(points), np.inf))).min(1)
    else:
        return points
    middle = float(np.median(lengths))
    return points / middle if middle > 0 else points


def hull(points: Array, radius: float) -> Array:
    """Return the corners (M, 2) of the convex hull of circles around points (N, 2), one after another."""
    from scipy.spatial import ConvexHull

    angles = np.linspace(0, 2 * np.pi, 24, endpoint=False)
    circle = radius * np.column_stack((np.cos(angles), np.sin(angles)))
    around = (points[:, None] + circle).reshape(-1, 2)
    return np.asarray(around[ConvexHull(around).vertices])


def draw_complex(
    content: Mapping[str, Any], points: Array, path: Path, symbols: Sequence[str] = (), title: str = ""
) -> None:
    """Draw a graph and what was added: edges dashed, 2-cells shaded, hyperedges as translucent hulls.

    Args:
        content: a complex as `interop.to_json` describes it.
        points: places of the vertices (N, 2).
        path: the PNG to write.
        symbols: of the vertices' elements; without, vertices of a small graph are numbered.
        title: of the picture.

    Raises:
        ValueError: if points or symbols do not fit the number of vertices.
    """
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch, Polygon

    n, cells = content["vertices"], content["cells"]
    if np.shape(points) != (n, 2) or (symbols and len(symbols) != n):
        raise ValueError(f"points must be ({n}, 2) and symbols {n} or none, got {np.shape(points)} and {len(symbols)}")
    extent = np.maximum(np.ptp(points, axis=0), 1.0)
    width, height = 2.2 + 5.0 * extent / extent.max()
    with drawing(path, (float(width), float(height))) as image:
        axes = image.subplots()
        areas = [cell for cell in cells if cell["kind"] != "edge"]
        # The largest are drawn first, the smaller ones on top; hulls of different width do not hide each other.
        for place, cell in enumerate(sorted(areas, key=lambda cell: -len(cell["vertices"]))):
            colour, corners = CELLS[place % len(CELLS)], points[cell["vertices"]]
            if cell["kind"] == "hyperedge":
                corners = hull(corners, 0.22 + 0.05 * (place % 4))
            alpha = 0.35 if cell["kind"] == "polygon" else 0.16
            axes.add_patch(Polygon(corners, closed=True, facecolor=colour, alpha=alpha, edgecolor="none", zorder=1))
            if cell["kind"] == "hyperedge":
                axes.add_patch(Polygon(corners, closed=True, fill=False, edgecolor=colour, linewidth=1.0, zorder=1.5))
        for u, v in content["edges"]:
            axes.plot(*points[[u, v]].T, color=BLACK, linewidth=1.3, zorder=2)
        added = [cell["vertices"] for cell in cells if cell["kind"] == "edge"]
        for u, v in added:
            axes.plot(*points[[u, v]].T, color=BLUE, linewidth=1.3, linestyle=(0, (4, 2)), zorder=2)
        words = list(symbols) or [str(v) if n <= LABELLED else "" for v in range(n)]
        size = 140 if n <= LABELLED else 25
        rim = GREY if any(words) else BLACK
        axes.scatter(points[:, 0], points[:, 1], s=size, color="white", edgecolors=rim, linewidths=0.8, zorder=3)
        for (x, y), word in zip(points, words, strict=True):
            axes.text(x, y, word, color=ELEMENTS.get(word, BLACK), fontsize=8, ha="center", va="center", zorder=4)
        marks: list[Any] = [Line2D([], [], color=BLACK, label="edge")]
        if added:
            marks.append(Line2D([], [], color=BLUE, linestyle=(0, (4, 2)), label="learned edge"))
        for kind, label, alpha in (("polygon", "2-cell", 0.35), ("hyperedge", "hyperedge", 0.16)):
            if any(cell["kind"] == kind for cell in cells):
                marks.append(Patch(facecolor=CELLS[0], alpha=alpha, label=label))
        image.legend(handles=marks, loc="outside lower center", ncols=len(marks), frameon=False, fontsize=9)
        axes.set_aspect("equal")
        axes.margins(0.12)
        axes.set_axis_off()
        axes.set_title(title, fontsize=10)


def draw_k(k: Sequence[int], path: Path) -> None:
    """Draw how many vertices chose each size of neighbourhood.

    Args:
        k: size at each vertex.
        path: the PNG to write.

    Raises:
        ValueError: if there is no vertex.
    """
    if not len(k):
        raise ValueError("k must have a size for each vertex, got none")
    draw_counts({"vertices": k}, path, "size k of the neighbourhood, the vertex included", "vertices", (BLUE,))


def draw_cell_sizes(sizes: Mapping[str, Sequence[int]], path: Path) -> None:
    """Draw how many cells of each kind have how many vertices.

    Args:
        sizes: kind (`edge`, `hyperedge` or `polygon`) -> number of vertices of each cell; kinds without any are left
            out.
        path: the PNG to write.

    Raises:
        ValueError: if a kind is unknown.
    """
    unknown = set(sizes) - set(KINDS)
    if unknown:
        raise ValueError(f"kinds of cells must be some of {', '.join(KINDS)}, got {', '.join(sorted(unknown))}")
    shown = [kind for kind, values in sizes.items() if len(values)]
    named = {KINDS[kind][1]: sizes[kind] for kind in shown}
    draw_counts(named, path, "vertices of a cell", "included cells", [KINDS[kind][0] for kind in shown])


def draw_counts(
    values: Mapping[str, Sequence[int]], path: Path, xlabel: str, ylabel: str, colours: Sequence[str]
) -> None:
    """Draw bars of how often each whole number occurs, series side by side; "none" where there is nothing to count."""
    counts = [Counter(int(value) for value in series) for series in values.values()]
    numbers = sorted(set().union(*counts)) if counts else []
    with drawing(path, (5.4, 3.4)) as image:
        axes = image.subplots()
        width = 0.8 / max(len(counts), 1)
        for place, (name, count, colour) in enumerate(zip(values, counts, colours, strict=True)):
            left = np.array(numbers) - 0.4 + (place + 0.5) * width
            axes.bar(left, [count[number] for number in numbers], width, color=colour, label=name)
        if numbers:
            axes.set_xlim(numbers[0] - 0.9, numbers[-1] + 0.9)
            whole_numbers(axes.xaxis)
        else:
            axes.text(0.5, 0.5, "none", transform=axes.transAxes, ha="center", va="center", color=GREY)
        if len(counts) > 1:
            axes.legend(frameon=False)
        axes.set(xlabel=xlabel, ylabel=ylabel)
        axes.grid(axis="y", alpha=0.3)
        axes.set_axisbelow(True)


def draw_inclusion(epochs: Sequence[int], p: Sequence[float], included: Sequence[float], path: Path) -> None:
    """Draw the mean probability of inclusion, and the share of candidates that were included, over the epochs.

    Args:
        epochs: (T,), ascending.
        p: (T,), in [0, 1].
        included: (T,), in [0, 1].
        path: the PNG to write.

    Raises:
        ValueError: if there is no epoch, or the lengths differ.
    """
    if not len(epochs) or len(p) != len(epochs) or len(included) != len(epochs):
        raise ValueError(
            f"epochs, p and included must be of one length, at least 1, got {len(epochs)}, {len(p)} and {len(included)}"
        )
    with drawing(path, (5.4, 3.4)) as image:
        axes = image.subplots()
        axes.plot(epochs, p, color=BLUE, marker="o", markersize=3, label="mean probability")
        axes.plot(epochs, included, color=VERMILION, linestyle="--", marker="^", markersize=3, label="included share")
        axes.set(xlabel="epoch", ylabel="of the candidates", ylim=(0, 1))
        whole_numbers(axes.xaxis)
        axes.grid(alpha=0.3)
        axes.legend(frameon=False)
