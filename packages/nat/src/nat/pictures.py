"""Datasets of picture files, decoded one at a time: ImageFolder trees and Hugging Face datasets.

Every picture comes out upright and as 8-bit RGB, whatever its file holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from PIL import Image, ImageOps
from shared.seeding import derive
from torch import Tensor
from torch.utils.data import Dataset
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

from nat.datasets import ImageTensors, check_labels

CENTRE = 0.875  # share of the resized side that the test crop keeps: 224 of 256
UNREADABLE = (OSError, SyntaxError, Image.DecompressionBombError)  # Pillow's ways to refuse a file


def to_rgb(picture: Image.Image, source: str) -> Image.Image:
    """Turn a picture upright by its EXIF tag and convert it to 8-bit RGB; alpha is dropped.

    Raises:
        ValueError: for more than 8 bits a channel, which a conversion would clip.
    """
    if picture.mode.startswith(("I", "F")):
        raise ValueError(f"{source}: expected 8 bits a channel, got a picture of mode {picture.mode}")
    return ImageOps.exif_transpose(picture).convert("RGB")


def read_picture(path: Path | str) -> Image.Image:
    """Decode a picture file to RGB (see `to_rgb`).

    Raises:
        ValueError: if the file is no complete picture.
    """
    try:
        with Image.open(path) as picture:
            picture.load()
    except UNREADABLE as error:
        raise ValueError(f"{path} cannot be read as a picture: {error}") from error
    return to_rgb(picture, str(path))


def picture_transform(size: int, augment: bool) -> v2.Transform:
    """Return picture -> (3, size, size) in [0, 1]: a random resized crop and flip, or the centre crop."""
    crop: list[v2.Transform] = [v2.Resize(round(size / CENTRE)), v2.CenterCrop(size)]
    if augment:
        crop = [v2.RandomResizedCrop(size), v2.RandomHorizontalFlip()]
    return v2.Compose([*crop, v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.ToPureTensor()])


def folder_class_names(folder: Path) -> list[str]:
    """Return the names of the class folders in a folder, sorted.

    Raises:
        FileNotFoundError: if there are none.
    """
    folders = [path.name for path in folder.iterdir() if path.is_dir()] if folder.is_dir() else []
    names = sorted(name for name in folders if not name.startswith("."))
    if not names:
        raise FileNotFoundError(f"root: {folder} holds no class folders, expected {folder}/CLASS/*.png")
    return names


def read_class_names(path: Path) -> list[str]:
    """Read a text file with one class folder a line, such as the list of ImageNet-100.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if it is empty or names a class twice.
    """
    if not path.is_file():
        raise FileNotFoundError(f"classes: {path} is missing, expected one class folder a line")
    names = [line.strip() for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    repeated = sorted({name for name in names if names.count(name) > 1})
    if not names or repeated:
        raise ValueError(f"classes: {path} must name each class once, got {len(names)} lines, repeated: {repeated}")
    return names


def read_hub(
    name: str,
    root: Path | None,
    part: Literal["train", "test"],
    test_split: str | None = None,
    image_column: str | None = None,
    label_column: str | None = None,
) -> HubImages:
    """Read one split of a Hugging Face dataset.

    Args:
        name: its id; downloaded, or taken from the cache, unless there is a root.
        root: a folder that `DatasetDict.save_to_disk` wrote; read without the network.
        part: the split `train`, or the one to test on.
        test_split: its name; None for `test`, else `validation`, else `val`.
        image_column: see `HubImages`.
        label_column: see `HubImages`.

    Raises:
        FileNotFoundError: if root holds no saved dataset.
        ValueError: if there is no such split, or a column is missing.
    """
    import datasets

    source = f"hf:{name}" if root is None else str(root)
    saved: Any = None
    if root is not None:
        try:
            saved = datasets.load_from_disk(str(root))
        except FileNotFoundError as error:
            raise FileNotFoundError(f"root: {root} holds no dataset written by save_to_disk") from error
        if not isinstance(saved, datasets.DatasetDict):
            raise ValueError(f"root: {root} holds a single split, expected a saved DatasetDict")
    splits = list(saved) if saved is not None else datasets.get_dataset_split_names(name)
    wanted = ["train"] if part == "train" else [test_split] if test_split else ["test", "validation", "val"]
    split = next((split for split in wanted if split in splits), None)
    if split is None:
        raise ValueError(f"{source}: expected a split named {' or '.join(map(str, wanted))}, got {splits}")
    table = saved[split] if saved is not None else datasets.load_dataset(name, split=split)
    return HubImages(table, image_column, label_column, f"{source}, split {split}")


def read_folder(
    root: Path, class_names: Sequence[str], part: Literal["train", "test"], test_split: str | None = None
) -> FolderImages:
    """Read one part of an ImageFolder tree.

    Args:
        root: holds the folders `train` and `test` (else `val`).
        class_names: label k is the class of folder `class_names[k]`.
        part: the folder `train`, or the one to test on.
        test_split: the name of that folder; None for `test`, else `val`.

    Raises:
        FileNotFoundError: if a folder or its pictures are missing.
    """
    wanted = ["train"] if part == "train" else [test_split] if test_split else ["test", "val"]
    folder = next((root / name for name in wanted if (root / name).is_dir()), None)
    if folder is None:
        expected = " or ".join(f"{root / name}/CLASS/" for name in wanted)
        raise FileNotFoundError(f"root: expected pictures in {expected}, which is missing")
    return FolderImages(folder, class_names)


class FolderImages(ImageFolder):
    """An ImageFolder tree whose classes are given, and whose pictures all come out as RGB.

    Args:
        folder: holds one folder of pictures for each class.
        class_names: label k is the class of folder `class_names[k]`; other folders are left out.

    Raises:
        FileNotFoundError: if the folder, a class's folder or a class's pictures are missing.
    """

    def __init__(self, folder: Path, class_names: Sequence[str]) -> None:
        self.class_names = list(class_names)
        missing = [name for name in class_names if not (folder / name).is_dir()]
        if missing:
            raise FileNotFoundError(f"{folder / missing[0]} is missing, expected a folder for each class")
        try:
            super().__init__(str(folder), loader=read_picture)
        except FileNotFoundError as error:
            raise FileNotFoundError(f"{folder} lacks pictures: {error}") from error
        self.labels = torch.tensor(self.targets)

    def find_classes(self, directory: str) -> tuple[list[str], dict[str, int]]:
        """Return the given classes in the given order, where torchvision's would sort all folders."""
        return self.class_names, {name: label for label, name in enumerate(self.class_names)}


