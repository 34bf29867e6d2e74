"""Every config that comes with the package: found by globbing, parsed by the real command, built and trained a step."""

from pathlib import Path

import nat
import nat.module
import pytest
import timm
import torch
import yaml
from lightning.pytorch import LightningDataModule, Trainer
from nat.app import NATCLI
from nat.cli import PAPER
from nat.models import Classifier, WideResNet, create_model
from nat.module import Adversary, NATModule, Optimisation
from shared.verbs import config_summaries
from torch.utils.data import DataLoader

CONFIGS = sorted((Path(nat.__file__).parent / "configs").glob("*.yaml"))
# Parameters of each network without its head; test_models derives the large ones from their papers.
PARAMETERS = {
    "digits_cnn": 160 + 4_640 + 32 * 4 * 4 * 64 + 64,
    "mnist_cnn": 416 + 12_832 + 32 * 7 * 7 * 64 + 64,
    "resnet18": 11_173_962 - 5_130,
    "wrn34_10": 46_160_474 - 6_410,
    "vit_small": 22_050_664 - 385_000,
}
every_config = pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.stem)


def parse(*arguments):
    return NATCLI(arguments, parse_only=True, quiet=True).config


def shrunken(arch, num_classes=10, in_channels=3, image_size=None):
    """The network of a config, but narrower where a step of the real one takes long."""
    if arch == "wrn34_10":
        return Classifier(WideResNet(10, 1), 64, num_classes, in_channels)
    if arch == "vit_small":
        body = timm.create_model("vit_tiny_patch16_224", num_classes=0, img_size=32, depth=2)
        return Classifier(body, body.num_features, num_classes, in_channels)
    return create_model(arch, num_classes, in_channels, image_size)


def module_of(settings):
    """The module that the command would build from a config's `model` section."""
    options = settings.as_dict()
    optim, adversary = options.pop("optim"), options.pop("adversary")
    adversary = Adversary(**{**adversary, "optim": Optimisation(**adversary["optim"])})
    return NATModule(**options, optim=Optimisation(**optim), adversary=adversary)


class TwoImages(LightningDataModule):
    """One batch of two random images, in every stage."""

    def __init__(self, channels, side):
        super().__init__()
        x = torch.rand(2, channels, side, side, generator=torch.Generator().manual_seed(0))
        self.batches = [(x, torch.tensor([0, 1]))]

    def train_dataloader(self):
        return DataLoader(self.batches, batch_size=None)

    val_dataloader = test_dataloader = train_dataloader


@every_config
def test_a_config_begins_with_what_it_is_and_how_it_is_run(config):
    text = config.read_text()
    summary = config_summaries(PAPER)[config.stem]
    assert text.startswith(f"# {summary}\n")
    assert len(summary.split()) >= 2
    assert summary.endswith(".")
    comment = text[: text.index("\n", text.rindex("\n#", 0, text.index("\nmodel:")) + 1)]
    if config.stem == "default":
        assert "uv run --package nat train\n" in comment
    else:
        assert "uv run --package nat" in comment
        assert f"--config {config.stem}" in comment


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
    assert sum(parameter.numel() for parameter in network.body.parameters()) == PARAMETERS[model.arch]
    assert network.head.out_features == model.num_classes


@every_config
def test_a_config_fits_its_dataset(config):
    parsed = parse("--config", config.stem)
    if config.stem == "eval_autoattack":  # goes on top of a run's own settings
        assert "data" not in yaml.safe_load(config.read_text())
        return
    known = {"cifar100": 100, "cifar10": 10, "digits": 10, "mnist5k": 10, "imagefolder": 100}
    assert parsed.model.num_classes == known[parsed.data.dataset]
    assert parsed.model.in_channels == (1 if parsed.data.dataset in ("digits", "mnist5k") else 3)


@every_config
def test_a_shrunken_copy_of_a_config_trains_a_step(config, monkeypatch):
    monkeypatch.setattr(nat.module, "create_model", shrunken)
    parsed = parse(
        "--config", config.stem, "--model.steps", "1", "--model.val_steps", "1", "--model.test_attacks", "fgsm"
    )
    module = module_of(parsed.model)
    before = {name: parameter.clone() for name, parameter in module.named_parameters()}
    sides = {"digits_cnn": 8, "mnist_cnn": 28}
    data = TwoImages(parsed.model.in_channels, sides.get(parsed.model.arch, 32))
    trainer = Trainer(
        accelerator="cpu", fast_dev_run=1, enable_progress_bar=False, enable_model_summary=False, logger=False
    )
    trainer.fit(module, data)
    assert trainer.global_step == 1
    moved = {name for name, parameter in module.named_parameters() if not torch.equal(parameter, before[name])}
    assert "model.head.weight" in moved
    assert not any(name.startswith("adversary.") for name in moved)
    (metrics,) = trainer.test(module, data, verbose=False)
    assert metrics["test/n"] == 2


@every_config
@pytest.mark.parametrize("section", ["model", "data", "trainer"])
def test_a_misspelt_key_in_a_copy_is_refused_by_name(config, section, tmp_path):
    settings = yaml.safe_load(config.read_text())
    settings.setdefault(section, {})["temprature"] = 1
    copy = tmp_path / "copy.yaml"
    copy.write_text(yaml.safe_dump(settings))
    with pytest.raises(ValueError, match="temprature"):
        parse("--config", str(copy))


@every_config
def test_the_copy_of_a_config_in_a_file_means_the_same(config, tmp_path):
    copy = tmp_path / "copy.yaml"
    copy.write_text(config.read_text())
    assert NATCLI.hash_of(["--config", str(copy)]) == NATCLI.hash_of(["--config", config.stem])


def test_the_command_lists_exactly_the_files_of_the_folder():
    assert set(config_summaries(PAPER)) == {config.stem for config in CONFIGS}
    assert len(CONFIGS) >= 9
