"""Splits, label noise, augmentation and loaders: what each batch holds, in any process and after a resume."""

import itertools
import pickle
import time
from collections import Counter
from pathlib import Path
from unittest.mock import Mock

import datasets
import numpy as np
import pytest
import torch
import torchvision.transforms.v2.functional as TF
from jsonargparse import ArgumentParser
from lightning.pytorch import LightningModule, Trainer
from orderdp.data import ImageData, OrderDPData, randomise_labels, stratified_split
from orderdp.datasets import ImageTensors
from orderdp.pruning import Pruning
from orderdp.views import Views, crop_flip, picture_transform
from PIL import Image
from shared.seeding import generator
from torch import Tensor

DIGITS = "digits"


def made(dataset: str = DIGITS, root: Path | None = None, **options: object) -> ImageData:
    data = ImageData(dataset, root, **options)
    data.setup()
    return data


def numbered(size: int, first: int = 0, **options: object) -> Views:
    """Make images of 6 x 6 pixels whose value is their number / 255."""
    values = torch.arange(first, first + size, dtype=torch.uint8).view(-1, 1, 1, 1).expand(-1, 1, 6, 6)
    whole = ImageTensors(values, torch.arange(size) % 3, ["a", "b", "c"])
    return Views(whole, torch.arange(size), whole.labels, mean=[0.0], std=[1.0], **options)


def numbers(x: Tensor) -> list[int]:
    return (x[:, 0, 0, 0] * 255).round().int().tolist()


def with_parts(ranks: int = 1, rank: int = 0, **options: object) -> ImageData:
    """Make a datamodule over 11 training, 5 validation and 7 test images, as one process of several sees it."""
    data = ImageData(DIGITS, **options)
    data.parts = {"train": numbered(11), "val": numbered(5, 50), "test": numbered(7, 100)}
    if ranks > 1:
        epoch = {"fit_loop.epoch_progress.current.processed": 0}
        data.trainer = Mock(global_rank=rank, world_size=ranks, **epoch)
    return data


