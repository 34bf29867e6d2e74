import json
import math
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
import yaml
from filelock import FileLock
from shared.claims import load_claims
from shared.results import Cell, Metric, Record, Report, Results, Study, compare, plan
from shared.tables import markdown

VALUES = {"ours": 0.7, "plain": 0.6, "old": 0.5}
CLAIM = {
    "id": "better", "text": "Ours is better.", "metric": "acc", "setting": "easy", "better": "ours",
    "than": "plain", "direction": "higher", "min_seeds": 2,
}  # fmt: skip

# For processes of their own: what they run must be importable there.
CELLS = """
import os, sys, time
from pathlib import Path

def run(method, setting, seed, arguments):
    if seed == 0:  # the first cell of each process, so that nothing is left to run the others
        os._exit(7)
    if (method, seed) == ("plain", 1):
        raise RuntimeError("of two\\nlines")
    if (method, seed) == ("plain", 2):
        sys.exit(3)
    import torch
    omp = int(os.environ["OMP_NUM_THREADS"])
    return {"acc": 0.5 + seed / 8, "threads": torch.get_num_threads(), "omp": omp}

def slow(method, setting, seed, arguments):
    if seed:
        Path(os.environ["STARTED"], f"{method}{seed}").write_text(str(os.getpid()))
        time.sleep(60)
    return {"acc": 0.5}

def hash_of(arguments):
    return "-".join(arguments)

def study(folder, run):
    from shared.results import Metric, Report, Study
    arguments = {"ours": ["--ours"], "plain": ["--plain"]}
    report = Report("ours", ["plain"], [Metric("acc", "accuracy")])
    return Study("paper", Path(folder), arguments, {"easy": ["--easy"]}, range(4), run, hash_of, report)

if __name__ == "__main__":
    from shared.results import compare
    sys.exit(compare(study(sys.argv[1], slow), jobs=2, seeds=3))
"""


def write_claims(folder, *claims):
    (folder / "claims.yaml").write_text(yaml.safe_dump(list(claims)))


@pytest.fixture
def calls():
    return []


@pytest.fixture
def study(tmp_path, calls):
    def run(method, setting, seed, arguments):
        calls.append((method, setting, seed, arguments))
        return {"acc": VALUES[method] + seed / 100}

    write_claims(tmp_path, CLAIM)
    return Study(
        package="paper",
        folder=tmp_path,
        methods={"ours": ["--m=1"], "plain": ["--m=0"]},
        settings={"easy": ["--config=easy"], "hard": ["--config=hard"]},
        seeds=range(2),
        run=run,
        hash_of="|".join,
        report=Report("ours", ["plain"], [Metric("acc", "accuracy", percent=True)]),
    )


def record(method="ours", seed=0, setting="easy", **changes):
    base = {"metrics": {"acc": 0.5}, "seconds": 1.0, "config_hash": "h", "versions": {}, "device": "cpu"}
    return Record(method, seed, setting, **(base | changes))


def test_saved_results_load_as_they_were(tmp_path):
    results = Results("paper", "0.1.0")
    for seed in (2, 0, 1):
        results.add(record(seed=seed, metrics={"acc": seed / 7, "loss": 1e-9 / 3}))
    results.save(tmp_path / "results.json")
    assert Results.load(tmp_path / "results.json") == results
    assert [r.seed for r in results.records] == [0, 1, 2]


def test_file_is_sorted_and_rounded_to_six_digits(tmp_path):
    results = Results("paper", "0.1.0")
    results.add(record(setting="hard", metrics={"z": 1 / 3, "a": 123456.789}, seconds=12.3456789))
    results.add(record(method="plain", seed=1))
    results.add(record(method="plain", seed=0))
    results.save(tmp_path / "results.json")
    text = (tmp_path / "results.json").read_text()
    entries = json.loads(text)["records"]
    order = [(e["setting"], e["method"], e["seed"]) for e in entries]
    assert order == [("easy", "plain", 0), ("easy", "plain", 1), ("hard", "ours", 0)]
    assert list(entries[2]) == sorted(entries[2])
    assert list(entries[2]["metrics"].items()) == [("a", 123457.0), ("z", 0.333333)]
    assert '"seconds": 12.3457,' in text


