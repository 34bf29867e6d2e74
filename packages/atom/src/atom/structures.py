"""From what a user calls a molecule to a file name, and to its first geometry.

ASE and rdkit are imported on use: a command's `--help` and the names of finished files need not wait for them.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Literal, cast

import numpy as np
from numpy.typing import NDArray

from atom.recipe import short_hash

if TYPE_CHECKING:
    from ase import Atoms

BROKEN = 2.0  # times the sum of the covalent radii: farther than any vibration takes a bond
STRUCTURE_FILES = (".xyz", ".extxyz", ".traj", ".mol", ".sdf", ".pdb")


def resolve(molecule: str) -> tuple[Literal["name", "file", "smiles"], str]:
    """Say what a molecule given by the user is.

    In this order: a molecule of more than one atom that `ase.build.molecule` knows, a structure file, a SMILES, a
    known molecule in other capitals. So `CO` is carbon monoxide and `C` is methane; `smiles:CO` is methanol.

    Args:
        molecule: the user's text.

    Returns:
        The kind, and the name as ASE spells it, the path, or the canonical SMILES.

    Raises:
        ValueError: if it is none of these.
        FileNotFoundError: if it looks like a structure file that is not there.
    """
    from ase.collections import g2
    from rdkit import Chem, rdBase

    names = [name for name in g2.names if len(g2[name]) > 1]
    if molecule in names:
        return "name", molecule
    if Path(molecule).suffix.lower() in STRUCTURE_FILES:
        if not Path(molecule).is_file():
            raise FileNotFoundError(f"{molecule}: there is no such structure file")
        return "file", molecule
    smiles = molecule.removeprefix("smiles:")
    with rdBase.BlockLogs():
        parsed = Chem.MolFromSmiles(smiles) if smiles.strip() else None
    if parsed is not None and parsed.GetNumAtoms():
        return "smiles", Chem.MolToSmiles(parsed)
    alike = [name for name in names if name.lower() == molecule.lower()]
    if len(alike) == 1:
        return "name", alike[0]
    raise ValueError(
        f"molecule {molecule!r} is unknown: expected a name that ase.build.molecule knows (such as CH3CH2OH), "
        f"a SMILES, or a file that ends in {', '.join(STRUCTURE_FILES)}"
    )


def file_name(molecule: str) -> str:
    """Return the file name of a molecule's trajectory: `md_NAME.npz`.

    NAME is ASE's name of the molecule, the formula and a hash of the canonical SMILES, or a structure file's stem
    and a hash of its content; so one name stands for one molecule.

    Raises:
        ValueError: if the molecule is unknown.
        FileNotFoundError: if a structure file is not there.
    """
    kind, text = resolve(molecule)
    if kind == "name":
        return f"md_{text}.npz"
    if kind == "file":
        return f"md_{re.sub(r'[^A-Za-z0-9_.-]+', '_', Path(text).stem)}-{short_hash(Path(text).read_bytes(), 8)}.npz"
    from rdkit.Chem import MolFromSmiles
    from rdkit.Chem.rdMolDescriptors import CalcMolFormula

    formula = re.sub(r"[^A-Za-z0-9]+", "_", CalcMolFormula(MolFromSmiles(text))).strip("_")
    return f"md_{formula}-{short_hash(text.encode(), 8)}.npz"


def structure(molecule: str, seed: int = 0) -> Atoms:
    """Build a molecule's first geometry, with its charge and unpaired electrons.

    Args:
        molecule: a name, a SMILES (embedded by rdkit's ETKDG, then MMFF) or a structure file (its last frame).
        seed: of the embedding.

    Raises:
        ValueError: if there is no such molecule, no geometry is found, or it has one atom only.
        FileNotFoundError: if a structure file is not there.
    """
    from ase import Atoms

    kind, text = resolve(molecule)
    if kind == "name":
        from ase.build import molecule as build

        atoms = build(text)  # type: ignore[no-untyped-call]
    elif kind == "file":
        from ase.io import read

        try:
            atoms = cast("Atoms", read(text))
        except Exception as error:  # each of ASE's readers has errors of its own
            raise ValueError(f"{text} cannot be read as a structure: {error}") from error
        atoms.calc = None
        atoms.pbc = False
        if not np.isfinite(atoms.positions).all():
            raise ValueError(f"{text} has positions that are not finite")
    else:
        atoms = _embed(text, seed)
    if len(atoms) < 2:
        raise ValueError(f"{molecule} has {len(atoms)} atom, expected at least 2: nothing would move")
    return Atoms(
        atoms.numbers,
        positions=atoms.positions,
        charges=atoms.get_initial_charges(),
        magmoms=atoms.get_initial_magnetic_moments(),
    )


def _embed(smiles: str, seed: int) -> Atoms:
    from ase import Atoms
    from rdkit import Chem
    from rdkit.Chem.rdDistGeom import EmbedMolecule
    from rdkit.Chem.rdForceFieldHelpers import MMFFHasAllMoleculeParams, MMFFOptimizeMolecule

    molecule = Chem.AddHs(Chem.MolFromSmiles(smiles))
    if EmbedMolecule(molecule, randomSeed=seed, ETversion=2) != 0:
        raise ValueError(f"{smiles}: rdkit finds no geometry for this SMILES; give a structure file")
    if MMFFHasAllMoleculeParams(molecule):
        MMFFOptimizeMolecule(molecule, maxIters=2000)
    return Atoms(
        [atom.GetAtomicNum() for atom in molecule.GetAtoms()],
        positions=molecule.GetConformer().GetPositions(),
        charges=[atom.GetFormalCharge() for atom in molecule.GetAtoms()],
        magmoms=[atom.GetNumRadicalElectrons() for atom in molecule.GetAtoms()],
    )


def fragments(positions: NDArray[np.float64], numbers: NDArray[np.int64]) -> int:
    """Count the pieces of a molecule, no atom of one within `BROKEN` bond lengths of another's.

    Args:
        positions: (N, 3), Å.
        numbers: atomic numbers (N,).
    """
    from ase.data import covalent_radii
    from scipy.sparse.csgraph import connected_components

    radii = covalent_radii[numbers]
    distances = np.linalg.norm(positions[:, None] - positions[None], axis=-1)
    return int(connected_components(distances < BROKEN * (radii[:, None] + radii[None]))[0])
