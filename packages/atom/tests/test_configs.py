"""Every config that comes with the package: found by globbing, parsed by the real command, built and trained a step."""

from functools import cache
from pathlib import Path

import atom
import numpy as np
import pytest
import torch
import yaml
from ase.data import atomic_numbers
from atom.app import AtomCLI
from atom.cli import PAPER
from atom.lifting import hidden_irreps
from atom.trajectories import KNOWN_NAMES
from lightning.pytorch.callbacks import EarlyStopping
from pytorch_optimizer import Muon
from shared.verbs import config_summaries

CONFIGS = sorted((Path(atom.__file__).parent / "configs").glob("*.yaml"))
EMBEDDED = {"default", "corpus"}
SCALED = [config for config in CONFIGS if config.stem not in EMBEDDED]
every_config = pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.stem)
every_scaled_config = pytest.mark.parametrize("config", SCALED, ids=lambda config: config.stem)

SHAPES = {  # config -> depth, width, attention heads, output heads, random-walk steps
    "default": (3, 56, 4, 4, 8),
    "corpus": (3, 56, 4, 4, 8),
    "md17_aspirin_paper": (6, 256, 8, 1, 0),
    "ablation_one_head": (5, 128, 1, 1, 0),
    "ablation_eight_output_heads": (5, 128, 8, 8, 0),
    "tg80_fold1": (5, 128, 8, 8, 8),
    "ablation_rope_index": (5, 128, 8, 8, 8),
    "ablation_no_rrwp": (5, 128, 8, 8, 0),
}
SINGLE = (5, 128, 8, 1, 0)
# A tiny copy: fewer blocks and narrower, windows of 16 frames, and few of them.
SMALL = [
    "--data.horizon=16", "--data.skip=2", "--data.train_samples=6", "--data.val_samples=4", "--data.test_samples=3",
    "--trainer.max_epochs=null", "--trainer.max_steps=1",
    "--trainer.accelerator=cpu", "--model.operator.init_args.depth=2",
]  # fmt: skip
ELEMENTS = [atomic_numbers[symbol] for symbol in ("C", "C", "H", "O")]


@cache
def parse(*arguments):
    return AtomCLI(arguments, parse_only=True, quiet=True).config


def section(config, name):
    return parse("--config", config.stem)[name]


def is_egno(config):
    return section(config, "model").operator.class_path.endswith("EGNO")


def built(config):
    """The operator of a config at its full size, without memory for its weights."""
    with torch.device("meta"):
        operator = section(config, "model").operator
        return getattr(atom, operator.class_path.rsplit(".")[-1])(**operator.init_args.as_dict())


def linear(width, out, bias=True):
    return width * out + (out if bias else 0)


def atom_parameters(depth, width, heads, output_heads, rrwp_steps):
    """Weights of ATOM with the equivariant lifting, counted by hand."""
    vectors = width // 3
    scalars = width - 3 * vectors
    to_hidden = vectors + scalars
    # L_x and L_v of one vector and one scalar, L_vz of one vector and 2 + K scalars; they have no biases.
    lifts = 2 * to_hidden + vectors + (2 + rrwp_steps) * scalars
    # The paths of the tensor product: 1o x 0e and 0e x 1o into vectors, 0e x 0e and 1o x 1o into scalars.
    product = 2 * vectors * scalars * vectors + scalars**3 + vectors**2 * scalars
    mlp = 2 * linear(width, width) + 2 * 2 * linear(width, width) + linear(width, width)
    block = width + 4 * linear(width, width) + 3 + mlp
    readout = vectors * output_heads
    hidden = width // 4
    gate = 0
    if output_heads > 1:
        gate = linear(width, hidden) + 5 * linear(hidden, hidden) + linear(hidden, output_heads)
    return lifts + product + depth * block + (depth - 1) + readout + gate


@every_config
def test_a_config_begins_with_what_it_is_and_how_it_is_run(config):
    text = config.read_text()
    summary = config_summaries(PAPER)[config.stem]
    comment = text[: text.index("\nmodel:")]
    assert len(summary.split()) >= 5
    if config.stem == "default":
        assert "uv run --package atom train\n" in f"{comment}\n"
        return
    assert f"uv run --package atom train --config {config.stem}" in comment
    if config.stem not in EMBEDDED:
        assert summary.endswith("one GPU.")
        assert "Not run here." in comment
        assert " --data.root data" in comment


@every_config
def test_a_config_is_parsed_and_every_value_it_gives_arrives(config):
    given, parsed = yaml.safe_load(config.read_text()), parse("--config", config.stem)
    assert given.keys() == {"model", "data", "trainer"}

    def check(part, found, path):
        for key, value in part.items():
            if isinstance(value, dict):
                check(value, found[key], f"{path}{key}.")
            elif key == "callbacks":
                assert [one["init_args"][name] for one in found[key] for name in value[0]["init_args"]] == list(
                    value[0]["init_args"].values()
                )
            elif isinstance(value, list):
                assert list(found[key]) == value, path + key
            else:
                assert str(found[key]) == str(value), path + key

    check(given, parsed, "")


