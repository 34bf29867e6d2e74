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

import numpy as np
from numba import njit
from numpy.typing import NDArray

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
        left = max(0, int(math.floor((means2d[g, 0] - radii[g, 0]) / size)))
        right = min(across, int(math.floor((means2d[g, 0] + radii[g, 0]) / size)) + 1)
        upper = max(0, int(math.floor((means2d[g, 1] - radii[g, 1]) / size)))
        lower = min(down, int(math.floor((means2d[g, 1] + radii[g, 1]) / size)) + 1)
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


@njit(cache=True, nogil=True, error_model="numpy", inline="always")
def _span(
    dy: float, xx: float, xy: float, yy: float, reach: float, half: float, mean_x: float, left: int, right: int
) -> tuple[int, int]:
    """Return the pixels [first, last) of a row where d^T S2^-1 d can be below `reach`, a pixel wider for safety."""
    shift = -xy * dy / xx
    inside = shift * shift - (yy * dy * dy - reach) / xx
    if inside < 0:
        return 0, 0
    width = math.sqrt(inside)
    # A pixel's centre lies at +0.5.
    first = int(math.floor(max(mean_x + shift - width - half, left)))
    last = int(math.ceil(min(mean_x + shift + width + half, right)))
    return max(first, left), min(last, right)


