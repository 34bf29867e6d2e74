"""Splits, orders, crops and loaders: what each batch holds, on any number of processes and after a resume."""

import hashlib
import itertools
import pickle
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torchvision.transforms.v2.functional as TF
from lightning.pytorch import LightningModule, Trainer
from nat.data import NATDataModule
from nat.datasets import ImageTensors
from nat.sampling import MixedSampler, crop_flip, random_crop_flip, stratified_split
from PIL import Image
from shared.seeding import TrainSampler, generator
from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader, Dataset


def hashes(images: ImageTensors) -> list[str]:
    return [hashlib.sha256(image.numpy().tobytes()).hexdigest() for image in images.images]


def numbered(size: int, first: int = 0) -> ImageTensors:
    """Images of 4 x 4 pixels whose value is their number / 255."""
    values = torch.arange(first, first + size, dtype=torch.uint8).view(-1, 1, 1, 1).expand(-1, 1, 4, 4)
    return ImageTensors(values, torch.arange(size) % 3, 10)


def numbers(x: Tensor) -> list[int]:
    return (x[:, 0, 0, 0] * 255).round().int().tolist()


def with_parts(ranks: int = 1, rank: int = 0, **options: object) -> NATDataModule:
    """A datamodule over 11 training, 5 validation and 7 test images, as one process of several sees it."""
    module = NATDataModule(**options)
    module.parts = {"train": numbered(11), "val": numbered(5, 50), "test": numbered(7, 100)}
    if ranks > 1:
        progress = SimpleNamespace(current=SimpleNamespace(processed=0))
        module.trainer = SimpleNamespace(
            global_rank=rank, world_size=ranks, training=False, fit_loop=SimpleNamespace(epoch_progress=progress)
        )
    return module


@pytest.mark.parametrize(("dataset", "sizes"), [("digits", (1080, 120, 597)), ("mnist5k", (3600, 400, 1000))])
def test_parts_are_disjoint_stratified_and_the_same_for_every_seed(dataset, sizes):
    module, again = NATDataModule(dataset, seed=0), NATDataModule(dataset, seed=1)
    module.setup()
    again.setup()
    parts = {name: hashes(images) for name, images in module.parts.items()}
    assert tuple(map(len, parts.values())) == sizes
    assert parts == {name: hashes(images) for name, images in again.parts.items()}
    assert len(set().union(*parts.values())) == sum(sizes)  # no two of these images are equal
    whole = torch.bincount(torch.cat([images.labels for images in module.parts.values()]))
    for images in module.parts.values():
        share = torch.bincount(images.labels) - whole * len(images) / sum(sizes)
        assert share.abs().max() < 2  # within one item in each of the two splits


def test_split_seed_changes_the_test_set():
    test = [NATDataModule(split_seed=seed) for seed in (0, 1)]
    for module in test:
        module.setup("test")
    shared = set(hashes(test[0].parts["test"])) & set(hashes(test[1].parts["test"]))
    assert 100 < len(shared) < 300  # about 597 * 597 / 1797 by chance


def test_stratified_split_keeps_quotas_by_largest_remainder():
    labels = torch.tensor([0] * 5 + [1] * 3 + [2] * 2)[torch.randperm(10, generator=generator(0))]
    chosen, rest = stratified_split(labels, 4, generator(1))  # exact shares 2, 1.2, 0.8
    assert torch.bincount(labels[chosen]).tolist() == [2, 1, 1]
    assert sorted([*chosen.tolist(), *rest.tolist()]) == list(range(10))
    others = {tuple(stratified_split(labels, 4, generator(seed))[0].tolist()) for seed in range(30)}
    assert len(others) > 15  # of 10 * 3 * 2 that are possible