def write_cifar10(root: Path, rows: int = 20) -> None:
    rng = np.random.default_rng(0)
    for file in (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"):
        entries = {
            b"data": rng.integers(0, 256, (rows, 3072), dtype=np.uint8),
            b"labels": [i % 10 for i in range(rows)],
        }
        (root / file).write_bytes(pickle.dumps(entries, protocol=2))
    (root / "batches.meta").write_bytes(pickle.dumps({b"label_names": [b"name"] * 10}, protocol=2))


def write_pictures(root: Path) -> None:
    rng = np.random.default_rng(0)
    for part, name in itertools.product(("train", "val"), ("a", "b")):
        (root / part / name).mkdir(parents=True)
        for i in range(6):
            Image.fromarray(rng.integers(0, 256, (20, 24, 3), dtype=np.uint8)).save(root / part / name / f"{i}.png")


@pytest.mark.parametrize(
    ("dataset", "train", "val", "test"),
    [("mnist5k", [360] * 10, [40] * 10, [100] * 10), (DIGITS, None, None, None)],
)
def test_parts_are_disjoint_stratified_and_the_same_for_every_seed(dataset, train, val, test):
    data, again = made(dataset, seed=0), made(dataset, seed=1)
    chosen = {name: part.chosen.tolist() for name, part in data.parts.items()}
    assert chosen == {name: part.chosen.tolist() for name, part in again.parts.items()}
    whole = data.parts["train"].images
    assert sorted(sum(chosen.values(), [])) == list(range(len(whole)))
    expected = {"train": train, "val": val, "test": test}
    for name, part in data.parts.items():
        assert torch.equal(part.labels, whole.labels[part.chosen])
        counts = torch.bincount(part.labels)
        if expected[name] is not None:
            assert counts.tolist() == expected[name]
        share = torch.bincount(whole.labels) * len(part) / len(whole)
        assert (counts - share).abs().max() < 2  # within one item in each of the two splits
    if dataset == DIGITS:
        assert {name: len(part) for name, part in data.parts.items()} == {"train": 1080, "val": 120, "test": 597}


def test_split_seed_changes_the_test_set():
    first, second = (set(made(split_seed=seed).parts["test"].chosen.tolist()) for seed in (0, 1))
    assert 100 < len(first & second) < 300  # about 597 * 597 / 1797 by chance


def test_stratified_split_keeps_quotas_by_largest_remainder():
    labels = torch.tensor([0] * 5 + [1] * 3 + [2] * 2)[torch.randperm(10, generator=generator(0))]
    chosen, rest = stratified_split(labels, 4, generator(1))  # exact shares 2, 1.2, 0.8
    assert torch.bincount(labels[chosen]).tolist() == [2, 1, 1]
    assert sorted([*chosen.tolist(), *rest.tolist()]) == list(range(10))
    others = {tuple(stratified_split(labels, 4, generator(seed))[0].tolist()) for seed in range(30)}
    assert len(others) > 15  # of 10 * 3 * 2 that are possible


def test_without_validation_all_training_images_train():
    data = made(val_fraction=0.0)
    assert {name: len(part) for name, part in data.parts.items()} == {"train": 1200, "test": 597}
    assert data.val_dataloader() == []


def test_random_labels_are_uniform_over_all_classes_for_exactly_the_named_share():
    labels = torch.arange(10_000) % 4
    original = labels.clone()
    changed, noisy = randomise_labels(labels, 0.3, 4, generator(0))
    assert torch.equal(labels, original)
    assert (len(noisy), noisy.dtype) == (3000, torch.int64)
    assert torch.equal(noisy, noisy.unique())  # ascending, no repeats
    others = torch.ones(10_000, dtype=torch.bool)
    others[noisy] = False
    assert torch.equal(changed[others], labels[others])
    # Every pair of old and new label is equally likely: 16 cells of 187.5 with standard deviation 13.3.
    pairs = torch.bincount(4 * labels[noisy] + changed[noisy])
    assert ((pairs - 187.5).abs() < 5 * 13.3).all()


@pytest.mark.parametrize(("share", "count"), [(0.0, 0), (0.29, 313), (1.0, 1080)])  # 0.29 * 1080 = 313.2
def test_label_noise_meets_the_training_labels_only(share, count):
    clean, noisy, other = made(), made(label_noise=share, seed=5), made(label_noise=share, split_seed=1)
    assert len(noisy.noisy) == count
    for part in ("val", "test"):
        assert torch.equal(noisy.parts[part].labels, clean.parts[part].labels)
    assert torch.equal(noisy.parts["train"].chosen, clean.parts["train"].chosen)
    different = (noisy.parts["train"].labels != clean.parts["train"].labels).nonzero().flatten()
    assert set(different.tolist()) <= set(noisy.noisy.tolist())
    assert abs(len(different) - 0.9 * count) <= 5 * (0.09 * count) ** 0.5  # one draw of ten is the right label
    assert torch.equal(noisy.noisy, made(label_noise=share, seed=6).noisy)
    if 0 < share < 1:
        assert not torch.equal(noisy.noisy, other.noisy)
    whole = noisy.parts["train"].images
    assert torch.equal(whole.labels, made().parts["train"].images.labels)  # the shared dataset stays as it was
    assert [int(y) for _, y in (noisy.parts["train"][i] for i in range(50))] == noisy.parts["train"].labels[
        :50
    ].tolist()


@pytest.mark.parametrize(
    ("dataset", "mean", "std"),
    [
        ("mnist5k", [0.1307], [0.3081]),
        (DIGITS, [0.0], [1.0]),
        ("cifar10", [0.5074, 0.4867, 0.4411], [0.2011, 0.1987, 0.2025]),
        ("imagefolder", [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
    ],
)
def test_channels_are_normalised_by_the_numbers_of_their_dataset(tmp_path, dataset, mean, std):
    options: dict = {"val_fraction": 0.2}
    if dataset == "cifar10":
        write_cifar10(tmp_path)
    if dataset == "imagefolder":
        write_pictures(tmp_path)
        options["image_size"] = 8
    root = tmp_path if dataset in ("cifar10", "imagefolder") else None
    (x, _), (raw, _) = (
        next(iter(made(dataset, root, normalize=normalize, **options).test_dataloader())) for normalize in (True, False)
    )
    assert (x.dtype, raw.min() >= 0, raw.max() <= 1) == (torch.float32, True, True)
    assert raw.max() > 0.5  # of 1
    torch.testing.assert_close(x, TF.normalize(raw, mean, std))


def test_mnist_statistics_are_those_of_the_table():
    x = torch.cat([x for x, _ in made("mnist5k").train_dataloader()])
    assert abs(float(x.mean())) < 0.02
    assert abs(float(x.std()) - 1) < 0.02


def test_cifar_pixels_reach_the_batch_unchanged(tmp_path):
    write_cifar10(tmp_path)
    data = made("cifar10", tmp_path, normalize=False, val_fraction=0.1)
    entries = pickle.loads((tmp_path / "test_batch").read_bytes())
    ((x, y),) = data.test_dataloader()
    assert np.array_equal((x * 255).round().byte().flatten(1), entries[b"data"])
    assert y.tolist() == entries[b"labels"]
    assert (data.num_classes, data.in_channels, data.image_shape) == (10, 3, (3, 32, 32))


def test_crop_flip_equals_torchvision_at_every_offset():
    offsets = list(itertools.product(range(5), range(5), (False, True)))
    top, left, flip = (torch.tensor(values) for values in zip(*offsets, strict=True))
    x = torch.rand(len(offsets), 3, 6, 7, generator=generator(0))
    original = x.clone()
    result = crop_flip(x, top, left, flip, pad=2)
    for image, cropped, (i, j, mirror) in zip(x, result, offsets, strict=True):
        expected = TF.crop(TF.pad(image, [2], padding_mode="reflect"), i, j, 6, 7)
        assert torch.equal(cropped, TF.horizontal_flip(expected) if mirror else expected)
    assert torch.equal(x, original)


def test_crops_are_drawn_uniformly():
    # One image whose pixels are all different, 16,200 times: each view tells its offset and direction.
    size = 16_200
    whole = ImageTensors(torch.arange(100, dtype=torch.uint8).view(1, 1, 10, 10), torch.zeros(1).long(), ["a"])
    where = torch.zeros(size, dtype=torch.int64)
    views = Views(whole, where, where, mean=[0.0], std=[1.0], augment=True)
    x, _ = views.__getitems__(range(size))
    counts = torch.tensor(list(Counter(map(bytes, (x * 255).round().byte().flatten(1).numpy())).values()))
    assert len(counts) == 162  # 9 x 9 offsets, mirrored or not
    assert ((counts - 100).abs() < 5 * 100**0.5).all()


def test_sizes_are_known_before_anything_is_read():
    assert ImageData("imagefolder", Path("absent")).image_shape == (3, 224, 224)
    assert ImageData("hf:some/name", image_size=32).image_shape == (3, 32, 32)
    cifar = ImageData("cifar100", Path("absent"))
    assert (cifar.num_classes, cifar.in_channels, cifar.image_shape) == (100, 3, (3, 32, 32))
    assert ImageData().image_shape == (1, 28, 28)


def test_picture_transform_resizes_by_256_to_224_and_keeps_the_centre():
    pixels = np.random.default_rng(0).integers(0, 256, (256, 300, 3), dtype=np.uint8)
    x = picture_transform(224, augment=False)(Image.fromarray(pixels))
    assert np.array_equal((x * 255).round().byte().permute(1, 2, 0), pixels[16:240, 38:262])


@pytest.mark.parametrize("dataset", ["cifar10", "imagefolder"])
def test_views_depend_on_seed_epoch_and_index_only(tmp_path, dataset):
    write_cifar10(tmp_path) if dataset == "cifar10" else write_pictures(tmp_path)

    def epoch(number: int, workers: int = 0, seed: int = 0, batch_size: int = 3) -> Tensor:
        size = {} if dataset == "cifar10" else {"image_size": 8}
        data = made(dataset, tmp_path, batch_size=batch_size, num_workers=workers, seed=seed, val_fraction=0.2, **size)
        loader = data.train_dataloader()
        loader.sampler.set_epoch(number)
        order = list(loader.sampler)
        x = torch.cat([x for x, _ in loader])
        return x[torch.tensor(order).argsort()]

    first = epoch(3)
    assert torch.equal(first, epoch(3, workers=2))
    assert torch.equal(first, epoch(3, batch_size=5))
    for other in (epoch(4), epoch(3, seed=1)):
        same = (first == other).flatten(1).all(1).sum()
        assert same <= 3  # of 80 tensors with 162 views, or of 10 pictures


def test_equal_pictures_get_different_views_in_one_epoch(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (20, 24, 3), dtype=np.uint8)
    for part, i in itertools.product(("train", "val"), range(5)):
        (tmp_path / part / "a").mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(tmp_path / part / "a" / f"{i}.png")
    ((x, _),) = made("imagefolder", tmp_path, image_size=8, val_fraction=0.0).train_dataloader()
    assert len(x.unique(dim=0)) == 5


def test_pickled_views_stay_in_the_epoch_of_their_pickling():
    epoch = 3
    views = numbered(200, augment=True, epoch=lambda: epoch)
    copy = pickle.loads(pickle.dumps(views))  # what a worker that is not forked receives
    offsets = views._epoch_offsets(3)
    epoch = 4
    assert (views.epoch(), copy.epoch()) == (4, 3)
    assert torch.equal(copy._epoch_offsets(copy.epoch()), offsets)
    assert not torch.equal(views._epoch_offsets(views.epoch()), offsets)


def test_only_training_images_of_pictures_and_cifar_are_augmented(tmp_path):
    write_cifar10(tmp_path)
    for options, expected in [({}, True), ({"augment": False}, False)]:
        assert made("cifar10", tmp_path, **options).parts["train"].augment == expected
    for dataset, augment in [(DIGITS, None), (DIGITS, True)]:
        data = made(dataset, augment=augment)
        assert {name: part.augment for name, part in data.parts.items()} == {
            "train": augment is True, "val": False, "test": False,
        }  # fmt: skip
    plain = made("cifar10", tmp_path, normalize=False)
    x, y = next(iter(plain.val_dataloader()))
    part = plain.parts["val"]
    assert torch.equal(x, part.images.images[part.chosen] / 255)
    assert torch.equal(y, part.images.labels[part.chosen])


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("workers", [0, 2])
def test_evaluation_scores_each_of_seven_images_once(ranks, workers):
    scored: list[int] = []
    for rank in range(ranks):
        data = with_parts(ranks, rank, eval_batch_size=2, num_workers=workers)
        scored += [number for x, _ in data.test_dataloader() for number in numbers(x)]
    assert sorted(scored) == list(range(100, 107))


@pytest.mark.parametrize("ranks", [1, 2])
def test_training_order_is_a_function_of_seed_and_epoch(ranks):
    def epoch(number: int, seed: int = 0, rank: int = 0) -> list[int]:
        loader = with_parts(ranks, rank, seed=seed, batch_size=2).train_dataloader()
        loader.sampler.set_epoch(number)
        return [number for x, _ in loader for number in numbers(x)]

    assert epoch(1) == epoch(1)
    assert len({tuple(epoch(number, seed)) for number in (0, 1, 2) for seed in (0, 1)}) == 6
    seen = Counter(number for rank in range(ranks) for number in epoch(0, rank=rank))
    assert set(seen) == set(range(11))
    assert seen.total() == 11 + (ranks == 2)  # 11 images on two processes: one is repeated


def test_batch_holds_the_items_one_by_one():
    data = made(label_noise=0.5, augment=True)
    part = data.parts["train"]
    x, y = part.__getitems__([5, 0, 1079])
    for image, label, index in zip(x, y, (5, 0, 1079), strict=True):
        assert torch.equal(image, part[index][0])
        assert label == part[index][1]


def test_loading_leaves_the_global_generators_alone(tmp_path):
    write_pictures(tmp_path)
    for data in (made(augment=True), made("imagefolder", tmp_path, image_size=8)):
        torch.manual_seed(5)
        expected = torch.get_rng_state()
        list(data.train_dataloader())
        assert torch.equal(torch.get_rng_state(), expected)


def test_epochs_over_the_default_take_a_fraction_of_the_training_time():
    data = made("mnist5k", val_fraction=0.0)
    loader = data.train_dataloader()
    start = time.perf_counter()
    assert sum(len(y) for _ in range(5) for _, y in loader) == 20_000
    assert time.perf_counter() - start < 5  # 0.05 s were seen; one by one it takes a hundred times as long


def test_saved_hub_dataset_gives_cropped_pictures_and_their_classes(tmp_path):
    kinds = datasets.Features({"img": datasets.Image(), "label": datasets.ClassLabel(names=["x", "y"])})
    splits = {
        split: datasets.Dataset.from_dict(
            {
                "img": [Image.new("L", (9, 8), 10 * row) for row in range(rows)],
                "label": [row % 2 for row in range(rows)],
            },
            features=kinds,
        )
        for split, rows in {"train": 10, "test": 4}.items()
    }
    datasets.DatasetDict(splits).save_to_disk(str(tmp_path / "same"))
    data = made("hf:some/name", tmp_path / "same", image_size=6, normalize=False, val_fraction=0.2)
    assert (data.class_names, data.num_classes, data.image_shape) == (["x", "y"], 2, (3, 6, 6))
    assert {name: len(part) for name, part in data.parts.items()} == {"train": 8, "val": 2, "test": 4}
    ((x, y),) = data.test_dataloader()
    torch.testing.assert_close(x, torch.tensor([0, 10, 20, 30]).view(4, 1, 1, 1).expand(4, 3, 6, 6) / 255)
    assert y.tolist() == [0, 1, 0, 1]
    splits["test"] = splits["test"].cast_column("label", datasets.ClassLabel(names=["y", "x"]))
    datasets.DatasetDict(splits).save_to_disk(str(tmp_path / "other"))
    with pytest.raises(ValueError, match="the split to test on has other classes than split train"):
        made("hf:some/name", tmp_path / "other", val_fraction=0.2)


def test_tuning_scores_the_held_out_images_and_does_not_open_the_test_set(tmp_path):
    write_cifar10(tmp_path)
    (tmp_path / "test_batch").unlink()
    data = ImageData("cifar10", tmp_path, test_on="val")
    data.setup("test")
    assert torch.equal(torch.cat([y for _, y in data.test_dataloader()]), data.parts["val"].labels)


class Recorder(LightningModule):
    """Keeps every training batch."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(()))
        self.seen: list[Tensor] = []

    def training_step(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        self.seen.append(batch[0])
        torch.rand(3)  # as dropout would
        return self.weight

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 0.1)


def trainer(epochs: int, root: Path) -> Trainer:
    return Trainer(
        accelerator="cpu", max_epochs=epochs, default_root_dir=root, logger=False, enable_progress_bar=False,
        enable_model_summary=False, num_sanity_val_steps=0, use_distributed_sampler=False, limit_val_batches=0,
        reload_dataloaders_every_n_epochs=1,
    )  # fmt: skip


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", [ImageData, OrderDPData])
@pytest.mark.parametrize("workers", [0, 2])
def test_resumed_run_sees_the_views_of_an_unbroken_one(tmp_path, kind, workers):
    def options() -> ImageData:
        return kind(dataset=DIGITS, augment=True, batch_size=500, seed=4, num_workers=workers)

    unbroken, broken, resumed = Recorder(), Recorder(), Recorder()
    trainer(3, tmp_path / "a").fit(unbroken, options())
    first = trainer(1, tmp_path / "b")
    first.fit(broken, options())
    torch.manual_seed(99)
    trainer(3, tmp_path / "b").fit(resumed, options(), ckpt_path=first.checkpoint_callback.best_model_path)
    both = broken.seen + resumed.seen
    assert len(both) == len(unbroken.seen)
    assert all(torch.equal(a, b) for a, b in zip(both, unbroken.seen, strict=True))
    if kind is ImageData:  # every epoch has its own views, whatever the order
        rows = [{bytes(x.numpy()) for x in torch.cat(unbroken.seen[3 * e : 3 * e + 3])} for e in range(3)]
        assert len(rows[0] & rows[1]) < 0.1 * len(rows[0])


def test_every_option_of_pruning_and_of_the_images_is_one_of_the_command_line():
    parser = ArgumentParser()
    parser.add_class_arguments(OrderDPData, "data")
    words = ["--data.pruning.keep=0.25", "--data.dataset=digits", "--data.label_noise=0.2", "--data.seed=3"]
    data = parser.instantiate_classes(parser.parse_args(words)).data
    assert (data.pruning, data.dataset, data.label_noise, data.seed) == (Pruning(keep=0.25), DIGITS, 0.2, 3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dataset": "cifar"}, r"dataset must be digits, .* imagefolder or hf:ID, got 'cifar'"),
        ({"dataset": "hf:"}, r"dataset must be .*, got 'hf:'"),
        ({"dataset": "cifar10"}, r"root must name the folder of cifar10, got null"),
        ({"dataset": "imagefolder"}, r"root must name the folder of imagefolder, got null"),
        ({"root": Path("x")}, r"root cannot be set for dataset mnist5k, got 'x'"),
        ({"val_fraction": -0.1}, r"val_fraction must lie in \[0, 1\), got -0.1"),
        ({"val_fraction": 1.0}, r"val_fraction must lie in \[0, 1\), got 1.0"),
        ({"val_fraction": float("nan")}, r"val_fraction must lie in \[0, 1\), got nan"),
        ({"label_noise": -0.1}, r"label_noise must lie in \[0, 1\], got -0.1"),
        ({"label_noise": 1.1}, r"label_noise must lie in \[0, 1\], got 1.1"),
        ({"test_on": "train"}, r"test_on must be test or val, got 'train'"),
        ({"test_on": "val", "val_fraction": 0}, r"test_on val needs held-out images, got val_fraction 0"),
        ({"batch_size": 0}, r"batch_size must be at least 1, got 0"),
        ({"eval_batch_size": -1}, r"eval_batch_size must be at least 1, got -1"),
        ({"num_workers": -1}, r"num_workers must be at least 0, got -1"),
        ({"dataset": "hf:x", "image_size": 0}, r"image_size must be at least 1, got 0"),
        ({"image_size": 16}, r"image_size cannot be set for dataset mnist5k, got '16'"),
        ({"test_split": "x"}, r"test_split cannot be set for dataset mnist5k, got 'x'"),
        ({"image_column": "x"}, r"image_column cannot be set for dataset mnist5k, got 'x'"),
        (
            {"dataset": "imagefolder", "root": Path("x"), "label_column": "x"},
            r"label_column cannot be set for dataset imagefolder, got 'x'",
        ),
    ],
)
def test_wrong_options_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        ImageData(**options)


def test_too_small_a_training_set_for_validation_is_named(tmp_path):
    write_cifar10(tmp_path, rows=1)
    with pytest.raises(ValueError, match=r"val_fraction 0.05 of 5 images leaves one part empty"):
        ImageData("cifar10", tmp_path, val_fraction=0.05).setup("fit")
