"""Every config that comes with the package: found by globbing, parsed by the real command, built and trained a step."""

from functools import cache
from pathlib import Path

import difflift
import pytest
import torch
import yaml
from difflift.app import DiffLiftCLI
from difflift.cli import PAPER
from difflift.data import GraphData
from difflift.datasets import Splits, load
from difflift.encoders import GIN, GPS
from shared.verbs import config_summaries
from torch_geometric.data import Data

CONFIGS = sorted((Path(difflift.__file__).parent / "configs").glob("*.yaml"))
EMBEDDED = {"default", "mutag", "mutag_cells", "planted", "planted_cloud", "solubility_cells", "solubility_topotune"}
SCALED = [config for config in CONFIGS if config.stem not in EMBEDDED]
every_config = pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.stem)
every_scaled_config = pytest.mark.parametrize("config", SCALED, ids=lambda config: config.stem)

FACTS = {  # data set -> features, classes, task; of the publishers' files
    "solubility": (12, 3, "graph"),
    "mutag": (7, 2, "graph"),
    "planted": (8 + 1 + 16, 2, "node"),
    "MUTAG": (7, 2, "graph"),
    "ENZYMES": (3 + 18, 6, "graph"),
    "PROTEINS": (3 + 1, 2, "graph"),
    "NCI1": (37, 2, "graph"),
    "NCI109": (38, 2, "graph"),
    "IMDB-BINARY": (135 + 1, 2, "graph"),
    "ogbg-molhiv": (119 + 5 + 12 + 12 + 10 + 6 + 6 + 2 + 2, 2, "binary"),
    "ZINC": (28, 1, "regression"),
    "Cora": (1433, 7, "node"),
    "Citeseer": (3703, 6, "node"),
    "Texas": (1703, 5, "node"),
    "Wisconsin": (1703, 5, "node"),
}
TU = {"mutag": "MUTAG", "enzymes": "ENZYMES", "proteins": "PROTEINS", "nci1": "NCI1", "nci109": "NCI109"}
TU |= {"imdb": "IMDB-BINARY"}
NETWORKS = {"unigcnii": "UniGCNII", "cwn": "CWN", "topotune": "TopoTune"}


@cache
def parse(*arguments):
    return DiffLiftCLI(arguments, parse_only=True, quiet=True).config


def section(config, name):
    return parse("--config", config.stem)[name]


def linear(inputs, outputs, bias=True):
    return inputs * outputs + (outputs if bias else 0)


def parameters(features, classes, d, width, target, network, encoder="gin"):
    """Weights of the whole at two layers each, by hand (Sec. 3)."""
    mlp = linear(width, width) + linear(width, width)
    gin = linear(d, d) + linear(d, d) + 2 * d
    if encoder == "gps":
        attention, feed_forward = 4 * linear(d, d), linear(d, 2 * d) + linear(2 * d, d)
        embed = linear(features, d - 8) + linear(20, 8) + 2 * 20 + 2 * (gin + attention + feed_forward + 3 * 2 * d)
    else:
        embed = linear(features, d) - linear(d, d) + 2 * gin
    size = linear(d, 64) + linear(64, 6)
    if target == "hypergraph":
        score = linear(d, 128) + linear(128, 64) + linear(64, 1)
    else:
        score = linear(d, 64) + linear(64, 2)
    gat = width * width + 2 * width + width
    layer = {
        "UniGCNII": width * width,
        "CWN": linear(2 * width, width) + linear(width, width) + mlp + linear(3 * width, width),
        "TopoTune": 6 * gat,
    }[network]
    down = 0 if network == "UniGCNII" else 2 * (linear(2 * width, width) + 2 * width)
    return embed + size + score + linear(features, width) + 2 * layer + down + linear(width, classes)


def test_there_are_the_embedded_configs_and_one_for_each_data_set_and_network_of_the_paper():
    named = EMBEDDED | {f"tu_{key}_{network}" for key in TU for network in NETWORKS}
    named |= {f"node_{name}_unigcnii" for name in ("cora", "citeseer", "texas", "wisconsin")}
    named |= {"pointcloud_cora_unigcnii", "pointcloud_texas_unigcnii", "molhiv_cwn", "zinc_topotune"}
    assert {config.stem for config in CONFIGS} == named