def test_crop_flip_equals_torchvision_at_every_offset():
    offsets = list(itertools.product(range(5), range(5), (False, True)))
    top, left, flip = (torch.tensor(values) for values in zip(*offsets, strict=True))
    x = torch.rand(len(offsets), 3, 6, 7, generator=generator(0))
    original = x.clone()
    result = crop_flip(x, top, left, flip, pad=2)
    for image, cropped, (i, j, mirror) in zip(x, result, offsets, strict=True):
        expected = TF.crop(TF.pad(image, [2]), i, j, 6, 7)
        assert torch.equal(cropped, TF.horizontal_flip(expected) if mirror else expected)
    assert torch.equal(x, original)


def test_random_crop_flip_draws_offsets_and_flips_uniformly():
    # The pixel values are positions, so that each crop tells its offset and direction.
    x = (1 + torch.arange(16.0)).view(1, 1, 4, 4).expand(9000, 1, 4, 4)
    crops = random_crop_flip(x, 1, generator(0))
    centre = crops[:, 0, 1:3, 1:3].reshape(-1, 4)
    counts = torch.stack([(centre == view).all(1).sum() for view in centre.unique(dim=0)])
    assert len(counts) == 18  # 3 x 3 offsets, mirrored or not
    assert ((counts - 500).abs() < 5 * 500**0.5).all()
    assert torch.equal(crops, random_crop_flip(x, 1, generator(0)))


def test_mixed_epoch_keeps_its_size_and_every_batch_its_share():
    sampler = MixedSampler(TrainSampler(100, seed=3), extra=20, fraction=0.7)
    batches = list(BatchSampler(sampler, 10, drop_last=False))
    assert len(sampler) == 100
    assert [len(batch) for batch in batches] == [10] * 10
    assert all(abs(sum(index >= 100 for index in batch) - 7) <= 1 for batch in batches)
    original = [index for index in itertools.chain(*batches) if index < 100]
    extra = {index for index in itertools.chain(*batches) if index >= 100}
    assert len(original) == len(set(original)) == 30
    assert extra <= set(range(100, 120))
    assert len(extra) > 12  # 70 uniform draws of 20 leave out 0.6 on average


def test_mixed_order_is_a_function_of_seed_epoch_and_rank():
    def order(seed: int, epoch: int, rank: int) -> list[int]:
        sampler = MixedSampler(TrainSampler(100, seed, rank=rank, world_size=2), extra=500, fraction=0.5)
        sampler.set_epoch(epoch)
        return list(sampler)

    assert order(0, 1, 0) == order(0, 1, 0)
    for other in [(1, 1, 0), (0, 2, 0), (0, 1, 1)]:
        assert [i for i in order(*other) if i < 100] != [i for i in order(0, 1, 0) if i < 100]
        assert [i for i in order(*other) if i >= 100] != [i for i in order(0, 1, 0) if i >= 100]
    kept = [{i for i in order(0, 1, rank) if i < 100} for rank in (0, 1)]
    assert [len(indices) for indices in kept] == [25, 25]
    assert not kept[0] & kept[1]


def test_extra_images_join_the_training_batches_only(tmp_path):
    np.savez(tmp_path / "x.npz", image=np.full((40, 8, 8, 1), 255, np.uint8), label=np.full(40, 3))
    module = NATDataModule(extra=tmp_path / "x.npz", extra_fraction=0.25, batch_size=8)
    module.setup()
    assert module.sizes == {"train": 1080, "val": 120, "test": 597, "extra": 40}
    batches = list(module.train_dataloader())
    white = [(x == 1).flatten(1).all(1) for x, _ in batches]
    assert [int(rows.sum()) for rows in white] == [2] * 135  # a quarter of 8
    assert all((y[rows] == 3).all() for rows, (_, y) in zip(white, batches, strict=True))
    assert not any((x == 1).flatten(1).all(1).any() for x, _ in module.val_dataloader())


