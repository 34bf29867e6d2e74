"""A compiled rasteriser for the CPU: compositing by tiles, forward and backward (Sec. 3.3).

Every function here runs without Python's lock, so that threads share out the tiles. Gaussians are listed in the order
of depth for each tile that their box touches; a tile walks down its list, and within a Gaussian visits only the pixels
of each row where alpha can reach 1/255. The backward pass walks up the same list and recovers T by division. Gradients
are written for each (tile, Gaussian) pair and then summed in the order of the list: the same bits on any number of
threads.

Arrays of floats are all of one type, float32 or float64. Sizes: N Gaussians, P pairs, M tiles.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from megs2.compositing import ALPHA_MAX, T_MIN
from megs2.projection import ALPHA_MIN

Floats = NDArray[np.floating]
Ints = NDArray[np.int32]


@njit(cache=True, nogil=True, error_model="numpy")
def list_pairs(
    means2d: Floats, radii: Ints, order: NDArray[np.int64], across: int, down: int, size: int
) -> tuple[NDArray[np.int64], Ints]:
    """List the Gaussians of each tile, in the order of depth.

    Args:
        means2d: (N, 2).
        radii: (N, 2), 0 for what is not drawn.
        order: (N,) indices of the Gaussians by depth.
        across: tiles in a row.
        down: tiles in a column.
        size: of a tile, pixels.

    Returns:
        Where each tile's list begins (M + 1,), and the lists (P,).
    """
    boxes = np.empty((len(order), 4), np.int32)
    starts = np.zeros(across * down + 1, np.int64)
    for place in range(len(order)):
        g = order[place]
        if radii[g, 0] == 0:
            boxes[place, 0] = boxes[place, 1] = 0
            continue
        left = max(0, math.floor((means2d[g, 0] - radii[g, 0]) / size))
        right = min(across, math.floor((means2d[g, 0] + radii[g, 0]) / size) + 1)
        upper = max(0, math.floor((means2d[g, 1] - radii[g, 1]) / size))
        lower = min(down, math.floor((means2d[g, 1] + radii[g, 1]) / size) + 1)
        boxes[place, 0], boxes[place, 1], boxes[place, 2], boxes[place, 3] = left, right, upper, lower
        for row in range(upper, lower):
            for column in range(left, right):
                starts[row * across + column + 1] += 1
    for tile in range(across * down):
        starts[tile + 1] += starts[tile]
    ids = np.empty(starts[-1], np.int32)
    filled = starts[:-1].copy()
    for place in range(len(order)):
        if boxes[place, 0] >= boxes[place, 1]:
            continue
        for row in range(boxes[place, 2], boxes[place, 3]):
            for column in range(boxes[place, 0], boxes[place, 1]):
                tile = row * across + column
                ids[filled[tile]] = order[place]
                filled[tile] += 1
    return starts, ids


Scalars = tuple[float, ...]  # of the arrays' type

# Sums may be reordered, as vector units need; NaN and infinities keep their meaning.
FAST = {"reassoc", "contract", "nsz", "arcp"}
ORDER = 13  # of the exponential's series
VECTOR = 8  # pixels that are computed at a time
EXP_RANGE = 8.0  # as far as it is taken; alpha is below 1/255 long before


def constants(kind: np.dtype[Any]) -> tuple[Scalars, Scalars]:
    """Return the numbers that `forward` and `backward` need, in the type of their arrays.

    Args:
        kind: float32 or float64.

    Returns:
        Limits: 1/255, 0.999, 1e-4, 0.5, 0 and 1. Exponential: its range, 1/8, and the coefficients of exp(-u).
    """
    limits = (ALPHA_MIN, ALPHA_MAX, T_MIN, 0.5, 0.0, 1.0)
    series = ((-1) ** order / math.factorial(order) for order in range(ORDER + 1))
    return tuple(kind.type(x) for x in limits), tuple(kind.type(x) for x in (EXP_RANGE, 1 / 8, *series))


@njit(inline="always")
def _exp(x: float, k: Scalars) -> float:
    """Return exp(-x) for x >= 0 in arithmetic alone, so that many pixels of a row are computed at a time.

    exp(-x / 8) by its series, squared three times: exact to rounding in double up to ln 255, 5.5.
    """
    u = min(x, k[0]) * k[1]
    series = k[15]
    series = series * u + k[14]
    series = series * u + k[13]
    series = series * u + k[12]
    series = series * u + k[11]
    series = series * u + k[10]
    series = series * u + k[9]
    series = series * u + k[8]
    series = series * u + k[7]
    series = series * u + k[6]
    series = series * u + k[5]
    series = series * u + k[4]
    series = series * u + k[3]
    series = series * u + k[2]
    square = series * series
    fourth = square * square
    return fourth * fourth


@njit(inline="always")
def _rows(y: float, xx: float, xy: float, yy: float, reach: float, upper: int, lower: int) -> tuple[int, int]:
    """Return the rows of a tile, first and one after the last, that a Gaussian's ellipse of d^2 = `reach` meets."""
    rise = math.sqrt(reach * xx / (xx * yy - xy * xy)) + 1.0  # a pixel more makes up for rounding
    if not rise < 1e9:
        return upper, lower if rise > 0.0 else upper
    return max(upper, math.floor(max(y - rise, -1e9))), min(lower, math.ceil(min(y + rise, 1e9)))