def test_record_replaces_that_of_the_same_cell_only():
    results = Results("paper", "0.1.0", [record(), record(seed=1), record("plain"), record(setting="hard")])
    results.add(record(metrics={"acc": 0.9}))
    assert len(results.records) == 4
    assert results.values("ours", "easy", "acc") == {0: 0.9, 1: 0.5}
    assert results.values("ours", "easy", "absent") == {}


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_number_that_is_not_finite_is_refused_by_cell_and_name(value):
    with pytest.raises(ValueError, match=r"ours in easy, seed 3: loss is .*finite"):
        record(seed=3, metrics={"acc": 0.5, "loss": value})
    with pytest.raises(ValueError, match="ours in easy, seed 3: seconds is"):
        record(seed=3, seconds=value)


def test_writing_that_fails_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    path = tmp_path / "results.json"
    Results("paper", "0.1.0", [record()]).save(path)
    before = path.read_text()

    def full(descriptor):
        raise OSError("disk full")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="disk full"):
        Results("paper", "0.1.0", [record(), record(seed=1)]).save(path)
    assert path.read_text() == before
    assert list(tmp_path.iterdir()) == [path]


GOOD = {"package": "paper", "version": "0.1.0", "records": []}
ENTRY = {
    "method": "ours", "seed": 0, "setting": "easy", "metrics": {"acc": 0.5}, "seconds": 1.0,
    "config_hash": "h", "versions": {}, "device": "cpu",
}  # fmt: skip


@pytest.mark.parametrize(
    "content",
    [
        "",
        '{"package": "paper", "version": "0.1.0", "rec',
        "[]",
        "{}",
        json.dumps({**GOOD, "records": {}})[:-1],
        json.dumps({**GOOD, "records": [1]}),
        json.dumps({**GOOD, "records": [{k: v for k, v in ENTRY.items() if k != "seed"}]}),
        json.dumps({**GOOD, "records": [{**ENTRY, "more": 1}]}),
        json.dumps({**GOOD, "records": [{**ENTRY, "seed": "0"}]}),
        json.dumps({**GOOD, "records": [{**ENTRY, "metrics": {"acc": "0.5"}}]}),
        json.dumps({**GOOD, "records": [{**ENTRY, "metrics": {"acc": math.nan}}]}),
        json.dumps({**GOOD, "records": [ENTRY, ENTRY]}),
    ],
)
def test_damaged_or_foreign_file_is_refused_by_name_in_one_line(tmp_path, content):
    path = tmp_path / "results.json"
    path.write_text(content)
    with pytest.raises(ValueError, match=r"^.*results\.json: not a results file that `compare` wrote \(.*\)$"):
        Results.load(path)


def test_missing_file_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"results\.json: no such file"):
        Results.load(tmp_path / "results.json")


def test_cells_run_once_seed_by_seed_with_the_methods_arguments_last(study, calls):
    assert compare(study) == 0
    assert [call[:3] for call in calls] == [
        (method, setting, seed) for seed in (0, 1) for setting in ("easy", "hard") for method in ("ours", "plain")
    ]
    assert calls[0][3] == ["--config=easy", "--m=1"]
    assert compare(study) == 0
    assert len(calls) == 8


def test_tables_are_those_of_the_saved_records(study, capsys):
    compare(study)
    results = Results.load(study.folder / "results.json")
    claims = load_claims(study.folder / "claims.yaml")
    assert (study.folder / "results.md").read_text() == markdown(results, claims, study.report)
    # ours is 10 points better with every seed
    assert "| ours | 2 | 70.5 ± 0.7 | +10.00 [+10.00, +10.00] |" in (study.folder / "results.md").read_text()
    assert (study.folder / "results.png").read_bytes().startswith(b"\x89PNG")
    out, err = capsys.readouterr()
    assert "holds" in out
    assert "8 cells: 0 done, 0 stale, 8 to do" in err
    assert "plain in hard, seed 1: accuracy (%) 61.0, 0.0 s" in err
    assert sorted(p.name for p in study.folder.iterdir()) == [
        "claims.yaml", "results.json", "results.md", "results.png",
    ]  # fmt: skip


def test_the_reports_drawings_are_made_from_the_records_too(study):
    def draw(results, path):
        path.write_text(str(len(results.records)))

    compare(replace(study, report=replace(study.report, drawings={"count.png": draw})))
    assert (study.folder / "count.png").read_text() == "8"