def test_batches_are_float_images_in_the_unit_range_and_int64_labels():
    x, y = next(iter(with_parts(batch_size=11).train_dataloader()))
    assert (x.dtype, y.dtype, y.shape) == (torch.float32, torch.int64, (11,))
    torch.testing.assert_close(x[:, 0, 3, 2].sort().values, torch.arange(11) / 255)
    module = NATDataModule()
    module.setup("fit")
    x, _ = next(iter(module.train_dataloader()))
    assert (x.shape, x.min(), x.max()) == ((128, *module.image_shape), 0, 1)


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("workers", [0, 2])
def test_evaluation_scores_each_of_seven_images_once(ranks, workers):
    for loader in ("test_dataloader", "predict_dataloader"):
        scored: list[int] = []
        for rank in range(ranks):
            module = with_parts(ranks, rank, eval_batch_size=2, num_workers=workers)
            scored += [number for x, _ in getattr(module, loader)() for number in numbers(x)]
        assert sorted(scored) == list(range(100, 107))


@pytest.mark.parametrize("ranks", [1, 2])
def test_training_order_is_a_function_of_seed_and_epoch(ranks):
    def epoch(number: int, seed: int = 0, rank: int = 0) -> list[int]:
        loader = with_parts(ranks, rank, seed=seed, batch_size=2).train_dataloader()
        loader.batch_sampler.sampler.set_epoch(number)
        return [number for x, _ in loader for number in numbers(x)]

    assert epoch(1) == epoch(1)
    assert len({tuple(epoch(number, seed)) for number in (0, 1, 2) for seed in (0, 1)}) == 6
    seen = Counter(number for rank in range(ranks) for number in epoch(0, rank=rank))
    assert set(seen) == set(range(11))
    assert seen.total() == 11 + (ranks == 2)  # 11 images on two processes: one is repeated


def test_labels_stay_with_their_images():
    module = NATDataModule()
    module.setup("fit")
    images = module.parts["train"]
    label = dict(zip(hashes(images), images.labels.tolist(), strict=True))
    for x, y in module.train_dataloader():
        assert [label[name] for name in hashes(ImageTensors(x, y, 10))] == y.tolist()


def test_loading_leaves_the_global_generators_alone(tmp_path):
    write_pictures(tmp_path)
    for module in (NATDataModule(), NATDataModule("imagefolder", tmp_path, image_size=8)):
        module.setup("fit")
        torch.manual_seed(5)
        expected = torch.get_rng_state()
        list(module.train_dataloader())
        assert torch.equal(torch.get_rng_state(), expected)


def write_pictures(root: Path) -> None:
    rng = np.random.default_rng(0)
    for part, name in itertools.product(("train", "val"), ("a", "b")):
        (root / part / name).mkdir(parents=True)
        for i in range(6):
            Image.fromarray(rng.integers(0, 256, (20, 24, 3), dtype=np.uint8)).save(root / part / name / f"{i}.png")


def test_random_views_depend_on_seed_and_epoch_and_not_on_workers(tmp_path):
    write_pictures(tmp_path)

    def epoch(number: int, workers: int = 0, seed: int = 0) -> Tensor:
        module = NATDataModule(
            "imagefolder",
            tmp_path,
            image_size=8,
            batch_size=3,
            num_workers=workers,
            seed=seed,
            val_fraction=0.2,
        )
        module.setup("fit")
        loader = module.train_dataloader()
        loader.batch_sampler.sampler.set_epoch(number)
        batches = list(loader)
        assert module.sizes == {"train": 10, "val": 2}
        return torch.cat([x for x, _ in batches])[torch.cat([y for _, y in batches]).argsort(stable=True)]

    first = epoch(3)
    assert torch.equal(first, epoch(3, workers=2))
    # Whatever the order, no crop of one epoch or seed comes back in another.
    for other in (epoch(4), epoch(3, seed=1)):
        assert not (first[:, None] == other).flatten(2).all(2).any()


