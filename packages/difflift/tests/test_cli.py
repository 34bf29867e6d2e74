"""The command `difflift train` as a user runs it: what it writes and says, and one sentence where it cannot."""

import csv
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from difflift.app import DiffLiftCLI
from difflift.cli import main
from difflift.module import LiftingModule
from shared.checkpoints import load, newest

QUIET = ["--trainer.enable_progress_bar=false", "--trainer.accelerator=cpu"]
NARROW = ["--model.width=16", "--model.lifting.init_args.embedding=8", "--model.lifting.init_args.hidden=8"]
# 188 graphs: a fold of 38 to test, 15 to validate and 135 to train on, in 5 steps.
TINY = ["--config=mutag", *QUIET, *NARROW, "--data.batch_size=32", "--trainer.max_epochs=3"]
# An epoch that is not the best so far halves the rate, and none ends the run.
RESTLESS = ["--model.lr=0.05", "--model.lr_patience=0", "--model.patience=null", "--trainer.max_epochs=6"]
COMMAND = str(Path(sys.executable).with_name("difflift"))  # Lightning starts further processes by the script's path

OWN = '''
import torch
from difflift import Graphs, Lifting, Network
from difflift.baselines import hypergraph


class OneHyperedge(Lifting):
    """Adds one hyperedge for each graph, of all its vertices."""

    def __init__(self, features: int, largest: int = 1000) -> None:
        super().__init__()
        self.largest = largest

    def forward(self, data):
        graphs = Graphs.of(data)
        inside = graphs.sizes[graphs.batch] <= self.largest
        return hypergraph(graphs, torch.arange(len(graphs.x))[inside], graphs.batch[inside])


class Scaled(Network):
    """Multiplies the features."""

    ranks = 1

    def __init__(self, width: int, scale: float = 1.0) -> None:
        super().__init__(width, layers=1, dropout=0.0)
        self.scale = torch.nn.Parameter(torch.tensor(scale))

    def forward(self, x, complex):
        return (self.scale * x,)
'''


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A working directory with the finished run `tiny`."""
    folder = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.syspath_prepend(str(folder))
        (folder / "my_liftings.py").write_text(OWN)
        assert main(["train", *TINY, "--run_dir=tiny"]) == 0
        yield folder


@pytest.fixture(autouse=True)
def inside(home, monkeypatch):
    monkeypatch.chdir(home)


def results(run):
    return json.loads(Path(run, "test.json").read_text())


def checkpoint(run):
    return load(newest(Path(run) / "checkpoints"))


def scores(run):
    """The validation scores of a run's epochs."""
    with Path(run, "metrics.csv").open(newline="") as file:
        return [float(row["val/score"]) for row in csv.DictReader(file) if row["val/score"]]


def train(*options):
    """A run without figures; its metrics."""
    return DiffLiftCLI([*TINY, *options], quiet=True).fit_and_test()


def same(first, second):
    return first.keys() == second.keys() and all(torch.equal(value, second[name]) for name, value in first.items())


def the_error(capsys):
    """The one sentence that a refusal says."""
    errors = [line for line in capsys.readouterr().err.splitlines() if "error: " in line]
    assert len(errors) == 1
    return errors[0]


