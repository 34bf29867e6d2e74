"""Datasets in memory: real formats on disk, and what is said about files that are wrong."""

import os
import pickle
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from nat.data import NATDataModule
from nat.datasets import ImageTensors, read_cifar, read_cifar_names, read_digits, read_extra, read_mnist5k
from sklearn.datasets import load_digits

rng = np.random.default_rng(0)


def write_pickle(path: Path, entries: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(pickle.dumps(entries, protocol=2))  # the protocol of the published files


def write_cifar10(root: Path, rows: int = 6) -> np.ndarray:
    """Write the files of the CIFAR-10 archive and return all pixels, test batch last."""
    pixels = rng.integers(0, 256, (6, rows, 3072), dtype=np.uint8)
    files = [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]
    for file, data in zip(files, pixels, strict=True):
        labels = [(7 * i + len(file)) % 10 for i in range(rows)]
        write_pickle(root / file, {b"batch_label": b"of 6", b"labels": labels, b"data": data, b"filenames": [b"a.png"]})
    names = [
        b"airplane",
        b"automobile",
        b"bird",
        b"cat",
        b"deer",
        b"dog",
        b"frog",
        b"horse",
        b"ship",
        b"truck",
    ]
    write_pickle(root / "batches.meta", {b"label_names": names, b"num_cases_per_batch": rows})
    return pixels


def test_digits_are_the_sixteen_grey_levels_of_scikit_learn():
    images = read_digits()
    batch, labels = images.__getitems__([0, 1796])
    torch.testing.assert_close(batch[:, 0] * 16, torch.tensor(load_digits().images[[0, 1796]]).float())
    assert (len(images), labels.tolist()) == (1797, load_digits().target[[0, 1796]].tolist())


def test_mnist5k_holds_500_of_each_digit_with_full_range():
    images = read_mnist5k()
    assert torch.bincount(images.labels).tolist() == [500] * 10
    assert (images.images.min(), images.images.max()) == (0, 255)
    # Ink is sparse and central: pixels in a wrong order or transposed rows would leave ink in the border.
    assert images.images[..., :2].float().mean() < 0.01 * images.images.float().mean()


@pytest.mark.parametrize("below", ["", "cifar-10-batches-py"])
def test_cifar10_planes_become_channels_in_file_order(tmp_path, below):
    pixels = write_cifar10(tmp_path / below)
    train, test = read_cifar(tmp_path, "cifar10", "train"), read_cifar(tmp_path, "cifar10", "test")
    flat = pixels.reshape(36, 3072)
    assert (len(train), len(test)) == (30, 6)
    for image, channel, row, column in [(0, 0, 0, 0), (7, 1, 3, 5), (29, 2, 31, 30)]:
        assert train.images[image, channel, row, column] == flat[image, 1024 * channel + 32 * row + column]
        torch.testing.assert_close(
            train[image][0][channel, row, column] * 255, train.images[image, channel, row, column].float()
        )
    assert np.array_equal(test.images.flatten(1), flat[30:])
    assert test.labels.tolist() == [(7 * i + 10) % 10 for i in range(6)]


def test_cifar_names_come_from_the_archive(tmp_path):
    write_cifar10(tmp_path)
    assert read_cifar_names(tmp_path, "cifar10")[3] == "cat"
    assert NATDataModule("cifar10", tmp_path).class_names[9] == "truck"


def test_cifar100_is_read_with_its_fine_labels(tmp_path):
    data = rng.integers(0, 256, (4, 3072), dtype=np.uint8)
    entries = {b"data": data, b"fine_labels": [99, 0, 5, 7], b"coarse_labels": [1, 2, 3, 4]}
    write_pickle(tmp_path / "cifar-100-python" / "train", entries)
    images = read_cifar(tmp_path, "cifar100", "train")
    assert images.labels.tolist() == [99, 0, 5, 7]
    assert images.num_classes == 100


def test_cifar_test_stage_opens_no_training_file(tmp_path):
    write_cifar10(tmp_path)
    for i in range(1, 6):
        (tmp_path / f"data_batch_{i}").unlink()
    module = NATDataModule("cifar10", tmp_path)
    module.setup("test")
    assert module.sizes == {"test": 6}
    with pytest.raises(FileNotFoundError, match=r"data_batch_1 is missing, expected .*cifar-10-batches-py"):
        module.setup("fit")


class Touch:
    """Pickles as a call that creates a folder."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple:
        return os.mkdir, (str(self.path),)


def test_pickle_that_would_run_code_is_refused_and_does_nothing(tmp_path):
    write_cifar10(tmp_path)
    trace = tmp_path / "trace"
    write_pickle(tmp_path / "test_batch", {b"data": Touch(trace), b"labels": [0]})
    with pytest.raises(ValueError, match=r"test_batch cannot be read .* it refers to \w+\.mkdir"):
        read_cifar(tmp_path, "cifar10", "test")
    assert not trace.exists()
    pickle.loads((tmp_path / "test_batch").read_bytes())  # the plain unpickler does run it
    assert trace.exists()


@pytest.mark.parametrize("name", ["os.system", "builtins.eval", "numpy.fromfile", "codecs.encode"])
def test_unpickler_finds_nothing_but_the_constructors_of_arrays(tmp_path, name):
    module, function = name.split(".")
    write_cifar10(tmp_path)
    (tmp_path / "test_batch").write_bytes(f"c{module}\n{function}\n.".encode())
    with pytest.raises(ValueError, match=f"it refers to {re.escape(name)}"):
        read_cifar(tmp_path, "cifar10", "test")


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        (
            {b"data": np.zeros((2, 3072), np.uint8)},
            r"test_batch: key b'labels' is missing, got \[\"b'data'\"\]",
        ),
        (
            {b"data": np.zeros((2, 3000), np.uint8), b"labels": [0, 1]},
            r"key b'data' must be uint8 .* \(2, 3000\)",
        ),
        ({b"data": np.zeros((2, 3072)), b"labels": [0, 1]}, "key b'data' must be uint8 .* float64"),
        ({b"data": np.zeros((2, 3072), np.uint8), b"labels": [0]}, r"key b'labels' must hold 2 integers"),
        ({b"data": np.zeros((2, 3072), np.uint8), b"labels": [0.5, 1]}, "key b'labels' must hold 2 integers"),
        (
            {b"data": np.zeros((2, 3072), np.uint8), b"labels": [0, 10]},
            r"outside \[0, 10\), the first is 10 at index 1",
        ),
        ([1, 2], "expected a pickled dictionary, got list"),
    ],
)
def test_wrong_cifar_batches_are_named(tmp_path, entries, message):
    write_pickle(tmp_path / "test_batch", entries)
    with pytest.raises(ValueError, match=message):
        read_cifar(tmp_path, "cifar10", "test")


def test_truncated_pickle_is_named(tmp_path):
    write_cifar10(tmp_path)
    whole = (tmp_path / "test_batch").read_bytes()
    (tmp_path / "test_batch").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match=r"test_batch cannot be read as a pickle"):
        read_cifar(tmp_path, "cifar10", "test")


def test_extra_images_move_channels_first(tmp_path):
    image = rng.integers(0, 256, (5, 32, 32, 3), dtype=np.uint8)
    np.savez(tmp_path / "1m.npz", image=image, label=np.array([0, 9, 2, 3, 4]))
    extra = read_extra(tmp_path / "1m.npz", 10, (3, 32, 32))
    assert extra.images[3, 2, 7, 11] == image[3, 7, 11, 2]
    assert extra.labels.tolist() == [0, 9, 2, 3, 4]


IMAGE, LABEL = np.zeros((2, 32, 32, 3), np.uint8), np.zeros(2, np.int64)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        (
            {"images": IMAGE, "label": LABEL},
            r"x.npz: expected keys `image` and `label`, got \['images', 'label'\]",
        ),
        ({"image": IMAGE / 255, "label": LABEL}, r"x.npz: key `image` must be uint8 .* got float64"),
        (
            {"image": IMAGE[:, :28], "label": LABEL},
            r"key `image` must be .* \(N, 32, 32, 3\), got uint8 \(2, 28",
        ),
        ({"image": IMAGE, "label": LABEL + 0.5}, "x.npz: key `label` must hold 2 integers, got float64"),
        (
            {"image": IMAGE, "label": LABEL[:1]},
            r"key `label` must hold 2 integers, got int64 of shape \(1,\)",
        ),
        ({"image": IMAGE, "label": LABEL + 10}, r"key `label`: 2 labels lie outside \[0, 10\)"),
        ({"image": IMAGE, "label": LABEL - 1}, r"the first is -1 at index 0"),
        ({"image": IMAGE[:0], "label": LABEL[:0]}, "x.npz, key `label` is empty"),
        (
            {"image": np.array([Touch(Path("x"))]), "label": LABEL},
            "x.npz cannot be read .* allow_pickle=False",
        ),
    ],
)
def test_wrong_extra_archives_are_named(tmp_path, arrays, message):
    np.savez(tmp_path / "x.npz", **arrays)
    with pytest.raises(ValueError, match=message):
        read_extra(tmp_path / "x.npz", 10, (3, 32, 32))


def test_extra_that_is_no_archive_or_missing_is_named(tmp_path):
    (tmp_path / "x.npz").write_text("no archive")
    with pytest.raises(ValueError, match=r"x.npz cannot be read as a .npz file"):
        read_extra(tmp_path / "x.npz", 10, (3, 32, 32))
    np.save(tmp_path / "y.npy", IMAGE)
    with pytest.raises(ValueError, match=r"y.npy cannot be read as a .npz file"):
        read_extra(tmp_path / "y.npy", 10, (3, 32, 32))
    with pytest.raises(FileNotFoundError, match=r"extra: .*z.npz is missing"):
        read_extra(tmp_path / "z.npz", 10, (3, 32, 32))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({(1, 0, 2, 3): float("nan")}, r"1 pixel values are NaN .* the first is nan at index \(1, 0, 2, 3\)"),
        (
            {(0, 0, 0, 1): 1.5, (2, 0, 3, 3): -0.1},
            r"mine: 2 pixel values .* the first is 1.5 at index \(0, 0, 0, 1\)",
        ),
        ({(2, 0, 3, 3): float("-inf")}, "1 pixel values"),
    ],
)
def test_own_images_outside_the_unit_range_are_counted_and_located(change, message):
    images = torch.full((3, 1, 4, 4), 0.5)
    for place, value in change.items():
        images[place] = value
    with pytest.raises(ValueError, match=message):
        ImageTensors(images, torch.zeros(3, dtype=torch.int64), 10, "mine")


@pytest.mark.parametrize(
    ("images", "labels", "message"),
    [
        (torch.zeros(3, 4, 4), torch.zeros(3, dtype=torch.int64), r"expected images of shape \(N, C, H, W\)"),
        (torch.zeros(3, 1, 4, 4).long(), torch.zeros(3).long(), "type uint8 or float, got torch.int64"),
        (torch.zeros(3, 1, 4, 4), torch.zeros(3), "expected 3 integer labels, got torch.float32"),
        (
            torch.zeros(3, 1, 4, 4),
            torch.zeros(2).long(),
            r"expected 3 integer labels, got torch.int64 of shape \(2,\)",
        ),
        (
            torch.zeros(3, 1, 4, 4),
            torch.tensor([0, 1, 2]),
            r"1 labels lie outside \[0, 2\), the first is 2 at index 2",
        ),
        (torch.zeros(0, 1, 4, 4), torch.zeros(0).long(), "images is empty"),
    ],
)
def test_own_tensors_are_checked(images, labels, message):
    with pytest.raises(ValueError, match=message):
        ImageTensors(images, labels, 2)