def test_equal_pictures_get_different_views_in_one_epoch(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (20, 24, 3), dtype=np.uint8)
    (tmp_path / "train" / "a").mkdir(parents=True)
    for i in range(5):
        Image.fromarray(pixels).save(tmp_path / "train" / "a" / f"{i}.png")
    module = NATDataModule("imagefolder", tmp_path, image_size=8, val_fraction=0.2)
    module.setup("fit")
    ((x, _),) = module.train_dataloader()
    assert len(x.unique(dim=0)) == 4


def test_held_out_pictures_are_the_centre_crop(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (8, 8, 3), dtype=np.uint8)
    for name in ("train/a/0.png", "train/a/1.png", "val/a/0.png"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(tmp_path / name)
    # Resized to 7 / 0.875 = 8, which is their own size.
    module = NATDataModule("imagefolder", tmp_path, image_size=7, val_fraction=0.5)
    module.setup()
    for loader in (module.val_dataloader(), module.test_dataloader(), module.predict_dataloader()):
        ((x, _),) = loader
        assert np.array_equal((x[0] * 255).round().byte().permute(1, 2, 0), pixels[:7, :7])


class Recorder(LightningModule):
    """Keep every batch that it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(()))
        self.seen: dict[str, list[Tensor]] = {"train": [], "val": [], "test": [], "predict": []}

    def training_step(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        self.seen["train"].append(batch[0])
        return self.weight

    def validation_step(self, batch: tuple[Tensor, Tensor]) -> None:
        self.seen["val"].append(batch[0])

    def test_step(self, batch: tuple[Tensor, Tensor]) -> None:
        self.seen["test"].append(batch[0])

    def predict_step(self, batch: tuple[Tensor, Tensor]) -> None:
        self.seen["predict"].append(batch[0])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 0.1)


def trainer(epochs: int, root: Path) -> Trainer:
    return Trainer(
        accelerator="cpu",
        max_epochs=epochs,
        default_root_dir=root,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        use_distributed_sampler=False,
    )


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("workers", [0, 2])
def test_resumed_run_sees_the_batches_and_crops_of_an_unbroken_one(tmp_path, workers):
    def options() -> NATDataModule:
        return NATDataModule(augment=True, batch_size=500, seed=4, num_workers=workers)

    unbroken, broken, resumed = Recorder(), Recorder(), Recorder()
    trainer(3, tmp_path / "a").fit(unbroken, options())
    first = trainer(1, tmp_path / "b")
    first.fit(broken, options())
    torch.manual_seed(99)
    trainer(3, tmp_path / "b").fit(resumed, options(), ckpt_path=first.checkpoint_callback.best_model_path)
    both = broken.seen["train"] + resumed.seen["train"]
    assert len(both) == len(unbroken.seen["train"]) == 9
    assert all(torch.equal(a, b) for a, b in zip(both, unbroken.seen["train"], strict=True))


@pytest.mark.filterwarnings("ignore")
def test_trainer_augments_each_training_batch_anew_and_no_other(tmp_path):
    module = NATDataModule(augment=True, batch_size=500, seed=4)
    recorder = Recorder()
    runner = trainer(2, tmp_path)
    runner.fit(recorder, module)
    runner.test(recorder, module)
    runner.predict(recorder, module)
    loader = module.train_dataloader()
    expected = []
    for epoch in range(2):
        loader.batch_sampler.sampler.set_epoch(epoch)
        for batch, (x, _) in enumerate(loader):
            expected.append(random_crop_flip(x, 4, generator(4, "augment", epoch, batch, 0)))
    assert all(torch.equal(a, b) for a, b in zip(recorder.seen["train"], expected, strict=True))
    for name, part in [("val", "val"), ("test", "test"), ("predict", "test")]:
        seen = torch.cat(recorder.seen[name])
        assert torch.equal(seen, module.parts[part].images.repeat(len(seen) // module.sizes[part], 1, 1, 1))


def test_augmentation_differs_between_ranks_and_batches():
    x = torch.rand(64, 3, 8, 8, generator=generator(0))
    views = [
        with_parts(2, rank, augment=True, seed=seed).augment_batch(x, epoch, batch)
        for seed, epoch, batch, rank in itertools.product((0, 1), (0, 1), (0, 1), (0, 1))
    ]
    assert not any(torch.equal(a, b) for a, b in itertools.combinations(views, 2))
    assert with_parts().augment_batch(x, 0, 0) is x  # digits, by default


def test_tuning_scores_the_held_out_images_in_place_of_the_test_set():
    module = NATDataModule(test_on="val")
    module.setup("test")
    assert "test" not in module.parts
    scored = torch.cat([x for x, _ in module.test_dataloader()])
    assert torch.equal(scored, module.parts["val"].images)


class ItemByItem(Dataset[tuple[Tensor, Tensor]]):
    """The same items without `__getitems__`."""

    def __init__(self, images: ImageTensors) -> None:
        self.images = images

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.images[index]


def test_epoch_over_the_digits_takes_milliseconds_and_less_than_item_by_item():
    module = NATDataModule()
    module.setup("fit")
    loader = module.train_dataloader()
    peer = DataLoader(ItemByItem(module.parts["train"]), batch_sampler=loader.batch_sampler)

    def fastest(batches: DataLoader) -> float:
        seconds = []
        for _ in range(10):
            start = time.perf_counter()
            assert sum(len(y) for _, y in batches) == 1080
            seconds.append(time.perf_counter() - start)
        return min(seconds)

    assert fastest(loader) < min(0.01, fastest(peer) / 2)  # 0.7 ms and 5 ms were seen


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dataset": "cifar"}, r"dataset must be digits, .* imagefolder or hf:ID, got 'cifar'"),
        ({"dataset": "hf:"}, r"dataset must be .*, got 'hf:'"),
        ({"dataset": "cifar10"}, r"root must name the folder of cifar10, got null"),
        ({"root": Path("x")}, r"root cannot be set for dataset digits"),
        ({"val_fraction": 0.0}, r"val_fraction must lie in \(0, 1\), got 0.0"),
        ({"val_fraction": 1.0}, r"val_fraction must lie in \(0, 1\), got 1.0"),
        ({"extra_fraction": 1.0}, r"extra_fraction must lie in \(0, 1\), got 1.0"),
        ({"batch_size": 0}, r"batch_size must be at least 1, got 0"),
        ({"eval_batch_size": -1}, r"eval_batch_size must be at least 1, got -1"),
        ({"num_workers": -1}, r"num_workers must be at least 0, got -1"),
        ({"image_size": 16}, r"image_size cannot be set for dataset digits"),
        ({"classes": Path("x")}, r"classes cannot be set for dataset digits"),
        ({"image_column": "x"}, r"image_column cannot be set for dataset digits"),
        ({"label_column": "x"}, r"label_column cannot be set for dataset digits"),
        ({"test_split": "x"}, r"test_split cannot be set for dataset digits"),
        (
            {"dataset": "imagefolder", "root": Path("x"), "image_size": 0},
            r"image_size must be at least 1, got 0",
        ),
        (
            {"dataset": "imagefolder", "root": Path("x"), "extra": Path("y")},
            r"extra cannot be mixed with pictures",
        ),
    ],
)
def test_wrong_options_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        NATDataModule(**options)


def test_too_small_a_training_set_for_validation_is_named(tmp_path):
    entries = {b"data": np.zeros((1, 3072), np.uint8), b"labels": [0]}
    for i in range(1, 6):
        (tmp_path / f"data_batch_{i}").write_bytes(pickle.dumps(entries, protocol=2))
    with pytest.raises(ValueError, match=r"val_fraction 0.05 of 5 images leaves one part empty"):
        NATDataModule("cifar10", tmp_path, val_fraction=0.05).setup("fit")
