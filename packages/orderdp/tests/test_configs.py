"""Every config that comes with the package: found by globbing, parsed by the real command, built and trained a step."""

from functools import cache
from pathlib import Path

import orderdp
import orderdp.module
import pytest
import torch
import yaml
from lightning.pytorch import Callback, LightningDataModule, Trainer
from orderdp.app import OrderDPCLI
from orderdp.cli import PAPER
from orderdp.models import SmallCNN, create_model
from orderdp.module import Optimisation, OrderDPModule
from orderdp.pruning import Pruning, PruningMixin
from orderdp.selection import sizes
from shared.verbs import config_summaries
from timm.optim import Lars
from torch.utils.data import DataLoader, TensorDataset

CONFIGS = sorted((Path(orderdp.__file__).parent / "configs").glob("*.yaml"))
DEFAULT = next(config for config in CONFIGS if config.stem == "default")
every_config = pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.stem)

# torchvision's networks have 11,689,512 and 25,557,032 parameters for 1,000 classes. A CIFAR stem has 3 * 64 * 3 * 3
# weights instead of 3 * 64 * 7 * 7, and the head takes 512 or 2,048 features and a bias.
STEM = 3 * 64 * (7 * 7 - 3 * 3)
PARAMETERS = {
    ("small_cnn", 10): (25 + 1) * 8 + (8 * 25 + 1) * 16 + (16 * 7 * 7 + 1) * 32 + 33 * 10,
    ("cifar_resnet18", 10): 11_173_962,
    ("cifar_resnet18", 100): 11_220_132,
    ("cifar_resnet50", 100): 25_557_032 - STEM - 900 * (2_048 + 1),
    ("resnet18", 1000): 11_689_512,
    ("resnet50", 1000): 25_557_032,
}
# What the sizes of the real training sets make of the ratios (Sec. 8): s, q and steps in an epoch, of the paper's runs.
SIZES = {
    "cifar10_r18_keep50": (50_000, 37_500, 25_000, 196),
    "cifar10_r18_keep30": (50_000, 25_000, 15_000, 118),
    "cifar100_r18_keep30": (50_000, 25_000, 15_000, 118),
    "cifar100_r50_keep30": (50_000, 40_000, 15_000, 118),
    "imagenet_r50_keep60": (1_281_167, 960_875, 768_700, 751),
    "imagenet_r18_keep72": (1_281_167, 1_024_934, 922_440, 1_802),
}


@cache
def parse(*arguments):
    return OrderDPCLI(arguments, parse_only=True, quiet=True).config


def module_of(settings):
    """The module that the command would build from a config's `model` section."""
    options = settings.as_dict()
    return OrderDPModule(**{**options, "optim": Optimisation(**options["optim"])})


class EightImages(LightningDataModule):
    """Random images of eight classes, in batches of two."""

    def __init__(self, channels, side):
        super().__init__()
        x = torch.rand(8, channels, side, side, generator=torch.Generator().manual_seed(0))
        self.dataset = TensorDataset(x, torch.arange(8))

    def train_dataloader(self):
        return DataLoader(self.dataset, batch_size=2)

    val_dataloader = test_dataloader = train_dataloader


class Pruned(PruningMixin, EightImages):
    pass


class Rates(Callback):
    """The learning rate of each step."""

    def __init__(self):
        self.rates = []

    def on_before_optimizer_step(self, trainer, pl_module, optimizer):
        self.rates.append(optimizer.param_groups[0]["lr"])


@every_config
def test_a_config_begins_with_what_it_is_and_how_it_is_run(config):
    text = config.read_text()
    summary = config_summaries(PAPER)[config.stem]
    assert text.startswith(f"# {summary}\n")
    assert len(summary.split()) >= 5
    assert summary.endswith(".")
    comment = text[: text.index("\nmodel:")]
    if config.stem == "default":
        assert "uv run --package orderdp train\n" in comment
    else:
        assert f"uv run --package orderdp train --config {config.stem} --data.root " in comment
        assert "GPU" in summary


@every_config
def test_a_config_is_parsed_and_every_value_it_gives_arrives(config):
    given, parsed = yaml.safe_load(config.read_text()), parse("--config", config.stem)

    def check(part, found, path):
        for key, value in part.items():
            if isinstance(value, dict):
                check(value, found[key], f"{path}{key}.")
            else:
                assert str(found[key]) == str(value), path + key

    check(given, parsed, "")


@every_config
def test_a_config_builds_its_full_size_network(config):
    model = parse("--config", config.stem).model
    with torch.device("meta"):
        network = create_model(model.arch, model.num_classes, model.in_channels, model.image_size)
    count = sum(parameter.numel() for parameter in network.parameters())
    assert count == PARAMETERS[model.arch, model.num_classes]


@every_config
def test_a_config_fits_its_dataset(config):
    parsed = parse("--config", config.stem)
    shapes = {"mnist5k": (10, 1, 28), "cifar10": (10, 3, 32), "cifar100": (100, 3, 32), "imagefolder": (1000, 3, 224)}
    model = parsed.model
    assert (model.num_classes, model.in_channels, model.image_size) == shapes[parsed.data.dataset]
    assert parsed.trainer.reload_dataloaders_every_n_epochs == 1