@njit(cache=True, nogil=True, error_model="numpy")
def forward(
    first_tile: int,
    last_tile: int,
    across: int,
    size: int,
    starts: NDArray[np.int64],
    ids: Ints,
    means2d: Floats,
    conics: Floats,
    opacities: Floats,
    reaches: Floats,
    colours: Floats,
    limits: Floats,
    image: Floats,
    transmittance: Floats,
    ends: Ints,
) -> None:
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
        limits: 1/255, 0.999, 1e-4, 0.5 and 1, in the type of the others.
        image: (H, W, 3), zeros; the sum of T alpha colour is added, without background.
        transmittance: (H, W), ones; T_end.
        ends: (H, W), the place in its tile's list before which a pixel is open; to be filled.
    """
    height, width = transmittance.shape
    alpha_min, alpha_max, t_min, half, one = limits[0], limits[1], limits[2], limits[3], limits[4]
    for tile in range(first_tile, last_tile):
        left, upper = tile % across * size, tile // across * size
        right, lower = min(left + size, width), min(upper + size, height)
        begin, end = starts[tile], starts[tile + 1]
        ends[upper:lower, left:right] = end - begin
        still_open = (right - left) * (lower - upper)
        for place in range(begin, end):
            if still_open == 0:
                break
            g = ids[place]
            x, y, xx, xy, yy = means2d[g, 0], means2d[g, 1], conics[g, 0], conics[g, 1], conics[g, 2]
            opacity, reach = opacities[g], reaches[g]
            red, green, blue = colours[g, 0], colours[g, 1], colours[g, 2]
            rise = math.sqrt(reach * xx / (xx * yy - xy * xy))
            top = max(upper, int(math.floor(max(y - rise - half, upper))))
            bottom = min(lower, int(math.ceil(min(y + rise + half, lower))))
            for row in range(top, bottom):
                dy = row + half - y
                first, last = _span(dy, xx, xy, yy, reach, half, x, left, right)
                along, constant = xy * dy, half * yy * dy * dy
                for column in range(first, last):
                    if ends[row, column] <= place - begin:
                        continue
                    dx = column + half - x
                    exponent = (half * xx * dx + along) * dx + constant
                    alpha = min(alpha_max, opacity * math.exp(-exponent))
                    if alpha < alpha_min or exponent < 0:
                        continue
                    before = transmittance[row, column]
                    after = before * (one - alpha)
                    if after <= t_min:
                        ends[row, column] = place - begin
                        still_open -= 1
                        continue
                    weight = before * alpha
                    image[row, column, 0] += weight * red
                    image[row, column, 1] += weight * green
                    image[row, column, 2] += weight * blue
                    transmittance[row, column] = after


@njit(cache=True, nogil=True, error_model="numpy")
def backward(
    first_tile: int,
    last_tile: int,
    across: int,
    size: int,
    starts: NDArray[np.int64],
    ids: Ints,
    means2d: Floats,
    conics: Floats,
    opacities: Floats,
    reaches: Floats,
    colours: Floats,
    limits: Floats,
    ends: Ints,
    transmittance: Floats,
    behind: Floats,
    grad_image: Floats,
    grads: Floats,
) -> None:
    """Walk some tiles back to front, and write the gradients of each pair.

    With D = dL/dC . col_k and B = dL/dC . (everything behind k, as it arrives in the picture):
        dL/dalpha_k = T_k D - B / (1 - alpha_k).

    Args:
        first_tile: and those up to `limits` as in `forward`.
        last_tile: see `forward`.
        across: see `forward`.
        size: see `forward`.
        starts: see `forward`.
        ids: see `forward`.
        means2d: see `forward`.
        conics: see `forward`.
        opacities: see `forward`.
        reaches: see `forward`.
        colours: see `forward`.
        limits: see `forward`.
        ends: (H, W) from `forward`.
        transmittance: (H, W), T_end; overwritten.
        behind: (H, W), B behind the last Gaussian: T_end (dL/dC . background - dL/dcoverage); overwritten.
        grad_image: (H, W, 3), dL/dC.
        grads: (P, 9), to be filled: means2d 2, conics 3, opacity, colour 3.
    """
    height, width = transmittance.shape
    alpha_min, alpha_max, half, one = limits[0], limits[1], limits[3], limits[4]
    for tile in range(first_tile, last_tile):
        left, upper = tile % across * size, tile // across * size
        right, lower = min(left + size, width), min(upper + size, height)
        begin, end = starts[tile], starts[tile + 1]
        for place in range(end - 1, begin - 1, -1):
            g = ids[place]
            x, y, xx, xy, yy = means2d[g, 0], means2d[g, 1], conics[g, 0], conics[g, 1], conics[g, 2]
            opacity, reach = opacities[g], reaches[g]
            red, green, blue = colours[g, 0], colours[g, 1], colours[g, 2]
            rise = math.sqrt(reach * xx / (xx * yy - xy * xy))
            top = max(upper, int(math.floor(max(y - rise - half, upper))))
            bottom = min(lower, int(math.ceil(min(y + rise + half, lower))))
            zero = one - one
            d_x, d_y, d_xx, d_xy, d_yy, d_opacity = zero, zero, zero, zero, zero, zero
            d_red, d_green, d_blue = zero, zero, zero
            for row in range(top, bottom):
                dy = row + half - y
                first, last = _span(dy, xx, xy, yy, reach, half, x, left, right)
                along, constant = xy * dy, half * yy * dy * dy
                for column in range(first, last):
                    if ends[row, column] <= place - begin:
                        continue
                    dx = column + half - x
                    exponent = (half * xx * dx + along) * dx + constant
                    fall = math.exp(-exponent)
                    alpha = min(alpha_max, opacity * fall)
                    if alpha < alpha_min or exponent < 0:
                        continue
                    passes = one / (one - alpha)
                    before = transmittance[row, column] * passes
                    weight = before * alpha
                    g_red, g_green, g_blue = (
                        grad_image[row, column, 0],
                        grad_image[row, column, 1],
                        grad_image[row, column, 2],
                    )
                    seen = g_red * red + g_green * green + g_blue * blue
                    d_alpha = before * seen - behind[row, column] * passes
                    behind[row, column] += weight * seen
                    transmittance[row, column] = before
                    d_red += weight * g_red
                    d_green += weight * g_green
                    d_blue += weight * g_blue
                    if opacity * fall > alpha_max:
                        continue
                    d_opacity += d_alpha * fall
                    d_exponent = -d_alpha * alpha
                    d_x -= d_exponent * (xx * dx + along)
                    d_y -= d_exponent * (xy * dx + yy * dy)
                    d_xx += d_exponent * half * dx * dx
                    d_xy += d_exponent * dx * dy
                    d_yy += d_exponent * half * dy * dy
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
