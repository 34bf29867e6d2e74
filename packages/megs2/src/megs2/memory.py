"""What drawing a scene takes in memory beside the scene itself (Sec. 5): measured, not reckoned."""

from __future__ import annotations

import tracemalloc
import weakref
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from megs2.camera import Camera
from megs2.gaussians import Gaussians
from megs2.rasterizer import TILE, Backend, Colour, render


class _Peak(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the bytes of the tensors that operations make and that are alive, and the most there were."""

    def __init__(self, known: set[int]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.known, self.now, self.most = known, 0, 0
        self.alive: dict[int, tuple[int, int]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(made):
            if isinstance(tensor, Tensor):
                self._add(tensor)
        return made

    def _add(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        place = storage.data_ptr()
        if place in self.known or not place:
            return
        size, users = self.alive.get(place, (storage.nbytes(), 0))
        if not users:
            self.now += size
            self.most = max(self.most, self.now)
        self.alive[place] = (size, users + 1)
        weakref.finalize(tensor, self._drop, place)

    def _drop(self, place: int) -> None:
        size, users = self.alive.get(place, (0, 0))
        if users > 1:
            self.alive[place] = (size, users - 1)
        elif users:
            del self.alive[place]
            self.now -= size


@torch.no_grad()
def drawing_bytes(
    gaussians: Gaussians,
    camera: Camera,
    *,
    backend: Backend = "cpu",
    tile_size: int = TILE,
    colour: Colour | None = None,
) -> int:
    """Return the most memory that is allocated while a picture is drawn, beside the scene.

    On a CUDA device that is the allocator's peak; on the CPU it is the sum of the peaks of tensors and of arrays.

    Args:
        gaussians: the scene.
        camera: on the same device.
        backend: see `rasterizer.choose_backend`.
        tile_size: edge of a tile in pixels.
        colour: evaluates the colours; `colours.colours` when None.
    """
    options: dict[str, Any] = {"backend": backend, "tile_size": tile_size} | ({"colour": colour} if colour else {})
    background = torch.zeros_like(camera.translation)
    render(gaussians, camera, background, **options)  # compiles what has to be
    if camera.translation.is_cuda:
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        render(gaussians, camera, background, **options)
        return torch.cuda.max_memory_allocated() - before
    known = [getattr(gaussians, name) for name in Gaussians.__dataclass_fields__]
    peak = _Peak({tensor.untyped_storage().data_ptr() for tensor in known})
    tracemalloc.start()
    try:
        with peak:
            render(gaussians, camera, background, **options)
        return peak.most + tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