@every_config
def test_a_config_builds_its_network_at_full_size(config):
    network = built(config)
    count = sum(parameter.numel() for parameter in network.parameters())
    if is_egno(config):
        assert (len(network.layers), network.element.embedding_dim, network.time_width) == (5, 64, 32)
        assert network.layers[0].conv_h.shape == (2, 64, 64, 2)
        return
    options = section(config, "model").operator.init_args
    shape = (options.depth, options.width, options.heads, options.output_heads, options.rrwp_steps)
    assert shape == SHAPES.get(config.stem, SINGLE)
    assert all(parameter.is_meta for parameter in network.blocks.parameters())
    if options.lifting == "equivariant" and options.heterogeneous:
        assert count == atom_parameters(*shape)


def test_the_paper_has_85_vectors_and_the_released_code_42():
    assert str(hidden_irreps(256)) == "85x1o+1x0e"
    assert str(hidden_irreps(128)) == "42x1o+2x0e"


@every_scaled_config
def test_a_config_has_the_papers_recipe(config):
    model, data, trainer = (section(config, name) for name in ("model", "data", "trainer"))
    assert (data.train_samples, data.val_samples, data.test_samples, data.lags) == (500, 2000, 2000, 8)
    assert trainer.gradient_clip_val == 1.0
    optim = model.optim
    if data.train == ["*"]:
        assert (optim.optimizer, optim.muon_lr, data.batch_size, trainer.max_epochs) == ("muon", 1e-3, 192, 250)
        assert (data.horizon, tuple(data.horizon_range), trainer.precision) == (10_000, (8, 24_000), "bf16-mixed")
        return
    recipe = (optim.optimizer, optim.lr, optim.weight_decay, optim.beta1, optim.beta2, optim.eps, optim.amsgrad)
    assert recipe == ("adamw", 1e-3, 1e-5, 0.9, 0.999, 1e-10, True)
    assert (data.horizon, data.horizon_range, data.batch_size, data.split) == (3000, None, 100, "random")
    assert trainer.max_epochs == (2500 if config.stem == "md17_aspirin_paper" else 1000)
    spacing = 1.0 if config.stem.startswith("md22") else 0.5
    assert model.operator.init_args.tau == 3000 / 8 * spacing or config.stem == "md17_aspirin_code"


def test_the_two_published_presets_differ_from_ours_where_they_are_said_to():
    ours, code, paper = (
        parse("--config", f"md17_aspirin{kind}").model.operator.init_args for kind in ("", "_code", "_paper")
    )
    changed = {key for key in ours.as_dict() if ours[key] != code[key]}
    assert changed == {"rope_time", "attention_scale", "delta_update", "center", "tau"}
    assert (code.rope_time, code.attention_scale, code.delta_update, code.center) == ("index", "linear", False, False)
    assert {key for key in ours.as_dict() if ours[key] != paper[key]} == {"depth", "width", "delta_update"}
    noise = {kind: parse("--config", f"md17_aspirin{kind}").model for kind in ("", "_code", "_paper")}
    assert [noise[kind].noise_targets for kind in noise] == [False, False, True]
    assert [noise[kind].sigma_v for kind in noise] == [0.001, 0.1, 0.1]


ABLATIONS = {
    "no_lifting": ("lifting", "none"),
    "no_tensor_product": ("lifting", "no_tensor_product"),
    "rope_index": ("rope_time", "index"),
    "rope_none": ("rope_time", "none"),
    "x_only": ("heterogeneous", False),
    "one_head": ("heads", 1),
    "eight_output_heads": ("output_heads", 8),
    "no_value_residual": ("value_residual", "none"),
    "fixed_value_residual": ("value_residual", "fixed"),
    "no_rrwp": ("rrwp_steps", 0),
    "no_noise": ("sigma_x", 0.0),
}


@pytest.mark.parametrize("name", ABLATIONS)
def test_an_ablation_changes_what_it_is_named_for_and_nothing_else(name):
    base = "tg80_fold1" if name in ("rope_index", "no_rrwp") else "md17_aspirin"
    found, full = (parse("--config", config) for config in (f"ablation_{name}", base))
    assert f"compare with {base};" in config_summaries(PAPER)[f"ablation_{name}"]
    option, value = ABLATIONS[name]
    if name == "no_noise":
        assert (found.model.sigma_x, found.model.sigma_v) == (0, 0)
        assert found.model.operator == full.model.operator
    else:
        one, other = (config.model.operator.init_args.as_dict() for config in (found, full))
        assert {key for key in one if one[key] != other[key]} == {option}
        assert one[option] == value
        assert (found.model.sigma_x, found.model.sigma_v) == (full.model.sigma_x, full.model.sigma_v)
    for part in ("data", "trainer"):
        assert found[part].as_dict() == full[part].as_dict()
    assert found.model.optim == full.model.optim


