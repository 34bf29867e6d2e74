"""The package's own verbs as a user runs them, on two tiny runs: what they compute, write and refuse."""

import csv
import json
import shutil
from importlib import metadata
from pathlib import Path

import difflift.figures as figures
import difflift.verbs as verbs
import numpy as np
import pytest
import torch
from difflift.app import DiffLiftCLI
from difflift.cli import main
from difflift.interop import from_json, from_toponetx, to_json, to_toponetx
from difflift.molecules import molecule_graph, solubility
from difflift.tu import mutag
from rdkit import Chem
from torch_geometric.data import Batch

MUTAG = Path(str(metadata.distribution("grakel").locate_file("grakel/tests/data/MUTAG")))
TINY = ["--trainer.max_epochs=1", "--trainer.accelerator=cpu", "--trainer.enable_progress_bar=false"]
ON_MUTAG = ["--data.name=mutag", "--model.features=7", "--model.classes=2", "--model.width=16"]
CELLS = ["--model.lifting.init_args.target=cell", "--model.network=difflift.CWN"]
GRAPH = {"x": np.eye(7)[[0, 1, 0, 2]].tolist(), "edges": [[0, 1], [1, 2], [2, 0], [2, 3]]}


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A working directory with the runs `hyper` and `cells` on mutag, and `molecules` on solubility."""
    folder = tmp_path_factory.mktemp("verbs")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert main(["train", "--config", "default", *TINY, *ON_MUTAG, "--run_dir=hyper"]) == 0
        assert main(["train", "--config", "default", *TINY, *ON_MUTAG, *CELLS, "--run_dir=cells"]) == 0
        few = ["--trainer.limit_train_batches=2", "--trainer.limit_val_batches=1", "--trainer.limit_test_batches=1"]
        assert main(["train", "--config", "default", *TINY, *few, "--run_dir=molecules"]) == 0
    (folder / "graph.json").write_text(json.dumps(GRAPH | {"labels": ["a", "b", "c", "d"]}))
    return folder


@pytest.fixture(autouse=True)
def inside(home, monkeypatch):
    monkeypatch.chdir(home)


def run(*words):
    assert main(list(map(str, words))) == 0


def rows(path):
    with Path(path).open(newline="") as file:
        return list(csv.DictReader(file))


def model_of(name):
    return DiffLiftCLI.of_run(name).model.model.eval()


def rename(source, target, name):
    """Copy the first graphs of MUTAG's folder under another name."""
    target.mkdir()
    for file in source.glob("MUTAG_*"):
        shutil.copy(file, target / file.name.replace("MUTAG", name))
    return target


def test_a_test_leaves_its_figures():
    names = {file.name for file in Path("hyper/figures").iterdir()}
    assert names == {"training.png", "graph0.png", "graph1.png", "k.png", "cells.png", "inclusion.png"}


@pytest.mark.parametrize(("name", "target"), [("hyper", "hypergraph"), ("cells", "cell")])
def test_lift_writes_the_complex_of_the_runs_lifting(name, target, capsys):
    run("lift", MUTAG, "--run", name, "--index", 3, "--out", "complex.json")
    content = json.loads(Path("complex.json").read_text())
    with torch.no_grad():
        expected = model_of(name).lifting(mutag()[3])
    assert content == to_json(expected, 0, target)
    assert from_json(content).b1.shape == expected.b1.shape
    assert from_toponetx(to_toponetx(from_json(content), target=target)).b1.shape == expected.b1.shape
    printed = capsys.readouterr().err
    assert "1 graph with 22 edges" in printed
    for kind in ("hyperedge",) if name == "hyper" else ("edge", "polygon"):
        p = [cell["probability"] for cell in content["cells"] if cell["kind"] == kind]
        assert f"{np.mean(p):.3f}" in printed if p else "–" in printed


def test_lift_takes_a_graph_of_ones_own_and_keeps_its_labels():
    run("lift", "graph.json", "--run", "cells")
    content = json.loads(Path("complex.json").read_text())
    assert content["labels"] == ["a", "b", "c", "d"]
    assert content["edges"] == [[0, 1], [0, 2], [1, 2], [2, 3]]


