"""The command `ace train` as a user runs it: what it writes and says, and one sentence where it cannot."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from ace.app import AceCLI
from ace.cli import PAPER, main
from ace.module import ACEModule
from ace.playbook import load
from shared.runs import claimed
from shared.verbs import verbs_of

from .json_model import json_model
from .openai_server import OpenAIServer, Reply

VALUES = {"alder": "red", "birch": "blue", "cedar": "green", "douglas": "amber", "elder": "pink", "fir": "grey"}
SEEN = ("alder", "birch", "cedar", "douglas")
QUIET = ["--trainer.enable_progress_bar=false", "--trainer.accelerator=cpu"]
ROOT = Path(__file__).parents[3]


def rows(wording, names):
    return [{"question": wording.format(name), "target": VALUES[name]} for name in names]


def write(file, content):
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(json.dumps(row) + "\n" for row in content))


@pytest.fixture(scope="module")
def server():
    with OpenAIServer(json_model(VALUES)) as running:
        yield running


@pytest.fixture(scope="module")
def settings(server):
    """The config `jsonl`, with its model on the loopback server: four facts, each asked again in other words."""
    return ["--config=jsonl", *QUIET, f"--model.backend.init_args.base_url={server.url}"]


@pytest.fixture(scope="module")
def home(tmp_path_factory, settings):
    """A working directory with the data and the finished run `whole`."""
    folder = tmp_path_factory.mktemp("home")
    write(folder / "data/mine/train.jsonl", rows("What is {}?", SEEN))
    write(folder / "data/mine/val.jsonl", rows("Tell me what {} is.", ("alder", "elder")))
    write(folder / "data/mine/test.jsonl", rows("Say what {} is.", (*SEEN, "fir")))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert main(["train", *settings, "--run_dir=whole"]) == 0
        yield folder


@pytest.fixture(autouse=True)
def inside(home, monkeypatch):
    monkeypatch.chdir(home)
    shutil.rmtree("bad", ignore_errors=True)  # of a test that failed


def results(run):
    return json.loads(Path(run, "test.json").read_text())


def lines(run, name):
    return [json.loads(line) for line in Path(run, name).read_text().splitlines()]


def the_error(capsys):
    """The one sentence that a refusal says."""
    errors = [line for line in capsys.readouterr().err.splitlines() if "error: " in line]
    assert len(errors) == 1
    return errors[0]


def test_a_run_leaves_playbook_calls_steps_scores_and_settings():
    files = {str(file.relative_to("whole")) for file in Path("whole").rglob("*") if file.is_file()}
    assert files >= {
        "playbook.json", "playbook.md", "context.txt", "calls.jsonl", "steps.jsonl", "test.json", "config.yaml",
        "metrics.csv", "checkpoints/best.ckpt", "checkpoints/epoch=0000.ckpt",
    }  # fmt: skip
    assert not [file for file in files if file.endswith((".lock", ".tmp"))]
    settings = yaml.safe_load(Path("whole/config.yaml").read_text())
    assert settings["data"]["root"] == "data/mine"
    assert "key" not in re.sub("api_key_env: OPENAI_API_KEY", "", Path("whole/config.yaml").read_text())


def test_the_playbook_holds_a_lesson_of_each_training_question_in_both_its_forms():
    book = load(Path("whole/playbook.json"))
    assert {bullet.content for bullet in book.bullets} == {f"{name} means {VALUES[name]}" for name in SEEN}
    assert {bullet.id for bullet in book.bullets} == {f"calc-{i:05}" for i in range(1, 5)}
    assert load(Path("whole/playbook.md")).bullets == tuple(
        type(b)(b.id, b.content, b.helpful, b.harmful) for b in book.bullets
    )


def test_the_scores_are_those_of_what_was_learned():
    found = results("whole")
    assert (found["accuracy"], found["n"], found["n_failed"]) == (pytest.approx(4 / 5), 5, 0)
    assert (found["accuracy@0"], found["accuracy@4"]) == (0, 1 / 2)
    assert (found["steps"], found["bullets"], found["unreadable"]) == (4, 4, 0)
    # Four steps of answer, reflection, answer, curation and a last answer; two validations of two; a test of five.
    assert found["calls"] == 4 * 5 + 2 * 2 + 5


def test_every_call_and_every_step_is_logged():
    calls, steps = lines("whole", "calls.jsonl"), lines("whole", "steps.jsonl")
    assert len(calls) == 29
    by_role = {role: sum(call["role"] == role for call in calls) for role in {call["role"] for call in calls}}
    assert by_role == {"generator": 12, "reflector": 4, "curator": 4, "evaluation": 9}
    assert [step["step"] for step in steps] == [1, 2, 3, 4]
    assert all((step["before"], step["after"], step["rounds"]) == ([False], [True], [1]) for step in steps)
    assert [op["bullet"] for step in steps for op in step["operations"]] == [f"calc-{i:05}" for i in range(1, 5)]


def test_the_test_measures_the_same_again_without_learning(capsys):
    before = Path("whole/playbook.json").read_text()
    assert main(["test", "whole", *QUIET]) == 0
    assert re.search(r"accuracy +│ +0\.8000", capsys.readouterr().err)
    assert AceCLI.of_run("whole", args=QUIET).model.loaded["context"]["playbook"] == before


def test_the_run_ends_with_a_table_and_its_folder(settings, capsys):
    assert main(["train", *settings, "--data.train_size=1", "--run_dir=small"]) == 0
    said = capsys.readouterr().err
    assert re.search(r"accuracy +│ +0\.2000", said)
    assert "run folder: small" in said


def test_two_runs_of_one_seed_write_the_same_playbook_and_another_seed_learns_in_another_order(settings):
    for run, seed in (("first", 0), ("other", 5)):
        AceCLI([*settings, f"--seed_everything={seed}", f"--run_dir={run}"]).fit_and_test()
    for name in ("playbook.json", "playbook.md", "steps.jsonl", "test.json"):
        assert Path("first", name).read_bytes() == Path("whole", name).read_bytes()
    assert Path("other/playbook.md").read_text() != Path("whole/playbook.md").read_text()
    assert results("other")["accuracy"] == results("whole")["accuracy"]


@pytest.mark.slow
def test_an_interrupted_run_resumes_to_the_playbook_and_the_scores_of_an_unbroken_one(settings, monkeypatch):
    longer = ["train", *settings, "--trainer.max_epochs=3"]
    assert main([*longer, "--run_dir=unbroken"]) == 0
    step = ACEModule.training_step

    def stop(module, batch, index):
        if (module.current_epoch, index) == (1, 2):
            raise ValueError("stopped")
        return step(module, batch, index)

    with monkeypatch.context() as patch:
        patch.setattr(ACEModule, "training_step", stop)
        assert main([*longer, "--run_dir=runs/ace/broken"]) == 2
    assert not Path("runs/ace/broken/test.json").exists()
    assert main(["train", "--resume", "last"]) == 0
    for name in ("playbook.json", "playbook.md", "steps.jsonl", "test.json"):
        assert Path("runs/ace/broken", name).read_bytes() == Path("unbroken", name).read_bytes(), name
    assert [step["step"] for step in lines("unbroken", "steps.jsonl")] == list(range(1, 13))


def test_a_method_other_than_the_papers_runs_behind_the_same_options(settings):
    base = ["--model.method=ace.NoContext", "--run_dir=base"]
    assert AceCLI([*settings, *base]).fit_and_test()["accuracy"] == 0
    assert not Path("base/playbook.json").exists()
    icl = ["--model.method=ace.InContext", "--model.method.init_args.budget=500", "--model.keep=last", "--run_dir=icl"]
    AceCLI([*settings, *icl]).fit_and_test()
    assert "Question: What is alder?\nAnswer: red" in Path("icl/context.txt").read_text()


def test_an_online_run_answers_before_it_learns(settings, tmp_path):
    twice = [*rows("What is {}?", SEEN), *rows("Say what {} is.", SEEN)]
    write(tmp_path / "test.jsonl", twice)
    online = [f"--data.root={tmp_path}", "--data.protocol=online", "--trainer.max_epochs=0", "--run_dir=online"]
    found = AceCLI([*settings, *online]).fit_and_test()
    assert (found["accuracy"], found["n"], found["steps"]) == (1 / 2, 8, 8)


def test_a_failed_request_is_counted_as_wrong_and_stays_in_the_denominator(settings, tmp_path):
    def answer(body):
        if "fir" in body["messages"][-1]["content"] or "Say what birch" in body["messages"][-1]["content"]:
            return Reply({"error": {"message": "too hard"}}, 400)
        return json_model(VALUES)(body)

    with OpenAIServer(answer) as server:
        found = AceCLI(
            [*settings, f"--model.backend.init_args.base_url={server.url}", f"--run_dir={tmp_path / 'run'}"]
        ).fit_and_test()
    assert (found["accuracy"], found["n"], found["n_failed"]) == (pytest.approx(3 / 5), 5, 2)


METHOD, ROLES, BACKEND = (f"--model.{name}.init_args" for name in ("method", "roles", "backend"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--model.method=ace.Nothing",), "ace.Nothing"),
        (("--model.method=ace.Sample",), "ace.Sample"),
        (("--model.roles=ace.ACE",), "ace.ACE"),
        (("--model.temprature=1",), "temprature"),
        ((f"{METHOD}.rounds=0",), "rounds must be at least 1, got 0"),
        ((f"{METHOD}.budget=0",), "budget must be at least 1, got 0"),
        ((f"{METHOD}.feedback=bit",), "feedback"),
        ((f"{METHOD}.similarity=nan",), "got value: nan"),
        ((f"{METHOD}.playbook=nowhere.json",), "nowhere.json"),
        ((f"{ROLES}.max_tokens=0",), "max_tokens must be at least 1, got 0"),
        ((f"{ROLES}.temperature=nan",), "got value: nan"),
        ((f"{BACKEND}.attempts=0",), "attempts: expected at least 1, got 0"),
        ((f"{BACKEND}.timeout=nan",), "timeout"),
        ((f"{BACKEND}.base_url=localhost",), "base_url: expected a URL such as http://127.0.0.1:8000/v1"),
        (("--model.templates=nowhere",), "there is no folder of templates nowhere"),
        (("--model.keep=first",), "keep"),
        (("--data.name=trivia",), "trivia"),
        (("--data.root=nowhere",), f"there is no data file {Path('nowhere', 'train.jsonl')}"),
        (("--data.root=null",), "root must be the folder of the files of jsonl, got None"),
        (("--data.test_file=gone.jsonl",), "gone.jsonl"),
        (("--data.fields={answer: a}",), "fields maps answer, but a sample has only question, target, context, id"),
        (("--data.metric=bleu",), "bleu"),
        (("--data.metric=numeric",), "metric numeric needs numbers, got target"),
        (("--data.metric=numeric", "--data.tolerance=nan"), "got value: nan"),
        (("--data.val_fraction=nan",), "got value: nan"),
        (("--data.batch_size=0",), "batch_size must be at least 1, got 0"),
        (("--data.train_size=9",), "train_size is 9, but jsonl has 4 samples to train"),
        (("--trainer.devices=0",), "trainer: "),
        (("--config", "nowhere"), "there is no config 'nowhere': give a YAML file or one of"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_bad_settings_end_in_one_sentence_and_leave_no_run(options, message, settings, capsys):
    before = set(Path().rglob("*"))
    assert main(["train", *settings, *options, "--run_dir=bad"]) == 2
    error = the_error(capsys)
    assert error.startswith("ace train: error: ")
    assert message.casefold() in error.casefold()
    assert set(Path().rglob("*")) == before


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            '{"question": "a", "target": "b"}\n{"question": \n',
            "train.jsonl, line 2: expected a JSON object, got malformed",
        ),
        ('\n\n{"question": "a"}\n', "train.jsonl, line 3: expected a field 'target', got 'question'"),
        ('["a"]\n', "train.jsonl, line 1: expected a JSON object, got list"),
        ('{"question": "a", "target": NaN}\n', "train.jsonl, line 1: expected a JSON object, got malformed JSON"),
        ("", "train.jsonl is empty: expected a JSON object a line"),
        ('{"question": "Say what alder is.", "target": "red"}\n', "1 of its questions are also in train.jsonl"),
    ],
)
def test_malformed_data_are_named_with_their_line(content, message, settings, tmp_path, capsys):
    write(tmp_path / "test.jsonl", rows("Say what {} is.", SEEN))
    (tmp_path / "train.jsonl").write_text(content)
    assert main(["train", *settings, f"--data.root={tmp_path}", "--run_dir=bad"]) == 2
    assert message in the_error(capsys)
    assert not Path("bad").exists()


def test_an_unreachable_server_is_one_sentence_with_its_address(settings, capsys):
    nobody = [f"{BACKEND}.base_url=http://127.0.0.1:9/v1", f"{BACKEND}.attempts=2", f"{BACKEND}.backoff=0.01"]
    assert main(["train", *settings, *nobody, "--run_dir=bad"]) == 2
    error = the_error(capsys)
    assert "http://127.0.0.1:9/v1" in error and error.endswith(
        "check that a server runs there and that base_url is right"
    )
    assert not Path("bad").exists()


def test_a_refused_key_ends_the_run_and_is_in_no_message(settings, monkeypatch, capsys):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    with OpenAIServer(lambda body: Reply({"error": {"message": "no such key sk-secret"}}, 401)) as server:
        assert main(["train", *settings, f"{BACKEND}.base_url={server.url}", "--run_dir=bad"]) == 2
        assert server.headers[-1]["Authorization"] == "Bearer sk-secret"
    error = the_error(capsys)
    assert "the server refuses the key" in error
    assert "secret" not in error
    assert not Path("bad").exists()


def test_a_model_that_answers_nothing_readable_ends_the_run(settings, capsys):
    with OpenAIServer(lambda body: "I would rather not.") as server:
        assert main(["train", *settings, f"{BACKEND}.base_url={server.url}", "--run_dir=bad"]) == 2
    assert "the model answered none of 2 validation samples: the answer is not JSON" in the_error(capsys)
    # What has been paid for is kept, and nothing that looks like a result.
    assert {file.name for file in Path("bad").iterdir()} == {"calls.jsonl", "config.yaml"}


def test_feedback_of_an_environment_is_refused_where_there_is_none(settings, capsys):
    assert main(["train", *settings, f"{METHOD}.feedback=execution", "--run_dir=bad"]) == 2
    assert "feedback execution is what an environment printed, but JsonRoles act in none" in the_error(capsys)
    assert not Path("bad/test.json").exists()


def test_a_run_folder_that_is_not_empty_is_refused_and_left_as_it_is(settings, capsys):
    before = {file: file.read_bytes() for file in Path("whole").rglob("*") if file.is_file()}
    assert main(["train", *settings, "--run_dir=whole"]) == 2
    assert "the run folder whole is not empty; resume it with --resume whole" in the_error(capsys)
    assert {file: file.read_bytes() for file in Path("whole").rglob("*") if file.is_file()} == before


def test_two_runs_cannot_share_a_folder(settings, capsys):
    Path("shared").mkdir()
    with claimed(Path("shared")):
        assert main(["train", *settings, "--run_dir=shared"]) == 2
    assert "shared: another process is writing to this run" in the_error(capsys)
    assert not list(Path("shared").iterdir())


@pytest.mark.parametrize("option", ["--data.train_size=2", "--model.keep=last", "--seed_everything=1"])
def test_a_resumed_run_keeps_its_settings(option, capsys):
    assert main(["train", "--resume", "whole", option]) == 2
    assert "a resumed run keeps its settings" in the_error(capsys)


def test_a_run_that_does_not_exist_cannot_be_resumed_or_tested(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["train", "--resume", "last"]) == 2
    assert "there is no run under runs/ace" in the_error(capsys)
    assert main(["test", "nowhere"]) == 2
    assert "nowhere is no run folder: it has no config.yaml" in the_error(capsys)
    assert not list(tmp_path.iterdir())


def test_configs_lists_each_config_with_what_it_is(capsys):
    assert main(["configs"]) == 0
    said = capsys.readouterr().out
    assert re.search(r"^default +The embedded default: lessons about 15 countries", said, re.MULTILINE)
    assert re.search(r"^finer_online +FiNER, XBRL tags", said, re.MULTILINE)


def test_an_unknown_verb_is_refused_with_those_that_there_are(capsys):
    assert main(["trian"]) == 2
    error = the_error(capsys)
    assert all(verb in error for verb in ("train", "test", "compare", "configs", *PAPER.verbs, *PAPER.training_verbs))


def test_help_names_every_verb_and_train_names_every_option(capsys):
    assert main(["--help"]) == 0
    said = capsys.readouterr().out
    assert all(re.search(rf"^\s+{verb} +\S", said, re.MULTILINE) for verb in verbs_of(PAPER))
    with pytest.raises(SystemExit) as ended:
        main(["train", "--help_all"])
    assert ended.value.code == 0
    said = capsys.readouterr().out
    assert all(
        option in said for option in ("--data.window", "--data.appworld_test", "--model.keep", "--seed_everything")
    )


def test_the_help_of_every_verb_imports_neither_torch_nor_a_model():
    verbs = ["train", "test", *(verb for verb in verbs_of(PAPER) if verb in {*PAPER.verbs, *PAPER.training_verbs})]
    code = f"""