@pytest.mark.parametrize("dataset", ["md17", "rmd17", "md22"])
def test_there_is_a_config_for_each_published_molecule(dataset):
    names = KNOWN_NAMES[dataset][: 3 if dataset == "md22" else None]
    for name in names:
        assert parse("--config", f"{dataset}_{name}").data.train == [name]
    presets = {f"md17_aspirin_{kind}" for kind in ("code", "paper", "egno")} if dataset == "md17" else set()
    assert {c.stem for c in CONFIGS if c.stem.startswith(f"{dataset}_")} == presets | {f"{dataset}_{n}" for n in names}


def test_the_first_fold_is_that_of_the_released_lists():
    data = parse("--config", "tg80_fold1").data
    assert [*data.test, *data.val] == list(KNOWN_NAMES["tg80"])
    assert len(data.test) == len(data.val) == 8


def test_the_paper_preset_stops_early_on_the_last_states_error():
    (settings,) = parse("--config", "md17_aspirin_paper").trainer.callbacks
    assert settings.class_path.endswith("EarlyStopping")
    assert (settings.init_args.monitor, settings.init_args.mode) == ("val/s2s", "min")


def write_published(folder, config):
    """Random walks of small molecules, in the formats and under the names that the config's data set has."""
    data = section(config, "data")
    names = [*("extra" if name == "*" else name for name in data.train), *data.val, *data.test]
    dataset = "tg80" if "*" in data.train else config.stem.split("_")[0].replace("ablation", "md17")
    frames = 80
    for place, name in enumerate(names):
        rng = np.random.default_rng(place)
        steps = rng.normal(scale=0.01, size=(frames, len(ELEMENTS), 3))
        positions = np.diag([0.0, 1.2, 1.1, 1.3])[:, :3] + steps.cumsum(0)
        numbers = np.array(ELEMENTS)
        energies, forces = rng.normal(size=frames), rng.normal(size=positions.shape)
        if dataset in ("md17", "md22"):
            arrays = {"R": positions, "z": numbers, "E": energies[:, None], "F": forces, "name": name}
        else:
            arrays = {"coords": positions, "nuclear_charges": numbers}
        if dataset == "rmd17":
            arrays |= {"energies": energies, "forces": forces, "old_indices": rng.permutation(frames)}
        np.savez(folder / f"{dataset}_{name}.npz", **arrays)


@every_scaled_config
def test_a_shrunken_copy_of_a_config_makes_a_step_on_files_of_the_published_format(config, tmp_path):
    write_published(tmp_path, config)
    data = section(config, "data")
    options = [*SMALL, f"--data.root={tmp_path}"]
    options += ["--data.horizon_range=[8,20]"] if data.horizon_range is not None else []
    narrow = "32" if is_egno(config) else "26"
    if not is_egno(config):
        options += ["--model.operator.init_args.heads=1"]
    options += [f"--model.operator.init_args.width={narrow}"]
    cli = AtomCLI(["--config", config.stem, *options], quiet=True)
    cli.trainer = cli.make_trainer(None)
    before = {name: weight.clone() for name, weight in cli.model.named_parameters()}
    cli.trainer.fit(cli.model, cli.datamodule)
    assert cli.trainer.global_step == 1
    assert len(cli.datamodule.parts["train"]) == 6
    optimizer = cli.trainer.optimizers[0]
    assert type(optimizer) is (Muon if section(config, "model").optim.optimizer == "muon" else torch.optim.AdamW)
    after = dict(cli.model.named_parameters())
    assert any(not torch.equal(weight, before[name]) for name, weight in after.items())
    assert all(torch.isfinite(weight).all() for weight in after.values())
    stopping = [c for c in cli.trainer.callbacks if isinstance(c, EarlyStopping)]
    assert len(stopping) == (config.stem == "md17_aspirin_paper")
    assert cli.datamodule.test_names == tuple(data.test)


@pytest.mark.parametrize("part", ["model", "data", "trainer"])
def test_a_misspelt_key_in_a_copy_is_refused_by_name(part, tmp_path):
    settings = yaml.safe_load(next(config for config in CONFIGS if config.stem == "default").read_text())
    settings[part]["temprature"] = 1
    copy = tmp_path / "copy.yaml"
    copy.write_text(yaml.safe_dump(settings))
    with pytest.raises(ValueError, match="temprature"):
        parse("--config", str(copy))


def test_the_copy_of_a_config_in_a_file_means_the_same(tmp_path):
    copy = tmp_path / "copy.yaml"
    text = next(config for config in CONFIGS if config.stem == "default").read_text()
    copy.write_text(text)
    assert AtomCLI.hash_of(["--config", str(copy)]) == AtomCLI.hash_of(["--config", "default"])
    copy.write_text(text.replace("depth: 3", "depth: 4"))
    assert AtomCLI.hash_of(["--config", str(copy)]) != AtomCLI.hash_of(["--config", "default"])