def test_lift_takes_all_graphs_of_a_folder():
    run("lift", MUTAG, "--run", "hyper", "--index", "all", "--out", "all.json")
    found = json.loads(Path("all.json").read_text())
    assert [content["vertices"] for content in found] == [len(graph.x) for graph in mutag()]
    run("lift", MUTAG, "--run", "hyper", "--index", 187, "--out", "one.json")
    assert json.loads(Path("one.json").read_text())["cells"] == found[187]["cells"]


def test_lift_takes_smiles():
    run("lift", "Clc1ccccc1", "--run", "molecules")
    content = json.loads(Path("complex.json").read_text())
    assert content["labels"] == ["Cl", "C", "C", "C", "C", "C", "C"]
    assert len(content["edges"]) == 7


def test_predict_gives_the_networks_probabilities_by_the_labels_in_the_files():
    run("predict", MUTAG, "--run", "hyper")
    found = rows("predictions.csv")
    model = model_of("hyper")
    with torch.no_grad():
        logits = torch.cat([model(Batch.from_data_list([graph]))[0] for graph in mutag()])
    p = torch.softmax(logits, 1)
    assert [row["index"] for row in found] == [str(i) for i in range(188)]
    np.testing.assert_allclose([float(row["p_1"]) for row in found], p[:, 1], atol=2e-6)
    np.testing.assert_allclose([float(row["p_-1"]) for row in found], p[:, 0], atol=2e-6)
    assert [row["predicted"] for row in found] == ["1" if best else "-1" for best in p.argmax(1).tolist()]


def test_a_folder_that_lacks_some_labels_has_the_columns_of_the_training(tmp_path):
    folder = rename(MUTAG, tmp_path / "FEW", "FEW")
    kinds = (folder / "FEW_node_labels.txt").read_text().split()
    (folder / "FEW_node_labels.txt").write_text("\n".join("2" if kind == "1" else kind for kind in kinds))
    run("predict", folder, "--run", "hyper", "--out", "few.csv")
    changed = [graph.clone() for graph in mutag()]
    for graph in changed:
        graph.x[:, 2] += graph.x[:, 1]
        graph.x[:, 1] = 0
    with torch.no_grad():
        p = torch.softmax(model_of("hyper")(Batch.from_data_list(changed))[0], 1)
    np.testing.assert_allclose([float(row["p_1"]) for row in rows("few.csv")], p[:, 1], atol=2e-6)
    (folder / "FEW_node_labels.txt").write_text("\n".join("9" if kind == "1" else kind for kind in kinds))
    assert main(["predict", str(folder), "--run", "hyper", "--out", "nine.csv"]) == 2
    assert not Path("nine.csv").exists()


def test_predict_names_molecules_and_classes(capsys):
    Path("drugs.csv").write_text("name,smiles\nethanol,CCO\nbenzene,c1ccccc1\n")
    run("predict", "drugs.csv", "--run", "molecules", "--out", "solubility.csv")
    found = rows("solubility.csv")
    assert [row["name"] for row in found] == ["ethanol", "benzene"]
    with torch.no_grad():
        p = torch.softmax(model_of("molecules")(molecule_graph("c1ccccc1"))[0], 1)[0]
    np.testing.assert_allclose([float(found[1][f"p_{name}"]) for name in ("low", "medium", "high")], p, atol=2e-6)
    assert found[1]["predicted"] == ("low", "medium", "high")[int(p.argmax())]
    capsys.readouterr()
    run("predict", "c1ccccc1", "--run", "molecules", "--out", "one.csv")
    assert f"predicted {found[1]['predicted']}" in capsys.readouterr().err


def test_the_transform_of_a_run_is_its_lifting():
    graph = mutag()[0]
    with torch.no_grad():
        expected = model_of("cells").lifting(graph)
    lifted = DiffLiftCLI.transform_of("cells")(graph)
    assert torch.equal(lifted.incidence_2.to_dense(), expected.b2.to_dense())


def test_plot_draws_the_graph_that_is_asked_for_with_its_elements(tmp_path, monkeypatch):
    taken = []
    monkeypatch.setattr(figures, "draw_complex", lambda *args: taken.append(args))
    run("plot", "--run", "molecules", "--index", 4, "--out", tmp_path / "figures")
    content, points, path, symbols, title = taken[0]
    graph = solubility()[1][4]  # the package's own test molecules, in order
    table = Chem.GetPeriodicTable()
    assert symbols == [table.GetElementSymbol(z) for z in graph.z.tolist()]
    assert content["vertices"] == len(graph.z) == len(points)
    assert (path.name, title) == ("test4.png", "test graph 4")
    assert {file.name for file in (tmp_path / "figures").iterdir()} == {"k.png", "cells.png", "inclusion.png"}


