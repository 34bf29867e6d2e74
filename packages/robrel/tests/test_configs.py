"""Every config that comes with the package: found by globbing, parsed by the real command, drawn, run for a block."""

from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import robrel
import yaml
from lightning.pytorch import Trainer
from robrel.app import RobRelCLI
from robrel.cli import PAPER
from robrel.data import RobRelData
from robrel.module import RobRelModule
from robrel.problems import ProblemOptions, draw_problem
from shared.verbs import config_summaries

CONFIGS = sorted((Path(robrel.__file__).parent / "configs").glob("*.yaml"))
DEFAULT = next(config for config in CONFIGS if config.stem == "default")
every_config = pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.stem)

# States and actions, horizon and number of reward parameters; a game has one state more, where it has ended.
SIZES = {
    "default": (25, 5, 10, 6),
    "grid_n5": (25, 5, 10, 6),
    "grid_n10": (100, 5, 10, 6),
    "grid_n20": (400, 5, 10, 6),
    "frozenlake8x8": (65, 4, 40, 260),
    "taxi": (501, 6, 20, 3006),
    "sweep_samples": (25, 5, 10, 6),
    "demo_only": (25, 5, 10, 6),
    "mixed_feedback": (25, 5, 10, 6),
}


@cache
def parse(*arguments):
    return RobRelCLI(arguments, parse_only=True, quiet=True).config


def options_of(parsed):
    return ProblemOptions(**parsed.data.problem.as_dict())


@every_config
def test_a_config_begins_with_what_it_is_how_long_it_takes_and_how_it_is_run(config):
    text = config.read_text()
    summary = config_summaries(PAPER)[config.stem]
    assert text.startswith(f"# {summary}\n")
    assert len(summary.split()) >= 5
    assert summary.endswith(" CPU.")
    assert any(unit in summary for unit in ("second", "minute"))
    call = "uv run --package robrel train" + ("" if config.stem == "default" else f" --config {config.stem}")
    assert text.splitlines()[1:3] == ["#", f"#   {call}"]
    assert list(yaml.safe_load(text)) == ["model", "data", "trainer"]


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
def test_a_config_draws_its_full_size_problem(config):
    parsed = parse("--config", config.stem)
    counts = parsed.data.comparisons if isinstance(parsed.data.comparisons, list) else [parsed.data.comparisons]
    problem = draw_problem(options_of(parsed), min(max(counts), 5), 0)
    mdp = problem.environment.mdp
    assert (mdp.states, mdp.actions, mdp.horizon, problem.space.dim) == SIZES[config.stem]
    assert len(problem.feasible.rows) == min(max(counts), 5)
    assert problem.exact_feasible.contains(problem.x_true, 1e-9)


@every_config
def test_a_shrunken_copy_of_a_config_is_solved_and_measured(config):
    parsed = parse("--config", config.stem)
    options = options_of(parsed)
    small = replace(options, size=min(options.size, 3), horizon=min(options.horizon, 4), map_name="4x4", features=3)
    if options.environment == "Taxi":
        small.environment = "FrozenLake"
    module = RobRelModule(**{**parsed.model.as_dict(), "block": 10})
    data = RobRelData(
        [n and 3 for n in (parsed.data.comparisons,) if isinstance(n, int)] or [0, 3], 2, small, 1, seed=1
    )
    trainer = Trainer(
        accelerator="cpu", max_epochs=1, enable_progress_bar=False, enable_model_summary=False, logger=False,
        enable_checkpointing=False,
    )  # fmt: skip
    trainer.fit(module, data)
    assert trainer.global_step == 1
    assert (module.iteration is None) == (parsed.model.solver == "lp")
    (metrics,) = trainer.test(module, data, verbose=False)
    assert metrics["test/n"] == len(data.problems)
    assert metrics["test/ratio"] >= 1 - 1e-6
    assert {name for name in metrics if name.startswith("test/ratio_") and not name[-1].isdigit()} == {
        f"test/ratio_{name}" for name in parsed.model.compare
    }


def test_the_configs_differ_in_what_their_names_say():
    found = {config.stem: (parse("--config", config.stem).data.comparisons, options_of(parse("--config", config.stem)))
             for config in CONFIGS}  # fmt: skip
    for size in (5, 10, 20):
        assert found[f"grid_n{size}"] == ([0, 5, 20, 60], ProblemOptions(size=size))
    assert found["default"] == found["grid_n5"]
    assert found["sweep_samples"] == ([0, 5, 20, 60], ProblemOptions(episodes=1000, slack="none"))
    assert found["demo_only"] == (0, ProblemOptions(expert="exact", epsilon=0.5))
    assert found["mixed_feedback"] == (
        20,
        ProblemOptions(kind="trajectory", expert="sampled", demonstrations=20, epsilon=0.5),
    )
    assert parse("--config", "sweep_samples").data.instances == 30


@pytest.mark.parametrize("section", ["model", "data", "trainer"])
def test_a_misspelt_key_in_a_copy_is_refused_by_name(section, tmp_path):
    settings = yaml.safe_load(DEFAULT.read_text())
    settings[section]["instamces"] = 1
    copy = tmp_path / "copy.yaml"
    copy.write_text(yaml.safe_dump(settings))
    with pytest.raises(ValueError, match="instamces"):
        parse("--config", str(copy))


def test_the_copy_of_a_config_in_a_file_means_the_same(tmp_path):
    copy = tmp_path / "copy.yaml"
    copy.write_text(DEFAULT.read_text())
    assert RobRelCLI.hash_of(["--config", str(copy)]) == RobRelCLI.hash_of(["--config", "default"])
    copy.write_text(DEFAULT.read_text().replace("slip: 0.1", "slip: 0.2"))
    assert RobRelCLI.hash_of(["--config", str(copy)]) != RobRelCLI.hash_of(["--config", "default"])


def test_the_command_lists_exactly_the_files_of_the_folder():
    assert set(config_summaries(PAPER)) == {config.stem for config in CONFIGS} == set(SIZES)
