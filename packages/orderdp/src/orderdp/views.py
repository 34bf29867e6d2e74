"""Images as the network sees them: augmented, normalised, a whole batch at a time.

An augmented image is a function of (seed, epoch, index), not of what was drawn before it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from shared.seeding import derive, generator
from torch import Tensor
from torch.utils.data import Dataset
from torchvision.transforms import v2

from orderdp.datasets import FolderImages, HubImages, ImageTensors

Batch = tuple[Tensor, Tensor]
Images = ImageTensors | FolderImages | HubImages

PAD = 4  # reflected pixels around a 32 x 32 image before its random crop (Sec. 3.4)
RESIZE = 256 / 224  # shorter side of a picture before its centre crop, by the crop's side (Sec. 3.4)


def crop_flip(images: Tensor, top: Tensor, left: Tensor, flip: Tensor, pad: int) -> Tensor:
    """Pad images by reflection, crop each back to its size at an offset, then mirror some.

    Args:
        images: (B, C, H, W) of any type.
        top: first row of each crop in the padded image, int64 (B,) in [0, 2 pad].
        left: first column, likewise.
        flip: bool (B,), which to mirror left to right.
        pad: pixels added on each side, less than H and W.

    Returns:
        A new tensor (B, C, H, W).
    """
    batch, channels, height, width = images.shape
    rows = _reflect(top[:, None] + torch.arange(height) - pad, height)  # (B, H)
    columns = _reflect(left[:, None] + torch.arange(width) - pad, width)  # (B, W)
    columns = torch.where(flip[:, None], columns.flip(1), columns)
    numbers = torch.arange(batch)[:, None, None, None]
    planes = torch.arange(channels)[:, None, None]
    return images[numbers, planes, rows[:, None, :, None], columns[:, None, None, :]]


def _reflect(index: Tensor, size: int) -> Tensor:
    """Fold indices in (-size, 2 size - 1) into [0, size) without repeating the border."""
    return (size - 1) - ((size - 1) - index.abs()).abs()


def picture_transform(size: int, augment: bool) -> v2.Transform:
    """Return picture -> (3, size, size) in [0, 1]: a random resized crop and flip, or the centre crop."""
    crop: list[v2.Transform] = [v2.Resize(round(RESIZE * size)), v2.CenterCrop(size)]
    if augment:
        crop = [v2.RandomResizedCrop(size), v2.RandomHorizontalFlip()]
    return v2.Compose([*crop, v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.ToPureTensor()])


def as_is(batch: Any) -> Any:
    """Return a batch as it is: the collate function of `Views`, which index whole batches."""
    return batch


class Views(Dataset[Batch]):
    """Some images of a dataset as the network sees them: augmented, normalised, with labels of their own.

    An augmented image is a function of (seed, epoch, index): a resumed run sees the same, and so does any
    batch, worker or process. Use it with `DataLoader(collate_fn=as_is)`, which makes a batch one operation.

    Args:
        images: the whole dataset.
        chosen: indices of those that are used, int64 (N,).
        labels: their labels, int64 (N,).
        mean: of each channel, subtracted.
        std: of each channel, divided by.
        size: side to which pictures are cropped; None where `images` are tensors.
        augment: crop and flip at random.
        seed: of the crops and flips.
        epoch: returns the number of the epoch. A worker process keeps the one of its start, so workers
            must not persist from epoch to epoch.
    """

    def __init__(
        self,
        images: Images,
        chosen: Tensor,
        labels: Tensor,
        *,
        mean: Sequence[float],
        std: Sequence[float],
        size: int | None = None,
        augment: bool = False,
        seed: int = 0,
        epoch: Callable[[], int] = int,
    ) -> None:
        self.images, self.chosen, self.labels = images, chosen, labels
        self.mean, self.std = torch.tensor(mean).view(-1, 1, 1), torch.tensor(std).view(-1, 1, 1)
        self.transform = None if size is None else picture_transform(size, augment)
        self.augment, self.seed, self.epoch = augment, seed, epoch
        self._offsets: tuple[int, Tensor] = (-1, torch.empty(0))

    def __getstate__(self) -> dict[str, Any]:
        """Fix the epoch: a process that is started by pickling gets the dataset but not the trainer."""
        return self.__dict__ | {"epoch": partial(int, self.epoch())}

    def __len__(self) -> int:
        return len(self.chosen)

    def __getitem__(self, index: int) -> Batch:
        """Return one image (C, H, W) and its label ()."""
        x, y = self.__getitems__([index])
        return x[0], y[0]

    def __getitems__(self, indices: Sequence[int]) -> Batch:
        """Return a batch: images (B, C, H, W) and labels (B,)."""
        where = torch.as_tensor(indices)
        x = torch.stack([self._picture(index) for index in indices]) if self.transform else self._tensors(where)
        return (x - self.mean) / self.std, self.labels[where]

    def _tensors(self, where: Tensor) -> Tensor:
        assert isinstance(self.images, ImageTensors)
        x = self.images.images[self.chosen[where]]
        if self.augment:
            top, left, flip = self._epoch_offsets(self.epoch())[:, where]
            x = crop_flip(x, top, left, flip.bool(), PAD)
        return x.float() / 255 if x.dtype == torch.uint8 else x

    def _epoch_offsets(self, epoch: int) -> Tensor:
        """Draw top, left and flip of every image at once (3, N), which is much faster than one by one."""
        if self._offsets[0] != epoch:
            draws = generator(self.seed, "augment", epoch)
            offsets = torch.randint(2 * PAD + 1, (2, len(self)), generator=draws)
            flips = torch.randint(2, (1, len(self)), generator=draws)
            self._offsets = epoch, torch.cat([offsets, flips])
        return self._offsets[1]

    def _picture(self, index: int) -> Tensor:
        assert self.transform is not None
        picture, _ = self.images[int(self.chosen[index])]
        with torch.random.fork_rng(devices=[]):
            # torchvision draws from the global generator. torch.manual_seed would also seed the
            # accelerators, whose generators are not restored.
            torch.default_generator.manual_seed(derive(self.seed, "augment", self.epoch(), index % len(self)))
            return self.transform(picture)