def test_mutags_elements_are_read_from_its_features(monkeypatch):
    taken = []
    monkeypatch.setattr(figures, "draw_complex", lambda *args: taken.append(args))
    run("plot", "--run", "cells", "--split", "train")
    counts = {symbol: taken[0][3].count(symbol) for symbol in set(taken[0][3])}
    assert counts["C"] > counts["O"] > 0  # nitroaromatic
    assert "N" in counts


def test_inclusion_is_that_of_the_metrics(monkeypatch):
    taken = []
    monkeypatch.setattr(figures, "draw_inclusion", lambda *args: taken.append(args))
    logged = next(row for row in rows("hyper/metrics.csv") if row["train/p"])
    assert figures.draw_metrics(Path("hyper/metrics.csv"), Path("inclusion.png"))
    epochs, p, included, _ = taken[0]
    assert (epochs, p, included) == ((0,), (float(logged["train/p"]),), (float(logged["train/included"]),))
    assert not figures.draw_metrics(Path("gone.csv"), Path("inclusion.png"))
    Path("damaged.csv").write_text("step,epoch,train/p,train/included\n1,0,word,0.5\n")
    with pytest.raises(ValueError, match=r"damaged\.csv is damaged"):
        figures.draw_metrics(Path("damaged.csv"), Path("inclusion.png"))


def test_liftings_are_compared_on_ones_own_data(tmp_path, monkeypatch, capsys):
    folder = rename(MUTAG, tmp_path / "MINE", "MINE")
    cells = []

    def run_cell(arguments, seed):
        cells.append((tuple(arguments), seed))
        return {"accuracy": 0.5 + len(cells) / 100}

    monkeypatch.setattr(verbs.DiffLiftCLI, "run_cell", run_cell)
    run("compare-liftings", "--data", folder, "--seeds", 2, "--epochs", 1, "--out", tmp_path / "out")
    found = rows(tmp_path / "out" / "liftings.csv")
    names = list(verbs.LIFTINGS)
    assert [(row["lifting"], row["seed"]) for row in found] == [(name, s) for name in names for s in "01"]
    first, second = 0.51, 0.51 + len(names) / 100
    assert [float(row["accuracy"]) for row in found[:2]] == pytest.approx([first, second])
    sd = (second - first) / np.sqrt(2)
    assert f"{(first + second) / 2:.4f} ± {sd:.4f}" in capsys.readouterr().err
    for arguments, _ in cells:
        assert {f"--data.name={folder}", "--model.features=7", "--model.classes=2"} <= set(arguments)
    kinds = {
        type(DiffLiftCLI([*arguments, "--run_dir=unused"], quiet=True).model.model.lifting).__name__
        for arguments, seed in cells
        if not seed
    }
    assert kinds == {"DiffLift", "NoLifting", "CycleLifting", "CliqueLifting", "KHopLifting", "FeatureKNNLifting"}