class HubImages(Dataset[tuple[Image.Image, int]]):
    """One split of a Hugging Face dataset as pairs of RGB picture and label.

    Args:
        split: a `datasets.Dataset`.
        image_column: its column of images; None for the only one.
        label_column: its column of classes; None for the only one, else `label` or `fine_label`.
        source: the name that messages give to the data.

    Raises:
        ValueError: if a column is not found, or its kind is not that of images or of classes.
    """

    def __init__(self, split: Any, image_column: str | None, label_column: str | None, source: str) -> None:
        import datasets

        images = [name for name, kind in split.features.items() if isinstance(kind, datasets.Image)]
        classes = [name for name, kind in split.features.items() if isinstance(kind, datasets.ClassLabel)]
        preferred = [name for name in ("label", "fine_label") if name in classes]
        image = image_column or (images[0] if len(images) == 1 else "")
        label = label_column or (classes[0] if len(classes) == 1 else next(iter(preferred), ""))
        for option, chosen, possible in (("image_column", image, images), ("label_column", label, classes)):
            if chosen not in possible:
                raise ValueError(
                    f"{source}: {option} must name one of {possible}, got {chosen or None!r} "
                    f"(the columns are {split.column_names})"
                )
        self.pictures, self.column, self.source = split.select_columns([image]), image, source
        self.class_names: list[str] = split.features[label].names
        # A null label and -1, which hides the labels of a test split, are both outside [0, K).
        self.labels = torch.tensor([-1 if value is None else value for value in split[label]])
        check_labels(self.labels, len(self.class_names), f"{source}, column {label}")

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Image.Image, int]:
        """Return the picture, RGB, and its label."""
        source = f"{self.source}, row {index}"
        try:
            picture = self.pictures[index][self.column]
        except UNREADABLE as error:
            raise ValueError(f"{source} cannot be read as a picture: {error}") from error
        if picture is None:
            raise ValueError(f"{source} has no picture, expected one in column {self.column}")
        return to_rgb(picture, source), int(self.labels[index])

    def in_memory(self) -> ImageTensors:
        """Decode all pictures, which must be of one size.

        Raises:
            ValueError: if they are not.
        """
        pictures = [np.asarray(self[index][0]) for index in range(len(self))]
        for index, picture in enumerate(pictures):
            if picture.shape != pictures[0].shape:
                raise ValueError(
                    f"{self.source}: row {index} has shape {picture.shape} and row 0 {pictures[0].shape}; "
                    "set image_size to resize them"
                )
        images = torch.from_numpy(np.stack(pictures)).permute(0, 3, 1, 2).contiguous()
        return ImageTensors(images, self.labels, len(self.class_names), self.source)


class Views(Dataset[tuple[Tensor, int]]):
    """Some pictures of a dataset, each passed through a transform.

    Args:
        pictures: items (picture, label).
        indices: those that are used.
        transform: picture -> (3, H, W) in [0, 1]; draws from torch's global generator, which is seeded
            for each item from (seed, epoch, index) and restored afterwards.
        seed: the run's seed.
    """

    def __init__(
        self, pictures: FolderImages | HubImages, indices: Sequence[int], transform: v2.Transform, seed: int
    ) -> None:
        self.pictures, self.indices, self.transform, self.seed = pictures, indices, transform, seed

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, key: int | tuple[int, int]) -> tuple[Tensor, int]:
        """Return the image and label at an index, or as (epoch, index) sees them."""
        epoch, index = key if isinstance(key, tuple) else (0, key)
        picture, label = self.pictures[self.indices[index]]
        with torch.random.fork_rng(devices=[]):
            # torch.manual_seed would also seed the accelerators, whose generators are not restored.
            torch.default_generator.manual_seed(derive(self.seed, "view", epoch, index))
            return self.transform(picture), label
