"""Drawing a scene: one interface to the rasterisers, the choice of which is made up front (Sec. 3.3).

- `gsplat` on a CUDA device: the library's kernels.
- `cpu`: the compiled rasteriser of `cpu_rasterizer`, since gsplat has none for the CPU.
- `torch`: `compositing`, slow and plain, on any device.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from megs2 import compositing
from megs2.camera import Camera
from megs2.colours import colours
from megs2.gaussians import Gaussians
from megs2.projection import BLUR, NEAR, project

Backend = Literal["auto", "cpu", "gsplat", "torch"]
TILE = 32  # pixels; gsplat takes at most 16 of them
GSPLAT_TILE = 16


@dataclass(frozen=True)
class Rendering:
    """A picture and what densification asks of it.

    Attributes:
        image: (H, W, 3).
        coverage: (H, W), 1 - T_end.
        means2d: (N, 2) centres in pixels, part of the graph; (1, N, 2) from gsplat.
        radii: (N, 2) int32, 0 for what is not drawn; (1, N, 2) from gsplat.
    """

    image: Tensor
    coverage: Tensor
    means2d: Tensor
    radii: Tensor


def choose_backend(backend: Backend, device: torch.device | str) -> Backend:
    """Settle which rasteriser draws on a device.

    Args:
        backend: `auto`, or one by name.
        device: where the scene lies.

    Returns:
        `gsplat`, `cpu` or `torch`.

    Raises:
        ValueError: if the one asked for cannot work there; the message says what would.
    """
    device = torch.device(device)
    if backend not in get_args(Backend):
        raise ValueError(f"backend must be one of {', '.join(get_args(Backend))}, got {backend!r}")
    if backend == "auto":
        fitting: dict[str, Backend] = {"cuda": "gsplat", "cpu": "cpu"}
        backend = fitting.get(device.type, "torch")
    if backend == "cpu" and device.type != "cpu":
        raise ValueError(f"backend cpu draws on the CPU only, got {device}: use backend auto, or accelerator cpu")
    if backend == "gsplat":
        if device.type != "cuda":
            raise ValueError(f"backend gsplat needs a CUDA device, got {device}: use backend auto, cpu or torch")
        cause = _why_gsplat_fails()
        if cause is not None:
            raise ValueError(
                f"gsplat could not compile its kernels ({cause}): install the CUDA toolkit of torch's version "
                f"({torch.version.cuda}), or use accelerator cpu, or backend torch (slow)"
            )
    return backend


def _why_gsplat_fails() -> str | None:
    """Say why gsplat's kernels are not to be had, None if they are. Asking compiles them the first time."""
    try:
        from gsplat.cuda._backend import _C
    except Exception as error:  # a compilation can fail in any way
        return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'no reason given'}"
    return None if _C is not None else "no CUDA toolkit was found"


def rasterize(
    means: Tensor,
    quats: Tensor,
    scales: Tensor,
    opacities: Tensor,
    colours: Tensor,
    camera: Camera,
    background: Tensor,
    *,
    backend: Backend = "cpu",
    tile_size: int = TILE,
) -> Rendering:
    """Draw activated Gaussians.

    Args:
        means: (N, 3).
        quats: (N, 4), of any length but 0.
        scales: (N, 3) standard deviations.
        opacities: (N,) in [0, 1].
        colours: (N, 3), those of this camera.
        camera: on the same device, of the same type.
        background: (3,); gets no gradient.
        backend: `cpu`, `gsplat` or `torch`; see `choose_backend`.
        tile_size: edge of a tile in pixels.

    Returns:
        The picture, differentiable in all that is the Gaussians'.
    """
    if backend == "gsplat":
        return _gsplat(means, quats, scales, opacities, colours, camera, background, tile_size)
    projected = project(means, quats, scales, opacities, camera)
    if backend == "torch":
        image, coverage = compositing.composite(projected, opacities, colours, background, camera.width, camera.height)
    else:
        from megs2 import cpu_rasterizer

        image, coverage = cpu_rasterizer.composite(
            projected, opacities, colours, background, camera.width, camera.height, tile_size
        )
    return Rendering(image, coverage, projected.means2d, projected.radii)


def _gsplat(
    means: Tensor, quats: Tensor, scales: Tensor, opacities: Tensor, colours: Tensor,
    camera: Camera, background: Tensor, tile_size: int,
) -> Rendering:  # fmt: skip
    from gsplat import rasterization

    image, coverage, info = rasterization(
        means, quats, scales, opacities, colours[None], camera.view_matrix[None], camera.intrinsics[None],
        camera.width, camera.height, near_plane=NEAR, eps2d=BLUR, packed=False, tile_size=min(tile_size, GSPLAT_TILE),
        backgrounds=background[None],
    )  # fmt: skip
    return Rendering(image[0], coverage[0, ..., 0], info["means2d"], info["radii"])


Colour = Callable[[Gaussians, Tensor], Tensor]  # a scene and a place (3,) to colours (N, 3)


def render(
    gaussians: Gaussians,
    camera: Camera,
    background: Tensor,
    *,
    backend: Backend = "cpu",
    tile_size: int = TILE,
    colour: Colour = colours,
) -> Rendering:
    """Draw a scene as a camera sees it.

    Args:
        gaussians: N Gaussians.
        camera: on the same device, of the same type.
        background: (3,).
        backend: see `choose_backend`.
        tile_size: edge of a tile in pixels.
        colour: evaluates the colours.

    Returns:
        The picture.
    """
    return rasterize(
        gaussians.means, gaussians.quats, gaussians.scales.exp(), gaussians.opacities.sigmoid(),
        colour(gaussians, camera.centre), camera, background, backend=backend, tile_size=tile_size,
    )  # fmt: skip