@every_config
def test_a_config_has_the_papers_recipe(config):
    parsed = parse("--config", config.stem)
    optim, pruning, trainer = parsed.model.optim, parsed.data.pruning, parsed.trainer
    if config.stem == "default":
        assert (trainer.max_epochs, parsed.data.batch_size, optim.max_lr, optim.momentum) == (20, 64, 0.1, 0.9)
        return
    devices = int(trainer.devices)
    batch = parsed.data.batch_size * devices
    recipe = (trainer.max_epochs, batch, optim.optimizer, optim.max_lr, optim.momentum, optim.weight_decay)
    if parsed.data.dataset == "imagefolder":
        of_r50, of_r18 = (90, 1024, "lars", 6.4, 0, 1e-5), (90, 512, "lars", 1.98, 0, 1e-5)
        assert recipe == (of_r50 if "_r50_" in config.stem else of_r18)
        assert optim.trust_coefficient == 1e-3
    else:
        assert recipe == (200, 128, "sgd", 0.03 if "_r50_" in config.stem else 0.05, 0.9, 5e-4)
    assert (optim.pct_start, optim.div, optim.final_div) == (0.3, 25, 1e4)
    assert parsed.model.label_smoothing == 0.1
    assert parsed.data.val_fraction == 0
    policy = config.stem.rsplit("_", 1)[1]
    if policy in ("full", "infobatch"):
        assert pruning.policy == policy
        assert (pruning.prune, pruning.delta) == (0.5, 0.875)
        return
    n, s, q, steps = SIZES[config.stem]
    assert pruning.policy == "orderdp"
    assert sizes(n, pruning.keep, pruning.explore) == (s, q)
    assert -(-q // batch) == steps
    assert pruning.initial_score == (1.0 if parsed.data.dataset == "imagefolder" else 3.0)


@every_config
def test_a_shrunken_copy_of_a_config_trains_at_the_rates_of_its_schedule(config, monkeypatch):
    monkeypatch.setattr(orderdp.module, "create_model", lambda _, k, channels, size: SmallCNN(k, channels, 12))
    parsed = parse("--config", config.stem)
    module = module_of(parsed.model)
    before = {name: parameter.clone() for name, parameter in module.named_parameters()}
    data = Pruned(parsed.model.in_channels, 12)
    data.pruning = Pruning(**{**parsed.data.pruning.as_dict(), "keep": 0.5, "explore": 0.75})
    trainer = Trainer(
        accelerator="cpu", max_epochs=5, enable_progress_bar=False, enable_model_summary=False, logger=False,
        enable_checkpointing=False, limit_val_batches=0, reload_dataloaders_every_n_epochs=1,
        callbacks=[watch := Rates()],
    )  # fmt: skip
    trainer.fit(module, data)
    optim = parsed.model.optim
    optimizer = trainer.optimizers[0]
    assert type(optimizer) is (Lars if optim.optimizer == "lars" else torch.optim.SGD)
    assert {group["momentum"] for group in optimizer.param_groups} == {optim.momentum}
    assert {group["weight_decay"] for group in optimizer.param_groups} == {optim.weight_decay}
    if optim.optimizer == "lars":
        assert {group["trust_coeff"] for group in optimizer.param_groups} == {optim.trust_coefficient}
    assert watch.rates[0] == pytest.approx(optim.max_lr / 25, rel=1e-12)
    assert watch.rates[-1] == pytest.approx(optim.max_lr / 25 / 1e4, rel=1e-9)
    if parsed.data.pruning.policy != "infobatch":
        assert trainer.global_step == {"full": 5 * 4, "orderdp": 5 * 2}[parsed.data.pruning.policy]
    assert not any(torch.equal(parameter, before[name]) for name, parameter in module.named_parameters())
    (metrics,) = trainer.test(module, data, verbose=False)
    assert metrics["test/n"] == 8


@pytest.mark.parametrize("section", ["model", "data", "trainer"])
def test_a_misspelt_key_in_a_copy_is_refused_by_name(section, tmp_path):
    settings = yaml.safe_load(DEFAULT.read_text())
    settings[section]["temprature"] = 1
    copy = tmp_path / "copy.yaml"
    copy.write_text(yaml.safe_dump(settings))
    with pytest.raises(ValueError, match="temprature"):
        parse("--config", str(copy))


def test_the_copy_of_a_config_in_a_file_means_the_same(tmp_path):
    copy = tmp_path / "copy.yaml"
    copy.write_text(DEFAULT.read_text())
    assert OrderDPCLI.hash_of(["--config", str(copy)]) == OrderDPCLI.hash_of(["--config", "default"])
    copy.write_text(DEFAULT.read_text().replace("keep: 0.3", "keep: 0.4"))
    assert OrderDPCLI.hash_of(["--config", str(copy)]) != OrderDPCLI.hash_of(["--config", "default"])


def test_the_command_lists_exactly_the_files_of_the_folder():
    assert set(config_summaries(PAPER)) == {config.stem for config in CONFIGS}
    assert set(SIZES) <= {config.stem for config in CONFIGS}