def test_record_says_what_was_run_with_what(study):
    compare(study, seeds=1)
    found = Results.load(study.folder / "results.json").find("ours", "easy", 0)
    assert found.config_hash == "--config=easy|--m=1"
    assert set(found.versions) == {"python", "torch", "paper"}
    assert found.versions["python"] == ".".join(map(str, sys.version_info[:3]))
    assert 0 <= found.seconds < 1


def test_changed_settings_make_their_cells_stale_and_only_those_run_again(study, calls, capsys):
    compare(study)
    calls.clear()
    changed = replace(study, methods={"ours": ["--m=2"], "plain": ["--m=0"]})
    compare(changed)
    assert {call[0] for call in calls} == {"ours"}
    assert len(calls) == 4
    assert "8 cells: 4 done, 4 stale, 0 to do" in capsys.readouterr().err
    results = Results.load(study.folder / "results.json")
    assert len(results.records) == 8
    assert {r.config_hash for r in results.records if r.method == "ours"} == {
        "--config=easy|--m=2", "--config=hard|--m=2",
    }  # fmt: skip


def test_plan_sorts_cells_by_record_and_hash():
    cells = [Cell("ours", "easy", seed, "h") for seed in range(3)]
    results = Results("paper", "0.1.0", [record(seed=0), record(seed=1, config_hash="old")])
    found = plan(cells, results)
    assert (found.done, found.stale, found.todo) == (cells[:1], cells[1:2], cells[1:])
    assert str(found) == "3 cells: 1 done, 1 stale, 1 to do"


def test_failing_cell_is_told_and_not_recorded_and_the_others_run(study, capsys):
    def run(method, setting, seed, arguments):
        if setting == "hard":
            bad = {("ours", 0): {"acc": math.nan}, ("plain", 0): {"loss": 1.0}}
            if (method, seed) in bad:
                return bad[method, seed]
            raise RuntimeError("two\nlines [red]") if method == "ours" else SystemExit(2)
        return {"acc": 0.5}

    assert compare(replace(study, run=run)) == 1
    told = [line for line in capsys.readouterr().err.splitlines() if line.startswith("failed: ")]
    assert told == [
        "failed: ours in hard, seed 0: ours in hard, seed 0: acc is nan, expected a finite number",
        "failed: plain in hard, seed 0: the run gave no metric 'acc', only loss",
        "failed: ours in hard, seed 1: RuntimeError: two lines [red]",
        "failed: plain in hard, seed 1: SystemExit: 2",
    ]
    results = Results.load(study.folder / "results.json")
    assert {(r.method, r.setting, r.seed) for r in results.records} == {
        (method, "easy", seed) for method in ("ours", "plain") for seed in (0, 1)
    }
    assert compare(study) == 0  # the next call runs what failed


def test_interrupt_keeps_what_is_finished(study, calls):
    def run(method, setting, seed, arguments):
        if len(calls) == 3:
            raise KeyboardInterrupt
        return study.run(method, setting, seed, arguments)

    with pytest.raises(KeyboardInterrupt):
        compare(replace(study, run=run))
    assert len(Results.load(study.folder / "results.json").records) == 3
    assert not (study.folder / ".compare.lock").exists()
    compare(study)
    assert len(calls) == 8


def test_second_comparison_on_a_folder_fails_at_once(study, calls):
    with FileLock(study.folder / ".compare.lock"):
        start = time.monotonic()
        with pytest.raises(ValueError, match="another comparison is writing there"):
            compare(study)
        assert time.monotonic() - start < 1
    assert not calls
    compare(study, seeds=1)
    assert len(calls) == 4


def test_dry_run_tells_what_would_run_and_writes_nothing(study, calls, tmp_path, capsys):
    assert compare(study, methods=["ours"], settings=["hard"], dry_run=True, out=tmp_path / "new") == 0
    assert capsys.readouterr().out.splitlines() == [
        "2 cells: 0 done, 0 stale, 2 to do", "  ours in hard, seed 0", "  ours in hard, seed 1",
    ]  # fmt: skip
    assert not calls
    assert not (tmp_path / "new").exists()