@every_config
def test_a_config_begins_with_what_it_is_and_how_it_is_run(config):
    text = config.read_text()
    summary, comment = config_summaries(PAPER)[config.stem], text[: text.index("\nmodel:")]
    assert len(summary.split()) >= 8 and summary.endswith(".")
    if config.stem == "default":
        assert "uv run --package difflift train\n" in f"{comment}\n"
        return
    assert f"#\n#   uv run --package difflift train --config {config.stem}" in comment
    of_class = section(config, "model").network.class_path.rsplit(".")[-1]
    assert of_class in summary
    if config.stem in EMBEDDED:
        assert "a laptop's CPU" in comment and "--data.root" not in comment
    else:
        assert summary.endswith("; one GPU of 16 GB.") and "Not run here." in comment
        assert comment.endswith(" --data.root data")
        assert section(config, "data").name in summary


@every_config
def test_a_config_is_parsed_and_every_value_it_gives_arrives(config):
    given, parsed = yaml.safe_load(config.read_text()), parse("--config", config.stem)
    assert given.keys() == {"model", "data", "trainer"}

    def check(part, found, path):
        for key, value in part.items():
            if isinstance(value, dict):
                check(value, found[key], f"{path}{key}.")
            elif key == "class_path":
                assert found[key].rsplit(".")[-1] == value.removeprefix("difflift.")
            else:
                assert str(found[key]) == str(value), path + key

    check(given, parsed, "")


@every_config
def test_a_config_fits_its_data_set(config):
    model, data = section(config, "model"), section(config, "data")
    assert (model.features, model.classes, model.task) == FACTS[data.name]
    if config.stem in EMBEDDED:
        found = load(data.name)
        assert (found.features, found.classes, found.task) == FACTS[data.name]
        assert data.root is None
    else:
        assert str(data.root) == "data"


@every_config
def test_a_config_builds_its_network_at_full_size(config):
    cli = DiffLiftCLI(["--config", config.stem], quiet=True)
    model, options = cli.model.model, section(config, "model")
    lifting, network = options.lifting.init_args, options.network.class_path.rsplit(".")[-1]
    assert type(model.lifting) is difflift.DiffLift and type(model.network) is getattr(difflift, network)
    assert type(model.lifting.encoder) is (GPS if config.stem == "molhiv_cwn" else GIN)
    assert model.lifting.rank == (1 if network == "UniGCNII" else 2)
    d = 32 if config.stem in EMBEDDED else 64
    shape = (options.features, options.classes, d, 64, lifting.target, network, lifting.encoder)
    assert sum(p.numel() for p in model.parameters()) == parameters(*shape)
    assert model.level == ("node" if options.task == "node" else "graph")
    assert (model.down is None) == (network == "UniGCNII")


@every_config
def test_a_config_has_the_papers_recipe(config):
    model, data, trainer = (section(config, name) for name in ("model", "data", "trainer"))
    lifting = model.lifting.init_args
    assert (lifting.k_max, lifting.learn_k, lifting.encoder_layers, lifting.selection) == (7, True, 2, None)
    assert (lifting.tau, lifting.sharpening, lifting.scorer_dropout) == (1.0, 10.0, 0.5)
    assert (model.width, model.dropout, model.weight_decay, model.sparsity, model.lr_patience) == (64, 0.3, 0, 0, 10)
    recipe = (model.lr, data.batch_size, trainer.max_epochs, model.patience)
    if config.stem in EMBEDDED:
        of_mutag = config.stem.startswith("mutag")
        small = of_mutag or config.stem.startswith("planted")
        assert recipe == (0.005, 8 if small else 32, *((100, 30) if of_mutag else (60, 15)))
    elif config.stem.startswith(("node", "pointcloud")):
        assert recipe == (0.01, 1, 1000, 50)
    else:
        assert recipe == (0.005, 128, 200, 25)
    if lifting.target == "cell":
        assert (lifting.shortest, lifting.longest) == (3, 6 if config.stem == "molhiv_cwn" else None)
        assert (lifting.cycles, lifting.boundary) == ("minimum", "exact")


@every_config
def test_a_configs_name_says_data_target_and_network(config):
    kind, *rest = config.stem.split("_")
    model, data = section(config, "model"), section(config, "data")
    if kind == "tu":
        assert (data.name, model.network.class_path.rsplit(".")[-1]) == (TU[rest[0]], NETWORKS[rest[1]])
    if kind in ("node", "pointcloud"):
        assert data.name.lower() == rest[0]
    assert data.drop_edges == (kind == "pointcloud" or config.stem == "planted_cloud")
    assert data.folds == (5 if kind == "mutag" else None)
    cells = "cells" in rest or rest[-1:] in (["cwn"], ["topotune"])
    assert model.lifting.init_args.target == ("cell" if cells else "hypergraph")