import sys
from ace.cli import main
for words in (["--help"], *([verb, "--help"] for verb in {verbs!r})):
    try:
        assert main(words) == 0, words
    except SystemExit as ended:
        assert ended.code == 0, words
    heavy = {{"torch", "lightning", "transformers", "llama_cpp"}} & set(sys.modules)
    assert not heavy, (words, heavy)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("usage: ") == len(verbs) + 1


@pytest.mark.slow
def test_the_installed_script_trains_in_a_process_of_its_own(settings, tmp_path):
    command = [str(Path(sys.executable).with_name("ace")), "train", *settings, f"--run_dir={tmp_path / 'run'}"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)
    assert done.returncode == 0, done.stderr
    assert results(tmp_path / "run") == results("whole")


@pytest.mark.parametrize(
    "option", ["method.init_args.rounds", "roles.init_args.max_tokens", "backend.init_args.attempts"]
)
def test_null_is_refused_where_an_option_does_not_take_it(settings, option, capsys):
    assert main(["train", *settings, f"--model.{option}=null", "--run_dir=bad"]) == 2
    assert f"model.{option} must not be null" in the_error(capsys)
    AceCLI([*settings, f"{METHOD}.retrieve=null"], parse_only=True)


def test_a_budget_below_the_headers_is_refused_before_anything_is_asked(settings, server, capsys):
    before = len(server.bodies)
    assert main(["train", *settings, f"{METHOD}.budget=10", "--run_dir=bad"]) == 2
    assert re.search(r"budget is 10, but the playbook has \d+ tokens without any bullet", the_error(capsys))
    assert not Path("bad").exists()
    assert len(server.bodies) == before


