"""The LightningDataModule: real meshes rendered offline, or a capture from disk; a batch is one `View`."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from lightning.pytorch import LightningDataModule
from shared.seeding import EvalBatchSampler, TrainSampler, coming_epoch
from torch.utils.data import DataLoader

from megs2.camera import Capture, View
from megs2.captures import load_capture
from megs2.mesh_scenes import mesh_scene

Part = Literal["test", "val"]


def first(views: list[View]) -> View:
    """Take the one view of a batch."""
    (view,) = views
    return view


class CaptureData(LightningDataModule):
    """Photographs with cameras, one at a time.

    Without `root`, a mesh of `megs2.mesh_scenes` is photographed by ray casting, once; the pictures are kept.

    Args:
        scene: name of a mesh scene.
        size: of its pictures, pixels.
        points: to start from, sampled on the mesh.
        noise: of these points, as a share of the mesh's radius.
        root: folder of a capture of yours: COLMAP's (`sparse/0` and images) or NeRF-synthetic's (`transforms_*.json`).
        images: folder of the images in a COLMAP capture, such as `images_4`.
        test_every: in a COLMAP capture, every so many images are held out for testing.
        val_every: of the training images, every so many are held out for choosing settings; 0 for none.
        downscale: shrink images by this factor.
        test_on: `test`, or `val` to choose settings by.
        seed: the run's seed: of the points and of the order of training.

    Raises:
        ValueError: if an option is out of range.
    """

    def __init__(
        self,
        scene: str = "duck",
        size: int = 96,
        points: int = 4000,
        noise: float = 0.03,
        root: str | None = None,
        images: str | None = None,
        test_every: int = 8,
        val_every: int = 0,
        downscale: int = 1,
        test_on: Part = "test",
        seed: int = 0,
    ) -> None:
        super().__init__()
        if test_on not in get_args(Part):
            raise ValueError(f"test_on must be one of {', '.join(get_args(Part))}, got {test_on!r}")
        for name, value in {"size": size, "points": points}.items():
            if value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        if not 0 <= noise < math.inf:
            raise ValueError(f"noise must be a finite number of at least 0, got {noise}")
        self.scene, self.size, self.points, self.noise = scene, size, points, noise
        self.root, self.seed, self.test_on = root, seed, test_on
        self.images, self.test_every, self.val_every, self.downscale = images, test_every, val_every, downscale

    @cached_property
    def capture(self) -> Capture:
        """The photographs and points."""
        if self.root is not None:
            return load_capture(
                Path(self.root), images=self.images, test_every=self.test_every, val_every=self.val_every,
                downscale=self.downscale, seed=self.seed,
            )  # fmt: skip
        return mesh_scene(self.scene, size=self.size, points=self.points, noise=self.noise, seed=self.seed)

    def setup(self, stage: str | None = None) -> None:
        """Read the photographs."""
        _ = self.capture

    def train_dataloader(self) -> DataLoader[Any]:
        """Return the training views in an order that is a function of (seed, epoch)."""
        views = self.capture.train
        order = TrainSampler(len(views), self.seed, epoch=coming_epoch(self.trainer))
        return DataLoader(views, batch_size=1, sampler=order, collate_fn=first)  # type: ignore[arg-type]

    def val_dataloader(self) -> DataLoader[Any]:
        """Return the views to choose settings by."""
        return self._evaluation(self.capture.val)

    def test_dataloader(self) -> DataLoader[Any]:
        """Return the views of `test_on`."""
        views = self.capture.test if self.test_on == "test" else self.capture.val
        if not views:
            raise ValueError(f"data.test_on is {self.test_on}, but the capture has no such views; see data.val_every")
        return self._evaluation(views)

    def _evaluation(self, views: list[View]) -> DataLoader[Any]:
        if not views:
            return DataLoader(views)  # type: ignore[arg-type]
        return DataLoader(views, batch_sampler=EvalBatchSampler(len(views), 1), collate_fn=first)  # type: ignore[arg-type]

    def transfer_batch_to_device(self, batch: View, device: torch.device, dataloader_idx: int) -> View:
        """Move a view; Lightning would refuse a frozen dataclass."""
        return replace(batch, camera=batch.camera.to(device), image=batch.image.to(device))