@njit(inline="always")
def _columns(
    x: float, dy: float, xx: float, xy: float, yy: float, reach: float, left: int, right: int
) -> tuple[int, int]:
    """Return the columns of a tile's row, first and one after the last, that lie within the ellipse.

    They are widened to whole vectors, counted from the tile's edge: what is left over would be done one by one.
    """
    shift = -xy * dy / xx
    inside = shift * shift + (reach - yy * dy * dy) / xx
    if not inside >= 0.0:
        return 0, 0
    width = math.sqrt(inside) + 1.0  # likewise
    if not width < 1e9:
        return left, right
    middle = min(max(x + shift, -1e9), 1e9)
    first, last = max(left, math.floor(middle - width)), min(right, math.ceil(middle + width))
    if last - first > VECTOR:
        return left + (first - left) // VECTOR * VECTOR, min(right, left + -(-(last - left) // VECTOR) * VECTOR)
    first = min(first, max(left, right - VECTOR))
    return first, last if last <= first else min(first + VECTOR, right)


@njit(cache=True, nogil=True, error_model="numpy", fastmath=FAST)
def forward(
    first_tile: int, last_tile: int, across: int, size: int, starts: NDArray[np.int64], ids: Ints, means2d: Floats,
    conics: Floats, opacities: Floats, reaches: Floats, colours: Floats, centres: Floats, limits: Scalars, exp: Scalars,
    image: Floats, transmittance: Floats, ends: Ints,
) -> None:  # fmt: skip
    """Composite some tiles.

    Args:
        first_tile: the first of them.
        last_tile: the one after the last.
        across: tiles in a row.
        size: of a tile, pixels.
        starts: (M + 1,) from `list_pairs`.
        ids: (P,) likewise.
        means2d: (N, 2).
        conics: (N, 3).
        opacities: (N,).
        reaches: (N,) 2 ln(255 o), the largest squared distance at which a Gaussian is seen.
        colours: (N, 3).
        centres: (max(H, W),) of pixels, 0.5, 1.5, ...
        limits: from `constants`.
        exp: from `constants`.
        image: (3, H, W), zeros; the sum of T alpha colour is added, without background.
        transmittance: (H, W), ones; becomes T_end.
        ends: (H, W), to be filled: the place in its tile's list before which a pixel is open.
    """
    height, width = transmittance.shape
    alpha_min, alpha_max, t_min, half, zero, one = limits
    for tile in range(first_tile, last_tile):
        left, upper = tile % across * size, tile // across * size
        right, lower = min(left + size, width), min(upper + size, height)
        begin, end = starts[tile], starts[tile + 1]
        ends[upper:lower, left:right] = end - begin
        still_open = (right - left) * (lower - upper)
        for place in range(begin, end):
            if still_open == 0:
                break
            g, now = ids[place], np.int32(place - begin)
            x, y, xx, xy, yy = means2d[g, 0], means2d[g, 1], conics[g, 0], conics[g, 1], conics[g, 2]
            opacity, reach = opacities[g], reaches[g]
            red, green, blue = colours[g, 0], colours[g, 1], colours[g, 2]
            half_xx = half * xx
            top, bottom = _rows(y, xx, xy, yy, reach, upper, lower)
            for row in range(top, bottom):
                dy = centres[row] - y
                first, last = _columns(x, dy, xx, xy, yy, reach, left, right)
                if first >= last:
                    continue
                along, constant = xy * dy, half * yy * dy * dy
                columns, ending = centres[first:last], ends[row, first:last]
                passing, reds = transmittance[row, first:last], image[0, row, first:last]
                greens, blues = image[1, row, first:last], image[2, row, first:last]
                closed = np.int32(0)
                for p in range(last - first):
                    dx = columns[p] - x
                    exponent = (half_xx * dx + along) * dx + constant
                    alpha = min(alpha_max, opacity * _exp(exponent, exp))
                    before = passing[p]
                    seen = (alpha >= alpha_min) & (exponent >= zero) & (ending[p] > now)
                    closes = seen & (before * (one - alpha) <= t_min)
                    weight = before * alpha if seen & ~closes else zero
                    closed += np.int32(closes)
                    ending[p] = now if closes else ending[p]
                    passing[p] = before - weight
                    reds[p] += weight * red
                    greens[p] += weight * green
                    blues[p] += weight * blue
                still_open -= closed


