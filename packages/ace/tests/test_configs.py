"""Every config that comes with the package: found by globbing, parsed by the real command, built and run a step."""

import json
import re
import sys
from contextlib import nullcontext
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import ace
import pytest
import yaml
from ace.app import AceCLI
from ace.appworld_roles import AppWorldRoles
from ace.cli import PAPER
from ace.finance import RELEASED
from shared.verbs import config_summaries

from .json_model import UNKNOWN
from .openai_server import OpenAIServer

CONFIGS = sorted((Path(ace.__file__).parent / "configs").glob("*.yaml"))
EMBEDDED = {"default", "country_online", "local_smollm2", "llamacpp"}
SERVED = {"openai_server_smoke", "jsonl"}
PUBLISHED = {  # average accuracy in the paper's Tables 1 and 2
    "finer_offline": 78.3,
    "finer_offline_paper": 78.3,
    "finer_offline_no_labels": 71.1,
    "finer_online": 76.7,
    "formula_offline": 85.5,
    "formula_online": 76.5,
    "appworld_offline": 59.4,
    "appworld_online_no_gt": 59.5,
}
BASE = {"finer": 70.7, "formula": 67.5, "appworld": 42.4}
PAPER_SCALE = [config for config in CONFIGS if config.stem in PUBLISHED]
every_config = pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.stem)
every_paper_config = pytest.mark.parametrize("config", PAPER_SCALE, ids=lambda config: config.stem)


@cache
def parse(*arguments):
    return AceCLI(arguments, parse_only=True, quiet=True).config


def section(config, name):
    return parse("--config", config.stem)[name]


def comment_of(config):
    text = config.read_text()
    return text[: text.index("\nmodel:")]


def test_there_are_the_embedded_configs_and_those_of_the_paper():
    assert {config.stem for config in CONFIGS} == EMBEDDED | SERVED | set(PUBLISHED)


@every_config
def test_a_config_begins_with_what_it_is_and_how_it_is_run(config):
    summary, comment = config_summaries(PAPER)[config.stem], comment_of(config)
    assert len(summary.split()) >= 8 and summary.endswith(".")
    command = "train" if config.stem == "default" else f"train --config {config.stem}"
    assert f"{comment}\n".startswith(f"# {summary}\n#\n#   uv run --package ace {command}\n")
    assert ("Needs a server of a model" in comment) == (config.stem not in EMBEDDED)


@every_paper_config
def test_a_config_of_the_paper_says_what_the_paper_measured_and_which_files_it_needs(config):
    comment, name = " ".join(comment_of(config).replace("#", " ").split()), section(config, "data").name
    assert f"The paper has {PUBLISHED[config.stem]} (DeepSeek-V3.1" in comment
    assert str(BASE[name]) in comment and comment.endswith("Not run here.")
    files = RELEASED.get(name, {}).values()
    assert all(file in comment for file in files) or name == "appworld"
    assert (f"in data/{name} " in comment) == bool(files)


@every_config
def test_a_config_is_parsed_and_every_value_it_gives_arrives(config):
    given, parsed = yaml.safe_load(config.read_text()), parse("--config", config.stem)
    assert given.keys() == {"model", "data", "trainer"}

    def check(part, found, path):
        for key, value in part.items():
            if isinstance(value, dict):
                check(value, found[key], f"{path}{key}.")
            elif key == "class_path":
                assert found[key].rsplit(".")[-1] == value.rsplit(".")[-1]
            else:
                assert str(found[key]) == str(value), path + key

    check(given, parsed, "")


@every_config
def test_a_config_holds_no_secret_and_asks_this_machine_alone(config):
    text = config.read_text()
    assert set(re.findall(r"https?://\S+", text)) <= {"http://127.0.0.1:8000/v1"}
    assert not re.search(r"sk-|bearer|password", text, re.IGNORECASE)
    assert set(re.findall(r"^ +api_key\w*: .*", text, re.MULTILINE)) <= {"      api_key_env: OPENAI_API_KEY"}


@every_paper_config
def test_a_config_of_the_paper_has_its_settings(config):
    model, data, trainer = (section(config, name) for name in ("model", "data", "trainer"))
    method, roles, backend = (model[name].init_args for name in ("method", "roles", "backend"))
    papers = config.stem in ("finer_offline_paper", "appworld_offline")
    online = "online" in config.stem
    assert (roles.max_tokens, roles.temperature, backend.concurrency) == (4096, 0, 20)
    assert (method.curator_frequency, method.budget, method.refinement, method.reflector) == (1, 80_000, "never", True)
    assert method.rounds == (5 if papers else 3)
    assert trainer.max_epochs == (0 if online else 5 if papers else 1)
    assert (data.protocol, data.window, data.batch_size) == ("online" if online else "offline", 1, 1)
    if data.name != "appworld" and not online:
        assert (model.keep, trainer.val_check_interval) == ("best", 100)
    assert method.sections == ("appworld" if data.name == "appworld" else "finance")
    told = {"finer_offline_no_labels": "match_bit", "appworld_online_no_gt": "execution"}
    assert method.feedback == told.get(config.stem, "label")


