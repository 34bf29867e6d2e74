"""What is random in the data: the split, the order of an epoch and the crops.

All of it is a function of a seed and of the place in the run, so that a resumed run sees the same batches.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from shared.seeding import TrainSampler, generator
from torch import Tensor
from torch.utils.data import Sampler


def crop_flip(x: Tensor, top: Tensor, left: Tensor, flip: Tensor, pad: int) -> Tensor:
    """Pad images with zeros, crop each back to its size at an offset, then mirror some.

    Args:
        x: images (B, C, H, W).
        top: first row of each crop in the padded image, int64 (B,) in [0, 2 pad].
        left: first column, likewise.
        flip: bool (B,), which to mirror left to right.
        pad: zeros added on each side.

    Returns:
        A new tensor (B, C, H, W).
    """
    batch, channels, height, width = x.shape
    rows = top[:, None] + torch.arange(height, device=x.device)  # (B, H)
    columns = left[:, None] + torch.arange(width, device=x.device)  # (B, W)
    columns = torch.where(flip[:, None], columns.flip(1), columns)
    images = torch.arange(batch, device=x.device)[:, None, None, None]
    planes = torch.arange(channels, device=x.device)[:, None, None]
    return F.pad(x, [pad] * 4)[images, planes, rows[:, None, :, None], columns[:, None, None, :]]


def random_crop_flip(x: Tensor, pad: int, generator: torch.Generator) -> Tensor:
    """Apply `crop_flip` at uniform offsets, mirroring each image with probability one half.

    Args:
        x: images (B, C, H, W).
        pad: zeros added on each side.
        generator: of the draws; on the CPU it gives the same crops whatever the device of `x`.

    Returns:
        A new tensor (B, C, H, W).
    """
    offsets = torch.randint(2 * pad + 1, (2, len(x)), generator=generator, device=generator.device)
    flip = torch.rand(len(x), generator=generator, device=generator.device) < 0.5
    top, left = offsets.to(x.device)
    return crop_flip(x, top, left, flip.to(x.device), pad)


def stratified_split(labels: Tensor, size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Choose `size` items at random with the shares of the classes kept to within one item.

    Args:
        labels: int64 (N,).
        size: how many to choose, in [0, N].
        generator: of the permutation.

    Returns:
        Indices of the chosen (size,) and of the others (N - size,), ascending.
    """
    order = torch.randperm(len(labels), generator=generator)
    counts = torch.bincount(labels)
    quotas = counts * size // len(labels)
    # Classes with the largest remainders take what rounding down left over.
    remainders = counts * size % len(labels)
    quotas[remainders.argsort(descending=True, stable=True)[: size - int(quotas.sum())]] += 1
    chosen = torch.zeros(len(labels), dtype=torch.bool)
    for label, quota in enumerate(quotas.tolist()):
        chosen[order[labels[order] == label][:quota]] = True
    return chosen.nonzero().flatten(), (~chosen).nonzero().flatten()


class MixedSampler(Sampler[int]):
    """`TrainSampler` in which a share of every batch is replaced by extra items.

    An epoch keeps the size of the original training set, as in the diffusion-AT literature (Wang et al.,
    2023): it holds a random 1 - fraction of the original items once each, and extra items drawn uniformly
    with replacement. Among any B consecutive indices, fraction * B are extra, to within one.

    Args:
        original: order of the original items, whose indices are [0, size); holds size, seed and rank.
        extra: number of extra items, whose indices are [size, size + extra).
        fraction: share of the extra items, in (0, 1).
    """

    def __init__(self, original: TrainSampler, extra: int, fraction: float) -> None:
        self.original, self.extra, self.fraction = original, extra, fraction

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch whose order is drawn next."""
        self.original.set_epoch(epoch)

    def __len__(self) -> int:
        return len(self.original)

    def __iter__(self) -> Iterator[int]:
        order = self.original
        draws = generator(order.seed, "extra", order.epoch, order.rank)
        extra = iter((order.size + torch.randint(self.extra, (len(self),), generator=draws)).tolist())
        original = iter(order)
        for position in range(len(self)):
            is_extra = int((position + 1) * self.fraction) > int(position * self.fraction)
            yield next(extra if is_extra else original)


class EpochSampler(Sampler[tuple[int, int]]):
    """`TrainSampler` that yields (epoch, index), so that any worker can derive an item's crop from both."""

    def __init__(self, order: TrainSampler) -> None:
        self.order = order

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch whose order is drawn next."""
        self.order.set_epoch(epoch)

    def __len__(self) -> int:
        return len(self.order)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return ((self.order.epoch, index) for index in self.order)
