"""Readers: real formats on disk, and what is said about files that are wrong."""

import os
import pickle
import re
from pathlib import Path

import datasets
import numpy as np
import pytest
import torch
from orderdp.datasets import (
    FolderImages,
    HubImages,
    read_cifar,
    read_cifar_names,
    read_digits,
    read_hub,
    read_mnist5k,
    read_picture,
)
from PIL import Image
from sklearn.datasets import load_digits

rng = np.random.default_rng(0)
CLASSES = [b"airplane", b"automobile", b"bird", b"cat", b"deer", b"dog", b"frog", b"horse", b"ship", b"truck"]


def write_pickle(path: Path, entries: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(pickle.dumps(entries, protocol=2))  # the protocol of the published files


def write_cifar10(root: Path, rows: int = 6) -> tuple[np.ndarray, list[int]]:
    """Write the files of the CIFAR-10 archive; return all pixels and labels, test batch last."""
    pixels = rng.integers(0, 256, (6, rows, 3072), dtype=np.uint8)
    labels = rng.integers(0, 10, (6, rows)).tolist()
    files = [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]
    for file, data, classes in zip(files, pixels, labels, strict=True):
        entries = {b"batch_label": b"of 6", b"labels": classes, b"data": data, b"filenames": [b"a.png"]}
        write_pickle(root / file, entries)
    write_pickle(root / "batches.meta", {b"label_names": CLASSES, b"num_cases_per_batch": rows})
    return pixels.reshape(-1, 3072), sum(labels, [])


def write_tree(root: Path, *parts: str, classes: tuple[str, ...] = ("cat", "ant")) -> None:
    """Write an ImageFolder tree; red tells the number of the class, green that of the picture."""
    for part in parts:
        for number, name in enumerate(classes):
            (root / part / name).mkdir(parents=True)
            for i in range(3):
                Image.new("RGB", (12, 10), (50 * number, 10 * i, 255)).save(root / part / name / f"{i}.png")


def hub(label_columns: dict[str, list[int | None]], image: str = "img", **splits: int) -> datasets.DatasetDict:
    """Make a DatasetDict of 4 x 2 grey pictures of value 10 * row; the label columns have three classes."""
    kinds = {name: datasets.ClassLabel(names=["x", "y", "z"]) for name in label_columns}
    features = datasets.Features({image: datasets.Image(), **kinds})
    return datasets.DatasetDict(
        {
            split: datasets.Dataset.from_dict(
                {image: [Image.new("L", (4, 2), 10 * row) for row in range(rows)]}
                | {name: values[:rows] for name, values in label_columns.items()},
                features=features,
            )
            for split, rows in splits.items()
        }
    )


def test_digits_are_the_sixteen_grey_levels_of_scikit_learn():
    images = read_digits()
    assert np.array_equal(images.images[:, 0] * 16, load_digits().images)
    assert np.array_equal(images.labels, load_digits().target)


def test_mnist5k_holds_500_of_each_digit_as_floats_over_the_unit_range():
    images = read_mnist5k()
    assert torch.bincount(images.labels).tolist() == [500] * 10
    assert (images.images.dtype, images.images.min(), images.images.max()) == (torch.float32, 0, 1)
    assert images[4999][0].shape == (1, 28, 28)
    # Ink is sparse and central: pixels in a wrong order would leave ink in the border.
    assert images.images[..., :2].mean() < 0.01 * images.images.mean()
    # A zero is wider than a one; upright, a one has most ink in its middle columns, not rows.
    ones = images.images[images.labels == 1].mean(0)[0]
    assert ones.sum(0).max() > 2 * ones.sum(1).max()


@pytest.mark.parametrize("below", ["", "cifar-10-batches-py"])
def test_cifar10_planes_become_channels_in_file_order(tmp_path, below):
    pixels, labels = write_cifar10(tmp_path / below)
    train, test = read_cifar(tmp_path, "cifar10", "train"), read_cifar(tmp_path, "cifar10", "test")
    assert (train.images.dtype, train.images.shape) == (torch.uint8, (30, 3, 32, 32))
    for image, channel, row, column in [(0, 0, 0, 0), (7, 1, 3, 5), (29, 2, 31, 30)]:
        assert train[image][0][channel, row, column] == pixels[image, 1024 * channel + 32 * row + column]
    assert np.array_equal(test.images.flatten(1), pixels[30:])
    assert [train.labels.tolist(), test.labels.tolist()] == [labels[:30], labels[30:]]
    assert train.class_names == [name.decode() for name in CLASSES]


def test_cifar100_is_read_with_its_fine_labels(tmp_path):
    data = rng.integers(0, 256, (4, 3072), dtype=np.uint8)
    entries = {b"data": data, b"fine_labels": [99, 0, 5, 7], b"coarse_labels": [1, 2, 3, 4]}
    write_pickle(tmp_path / "cifar-100-python" / "train", entries)
    names = [f"class {i}".encode() for i in range(100)]
    write_pickle(tmp_path / "cifar-100-python" / "meta", {b"fine_label_names": names, b"coarse_label_names": [b"a"]})
    images = read_cifar(tmp_path, "cifar100", "train")
    assert images.labels.tolist() == [99, 0, 5, 7]
    assert np.array_equal(images.images.flatten(1), data)
    assert images.class_names[99] == "class 99"


def test_missing_cifar_file_is_named_and_the_test_part_needs_no_training_file(tmp_path):
    write_cifar10(tmp_path)
    (tmp_path / "data_batch_4").unlink()
    assert len(read_cifar(tmp_path, "cifar10", "test")) == 6
    with pytest.raises(FileNotFoundError, match=r"data_batch_4 is missing, expected .*ROOT/cifar-10-batches-py"):
        read_cifar(tmp_path, "cifar10", "train")


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
    (tmp_path / "test_batch").write_bytes(f"c{module}\n{function}\n.".encode())
    with pytest.raises(ValueError, match=f"it refers to {re.escape(name)}"):
        read_cifar(tmp_path, "cifar10", "test")


PIXELS = np.zeros((2, 3072), np.uint8)


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({b"data": PIXELS}, r"test_batch: key b'labels' is missing, got \[\"b'data'\"\]"),
        ({b"data": PIXELS[:, :3000], b"labels": [0, 1]}, r"key b'data' must be uint8 .* \(2, 3000\)"),
        ({b"data": PIXELS / 255, b"labels": [0, 1]}, "key b'data' must be uint8 .* float64"),
        ({b"data": PIXELS, b"labels": [0]}, r"key b'labels' must hold 2 integers, got int64 \(1,\)"),
        ({b"data": PIXELS, b"labels": [0.5, 1]}, "key b'labels' must hold 2 integers, got float64"),
        ({b"data": PIXELS, b"labels": [0, 10]}, r"test_batch: 1 labels lie outside \[0, 10\), .* is 10 at index 1"),
        ({b"data": PIXELS, b"labels": [-1, 0]}, r"1 labels lie outside \[0, 10\), the first is -1 at index 0"),
        ([1, 2], "test_batch: expected a pickled dictionary, got list"),
    ],
)
def test_wrong_cifar_batches_are_named(tmp_path, entries, message):
    write_pickle(tmp_path / "test_batch", entries)
    with pytest.raises(ValueError, match=message):
        read_cifar(tmp_path, "cifar10", "test")