def test_a_run_keeps_the_playbook_and_the_templates_that_it_started_from(settings, capsys):
    Path("given.md").write_text("## OTHERS\n[misc-00007] helpful=0 harmful=0 :: fir means grey\n")
    Path("mine").mkdir()
    Path("mine/merge.jinja").write_text("[[user]]\nmerge {{ contents }}\n")
    started = [f"{METHOD}.playbook=given.md", "--model.templates=mine"]
    assert main(["train", *settings, *started, "--run_dir=warm"]) == 0
    first = results("warm")
    assert first["accuracy"] == 1
    Path("given.md").unlink()
    shutil.rmtree("mine")
    assert main(["test", "warm", *QUIET]) == 0
    assert re.search(r"accuracy +│ +1\.0000", capsys.readouterr().err)
    assert main(["replay", "warm"]) == 0


def test_the_verb_online_refuses_another_protocol(settings, capsys):
    assert main(["online", *settings, "--data.protocol=offline", "--run_dir=bad"]) == 2
    assert "data.protocol must be online for this verb, got offline" in the_error(capsys)


@pytest.mark.parametrize(("limit", "asked"), [("0", 0), ("1", 1), ("0.5", 1), ("2", 2), ("1.0", 2)])
def test_no_more_is_validated_on_than_the_trainer_allows(settings, tmp_path, limit, asked):
    limits = [f"--trainer.limit_val_batches={limit}", "--data.eval_batch_size=1"]
    assert main(["train", *settings, *limits, f"--run_dir={tmp_path / 'run'}"]) == 0
    found = results(tmp_path / "run")
    # Four steps of five calls, two validations, and the test; without validation the last context is tested.
    assert (found["accuracy"], found["calls"]) == (pytest.approx(4 / 5), 4 * 5 + 2 * asked + 5)