@every_paper_config
def test_a_config_of_the_paper_is_named_for_its_data_and_protocol(config):
    name, protocol = config.stem.split("_")[:2]
    data = section(config, "data")
    assert (data.name, data.protocol) == (name, protocol)
    assert str(data.root) == f"data/{name}" or name == "appworld"


def test_the_country_desks_of_the_two_local_backends_differ_in_the_backend_alone():
    torch, llama = parse("--config", "local_smollm2"), parse("--config", "llamacpp")
    assert torch.data == llama.data and torch.trainer == llama.trainer
    assert {key for key in vars(torch.model) if torch.model[key] != llama.model[key]} == {"backend"}
    assert torch.data.countries == 30


@every_config
def test_a_config_names_a_backend_that_is_built_or_says_what_is_missing(config):
    missing = config.stem == "llamacpp" and find_spec("llama_cpp") is None
    refused = pytest.raises((ImportError, ValueError), match="llama-cpp-python") if missing else nullcontext()
    with refused:
        backend = AceCLI(["--config", config.stem], quiet=True).model.backend
        assert type(backend).__name__ == section(config, "model").backend.class_path.rsplit(".")[-1]


def says(body):
    """A model that learns nothing: valid JSON, or a sentence where none is asked for."""
    system = body["messages"][0]["content"]
    if '"operations"' in system:
        return json.dumps({"operations": [{"type": "ADD", "section": "OTHERS", "content": "read twice"}]})
    if '"bullet_tags"' in system:
        return json.dumps({"key_insight": "read twice", "bullet_tags": []})
    if "AppWorld" in system:
        return "```python\ndone\n```"
    return json.dumps({"final_answer": UNKNOWN}) if '"final_answer"' in system else "I do not know."


def stand_ins(folder, name):
    """Write three rows a file in the format and under the names of the release, or of a user."""
    for part in ("train", "val", "test"):
        file = RELEASED.get(name, {}).get(part, f"{part}.jsonl")
        text = {
            "finer": "Instruction: Which tags? Input: {} Answer:",
            "formula": 'Compute. Question: "What is {}?". Answer:',
        }.get(name, "")
        target = "Revenues,Goodwill" if name == "finer" else "1.5"
        field = "question" if name == "jsonl" else "context"
        rows = [{field: (text or "{}").format(f"{part} {i}"), "target": target} for i in range(3)]
        (folder / file).write_text("".join(json.dumps(row) + "\n" for row in rows))


def a_world():
    """AppWorld's two entries: three tasks a split, in worlds where nothing passes."""

    def world(task_id, experiment_name):
        return nullcontext(
            SimpleNamespace(
                task=SimpleNamespace(instruction="Pay."),
                execute=lambda code: "ok",
                task_completed=lambda: True,
                evaluate=lambda: SimpleNamespace(success=False, report=lambda print_it: "0 of 1"),
            )
        )

    return SimpleNamespace(load_task_ids=lambda split: [f"{split}_{i}" for i in range(3)], AppWorld=world)


@every_config
def test_a_config_runs_a_step_on_a_shrunken_copy_of_its_data(config, tmp_path, monkeypatch):
    data = section(config, "data")
    monkeypatch.setitem(sys.modules, "appworld", a_world())
    stand_ins(tmp_path, data.name)
    with OpenAIServer(says) as server:
        small = ["--model.backend=ace.OpenAIBackend", f"--model.backend.init_args.base_url={server.url}"]
        small += ["--trainer.accelerator=cpu", "--data.countries=3", "--data.train_size=1"]
        small += ["--trainer.val_check_interval=1"] if data.protocol == "offline" else ["--data.test_size=2"]
        small += ["--trainer.max_epochs=1"] if data.protocol == "offline" else []
        small += [f"--data.root={tmp_path}"] if data.name not in ("country", "appworld") else []
        if data.name == "country" and data.protocol == "online":
            small.remove("--data.train_size=1")
            small.remove("--data.test_size=2")
        found = AceCLI(["--config", config.stem, *small, f"--run_dir={tmp_path / 'run'}"], quiet=True)
        metrics = found.fit_and_test()
    n = {"offline": 3, "online": 6 if data.name == "country" else 2}[data.protocol]
    assert (metrics["n"], metrics["accuracy"]) == (n, 0)
    assert metrics["steps"] == (1 if data.protocol == "offline" else n)
    assert isinstance(found.model.method.roles, AppWorldRoles) == (data.name == "appworld")
    # Small models get no lesson accepted; the others add one, however often they are told the same.
    tiny = section(config, "model").roles.class_path.endswith("TinyRoles")
    assert len(found.model.method.playbook) == (0 if tiny or data.protocol == "offline" else 1)


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
    assert AceCLI.hash_of(["--config", str(copy)]) == AceCLI.hash_of(["--config", "default"])
    assert text.count("budget: 300") == 1
    copy.write_text(text.replace("budget: 300", "budget: 200"))
    assert AceCLI.hash_of(["--config", str(copy)]) != AceCLI.hash_of(["--config", "default"])