def test_empty_cifar_batch_is_named(tmp_path):
    # Protocol 2 holds an empty array as a call of `bytes`, which is refused before its emptiness is seen.
    (tmp_path / "test_batch").write_bytes(pickle.dumps({b"data": PIXELS[:0], b"labels": PIXELS[:0, 0]}, protocol=4))
    with pytest.raises(ValueError, match="test_batch is empty, expected at least one image"):
        read_cifar(tmp_path, "cifar10", "test")


@pytest.mark.parametrize("names", [CLASSES[:9], b"cat", [1] * 10])
def test_wrong_class_names_are_named(tmp_path, names):
    write_pickle(tmp_path / "batches.meta", {b"label_names": names})
    with pytest.raises(ValueError, match=r"batches.meta: key b'label_names' must be a list of 10 names"):
        read_cifar_names(tmp_path, "cifar10")


def test_truncated_and_foreign_files_are_named(tmp_path):
    write_cifar10(tmp_path)
    whole = (tmp_path / "test_batch").read_bytes()
    for content in (whole[: len(whole) // 2], b"", b"no pickle"):
        (tmp_path / "test_batch").write_bytes(content)
        with pytest.raises(ValueError, match=r"test_batch cannot be read as a pickle"):
            read_cifar(tmp_path, "cifar10", "test")


def test_folder_labels_count_the_sorted_classes(tmp_path):
    write_tree(tmp_path, "train", "val")
    for part in ("train", "test"):
        images = FolderImages(tmp_path, part)
        assert images.class_names == ["ant", "cat"]
        assert images.labels.tolist() == [0, 0, 0, 1, 1, 1]
        # `ant` was written as number 1, `cat` as number 0.
        pixels = [(picture.getpixel((3, 3)), label) for picture, label in images]
        assert pixels == [((50 * (1 - label), 10 * i, 255), label) for label in (0, 1) for i in range(3)]


def test_folder_to_test_on_is_test_else_val_unless_it_is_named(tmp_path):
    write_tree(tmp_path, "train", "val")
    assert Path(FolderImages(tmp_path, "test").root).name == "val"
    write_tree(tmp_path, "test", "extra")
    assert Path(FolderImages(tmp_path, "test").root).name == "test"
    assert Path(FolderImages(tmp_path, "test", "extra").root).name == "extra"


def test_wrong_trees_are_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"root: expected pictures in .*/train/CLASS/, which is missing"):
        FolderImages(tmp_path, "train")
    write_tree(tmp_path, "train")
    with pytest.raises(FileNotFoundError, match=r"expected pictures in .*/test/CLASS/ or .*/val/CLASS/"):
        FolderImages(tmp_path, "test")
    write_tree(tmp_path, "val", classes=("ant", "dog"))
    message = r"root: .*val and .*train must hold the same classes, they differ in \['cat', 'dog'\]"
    with pytest.raises(ValueError, match=message):
        FolderImages(tmp_path, "test")
    (tmp_path / "train" / "eel").mkdir()
    with pytest.raises(FileNotFoundError, match="no valid file for the classes eel"):
        FolderImages(tmp_path, "train")


def test_truncated_and_foreign_pictures_are_named(tmp_path):
    Image.fromarray(rng.integers(0, 256, (50, 50, 3), dtype=np.uint8)).save(tmp_path / "x.png")
    whole = (tmp_path / "x.png").read_bytes()
    for content in (whole[: len(whole) // 2], b"no picture"):
        (tmp_path / "x.png").write_bytes(content)
        with pytest.raises(ValueError, match=r"x.png cannot be read as a picture"):
            read_picture(tmp_path / "x.png")


def test_grey_palette_and_alpha_pictures_become_rgb(tmp_path):
    grey = Image.new("L", (2, 2), 77)
    alpha = Image.new("RGBA", (2, 2), (10, 20, 30, 0))
    palette = Image.new("RGB", (2, 2), (1, 2, 3)).convert("P", palette=Image.Palette.ADAPTIVE)
    for picture, expected in [(grey, (77, 77, 77)), (alpha, (10, 20, 30)), (palette, (1, 2, 3))]:
        picture.save(tmp_path / "x.png")
        assert read_picture(tmp_path / "x.png").getpixel((0, 0)) == expected


def test_sixteen_bit_picture_is_refused_rather_than_clipped(tmp_path):
    Image.fromarray(np.full((2, 2), 40000, np.uint16)).save(tmp_path / "x.png")
    with pytest.raises(ValueError, match=r"x.png: expected 8 bits a channel, got a picture of mode I;16"):
        read_picture(tmp_path / "x.png")


@pytest.mark.parametrize(
    ("image", "columns", "options", "expected"),
    [
        ("img", {"label": [2, 0, 1]}, {}, [2, 0, 1]),  # CIFAR-10
        ("img", {"coarse_label": [0, 0, 0], "fine_label": [1, 2, 0]}, {}, [1, 2, 0]),  # CIFAR-100
        ("image", {"label": [1, 1, 0]}, {}, [1, 1, 0]),  # ImageNet
        ("image", {"fine_label": [0, 0, 2], "label": [1, 2, 0]}, {}, [1, 2, 0]),
        ("img", {"coarse_label": [0, 0, 2], "fine_label": [1, 2, 0]}, {"label_column": "coarse_label"}, [0, 0, 2]),
        ("photo", {"kind": [1, 2, 0]}, {"image_column": "photo"}, [1, 2, 0]),
    ],
)
def test_hub_columns_are_found_by_their_kind_or_named(tmp_path, image, columns, options, expected):
    hub(columns, image, train=3, test=2).save_to_disk(str(tmp_path))
    images = HubImages(read_hub("some/name", tmp_path), "train", **options)
    assert (images.labels.tolist(), images.class_names) == (expected, ["x", "y", "z"])
    values = [(picture.getpixel((3, 1)), label) for picture, label in (images[i] for i in range(3))]
    assert values == [((10 * i,) * 3, label) for i, label in enumerate(expected)]


def test_hub_id_is_loaded_through_the_library(monkeypatch):
    monkeypatch.setattr(datasets, "load_dataset", lambda name: {"train": name})
    assert read_hub("some/name", None) == {"train": "some/name"}


@pytest.mark.parametrize(
    ("splits", "option", "expected"),
    [
        ({"train": 3, "validation": 2, "test": 1}, None, 1),
        ({"train": 3, "validation": 2}, None, 2),
        ({"train": 3, "validation": 2, "test": 1}, "validation", 2),
    ],
)
def test_split_to_test_on_is_test_else_validation_unless_it_is_named(splits, option, expected):
    assert len(HubImages(hub({"label": [0, 1, 2]}, **splits), "test", option)) == expected


@pytest.mark.parametrize(
    ("columns", "options", "message"),
    [
        ({"label": [0, 1]}, {"image_column": "label"}, r"image_column must name one of \['img'\], got 'label'"),
        ({"label": [0, 1]}, {"label_column": "img"}, r"label_column must name one of \['label'\], got 'img'"),
        ({"a": [0, 1], "b": [0, 1]}, {}, r"label_column must name one of \['a', 'b'\], got None"),
        ({"label": [0, 1]}, {"test_split": "dev"}, r"hf:x: expected a split named dev, got \['train', 'test'\]"),
        (
            {"label": [0, -1]},
            {},
            r"split test, column label: 1 labels lie outside \[0, 3\), the first is -1 at index 1",
        ),
        ({"label": [None, 1]}, {}, r"split test, column label: 1 labels .* the first is -1 at index 0"),
    ],
)
def test_wrong_hub_columns_splits_and_labels_are_named(columns, options, message):
    with pytest.raises(ValueError, match=message):
        HubImages(hub(columns, train=2, test=2), "test", **options, source="hf:x")


def test_missing_hub_picture_is_named():
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=["x"])})
    entries = {"image": [{"bytes": b"no picture", "path": None}, None], "label": [0, 0]}
    images = HubImages({"train": datasets.Dataset.from_dict(entries, features=features)}, "train", source="hf:x")
    with pytest.raises(ValueError, match=r"hf:x, split train, row 0 cannot be read as a picture"):
        images[0]
    with pytest.raises(ValueError, match=r"row 1 has no picture, expected one in column image"):
        images[1]


def test_wrong_hub_folders_are_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"root: .* holds no dataset written by save_to_disk"):
        read_hub("x", tmp_path)
    hub({"label": [0]}, train=1)["train"].save_to_disk(str(tmp_path / "one"))
    with pytest.raises(ValueError, match=r"root: .* holds a single split, expected a saved DatasetDict"):
        read_hub("x", tmp_path / "one")
