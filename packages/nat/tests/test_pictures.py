"""Datasets of picture files: trees, Hugging Face datasets, unusual pictures and wrong ones."""

import socket
from pathlib import Path

import datasets
import numpy as np
import pytest
import torch
from nat.data import NATDataModule
from nat.pictures import read_class_names, read_hub, read_picture
from PIL import Image


def write_tree(root: Path, parts: tuple[str, ...] = ("train", "val"), each: int = 4) -> dict[str, int]:
    """Write an ImageFolder tree of three classes, each of one colour, and return the red value of each."""
    colours = {"ant": 0, "bee": 100, "cow": 200}
    for part in parts:
        for name, red in colours.items():
            (root / part / name).mkdir(parents=True)
            for i in range(each):
                Image.new("RGB", (12, 10), (red, 10 * i, 255)).save(root / part / name / f"{i}.png")
    return colours


def write_hub(root: Path, **columns: list) -> None:
    """Save a DatasetDict of 6 training and 3 test pictures of 2 x 4 pixels; pixel value = 10 * row."""

    def split(rows: int) -> datasets.Dataset:
        features = {
            "img": datasets.Image(),
            "fine_label": datasets.ClassLabel(names=["x", "y", "z"]),
            "coarse_label": datasets.ClassLabel(names=["p", "q"]),
        }
        entries = {
            "img": [Image.new("L", (4, 2), 10 * row) for row in range(rows)],
            "fine_label": [row % 3 for row in range(rows)],
            "coarse_label": [row % 2 for row in range(rows)],
        }
        return datasets.Dataset.from_dict(entries | columns, features=datasets.Features(features))

    datasets.DatasetDict({"train": split(6), "test": split(3)}).save_to_disk(str(root))


def test_folder_labels_follow_the_listed_order_of_classes(tmp_path):
    colours = write_tree(tmp_path)
    (tmp_path / "list.txt").write_text("cow\n\nant\n")
    module = NATDataModule("imagefolder", tmp_path, image_size=8, classes=tmp_path / "list.txt")
    module.setup("test")
    assert (module.class_names, module.num_classes, module.sizes) == (["cow", "ant"], 2, {"test": 8})
    for x, y in module.parts["test"]:
        torch.testing.assert_close(x[0], torch.full((8, 8), colours[["cow", "ant"][y]] / 255))


def test_folder_classes_are_sorted_without_a_list(tmp_path):
    write_tree(tmp_path, ("train", "test"))
    module = NATDataModule("imagefolder", tmp_path, image_size=8, val_fraction=0.25)
    module.setup()
    assert module.class_names == ["ant", "bee", "cow"]
    assert module.sizes == {"train": 9, "val": 3, "test": 12}
    assert module.image_shape == (3, 8, 8)
    assert NATDataModule("imagefolder", tmp_path).image_shape == (3, 224, 224)


def test_wrong_trees_are_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"train holds no class folders"):
        NATDataModule("imagefolder", tmp_path).setup("fit")
    write_tree(tmp_path, ("train",))
    module = NATDataModule("imagefolder", tmp_path, image_size=8)
    with pytest.raises(FileNotFoundError, match=r"expected pictures in .*/test/CLASS/ or .*/val/CLASS/"):
        module.setup("test")
    write_tree(tmp_path, ("val",))
    (tmp_path / "val" / "dog").mkdir()
    with pytest.raises(ValueError, match=r"val holds classes that train lacks: \['dog'\]"):
        module.setup("test")
    (tmp_path / "val" / "dog").rename(tmp_path / "train" / "dog")
    with pytest.raises(FileNotFoundError, match=r"train lacks pictures: .* dog"):
        NATDataModule("imagefolder", tmp_path, image_size=8).setup("fit")
    with pytest.raises(FileNotFoundError, match=r"dog is missing, expected a folder for each class"):
        NATDataModule("imagefolder", tmp_path, image_size=8).setup("test")


@pytest.mark.parametrize(("text", "message"), [("a\nb\na\n", r"repeated: \['a'\]"), ("\n", "got 0 lines")])
def test_wrong_class_lists_are_named(tmp_path, text, message):
    (tmp_path / "list.txt").write_text(text)
    with pytest.raises(ValueError, match=f"list.txt must name each class once.*{message}"):
        read_class_names(tmp_path / "list.txt")
    with pytest.raises(FileNotFoundError, match=r"classes: .*none.txt is missing"):
        read_class_names(tmp_path / "none.txt")


def test_file_that_is_no_picture_is_named_when_it_is_read(tmp_path):
    write_tree(tmp_path)
    (tmp_path / "val" / "bee" / "1.png").write_text("no picture")
    module = NATDataModule("imagefolder", tmp_path, image_size=8)
    module.setup("test")
    with pytest.raises(ValueError, match=r"val/bee/1.png cannot be read as a picture"):
        list(module.test_dataloader())


