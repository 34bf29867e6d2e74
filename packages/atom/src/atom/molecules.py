"""Which molecules are one compound, and folds of molecules that resemble each other.

Training and test molecules that differ by name may still be conformers or re-runs of one compound, and a molecule's
near relatives make a test on it easier. So compounds are compared by their bond graph, and folds are made of clusters.
The paper clusters ECFP4 fingerprints after UMAP; here the Tanimoto distances are clustered themselves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray
from rdkit import Chem, DataStructs, rdBase
from rdkit.Chem import rdDetermineBonds, rdFingerprintGenerator
from sklearn.cluster import AgglomerativeClustering

ECFP4_RADIUS = 2  # the 4 is the diameter
FINGERPRINT_BITS = 2048


def canonical_smiles(numbers: ArrayLike, positions: ArrayLike) -> str:
    """Name a compound by its bond graph: equal for conformers, mirror images and any order of the atoms.

    Bonds are drawn by distance and have no order, since orders cannot be found for every geometry; hydrogens are
    counted at the atom that bears them. Ethanol is [CH3][CH2][OH], ethylene [CH2][CH2].

    Args:
        numbers: atomic numbers (N,), integers from 1 to 118. With hydrogens: without them ethane is ethylene.
        positions: (N, 3), Å, finite, of one frame. Near an equilibrium: a stretched bond may be missed.

    Returns:
        The canonical SMILES. Its components, where the atoms form several, are separated by dots.

    Raises:
        ValueError: if the shapes do not fit, an atomic number is unknown, or a position is not finite.
    """
    z, x = np.asarray(numbers), np.asarray(positions, dtype=np.float64)
    if z.ndim != 1 or not len(z) or x.shape != (len(z), 3):
        raise ValueError(f"expected numbers (N,) and positions (N, 3), got {z.shape} and {x.shape}")
    unknown = z[(z < 1) | (z > 118)]
    if z.dtype.kind not in "iu" or len(unknown):
        raise ValueError(f"atomic numbers must be integers in 1..118, got {unknown[0] if len(unknown) else z.dtype}")
    if not np.isfinite(x).all():
        raise ValueError("positions must be finite")
    molecule = Chem.RWMol()
    conformer = Chem.Conformer(len(z))
    for number, place in zip(z.tolist(), x.tolist(), strict=True):
        conformer.SetAtomPosition(molecule.AddAtom(Chem.Atom(number)), place)
    molecule.AddConformer(conformer)
    rdDetermineBonds.DetermineConnectivity(molecule)
    keep_odd = Chem.RemoveHsParameters()  # hydrogens without a neighbour, or with two, stay atoms
    keep_odd.showWarnings = False  # type: ignore[assignment]  # the stubs give it its class's type
    counted = Chem.RemoveHs(molecule, keep_odd, sanitize=False)
    return Chem.MolToSmiles(counted, allHsExplicit=True)  # else acetone and isopropanol would read alike


def same_molecules(first: Mapping[str, str], second: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return the pairs of molecules on two sides of a split that are one compound.

    Args:
        first: name -> canonical SMILES, such as the training molecules.
        second: likewise, such as the test molecules.

    Returns:
        (name in first, name in second), in the order of the mappings.
    """
    return [(one, other) for one in first for other in second if first[one] == second[other]]


def tanimoto_distances(smiles: Sequence[str]) -> NDArray[np.float64]:
    """Return 1 - |a ∩ b| / |a ∪ b| between the sets of ECFP4 bits of M molecules, (M, M) in [0, 1].

    Args:
        smiles: M strings, all from `canonical_smiles` or all ordinary ones: the two kinds of bonds differ.

    Raises:
        ValueError: if a string is no SMILES.
    """
    generator = rdFingerprintGenerator.GetMorganGenerator(radius=ECFP4_RADIUS, fpSize=FINGERPRINT_BITS)
    bits = [generator.GetFingerprint(_molecule(text)) for text in smiles]
    return np.array([[1 - value for value in DataStructs.BulkTanimotoSimilarity(one, bits)] for one in bits])


def _molecule(smiles: str) -> Chem.Mol:
    with rdBase.BlockLogs():
        molecule = Chem.MolFromSmiles(smiles, sanitize=False)  # valences without bond orders are not the usual ones
    if molecule is None or not molecule.GetNumAtoms():
        raise ValueError(f"{smiles!r} is not the SMILES of a molecule")
    molecule.UpdatePropertyCache(strict=False)
    Chem.FastFindRings(molecule)
    return molecule


def cluster(smiles: Sequence[str], clusters: int) -> NDArray[np.int64]:
    """Group molecules by agglomerative clustering of their Tanimoto distances, average linkage.

    Args:
        smiles: M strings, as for `tanimoto_distances`. Equal ones count once and get one label.
        clusters: from 1 to the number of distinct strings; the paper takes 10 for the 80 of TG80.

    Returns:
        int64 labels (M,) in [0, clusters), numbered by first appearance. The grouping does not depend on the order.

    Raises:
        ValueError: if `clusters` is out of range or a string is no SMILES.
    """
    compounds, place = np.unique(np.asarray(smiles, dtype=str), return_inverse=True)
    if not 1 <= clusters <= len(compounds):
        raise ValueError(f"clusters must lie between 1 and the {len(compounds)} distinct molecules, got {clusters}")
    if clusters == len(compounds):
        labels = np.arange(clusters)
    else:
        method = AgglomerativeClustering(n_clusters=clusters, metric="precomputed", linkage="average")
        labels = method.fit_predict(tanimoto_distances(compounds.tolist()))
    _, first, group = np.unique(labels[place], return_index=True, return_inverse=True)
    return np.argsort(np.argsort(first))[group].astype(np.int64)


def folds(names: Sequence[str], labels: Sequence[int] | NDArray[np.int64], count: int = 5) -> list[list[str]]:
    """Divide molecules into test folds of nearly equal sizes that split no cluster.

    The largest cluster left goes to the smallest fold so far; of equal ones, to the first.

    Args:
        names: M names, each once.
        labels: (M,) the cluster of each, as `cluster` returns them.
        count: number of folds, from 1 to the number of clusters; the paper's is 5.

    Returns:
        The test names of each fold, in the order of `names`; each name is in exactly one.

    Raises:
        ValueError: if lengths differ, a name repeats or `count` is out of range.
    """
    groups = np.asarray(labels).tolist()
    if len(names) != len(groups) or len(set(names)) != len(names):
        raise ValueError(f"expected one label for each of {len(set(names))} distinct names, got {len(groups)} labels")
    sizes = {label: groups.count(label) for label in dict.fromkeys(groups)}
    if not 1 <= count <= len(sizes):
        raise ValueError(f"count must lie between 1 and the {len(sizes)} clusters, got {count}")
    filled = [0] * count
    fold_of: dict[int, int] = {}
    for label in sorted(sizes, key=lambda label: -sizes[label]):
        fold_of[label] = filled.index(min(filled))
        filled[fold_of[label]] += sizes[label]
    return [
        [name for name, label in zip(names, groups, strict=True) if fold_of[label] == fold] for fold in range(count)
    ]
