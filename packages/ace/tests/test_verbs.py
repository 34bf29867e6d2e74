"""The package's own verbs as a user runs them, on runs with a scripted model behind the loopback."""

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
from ace.app import AceCLI
from ace.cli import main
from ace.completion import BackendError, Completion
from ace.playbook import load
from ace.recording import Usage
from ace.verbs import price, usage_of

from .openai_server import OpenAIServer, Reply, completion

NAMES = ["Ada", "Bo", "Cy", "Di"]
FACTS = {name: f"{name} likes the number {i}" for i, name in enumerate(NAMES)}
FAST = ["--trainer.accelerator=cpu", "--trainer.enable_progress_bar=false"]
USAGE = {"prompt_tokens": 100, "completion_tokens": 10, "prompt_tokens_details": {"cached_tokens": 60}}


def answer(body):
    """Know a fact iff it is in the playbook; reflect and curate as told."""
    system, user = body["messages"][0]["content"], body["messages"][-1]["content"]
    name = next((name for name in NAMES if f"number of {name}" in user), None)
    if name is None:
        return completion("no JSON at all", usage=USAGE)
    if "bullet_tags" in system:
        found = {"key_insight": FACTS[name], "bullet_tags": []}
    elif '"operations"' in system:
        found = {"operations": [{"type": "ADD", "section": "OTHERS", "content": FACTS[name]}]}
    else:
        known = FACTS[name] in system
        found = {"final_answer": FACTS[name][-1] if known else "?", "bullet_ids": ["misc-00001"], "reasoning": "r"}
    return completion(json.dumps(found), usage=USAGE)