def test_train_leaves_settings_metrics_and_checkpoints():
    files = {str(file.relative_to("tiny")) for file in Path("tiny").rglob("*") if file.is_file()}
    assert files >= {
        "config.yaml", "metrics.csv", "test.json", "figures/training.png", "checkpoints/best.ckpt",
        "checkpoints/epoch=0001.ckpt", "checkpoints/epoch=0002.ckpt",
    }  # fmt: skip
    with Path("tiny/metrics.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["train/loss"]]
    assert [int(row["epoch"]) for row in rows] == [0, 1, 2]
    assert all(0 < float(row["train/p"]) < 1 and 0 < float(row["train/included"]) < 1 for row in rows)


def test_the_best_epoch_is_the_first_of_the_highest_validation_score_and_every_checkpoint_knows_it():
    found, last = scores("tiny"), checkpoint("tiny")
    best = max(range(3), key=lambda epoch: (found[epoch], -epoch))
    assert last["epoch"] == 2
    assert (last["best"]["epoch"], last["best"]["score"]) == (best, pytest.approx(found[best]))
    assert load(Path("tiny/checkpoints/best.ckpt"))["epoch"] == best
    own = {f"model.{name}": tensor for name, tensor in last["best"]["weights"].items()}
    of_best = load(Path("tiny/checkpoints/best.ckpt"))["state_dict"]
    assert own.keys() == {name for name in of_best if name.startswith("model.")}
    assert all(torch.equal(tensor, of_best[name]) for name, tensor in own.items())


def test_each_of_the_38_molecules_of_the_fold_is_scored_once():
    metrics = results("tiny")
    assert metrics["n"] == 38
    assert metrics["accuracy"] * 38 == pytest.approx(round(metrics["accuracy"] * 38), abs=1e-4)
    assert 2 <= metrics["k"] <= 7
    assert 0 <= metrics["included"] <= 1


def test_the_test_measures_the_same_again(capsys):
    before = results("tiny")
    assert main(["test", "tiny", *QUIET]) == 0
    said = capsys.readouterr().err
    assert re.search(rf"accuracy +│ +{before['accuracy']:.4f}", said)
    assert DiffLiftCLI.of_run("tiny", args=QUIET).run_test() == before


def test_what_a_finished_run_is_used_for_are_the_weights_of_its_best_epoch():
    cli, last = DiffLiftCLI.of_run("tiny", args=QUIET), checkpoint("tiny")
    assert same(dict(cli.model.model.state_dict()), last["best"]["weights"])


def test_seven_graphs_in_batches_of_two_are_scored_as_in_one(monkeypatch):
    few_test_graphs(monkeypatch)
    two, whole = (train(f"--data.eval_batch_size={size}", "--trainer.max_epochs=1") for size in (2, 256))
    assert two["n"] == whole["n"] == 7
    assert two == pytest.approx(whole, rel=1e-5)


def few_test_graphs(monkeypatch):
    from difflift.data import GraphData

    whole = GraphData.indices.func
    indices = property(lambda data: {**whole(data), "test": whole(data)["test"][:7]})
    monkeypatch.setattr(GraphData, "indices", indices)


def test_two_runs_of_one_seed_are_equal_and_of_another_are_not():
    for run, seed in (("first", 3), ("second", 3), ("other", 4)):
        train(f"--seed_everything={seed}", f"--run_dir={run}", "--trainer.max_epochs=2")
    assert same(checkpoint("first")["state_dict"], checkpoint("second")["state_dict"])
    assert Path("first/metrics.csv").read_text() == Path("second/metrics.csv").read_text()
    assert not same(checkpoint("first")["state_dict"], checkpoint("other")["state_dict"])


@pytest.mark.parametrize("target", ["hypergraph", pytest.param("cell", marks=pytest.mark.slow)])
def test_a_run_stopped_within_an_epoch_resumes_to_an_unbroken_ones_weights_and_best_epoch(target, monkeypatch):
    network = {"hypergraph": "UniGCNII", "cell": "CWN"}[target]
    cells = [f"--model.network=difflift.{network}", f"--model.lifting.init_args.target={target}"]
    arguments = ["train", *TINY, *RESTLESS, *cells]
    whole, part = f"whole-{target}", f"part-{target}"
    assert main([*arguments, f"--run_dir={whole}"]) == 0
    rates = {group["lr"] for group in checkpoint(whole)["optimizer_states"][0]["param_groups"]}
    assert rates < {0.05 / 2**halved for halved in range(1, 6)}  # there was something to lose

    step = LiftingModule.training_step
    for epoch in (2, 4):

        def stop(module, batch, index, epoch=epoch):
            if (module.current_epoch, index) == (epoch, 2):
                raise ValueError("stopped")
            return step(module, batch, index)

        with monkeypatch.context() as patch:
            patch.setattr(LiftingModule, "training_step", stop)
            again = [*arguments, f"--run_dir={part}"] if epoch == 2 else ["train", "--resume", part]
            assert main(again) == 2
        assert not Path(part, "test.json").exists()
    assert main(["train", "--resume", part]) == 0
    unbroken, resumed = checkpoint(whole), checkpoint(part)
    assert same(unbroken["state_dict"], resumed["state_dict"])
    assert (resumed["best"]["epoch"], resumed["best"]["score"]) == (
        unbroken["best"]["epoch"],
        unbroken["best"]["score"],
    )
    assert same(unbroken["best"]["weights"], resumed["best"]["weights"])
    assert Path(part, "metrics.csv").read_text() == Path(whole, "metrics.csv").read_text()
    assert results(part) == results(whole)


def test_a_lifting_and_a_network_of_ones_own_are_given_by_their_classes():
    own = ["--model.lifting=my_liftings.OneHyperedge", "--model.lifting.init_args.largest=17"]
    own += ["--model.network=my_liftings.Scaled", "--model.network.init_args.scale=2.0", "--run_dir=own"]
    metrics = DiffLiftCLI(["--config=mutag", *QUIET, "--model.width=16", "--trainer.max_epochs=1", *own]).fit_and_test()
    cli = DiffLiftCLI.of_run("own", args=QUIET)
    sizes = [graph.num_nodes for graph in cli.datamodule.parts["test"].graphs]
    small = sum(size <= 17 for size in sizes)
    assert 0 < small < 38
    assert metrics["added"] == pytest.approx(small / 38)
    assert metrics["n"] == 38
    assert metrics.keys() == {"accuracy", "n", "added"}  # of candidates and of neighbourhoods there are none
    assert checkpoint("own")["state_dict"]["model.network.scale"] != 2  # it was 2 and has been trained


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--data.name=MUTANT",), "name must be one of solubility, mutag, planted, MUTAG, ENZYMES"),
        (("--data.name=MUTAG",), "root must name the folder of MUTAG, got None; solubility, mutag, planted need none"),
        (("--data.name=MUTAG", "--data.root=nowhere", "--data.download=false"), "nowhere holds no data set MUTAG"),
        (
            ("--data.name=./nowhere",),
            "nowhere is no folder, expected one with the files NAME_A.txt, NAME_graph_indicator.txt",
        ),
        (("--data.name=solubility",), "model.features is 7, but the data asks for --model.features=12"),
        (("--model.classes=3",), "model.classes is 3, but the data asks for --model.features=7 --model.classes=2"),
        (("--model.task=node",), "model.task is node, but the data asks for --model.features=7"),
        (("--model.classes=1",), "classes must be 1 for a regression and at least 2 otherwise, got 1 for graph"),
        (("--data.batch_size=0",), "batch_size must be at least 1, got 0"),
        (("--data.folds=1",), "folds must be at least 2, got 1"),
        (("--data.folds=200",), "mutag: 188 graphs cannot be divided by class"),
        (("--data.val_fraction=1",), "val_fraction must lie in (0, 1), got 1"),
        (("--model.lr=0",), "lr must be a finite number > 0, got 0"),
        (("--model.sparsity=-1",), "sparsity must be a finite number >= 0, got -1"),
        (("--model.patience=0",), "patience must be at least 1 and lr_patience at least 0, got 0 and 10"),
        (("--model.dropout=1",), "dropout must lie in [0, 1), got 1"),
        (("--model.lifting.init_args.k_max=1",), "k_max must be at least 2, got 1"),
        (("--model.lifting.init_args.target=graph",), "target"),
        (("--model.lifting.init_args.encoder=gps", "--model.lifting.init_args.embedding=10"), "a multiple of 4 above"),
        (("--model.network.init_args.layers=0",), "layers must be at least 1, got 0"),
        (("--model.lifting=difflift.Nothing",), "difflift.Nothing"),
        (("--model.lifting=torch.nn.Linear",), "torch.nn.Linear"),
        (("--model.network=difflift.NoLifting",), "difflift.NoLifting"),
        (("--model.temprature=1",), "temprature"),
        (("--trainer.devices=0",), "trainer: "),
        (("--config", "nowhere"), "there is no config 'nowhere': give a YAML file or one of default, molhiv_cwn"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_bad_settings_end_in_one_sentence_and_leave_no_run(options, message, capsys):
    before = set(Path().rglob("*"))
    assert main(["train", *TINY, *options, "--run_dir=bad"]) == 2
    error = the_error(capsys)
    assert error.startswith("difflift train: error: ")
    assert message in error
    assert {path for path in Path().rglob("*") if path not in before} <= {Path("runs")}


@pytest.mark.parametrize("option", ["--data.folds=4", "--model.lr=1"])
def test_a_resumed_run_keeps_its_settings(option, capsys):
    assert main(["train", "--resume", "tiny", option]) == 2
    assert "a resumed run keeps its settings" in the_error(capsys)


def test_configs_lists_each_config_with_what_it_is(capsys):
    assert main(["configs"]) == 0
    said = capsys.readouterr().out
    assert re.search(r"^\s*default +The embedded default: the solubility of 1,282 real molecules", said, re.MULTILINE)
    assert re.search(r"^\s*tu_mutag_cwn +MUTAG, 188 molecules, 2 classes: CWN on learned cell", said, re.MULTILINE)


def test_help_names_the_verbs_and_the_options_of_the_data(capsys):
    assert main(["--help"]) == 0
    said = capsys.readouterr().out
    assert all(re.search(rf"^\s+{verb} ", said, re.MULTILINE) for verb in ("train", "test", "compare", "configs"))
    with pytest.raises(SystemExit) as ended:
        main(["train", "--help_all"])
    assert ended.value.code == 0
    said = capsys.readouterr().out
    assert "--data.folds" in said and "--model.sparsity" in said


def command(*words):
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    return subprocess.Popen(
        [COMMAND, *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
    )


def finish(process):
    output, _ = process.communicate(timeout=240)
    assert process.returncode == 0, output


@pytest.mark.slow
def test_a_killed_run_resumes_to_the_weights_of_an_unbroken_one():
    longer = ["train", *TINY, *RESTLESS, "--trainer.max_epochs=30"]
    finish(command(*longer, "--run_dir=unbroken"))
    process = command(*longer, "--run_dir=killed")
    deadline = time.monotonic() + 180
    while not Path("killed/checkpoints/epoch=0002.ckpt").exists():
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert not Path("killed/checkpoints/epoch=0029.ckpt").exists()
    finish(command("train", "--resume", "killed"))
    unbroken, resumed = checkpoint("unbroken"), checkpoint("killed")
    assert same(unbroken["state_dict"], resumed["state_dict"])
    assert resumed["best"]["epoch"] == unbroken["best"]["epoch"]
    assert same(unbroken["best"]["weights"], resumed["best"]["weights"])
    rows, others = (Path(run, "metrics.csv").read_text().splitlines() for run in ("unbroken", "killed"))
    # An epoch's row follows its checkpoint; a kill between the two loses that row and no other.
    assert [row for row in rows if row in others] == others and len(rows) - len(others) <= 1
    assert results("killed") == results("unbroken")


@pytest.mark.slow
def test_two_processes_score_each_of_seven_graphs_once_and_as_one_does(seven):
    two = ["--trainer.devices=2", "--trainer.strategy=ddp", f"--data.name={seven}", "--data.folds=null"]
    two += ["--model.features=2", "--data.batch_size=8", "--data.eval_batch_size=2", "--run_dir=two"]
    finish(command("train", *TINY, *two))
    together = results("two")
    assert together["n"] == 7
    alone = DiffLiftCLI.of_run("two", args=[*QUIET, "--trainer.devices=1", "--trainer.strategy=auto"]).run_test()
    assert alone == pytest.approx(together, rel=1e-4)
    # 56 graphs to train on, 28 for each process, in 4 steps of 8 an epoch.
    assert checkpoint("two")["global_step"] == 3 * 4


@pytest.fixture
def seven(tmp_path):
    """A TU folder of 70 rings and paths of 4 to 8 vertices with random labels; a tenth is tested on."""
    rng = torch.Generator().manual_seed(0)
    edges, indicator, labels, n = [], [], [], 0
    for graph in range(70):
        size, ring = 4 + graph % 5, graph % 2
        edges += [(n + i + 1, n + (i + 1) % size + 1) for i in range(size - 1 + ring)]
        indicator += [graph + 1] * size
        labels += torch.randint(2, (size,), generator=rng).tolist()
        n += size
    for kind, lines in (
        ("A", [f"{u}, {v}\n{v}, {u}" for u, v in edges]),
        ("graph_indicator", indicator),
        ("graph_labels", [graph % 2 for graph in range(70)]),
        ("node_labels", labels),
    ):
        (tmp_path / f"RINGS_{kind}.txt").write_text("".join(f"{line}\n" for line in lines))
    return tmp_path