def test_a_point_clouds_config_differs_from_its_graphs_in_the_edges_alone():
    for cloud, graph in (
        ("planted_cloud", "planted"),
        *((f"pointcloud_{n}_unigcnii", f"node_{n}_unigcnii") for n in ("cora", "texas")),
    ):
        one, other = parse("--config", cloud), parse("--config", graph)
        assert one.model == other.model and one.trainer == other.trainer
        assert {key for key in one.data.as_dict() if one.data[key] != other.data[key]} == {"drop_edges"}


def drawn(task, features, classes, rng):
    """Six random graphs, or one with masks, of the width and kind of a data set."""
    graphs = []
    for i in range(1 if task == "node" else 6):
        n = 10 + i
        upper = torch.rand(n, n, generator=rng).lt(0.3).triu(1).nonzero().T
        x = torch.rand(n, features, generator=rng)
        if task == "node":
            masks = {
                f"{part}_mask": torch.arange(n) % 3 == place for place, part in enumerate(("train", "val", "test"))
            }
            y = torch.randint(classes, (n,), generator=rng)
        else:
            masks, y = {}, torch.tensor([float(i)] if task == "regression" else [i % classes])
        graphs.append(Data(x=x, edge_index=torch.cat([upper, upper.flip(0)], 1), y=y, **masks))
    split = None if task == "node" else {"train": [0, 1, 2, 3], "val": [4], "test": [5]}
    return Splits(graphs, split, task, classes, features)


@every_scaled_config
def test_a_config_trains_a_step_on_graphs_of_its_data_sets_width_and_task(config, monkeypatch):
    options = section(config, "model")
    splits = drawn(options.task, options.features, options.classes, torch.Generator().manual_seed(0))
    monkeypatch.setattr(GraphData, "splits", splits)
    step = ["--trainer.max_epochs=null", "--trainer.max_steps=1", "--trainer.accelerator=cpu", "--data.num_workers=0"]
    cli = DiffLiftCLI(["--config", config.stem, *step], quiet=True)
    cli.trainer = cli.make_trainer(None)
    before = {name: weight.clone() for name, weight in cli.model.named_parameters()}
    cli.trainer.fit(cli.model, cli.datamodule)
    assert cli.trainer.global_step == 1
    after = dict(cli.model.named_parameters())
    assert all(torch.isfinite(weight).all() for weight in after.values())
    moved = {name.split(".")[1] for name, weight in after.items() if not torch.equal(weight, before[name])}
    assert {"lifting", "features", "network", "head"} <= moved
    assert any("lifting.branch" in name and not torch.equal(after[name], before[name]) for name in after)

    cli.model.eval()
    (batch,) = cli.datamodule.test_dataloader()
    logits, lifted = cli.model(batch)
    items = len(batch.x) if options.task == "node" else 1
    assert logits.shape == (items, options.classes)
    assert (lifted.edges == 0) == config.stem.startswith("pointcloud")


@pytest.mark.parametrize("name", sorted(EMBEDDED - {"default"}))
def test_an_embedded_config_trains_two_steps_on_its_own_data(name):
    step = ["--trainer.max_epochs=null", "--trainer.max_steps=2", "--trainer.accelerator=cpu"]
    step += ["--trainer.limit_val_batches=1"]
    cli = DiffLiftCLI(["--config", name, *step], quiet=True)
    cli.trainer = cli.make_trainer(None)
    before = cli.model.model.head.weight.clone()
    cli.trainer.fit(cli.model, cli.datamodule)
    assert cli.trainer.global_step == 2
    assert not torch.equal(cli.model.model.head.weight, before)
    batch = next(iter(cli.datamodule.train_dataloader()))
    assert (batch.num_edges == 0) == (name == "planted_cloud")


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
    assert DiffLiftCLI.hash_of(["--config", str(copy)]) == DiffLiftCLI.hash_of(["--config", "default"])
    copy.write_text(text.replace("k_max: 7", "k_max: 5"))
    assert DiffLiftCLI.hash_of(["--config", str(copy)]) != DiffLiftCLI.hash_of(["--config", "default"])