def samples(wording, names):
    rows = (
        {"question": f"{wording} the number of {n}?", "target": FACTS[n][-1], "id": f"{wording}-{n}"} for n in names
    )
    return "".join(json.dumps(row) + "\n" for row in rows)


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A working directory with the runs `offline` and `online`, whose server is gone."""
    folder = tmp_path_factory.mktemp("verbs")
    Path(folder / "data").mkdir()
    Path(folder / "data/train.jsonl").write_text(samples("What is", NAMES))
    Path(folder / "data/val.jsonl").write_text(samples("Say", NAMES[:2]))
    Path(folder / "data/test.jsonl").write_text(samples("Name", NAMES))
    with pytest.MonkeyPatch.context() as patch, OpenAIServer(lambda body: Reply(answer(body))) as server:
        patch.chdir(folder)
        options = settings(server.url)
        assert main(["train", *options, "--run_dir=offline", "--trainer.max_epochs=1"]) == 0
        assert main(["online", "--config=default", *options, "--run_dir=online"]) == 0
    return folder


def settings(url):
    backend = ["--model.backend=ace.OpenAIBackend", f"--model.backend.base_url={url}", "--model.backend.model=m"]
    backend += ["--model.backend.attempts=1", "--model.backend.concurrency=1"]
    return [
        *FAST,
        "--trainer.val_check_interval=1.0",
        "--trainer.check_val_every_n_epoch=1",
        *backend,
        "--model.roles=ace.JsonRoles",
        "--data.name=jsonl",
        "--data.root=data",
    ]


@pytest.fixture(autouse=True)
def inside(home, monkeypatch):
    monkeypatch.chdir(home)


def run(*words, code=0):
    assert main(list(map(str, words))) == code


def serving():
    """Serve the same model at another address."""
    return OpenAIServer(lambda body: Reply(answer(body)))


def redirected(name, url):
    """Copy a run, with another server in its settings."""
    target = Path(f"{name}-moved")
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(name, target)
    config = (target / "config.yaml").read_text()
    old = next(line for line in config.splitlines() if "base_url:" in line)
    (target / "config.yaml").write_text(config.replace(old, f"{old.partition('base_url:')[0]}base_url: {url}"))
    return target


def metrics(name):
    return json.loads(Path(name, "test.json").read_text())


def test_a_run_leaves_playbook_usage_and_figures():
    assert metrics("offline")["accuracy"] == 1
    book = load(Path("offline/playbook.json"))
    assert sorted(bullet.content for bullet in book.bullets) == sorted(FACTS.values())
    assert load(Path("offline/playbook.md")).to_text() == book.to_text()
    usage = json.loads(Path("offline/usage.json").read_text())
    assert usage["curator"]["calls"] == 4
    assert usage["curator"]["prompt_tokens"] == 400
    assert sum(role["calls"] for role in usage.values()) == metrics("offline")["calls"]
    assert {"progress.png", "usage.png"} <= {file.name for file in Path("offline/figures").iterdir()}


def test_online_answers_before_it_learns_and_does_not_train_first(home, caplog):
    found = metrics("online")
    assert (found["accuracy"], found["n"], found["steps"]) == (0, 4, 4)
    assert len(load(Path("online/playbook.json"))) == 4
    steps = [json.loads(line) for line in Path("online/steps.jsonl").read_text().splitlines()]
    assert {sample for step in steps for sample in step["samples"]} == {f"Name-{name}" for name in NAMES}


def test_an_online_run_is_not_called_untrained(capsys, caplog):
    with serving() as server:
        run("online", "--config=default", *settings(server.url), "--run_dir=quiet", "--data.test_size=1")
    said = capsys.readouterr().err + caplog.text
    assert "untrained" not in said
    assert "configure_optimizers" not in said
    shutil.rmtree("quiet")


def test_online_takes_the_epochs_of_an_option_and_not_of_a_config(monkeypatch):
    asked = []
    built = SimpleNamespace(datamodule=SimpleNamespace(protocol="online"), fit_and_test=dict)
    monkeypatch.setattr(AceCLI, "of_arguments", classmethod(lambda cls, argv: asked.append(list(argv)) or built))
    AceCLI.online(["--trainer.max_epochs=2", "--config", "default", "-c", "jsonl", "--data.window=3"])
    AceCLI.online(["--config=default"])
    AceCLI.online([])
    AceCLI.online(["--resume", "last"])
    online = ["--data.protocol=online", "--trainer.max_epochs=0"]
    assert asked == [
        ["--config", "default", "-c", "jsonl", *online, "--trainer.max_epochs=2", "--data.window=3"],
        ["--config=default", *online],
        ["--config=country_online", *online],
        ["--resume", "last"],
    ]


@pytest.mark.parametrize("name", ["offline", "online"])
def test_replay_gives_the_same_bytes_and_metrics_without_a_server(name, capsys):
    before = {file: file.read_bytes() for file in Path(name).rglob("*") if file.is_file()}
    run("replay", name)
    assert f"{len(metrics(name)) + 2} results are equal, 0 differ" in capsys.readouterr().out
    assert {file: file.read_bytes() for file in Path(name).rglob("*") if file.is_file()} == before


def test_replay_keeps_the_repetition_where_asked():
    run("replay", "offline", "--out=again")
    assert Path("again/playbook.json").read_bytes() == Path("offline/playbook.json").read_bytes()
    run("replay", "offline", "--out=again", code=2)


def test_replay_exits_with_1_and_names_what_differs(capsys):
    copy = redirected("offline", "http://127.0.0.1:9/v1")
    book = (copy / "playbook.json").read_text().replace("likes", "hates")
    (copy / "playbook.json").write_text(book)
    (copy / "test.json").write_text(json.dumps(metrics("offline") | {"accuracy": 0.5}))
    run("replay", copy, code=1)
    rows = [line for line in capsys.readouterr().out.splitlines() if "differs" in line]
    assert [row.split()[1] for row in rows] == ["playbook.json", "test"]
    assert "accuracy" in rows[1]


def test_replay_of_a_changed_prompt_or_an_unfinished_run_is_one_sentence(capsys):
    copy = redirected("offline", "http://127.0.0.1:9/v1")
    log = (copy / "calls.jsonl").read_text().splitlines(keepends=True)
    (copy / "calls.jsonl").write_text("".join(line for line in log if '"curator"' not in line))
    run("replay", copy, code=2)
    assert "curator, step 1:" in (said := capsys.readouterr().err)
    assert "has no answer to" in said
    assert "Traceback" not in said
    for file in ("test.json", "playbook.json", "context.txt"):
        (copy / file).unlink()
    run("replay", copy, code=2)
    assert "the run has not ended" in capsys.readouterr().err


def test_replay_without_test_metrics_says_so_and_exits_with_1(capsys):
    copy = redirected("offline", "http://127.0.0.1:9/v1")
    (copy / "test.json").unlink()
    run("replay", copy, code=1)
    said = capsys.readouterr().out
    assert "2 results are equal, 0 differ" in said
    assert "the run has no test.json: metrics were not compared" in said


@pytest.mark.parametrize("text", ["{", "[1]", '{"accuracy": "1"}', "[" * 100_000, '{"accuracy": null}'])
def test_replay_of_damaged_test_metrics_is_one_sentence_that_names_the_file(text, capsys):
    copy = redirected("offline", "http://127.0.0.1:9/v1")
    (copy / "test.json").write_text(text)
    run("replay", copy, code=2)
    said = capsys.readouterr().err
    assert f"{copy / 'test.json'}: not the metrics of a run" in said
    assert "Traceback" not in said


def test_replay_needs_no_backend_that_this_machine_lacks(capsys):
    copy = redirected("offline", "http://127.0.0.1:9/v1")
    config = (copy / "config.yaml").read_text()
    begin, end = config.index("class_path: ace.OpenAIBackend"), config.index("  templates:")
    missing = "class_path: ace.OpenAIBackend\n    init_args:\n      tokenizer: nowhere/tokenizer.json\n"
    (copy / "config.yaml").write_text(config[:begin] + missing + config[end:])
    run("replay", copy)
    assert "0 differ" in capsys.readouterr().out


def test_predict_answers_with_what_the_run_has_learned(capsys):
    with serving() as server:
        run("predict", "--question=Which is the number of Cy?", "--run", redirected("offline", server.url))
        said = capsys.readouterr()
        assert said.out == "2\n"
        assert "1 calls, 100 tokens read (60 of them cached), 10 written" in said.err
        assert not Path("predictions.jsonl").exists()
        [body] = server.bodies
    assert Path("offline/context.txt").read_text().strip() in body["messages"][0]["content"]


def test_predict_writes_a_file_of_predictions_with_further_fields_and_fails_alone(capsys):
    rows = [
        {"question": "the number of Bo", "id": "q", "topic": "x", "answer": "gold", "share": 0.5},
        {"question": "of nobody"},
        {"question": "the number of Di", "context": "c"},
    ]
    Path("questions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with serving() as server:
        run("predict", "--file=questions.jsonl", "--run", redirected("online", server.url), code=1)
    found = [json.loads(line) for line in Path("predictions.jsonl").read_text().splitlines()]
    assert found == [
        {"id": "q", "question": "the number of Bo", "answer": "1", "bullet_ids": ["misc-00001"], "error": None}
        | {"topic": "x", "given_answer": "gold", "share": 0.5},
        {"id": "questions-2", "question": "of nobody", "answer": "", "bullet_ids": []}
        | {"error": "the answer is not JSON"},
        {"id": "questions-3", "question": "the number of Di", "answer": "3", "bullet_ids": ["misc-00001"]}
        | {"error": None, "context": "c"},
    ]
    said = capsys.readouterr()
    assert said.out == "q\t1\nquestions-2\terror: the answer is not JSON\nquestions-3\t3\n"
    assert "1 without an answer" in said.err


def test_predict_takes_another_playbook_in_place_of_the_runs(capsys):
    Path("other.md").write_text(f"## OTHERS\n[misc-00001] {FACTS['Ada']}\n")
    with serving() as server:
        moved = redirected("offline", server.url)
        run("predict", "--question=the number of Ada", "--playbook=other.md", "--run", moved)
        run("predict", "--question=the number of Bo", "--playbook=other.md", "--run", moved)
    assert capsys.readouterr().out == "0\n?\n"


def test_predict_needs_neither_the_data_nor_the_end_of_the_run(capsys, tmp_path, monkeypatch):
    with serving() as server:
        moved = redirected("offline", server.url).resolve()
        for file in ("playbook.json", "playbook.md", "context.txt", "test.json"):
            (moved / file).unlink()
        monkeypatch.chdir(tmp_path)  # where there is no data
        run("predict", "--question=the number of Di", "--run", moved)
    assert capsys.readouterr().out == "3\n"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ([], "expected either --question or --file, got neither"),
        (["--question=a", "--file=b"], "expected either --question or --file, got both"),
        (["--question= "], "question must not be blank"),
        (["--file=none.jsonl", "--run=offline"], "there is no data file none.jsonl"),
        (["--file=none.jsonl", "--context=c"], "context goes with question"),
        (["--file=none.jsonl", "--out=none.jsonl"], "out must not be the file of questions itself"),
        (["--question=a", "--run=nowhere"], "nowhere is no run folder"),
        (["--question=a", "--out=data"], "out must name a file, got the folder data"),
        (["--question=a", "--run=offline", "--playbook=none.md"], "there is no playbook none.md"),
        (["--question=number of Ada", "--run=offline"], "cannot be reached"),
    ],
)
def test_bad_input_of_predict_is_one_sentence(words, sentence, capsys):
    run("predict", *words, code=2)
    said = capsys.readouterr().err
    assert sentence in said
    assert "Traceback" not in said


def test_an_endpoint_that_is_gone_ends_a_training_in_one_sentence(capsys):
    run("train", *settings("http://127.0.0.1:9/v1"), "--run_dir=gone", code=2)
    said = capsys.readouterr().err
    assert "ace train: error: evaluation, step 0: http://127.0.0.1:9/v1 cannot be reached" in said
    assert "Traceback" not in said
    assert issubclass(BackendError, OSError)  # which `shared.cli` reports as a sentence


def test_cost_adds_up_what_was_sent_and_prices_it(capsys):
    usage = usage_of(Path("offline/calls.jsonl"))
    sent = sum(part.calls - part.replayed for part in usage.values())
    assert {role: part.calls for role, part in usage.items()} == {
        role: part["calls"] for role, part in json.loads(Path("offline/usage.json").read_text()).items()
    }
    run("cost", "offline", "--price_in=3", "--price_cached=1", "--price_out=20")
    last = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("│ all"))
    found = [cell.strip() for cell in last.split("│")[1:-1]]
    assert found[4:7] == [str(100 * sent), str(60 * sent), str(10 * sent)]
    assert float(found[-1]) == pytest.approx(sent * (40 * 3 + 60 * 1 + 10 * 20) / 1e6, abs=5e-5)


def test_price_takes_the_full_price_of_cached_tokens_where_none_is_given():
    usage = Usage()
    usage.add(Completion("x", 2_000_000, 500_000, cached_tokens=1_000_000), 1.0, False)
    assert price(usage, 3.0, None, None) == 6.0
    assert price(usage, 3.0, 0.0, None) == 3.0
    assert price(usage, None, None, 8.0) == 4.0


@pytest.mark.parametrize("option", ["price_in", "price_cached", "price_out"])
def test_a_price_that_is_none_is_refused(option, capsys):
    run("cost", "offline", f"--{option}=-1", code=2)
    assert f"{option} must be a finite number >= 0" in capsys.readouterr().err