def test_truncated_picture_is_named(tmp_path):
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (50, 50, 3), dtype=np.uint8)).save(tmp_path / "x.png")
    whole = (tmp_path / "x.png").read_bytes()
    (tmp_path / "x.png").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match=r"x.png cannot be read as a picture"):
        read_picture(tmp_path / "x.png")


def test_grey_palette_and_alpha_pictures_become_rgb(tmp_path):
    grey = Image.new("L", (2, 2), 77)
    alpha = Image.new("RGBA", (2, 2), (10, 20, 30, 0))
    palette = Image.new("RGB", (2, 2), (1, 2, 3)).convert("P", palette=Image.Palette.ADAPTIVE)
    for picture, expected in [(grey, (77, 77, 77)), (alpha, (10, 20, 30)), (palette, (1, 2, 3))]:
        picture.save(tmp_path / "x.png")
        assert read_picture(tmp_path / "x.png").getpixel((0, 0)) == expected


def test_picture_is_turned_upright_by_its_exif_tag(tmp_path):
    picture = Image.new("RGB", (4, 2))
    picture.putpixel((0, 0), (255, 0, 0))
    exif = picture.getexif()
    exif[0x0112] = 6  # stored turned by a quarter: the first row is the right-hand side
    picture.save(tmp_path / "x.png", exif=exif)
    upright = read_picture(tmp_path / "x.png")
    assert (upright.size, upright.getpixel((1, 0))) == ((2, 4), (255, 0, 0))


def test_sixteen_bit_picture_is_refused_rather_than_clipped(tmp_path):
    Image.fromarray(np.full((2, 2), 40000, np.uint16)).save(tmp_path / "x.png")
    with pytest.raises(ValueError, match=r"x.png: expected 8 bits a channel, got a picture of mode I;16"):
        read_picture(tmp_path / "x.png")


def test_saved_hub_dataset_is_read_without_the_network(tmp_path, monkeypatch):
    write_hub(tmp_path)

    def refuse(*_: object) -> None:
        raise AssertionError("the network was used")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    module = NATDataModule("hf:some/name", tmp_path, val_fraction=0.5)
    assert (module.class_names, module.image_shape) == (["x", "y", "z"], (3, 2, 4))
    module.setup()
    assert module.sizes == {"train": 3, "val": 3, "test": 3}
    ((x, y),) = module.test_dataloader()
    torch.testing.assert_close(x, torch.tensor([0, 10, 20]).view(3, 1, 1, 1).expand(3, 3, 2, 4) / 255)
    assert y.tolist() == [0, 1, 2]


def test_hub_pictures_are_resized_on_request_and_columns_can_be_named(tmp_path):
    write_hub(tmp_path)
    module = NATDataModule("hf:x", tmp_path, image_size=6, image_column="img", label_column="coarse_label")
    module.setup("test")
    ((x, y),) = module.test_dataloader()
    torch.testing.assert_close(x, torch.tensor([0, 10, 20]).view(3, 1, 1, 1).expand(3, 3, 6, 6) / 255)
    assert y.tolist() == [0, 1, 0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"image_column": "fine_label"}, r"image_column must name one of \['img'\], got 'fine_label'"),
        (
            {"label_column": "label"},
            r"label_column must name one of \['fine_label', 'coarse_label'\], got 'label'",
        ),
        ({"test_split": "dev"}, r"expected a split named dev, got \['train', 'test'\]"),
    ],
)
def test_wrong_hub_options_are_named(tmp_path, options, message):
    write_hub(tmp_path)
    with pytest.raises(ValueError, match=message):
        read_hub("x", tmp_path, "test", **options)


def test_wrong_hub_folders_are_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"root: .* holds no dataset written by save_to_disk"):
        read_hub("x", tmp_path, "train")
    write_hub(tmp_path / "all")
    datasets.load_from_disk(str(tmp_path / "all"))["train"].save_to_disk(str(tmp_path / "one"))
    with pytest.raises(ValueError, match=r"root: .* holds a single split"):
        read_hub("x", tmp_path / "one", "train")


def test_hidden_hub_labels_and_unequal_sizes_are_named(tmp_path):
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=["x", "y"])})
    pictures = [Image.new("RGB", (4, 2)), Image.new("RGB", (3, 2))]
    splits = {
        name: datasets.Dataset.from_dict({"image": pictures, "label": labels}, features=features)
        for name, labels in {"train": [0, 1], "test": [-1, -1], "val": [0, None]}.items()
    }
    datasets.DatasetDict(splits).save_to_disk(str(tmp_path))
    for name in ("test", "val"):
        with pytest.raises(
            ValueError, match=rf"split {name}, column label: . labels lie outside \[0, 2\), the first is -1"
        ):
            read_hub("x", tmp_path, "test", test_split=name)
    with pytest.raises(ValueError, match=r"row 1 has shape \(2, 3, 3\) and row 0 \(2, 4, 3\); set image_size"):
        read_hub("x", tmp_path, "train").in_memory()