def test_selection_runs_a_part_and_goes_where_it_is_told(study, calls, tmp_path):
    out = tmp_path / "elsewhere"
    compare(study, methods=["plain"], settings=["hard"], seeds=[5, 3], out=out)
    assert [call[:3] for call in calls] == [("plain", "hard", 5), ("plain", "hard", 3)]
    assert len(Results.load(out / "results.json").records) == 2
    assert not (study.folder / "results.json").exists()
    compare(study, methods=["plain"], settings=["hard"], seeds=2, out=out)
    assert [call[2] for call in calls[2:]] == [0, 1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"methods": ["ours", "nat"]}, "methods: unknown name 'nat', expected some of ours, plain"),
        ({"settings": ["x"]}, "settings: unknown name 'x', expected some of easy, hard"),
        ({"seeds": 0}, "seeds is 0"),
        ({"seeds": []}, "seeds is []"),
        ({"seeds": [0, -1]}, "seeds is [0, -1]"),
        ({"jobs": 0}, "jobs is 0"),
    ],
)
def test_bad_option_is_refused_before_anything_is_written(study, calls, tmp_path, options, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        compare(study, out=tmp_path / "new", **options)
    assert not calls
    assert not (tmp_path / "new").exists()


def test_claims_must_be_there_and_fit_before_anything_runs(study, calls):
    write_claims(study.folder, CLAIM | {"than": "nobody"})
    with pytest.raises(ValueError, match="claim 'better': than is 'nobody'"):
        compare(study)
    (study.folder / "claims.yaml").unlink()
    with pytest.raises(FileNotFoundError, match=r"claims\.yaml"):
        compare(study)
    assert not calls


def test_results_of_another_package_are_not_written_over(study, calls):
    path = study.folder / "results.json"
    Results("other", "0.1.0", [record()]).save(path)
    before = path.read_text()
    with pytest.raises(ValueError, match="holds results of 'other', expected those of 'paper'"):
        compare(study)
    assert path.read_text() == before
    assert not calls


def test_importing_results_brings_nothing_heavy():
    code = "import sys, shared.results; print({'torch', 'lightning', 'scipy', 'matplotlib'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


@pytest.fixture
def cells(tmp_path):
    write_claims(tmp_path, CLAIM)
    path = tmp_path / "cells_of_a_test.py"
    path.write_text(CELLS)
    return path


def test_processes_share_the_cores_and_one_that_dies_fails_only_its_cell(cells, monkeypatch, capsys):
    monkeypatch.syspath_prepend(str(cells.parent))
    monkeypatch.setenv("OMP_NUM_THREADS", "77")
    import cells_of_a_test as module

    assert compare(module.study(cells.parent, module.run), jobs=2) == 1
    results = Results.load(cells.parent / "results.json")
    assert results.values("ours", "easy", "acc") == {1: 0.625, 2: 0.75, 3: 0.875}
    assert results.values("plain", "easy", "acc") == {3: 0.875}
    share = max(1, os.cpu_count() // 2)
    assert {(r.metrics["threads"], r.metrics["omp"]) for r in results.records} == {(share, share)}
    told = {line for line in capsys.readouterr().err.splitlines() if line.startswith("failed: ")}
    assert told == {
        "failed: ours in easy, seed 0: RuntimeError: the process died (killed, or out of memory)",
        "failed: plain in easy, seed 0: RuntimeError: the process died (killed, or out of memory)",
        "failed: plain in easy, seed 1: RuntimeError: of two lines",
        "failed: plain in easy, seed 2: SystemExit: 3",
    }
    assert os.environ["OMP_NUM_THREADS"] == "77"


@pytest.mark.slow
@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGKILL])
def test_ended_comparison_keeps_its_records_and_leaves_no_process_and_no_lock(cells, tmp_path, sent):
    started = tmp_path / "started"
    started.mkdir()
    process = subprocess.Popen(
        [sys.executable, str(cells), str(tmp_path)],
        env=os.environ | {"STARTED": str(started), "OMP_NUM_THREADS": "1"},
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 60
    while len(list(started.iterdir())) < 2:
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)
    time.sleep(0.2)
    workers = [int(Path(path).read_text()) for path in started.iterdir()]
    process.send_signal(sent)
    process.communicate(timeout=10)
    assert process.returncode != 0
    deadline = time.monotonic() + 5
    while any(map(psutil.pid_exists, workers)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(map(psutil.pid_exists, workers))
    assert [r.seed for r in Results.load(tmp_path / "results.json").records] == [0, 0]
    with FileLock(tmp_path / ".compare.lock", timeout=0):
        pass
