"""The LightningDataModule: splits, loaders and augmentation of every dataset of the experiments.

A batch is a pair of images (B, C, H, W), float32 in [0, 1], and labels (B,), int64. Nothing is normalised:
the networks do that, so that an attack's ε is measured in pixels.

Formats on disk:

    cifar10      ROOT/[cifar-10-batches-py/]{data_batch_1..5,test_batch,batches.meta}
    cifar100     ROOT/[cifar-100-python/]{train,test,meta}
    imagefolder  ROOT/train/CLASS/*.{png,jpg,...} and ROOT/{test or val}/CLASS/*
    hf:ID        the Hugging Face dataset ID or, with a root, a DatasetDict saved there by `save_to_disk`
    extra        .npz with `image`, uint8 (N, 32, 32, 3), and `label`, integers (N,)
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, cast

import torch
from lightning.pytorch import LightningDataModule
from shared.seeding import EvalBatchSampler, TrainSampler, coming_epoch, generator, worker_init
from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader, Sampler

from nat.datasets import (
    CIFAR_LAYOUT,
    Cifar,
    ImageTensors,
    read_cifar,
    read_cifar_names,
    read_digits,
    read_extra,
    read_mnist5k,
)
from nat.pictures import (
    FolderImages,
    HubImages,
    Views,
    folder_class_names,
    picture_transform,
    read_class_names,
    read_folder,
    read_hub,
)
from nat.sampling import EpochSampler, MixedSampler, random_crop_flip, stratified_split

Batch = tuple[Tensor, Tensor]

SHAPES = {"digits": (1, 8, 8), "mnist5k": (1, 28, 28), "cifar10": (3, 32, 32), "cifar100": (3, 32, 32)}
NUM_CLASSES = {"digits": 10, "mnist5k": 10, "cifar10": 10, "cifar100": 100}
TRAIN_SIZE = {"digits": 1200, "mnist5k": 4000}  # the rest, 597 and 1000, is the test set
PAD = 4  # pixels around a 32 x 32 image before its random crop: standard for CIFAR, not printed in the paper


def identity(batch: Any) -> Any:
    """Return a batch as it is: the collate function of `ImageTensors`, which index whole batches."""
    return batch


def as_path(path: str | Path | None) -> Path | None:
    """Expand `~` in the path of an option."""
    return None if path is None else Path(path).expanduser()


class NATDataModule(LightningDataModule):
    """Batches of one dataset for training, validation and test.

    Validation images are a stratified part of the training set and never of the test set. The splits
    depend on `split_seed` only, so that all runs share them. Every process sees an equal share of the
    training set; validation, test and prediction score each image once over all processes.

    Args:
        dataset: `digits` (1,200 of scikit-learn's 1,797 train, 597 test), `mnist5k` (4,000 train, 1,000
            test), `cifar10`, `cifar100`, `imagefolder`, or `hf:` and the id of a Hugging Face dataset.
        root: folder of `cifar10`, `cifar100` or `imagefolder`; of `hf:`, to read a saved copy.
        image_size: side to which pictures of `imagefolder` and `hf:` are cropped; when null, 224 and the
            pictures' own.
        classes: text file with one class folder of `imagefolder` a line (ImageNet-100); labels count its
            lines. All folders, sorted, when null.
        augment: change training images at random: pad by 4, crop and flip; or, where pictures are cropped
            to `image_size`, a random resized crop and flip. When null, all but `digits` and `mnist5k` are.
        val_fraction: share of the training set held out for validation, in (0, 1).
        test_on: what the test loop scores: the `test` set, or `val`, the held-out images, for tuning.
        batch_size: images of a training batch on each process; an epoch's last may be smaller.
        eval_batch_size: likewise of validation, test and prediction.
        num_workers: processes that read images; has no influence on the batches.
        extra: .npz file with generated images, which are added to the training set.
        extra_fraction: their share of each training batch, in (0, 1); an epoch keeps its size.
        test_split: folder or split to test on; when null, `test`, else `val` (or `validation`).
        image_column: column of `hf:` with the images; null for the only one.
        label_column: column of `hf:` with the classes; null for the only one, else `label` or `fine_label`.
        split_seed: of the splits.
        seed: the run's seed: of order, crops and draws from the extra images.

    Raises:
        ValueError: if an option is out of range or does not belong to the dataset.
    """

    def __init__(
        self,
        dataset: str = "digits",
        root: Path | None = None,
        image_size: int | None = None,
        classes: Path | None = None,
        augment: bool | None = None,
        val_fraction: float = 0.1,
        test_on: Literal["test", "val"] = "test",
        batch_size: int = 128,
        eval_batch_size: int = 512,
        num_workers: int = 0,
        extra: Path | None = None,
        extra_fraction: float = 0.7,
        test_split: str | None = None,
        image_column: str | None = None,
        label_column: str | None = None,
        split_seed: int = 0,
        seed: int = 0,
    ) -> None:
        super().__init__()
        hub = dataset.startswith("hf:") and len(dataset) > 3
        if not hub and dataset not in (*SHAPES, "imagefolder"):
            raise ValueError(f"dataset must be {', '.join(SHAPES)}, imagefolder or hf:ID, got {dataset!r}")
        if root is None and dataset in ("cifar10", "cifar100", "imagefolder"):
            raise ValueError(f"root must name the folder of {dataset}, got null")
        if not 0 < val_fraction < 1:
            raise ValueError(f"val_fraction must lie in (0, 1), got {val_fraction}")
        if not 0 < extra_fraction < 1:
            raise ValueError(f"extra_fraction must lie in (0, 1), got {extra_fraction}")
        sizes = {"batch_size": batch_size, "eval_batch_size": eval_batch_size, "image_size": image_size}
        for option, value in sizes.items():
            if value is not None and value < 1:
                raise ValueError(f"{option} must be at least 1, got {value}")
        if num_workers < 0:
            raise ValueError(f"num_workers must be at least 0, got {num_workers}")
        elsewhere = {
            "root": root is not None and dataset in TRAIN_SIZE,
            "classes": classes is not None and dataset != "imagefolder",
            "image_size": image_size is not None and dataset in SHAPES,
            "test_split": test_split is not None and dataset in SHAPES,
            "image_column": image_column is not None and not hub,
            "label_column": label_column is not None and not hub,
        }
        for option, misplaced in elsewhere.items():
            if misplaced:
                raise ValueError(f"{option} cannot be set for dataset {dataset}")
        self.dataset, self.root, self.hub = dataset, as_path(root), hub
        self.image_size = 224 if dataset == "imagefolder" and image_size is None else image_size
        if extra is not None and self.image_size is not None:
            raise ValueError(f"extra cannot be mixed with pictures cropped on reading, got dataset {dataset}")
        self.classes, self.val_fraction = as_path(classes), val_fraction
        self.augment = dataset not in TRAIN_SIZE if augment is None else augment
        self.batch_size, self.eval_batch_size, self.num_workers = batch_size, eval_batch_size, num_workers
        self.extra, self.extra_fraction = as_path(extra), extra_fraction
        self.test_split, self.columns = test_split, (image_column, label_column)
        self.split_seed, self.seed = split_seed, seed
        self.test_on = test_on
        self.parts: dict[str, ImageTensors | Views] = {}
        self.num_extra = 0

    @cached_property
    def class_names(self) -> list[str]:
        """Name of each label; reads the dataset's list of names where it has one."""
        if self.dataset in TRAIN_SIZE:
            return [str(digit) for digit in range(10)]
        if self.dataset in CIFAR_LAYOUT:
            return read_cifar_names(self._root, cast(Cifar, self.dataset))
        if self.hub:
            return self._hub("train").class_names
        if self.classes is not None:
            return read_class_names(self.classes)
        return folder_class_names(self._root / "train")

    @property
    def num_classes(self) -> int:
        """Number of classes K."""
        return NUM_CLASSES.get(self.dataset) or len(self.class_names)

    @cached_property
    def image_shape(self) -> tuple[int, int, int]:
        """Channels, height and width of an image."""
        if self.dataset in SHAPES:
            return SHAPES[self.dataset]
        if self.image_size is not None:
            return 3, self.image_size, self.image_size
        width, height = self._hub("train")[0][0].size
        return 3, height, width

    @property
    def in_channels(self) -> int:
        """Colour channels of an image."""
        return self.image_shape[0]

    @property
    def sizes(self) -> dict[str, int]:
        """Number of images in each part that `setup` has read; `train` does not count the `extra` ones."""
        sizes = {part: len(images) for part, images in self.parts.items()}
        if self.num_extra:
            sizes |= {"train": sizes["train"] - self.num_extra, "extra": self.num_extra}
        return sizes

    def setup(self, stage: str | None = None) -> None:
        """Read what a stage needs: `fit` and `validate` the training set, `test` and `predict` the test set.

        Raises:
            FileNotFoundError: if a file or folder is missing.
            ValueError: if one holds something else than the dataset.
        """
        scored = self.test_on if stage in (None, "test") else "test"
        if (stage in (None, "fit", "validate") or scored == "val") and "train" not in self.parts:
            self.parts["train"], self.parts["val"] = self._split_training()
        if stage in (None, "test", "predict") and scored == "test" and "test" not in self.parts:
            whole = self._read("test")
            if isinstance(whole, ImageTensors):
                self.parts["test"] = whole
            else:
                self.parts["test"] = self._views(whole, range(len(whole)), augment=False)

    def _split_training(self) -> tuple[ImageTensors | Views, ImageTensors | Views]:
        whole = self._read("train")
        size = round(self.val_fraction * len(whole))
        if not 0 < size < len(whole):
            raise ValueError(f"val_fraction {self.val_fraction} of {len(whole)} images leaves one part empty")
        val, train = stratified_split(whole.labels, size, generator(self.split_seed, "validation"))
        if not isinstance(whole, ImageTensors):
            views = self._views(whole, train.tolist(), augment=self.augment)
            return views, self._views(whole, val.tolist(), augment=False)
        images = whole.subset(train)
        if self.extra is not None:
            extra = read_extra(self.extra, self.num_classes, self.image_shape)
            images, self.num_extra = images.joined(extra), len(extra)
        return images, whole.subset(val)

    def _read(self, part: Literal["train", "test"]) -> ImageTensors | FolderImages | HubImages:
        if self.dataset in TRAIN_SIZE:
            whole, size = self._undivided, TRAIN_SIZE[self.dataset]
            train, test = stratified_split(whole.labels, size, generator(self.split_seed, "test"))
            return whole.subset(train if part == "train" else test)
        if self.dataset in CIFAR_LAYOUT:
            return read_cifar(self._root, cast(Cifar, self.dataset), part)
        if not self.hub:
            folder = read_folder(self._root, self.class_names, part, self.test_split)
            others = set(folder_class_names(Path(folder.root))) - set(self.class_names)
            if others and self.classes is None:
                raise ValueError(f"root: {folder.root} holds classes that train lacks: {sorted(others)}")
            return folder
        pictures = self._hub(part)
        if pictures.class_names != self.class_names:
            raise ValueError(f"{pictures.source} has other classes than split train")
        return pictures.in_memory() if self.image_size is None else pictures

    @cached_property
    def _undivided(self) -> ImageTensors:
        return read_digits() if self.dataset == "digits" else read_mnist5k()

    def _hub(self, part: Literal["train", "test"]) -> HubImages:
        return read_hub(self.dataset.removeprefix("hf:"), self.root, part, self.test_split, *self.columns)

    def _views(self, pictures: FolderImages | HubImages, indices: Sequence[int], *, augment: bool) -> Views:
        assert self.image_size is not None
        return Views(pictures, indices, picture_transform(self.image_size, augment), self.seed)

    @property
    def _root(self) -> Path:
        assert self.root is not None  # checked in the constructor
        return self.root

    @property
    def _shard(self) -> tuple[int, int]:
        """This process's rank and the number of processes."""
        return (0, 1) if self.trainer is None else (self.trainer.global_rank, self.trainer.world_size)

    def train_dataloader(self) -> DataLoader[Any]:
        """Return batches in an order that is a function of (seed, epoch)."""
        images = self.parts["train"]
        rank, world_size = self._shard
        epoch = TrainSampler(
            len(images) - self.num_extra, self.seed, rank=rank, world_size=world_size, epoch=coming_epoch(self.trainer)
        )
        order: Sampler[Any] = epoch
        if self.num_extra:
            order = MixedSampler(epoch, self.num_extra, self.extra_fraction)
        elif isinstance(images, Views):
            order = EpochSampler(epoch)
        return self._loader("train", BatchSampler(order, self.batch_size, drop_last=False))

    def val_dataloader(self) -> DataLoader[Any]:
        """Return the held-out part of the training set, each image once over all processes."""
        return self._evaluation_loader("val")

    def test_dataloader(self) -> DataLoader[Any]:
        """Return the test set (or what `test_on` names), each image once over all processes."""
        return self._evaluation_loader(self.test_on)

    def predict_dataloader(self) -> DataLoader[Any]:
        """Return the test set in its order, each image once over all processes."""
        rank, world_size = self._shard
        # Lightning rebuilds the batch sampler of a prediction, and can do so for torch's own only.
        order = range(rank, len(self.parts["test"]), world_size)
        return self._loader("test", BatchSampler(order, self.eval_batch_size, drop_last=False))

    def _evaluation_loader(self, part: str) -> DataLoader[Any]:
        rank, world_size = self._shard
        batches = EvalBatchSampler(len(self.parts[part]), self.eval_batch_size, rank=rank, world_size=world_size)
        return self._loader(part, batches)

    def _loader(self, part: str, batches: Sampler[list[Any]]) -> DataLoader[Any]:
        return DataLoader(
            self.parts[part],
            batch_sampler=batches,
            collate_fn=identity if isinstance(self.parts[part], ImageTensors) else None,
            num_workers=self.num_workers,
            persistent_workers=self.num_workers > 0,
            pin_memory=torch.cuda.is_available(),
            worker_init_fn=worker_init,
            generator=generator(self.seed, "workers"),  # without it, each epoch would draw a global number
        )

    def augment_batch(self, x: Tensor, epoch: int, batch: int) -> Tensor:
        """Crop and flip a training batch by draws that are a function of (seed, epoch, batch, rank).

        Lightning's own loop calls this after each transfer; a loop outside it has to.

        Args:
            x: images (B, C, H, W) on any device.
            epoch: number of the epoch.
            batch: number of the batch in it.

        Returns:
            New images (B, C, H, W); `x` itself without `augment`, or where pictures were cropped on reading.
        """
        if not self.augment or self.image_size is not None:
            return x
        rank, _ = self._shard
        return random_crop_flip(x, PAD, generator(self.seed, "augment", epoch, batch, rank))

    def on_after_batch_transfer(self, batch: Batch, dataloader_idx: int) -> Batch:
        """Augment a training batch on its device."""
        if self.trainer is None or not self.trainer.training:
            return batch
        x, y = batch
        # The batch in hand is counted as ready only after this hook, and the count survives a resume.
        number = self.trainer.fit_loop.epoch_loop.batch_progress.current.ready
        return self.augment_batch(x, self.trainer.current_epoch, number), y
