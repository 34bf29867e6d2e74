"""A small renderer of ball-and-stick models: exact spheres and cylinders, seen along z, with a depth buffer.

Lengths are in Å. The viewer stands at z = +∞, y points up. Colours are RGB in [0, 1].
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

LIGHT = np.array([-0.45, 0.65, 0.9]) / np.linalg.norm([-0.45, 0.65, 0.9])
HALFWAY = (LIGHT + np.array([0, 0, 1])) / np.linalg.norm(LIGHT + np.array([0, 0, 1]))  # between light and viewer
AMBIENT, DIFFUSE, SPECULAR, SHININESS = 0.5, 0.55, 0.35, 40


class Ball(NamedTuple):
    """A sphere: centre (3,), radius, colour (3,)."""

    centre: Array
    radius: float
    colour: Array


class Stick(NamedTuple):
    """A cylinder between two points (3,), each half in its own colour (3,)."""

    start: Array
    end: Array
    radius: float
    colours: tuple[Array, Array]


class View(NamedTuple):
    """The part of the plane that is seen.

    Attributes:
        left: smallest x.
        right: largest x.
        bottom: smallest y.
        top: largest y.
        scale: pixels per Å.
    """

    left: float
    right: float
    bottom: float
    top: float
    scale: float

    def grid(self) -> tuple[Array, Array]:
        """Return x (1, W) of the columns' and y (H, 1) of the rows' centres, the first row on top."""
        columns = max(round((self.right - self.left) * self.scale), 1)
        rows = max(round((self.top - self.bottom) * self.scale), 1)
        x: Array = self.left + (np.arange(columns, dtype=np.float64) + 0.5) / self.scale
        y: Array = self.top - (np.arange(rows, dtype=np.float64) + 0.5) / self.scale
        return x[None, :], y[:, None]


class Layer(NamedTuple):
    """What is seen of one model.

    Attributes:
        colour: (H, W, 3).
        depth: z of the surface (H, W); -∞ where there is none.
    """

    colour: Array
    depth: Array


def render(balls: Sequence[Ball], sticks: Sequence[Stick], view: View) -> Layer:
    """Render one opaque model.

    Args:
        balls: the atoms.
        sticks: the bonds.
        view: what is seen, and how finely.
    """
    x, y = view.grid()
    shape = y.shape[0], x.shape[1]
    layer = Layer(np.zeros((*shape, 3)), np.full(shape, -np.inf))
    for ball in balls:
        part, px, py = _crop(layer, x, y, ball.centre - ball.radius, ball.centre + ball.radius)
        dx, dy = px - ball.centre[0], py - ball.centre[1]
        rise = np.sqrt(np.maximum(ball.radius**2 - dx**2 - dy**2, 0))
        normal = np.stack(np.broadcast_arrays(dx, dy, rise), axis=-1) / ball.radius
        _paint(part, dx**2 + dy**2 < ball.radius**2, ball.centre[2] + rise, normal, ball.colour)
    for stick in sticks:
        low, high = np.minimum(stick.start, stick.end), np.maximum(stick.start, stick.end)
        _paint_stick(stick, *_crop(layer, x, y, low - stick.radius, high + stick.radius))
    return layer


def _crop(layer: Layer, x: Array, y: Array, low: Array, high: Array) -> tuple[Layer, Array, Array]:
    """Return the part of a layer, as a view, whose pixels can lie in a box, and their x and y."""
    rows = slice(int((y[:, 0] > high[1]).sum()), int((y[:, 0] >= low[1]).sum()))
    columns = slice(int((x[0] < low[0]).sum()), int((x[0] <= high[0]).sum()))
    return Layer(layer.colour[rows, columns], layer.depth[rows, columns]), x[:, columns], y[rows]


def _paint_stick(stick: Stick, layer: Layer, x: Array, y: Array) -> None:
    length = float(np.linalg.norm(stick.end - stick.start))
    u = (stick.end - stick.start) / max(length, 1e-12)
    steep = 1 - u[2] ** 2
    if steep < 1e-6:  # seen end on: its balls hide it
        return
    # A point (x, y, z) of the surface is `radius` away from the axis: a quadratic equation in z.
    dx, dy = x - stick.start[0], y - stick.start[1]
    s = dx * u[0] + dy * u[1]
    discriminant = (u[2] * s) ** 2 - steep * (dx**2 + dy**2 - s**2 - stick.radius**2)
    z = (u[2] * s + np.sqrt(np.maximum(discriminant, 0))) / steep
    along = s + z * u[2]
    offset = np.stack(np.broadcast_arrays(dx, dy, z), axis=-1)
    normal = (offset - along[..., None] * u) / stick.radius
    for (low, high), colour in zip(((0, length / 2), (length / 2, length)), stick.colours, strict=True):
        inside = (discriminant > 0) & (along >= low) & (along < high)
        _paint(layer, inside, stick.start[2] + z, normal, colour)


def _paint(layer: Layer, inside: NDArray[np.bool_], depth: Array, normal: Array, colour: Array) -> None:
    """Shade the pixels of a surface (Blinn and Phong) where nothing is in front of it."""
    nearest = inside & (depth > layer.depth)
    n = normal[nearest]
    lit = AMBIENT + DIFFUSE * np.maximum(n @ LIGHT, 0)
    shine = SPECULAR * np.maximum(n @ HALFWAY, 0) ** SHININESS
    layer.colour[nearest] = np.minimum(lit[:, None] * colour + shine[:, None], 1)
    layer.depth[nearest] = depth[nearest]


def compose(opaque: Layer, translucent: Sequence[tuple[Layer, float]], smooth: int = 1) -> Array:
    """Lay translucent models over an opaque one, each where it is not behind it, on white.

    Args:
        opaque: the model that hides what is behind it.
        translucent: layers of the same size with their opacities, from back to front. In front of the opaque
            model the opacity is halved, so that its colours are told.
        smooth: average blocks of so many pixels by as many, against jagged edges.

    Returns:
        Colours (H // smooth, W // smooth, 3).
    """
    solid = np.isfinite(opaque.depth)
    image = np.where(solid[..., None], opaque.colour, 1.0)
    for layer, opacity in translucent:
        seen = layer.depth > opaque.depth
        share = np.where(solid, opacity / 2, opacity)[seen][:, None]
        image[seen] = (1 - share) * image[seen] + share * layer.colour[seen]
    rows, columns = (size // smooth for size in image.shape[:2])
    blocks = image[: rows * smooth, : columns * smooth].reshape(rows, smooth, columns, smooth, 3)
    return np.asarray(blocks.mean(axis=(1, 3)))