@pytest.mark.slow
def test_liftings_are_trained_and_tested(tmp_path):
    run("compare-liftings", "--data", "mutag", "--seeds", 1, "--epochs", 1, "--out", tmp_path)
    found = rows(tmp_path / "liftings.csv")
    assert len(found) == len(verbs.LIFTINGS)
    assert all(
        0 < float(row["accuracy"]) * 19 == pytest.approx(round(float(row["accuracy"]) * 19), abs=1e-3) for row in found
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("lift gone.json --run hyper", "there is no file gone.json, expected a graph as JSON"),
        ("lift words.json --run hyper", "words.json is no JSON, expected"),
        ("lift list.json --run hyper", "list.json is no graph, expected"),
        ("lift ragged.json --run hyper", "ragged.json: x must hold as many numbers for each vertex"),
        ("lift empty.json --run hyper", "empty.json: x must hold as many numbers for each vertex, for one at least"),
        ("lift nan.json --run hyper", "nan.json: x must be finite in single precision, which vertex 0 is not"),
        ("lift ends.json --run hyper", "ends.json: edges must be pairs of vertices in [0, 4)"),
        ("lift narrow.json --run hyper", "narrow.json: vertices have 2 features, expected 7 as the run was trained on"),
        ("lift labels.json --run hyper", "labels.json: labels must be 4, one for each vertex"),
        ("lift graph.json --run hyper --index 1", "index must lie in [0, 1) for graph.json, or be all, got 1"),
        ("lift graph.json --run hyper --index -1", "index must lie in [0, 1)"),
        ("lift graph.json --run nowhere", "nowhere is no run folder: it has no config.yaml"),
        ("lift graph.json --run hyper --select gone.ckpt", "there is no checkpoint gone.ckpt"),
        ("lift graph.json --run hyper --out graph.json", "out must not be the input's own file, got graph.json"),
        ("lift graph.json --run hyper --out hyper", "out must name a file, got the folder hyper"),
        ("lift graph.json --run hyper --out graph.json/complex.json", "graph.json"),
        ("lift CCO --run hyper", "CCO: a run on mutag takes a folder in the TU format or a graph as .json"),
        ("lift nonsense --run molecules", "expected a molecule as SMILES, got 'nonsense'"),
        ("lift hyper --run molecules", "hyper lacks NAME_A.txt"),
        ("predict gone.csv --run molecules", "gone.csv is missing, expected one SMILES per line"),
        (f"predict {MUTAG} --run molecules", "vertices have 7 features, expected 12 as the run was trained on"),
        ("predict graph.json --run hyper --out cells", "out must name a file, got the folder cells"),
        ("plot --run nowhere", "nowhere is no run folder"),
        ("plot --run hyper --index 19", "index must lie in [0, 19), the test graphs, got 19"),
        ("plot --run hyper --out graph.json", "out must name a folder, got the file graph.json"),
        ("compare-liftings --seeds 0", "seeds must be at least 1, got 0"),
        ("compare-liftings --data nothing", "name must be one of solubility, mutag"),
        ("compare-liftings --data mutag --jobs 2", "expected 1 with data, got 2"),
        ("compare-liftings --data mutag --out graph.json", "out must name a folder, got the file graph.json"),
        ("compare-liftings --epochs 3", "root and epochs go with data"),
    ],
)
def test_bad_input_is_one_sentence_and_nothing_is_written(words, message, capsys):
    contents = {
        "words": "no graph",
        "list": [1],
        "ragged": GRAPH | {"x": [[1, 2], [1]]},
        "empty": GRAPH | {"x": []},
        "nan": GRAPH | {"x": [[1, float("nan"), 0, 0, 0, 0, 0], *GRAPH["x"][1:]]},
        "ends": GRAPH | {"edges": [[0, 4]]},
        "narrow": {"x": [[1, 2]]},
        "labels": GRAPH | {"labels": ["a"]},
    }
    for name, content in contents.items():
        Path(f"{name}.json").write_text(content if isinstance(content, str) else json.dumps(content))
    before = set(Path().rglob("*"))
    assert main(words.split()) == 2
    errors = [line for line in capsys.readouterr().err.splitlines() if "error: " in line]
    assert len(errors) == 1
    assert errors[0].startswith(f"difflift {words.split()[0]}: error: ")
    assert message in errors[0]
    assert set(Path().rglob("*")) == before


@pytest.mark.parametrize("verb", ["lift", "predict"])
def test_features_too_large_for_the_network_are_refused(verb, tmp_path, capsys):
    (tmp_path / "huge.json").write_text(json.dumps({"x": [[1e38] * 7] * 4, "edges": [[0, 1], [1, 2], [2, 3]]}))
    assert main([verb, str(tmp_path / "huge.json"), "--run", "hyper", "--out", str(tmp_path / "out")]) == 2
    assert "are its features like those of the run?" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_place_below_a_file_is_refused_before_the_work(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert main(["lift", "graph.json", "--run", "hyper", "--out", str(tmp_path / "file" / "out.json")]) == 2
    assert f"out must lie in a folder, got {tmp_path / 'file' / 'out.json'}" in capsys.readouterr().err


def test_damaged_weights_of_the_best_epoch_are_one_sentence(tmp_path, capsys):
    shutil.copytree("hyper", tmp_path / "damaged")
    for file in (tmp_path / "damaged" / "checkpoints").glob("*.ckpt"):
        content = torch.load(file, weights_only=True)
        content["best"]["weights"] = {}
        torch.save(content, file)
    assert main(["predict", "graph.json", "--run", str(tmp_path / "damaged"), "--out", str(tmp_path / "out")]) == 2
    assert "ckpt" in capsys.readouterr().err