@njit(cache=True, nogil=True, error_model="numpy", fastmath=FAST)
def backward(
    first_tile: int, last_tile: int, across: int, size: int, starts: NDArray[np.int64], ids: Ints, means2d: Floats,
    conics: Floats, opacities: Floats, reaches: Floats, colours: Floats, centres: Floats, limits: Scalars, exp: Scalars,
    grad_image: Floats, transmittance: Floats, ends: Ints, behind: Floats, grads: Floats,
) -> None:  # fmt: skip
    """Walk some tiles back to front, and write the gradients of each pair.

    With D = dL/dC . col_k and B = dL/dC . (everything behind k, as it arrives in the picture),

        dL/dalpha_k = T_k D - B / (1 - alpha_k).

    Args:
        first_tile: the first of them.
        last_tile: and those up to `exp` as in `forward`.
        across: see there.
        size: see there.
        starts: see there.
        ids: see there.
        means2d: see there.
        conics: see there.
        opacities: see there.
        reaches: see there.
        colours: see there.
        centres: see there.
        limits: see there.
        exp: see there.
        grad_image: (3, H, W), dL/dC.
        transmittance: (H, W), T_end; overwritten.
        ends: (H, W), from `forward`.
        behind: (H, W), B behind the last Gaussian: T_end (dL/dC . background - dL/dcoverage); overwritten.
        grads: (P, 9), to be filled: means2d 2, conics 3, opacity, colour 3.
    """
    height, width = transmittance.shape
    alpha_min, alpha_max, _, half, zero, one = limits
    for tile in range(first_tile, last_tile):
        left, upper = tile % across * size, tile // across * size
        right, lower = min(left + size, width), min(upper + size, height)
        begin, end = starts[tile], starts[tile + 1]
        for place in range(end - 1, begin - 1, -1):
            g, now = ids[place], np.int32(place - begin)
            x, y, xx, xy, yy = means2d[g, 0], means2d[g, 1], conics[g, 0], conics[g, 1], conics[g, 2]
            opacity, reach = opacities[g], reaches[g]
            red, green, blue = colours[g, 0], colours[g, 1], colours[g, 2]
            half_xx = half * xx
            d_x, d_y, d_xx, d_xy, d_yy = zero, zero, zero, zero, zero
            d_opacity, d_red, d_green, d_blue = zero, zero, zero, zero
            top, bottom = _rows(y, xx, xy, yy, reach, upper, lower)
            for row in range(top, bottom):
                dy = centres[row] - y
                first, last = _columns(x, dy, xx, xy, yy, reach, left, right)
                if first >= last:
                    continue
                along, constant = xy * dy, half * yy * dy * dy
                columns, ending = centres[first:last], ends[row, first:last]
                passing, after = transmittance[row, first:last], behind[row, first:last]
                reds, greens = grad_image[0, row, first:last], grad_image[1, row, first:last]
                blues = grad_image[2, row, first:last]
                # Sums over the row: of dL/dexponent, that times dx, and that times dx^2.
                e_0, e_1, e_2 = zero, zero, zero
                for p in range(last - first):
                    dx = columns[p] - x
                    exponent = (half_xx * dx + along) * dx + constant
                    fall = _exp(exponent, exp)
                    uncapped = opacity * fall
                    alpha = min(alpha_max, uncapped)
                    seen = (alpha >= alpha_min) & (exponent >= zero) & (ending[p] > now)
                    alpha = alpha if seen else zero
                    passes = one / (one - alpha)
                    before = passing[p] * passes
                    weight = before * alpha
                    arrives = reds[p] * red + greens[p] * green + blues[p] * blue
                    d_alpha = before * arrives - after[p] * passes
                    d_alpha = d_alpha if seen & (uncapped <= alpha_max) else zero
                    after[p] += weight * arrives
                    passing[p] = before
                    d_red += weight * reds[p]
                    d_green += weight * greens[p]
                    d_blue += weight * blues[p]
                    d_opacity += d_alpha * fall
                    d_exponent = d_alpha * alpha
                    e_0 += d_exponent
                    e_1 += d_exponent * dx
                    e_2 += d_exponent * dx * dx
                d_x += xx * e_1 + along * e_0
                d_y += xy * e_1 + yy * dy * e_0
                d_xx -= half * e_2
                d_xy -= dy * e_1
                d_yy -= half * dy * dy * e_0
            grads[place, 0], grads[place, 1] = d_x, d_y
            grads[place, 2], grads[place, 3], grads[place, 4] = d_xx, d_xy, d_yy
            grads[place, 5] = d_opacity
            grads[place, 6], grads[place, 7], grads[place, 8] = d_red, d_green, d_blue


@njit(cache=True, nogil=True, error_model="numpy")
def sum_pairs(ids: Ints, grads: Floats, total: Floats) -> None:
    """Add the gradients of pairs (P, 9) to those of Gaussians (N, 9), in the order of the list."""
    for place in range(len(ids)):
        for column in range(grads.shape[1]):
            total[ids[place], column] += grads[place, column]
