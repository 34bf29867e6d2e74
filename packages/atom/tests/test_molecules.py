"""Compounds told apart by their bonds, fingerprints by hand, and folds that split no cluster."""

import numpy as np
import pytest
from ase.build import molecule
from ase.collections import g2
from atom.molecules import canonical_smiles, cluster, folds, same_molecules, tanimoto_distances
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.spatial.distance import squareform

ALKANES = ["[CH4]", "[CH3][CH3]", "[CH3][CH2][CH3]", "[CH3][CH2][CH2][CH3]"]

LINKED = [
    *("CH3CH2OH", "CH3OCH3", "CH3CHO", "CH3COCH3", "CH3CONH2", "isobutane", "C6H6", "C5H5N", "C4H4O", "CH3OH"),
    *("HCOOH", "trans-butane", "C3H8", "CH3CH2NH2", "CH3NO2"),
]


def smiles(name: str) -> str:
    atoms = molecule(name)
    return canonical_smiles(atoms.numbers, atoms.positions)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("CH3CH2OH", "[CH3][CH2][OH]"),
        ("CH3OCH3", "[CH3][O][CH3]"),
        ("CH3CHO", "[CH3][CH][O]"),  # a carbonyl has no bond order here, but no hydrogen either
        ("C3H6_D3h", "[CH2]1[CH2][CH2]1"),
        ("C3H6_Cs", "[CH2][CH][CH3]"),
        ("CH3NO2", "[CH3][N]([O])[O]"),
        ("H2", "[H][H]"),
        ("H", "[H]"),
        ("LiF", "[Li][F]"),
    ],
)
def test_smiles_are_the_bond_graph_with_counted_hydrogens(name: str, expected: str) -> None:
    assert smiles(name) == expected


def test_all_compounds_of_g2_differ_but_the_spin_states_of_one() -> None:
    found: dict[str, list[str]] = {}
    for name in g2.names:
        found.setdefault(smiles(name), []).append(name)
    shared = sorted(sorted(names) for names in found.values() if len(names) > 1)
    assert shared == [["CH2_s1A1d", "CH2_s3B1d"], ["SiH2_s1A1d", "SiH2_s3B1d"]]


@pytest.mark.parametrize("name", ["CH3CH2OH", "C5H5N", "isobutane", "CH3CONH2", "C4H4O"])
def test_smiles_do_not_depend_on_conformer_order_or_pose(name: str) -> None:
    rng = np.random.default_rng(0)
    atoms = molecule(name)
    for _ in range(10):
        moved = atoms.copy()
        moved.rotate(rng.uniform(0, 360), rng.normal(size=3))
        moved.positions = (moved.positions + rng.normal(0, 0.05, (len(moved), 3)) + rng.normal(0, 10, 3)) * [1, 1, -1]
        moved = moved[rng.permutation(len(moved))]
        assert canonical_smiles(moved.numbers, moved.positions) == smiles(name)


def test_a_rotated_hydroxyl_is_still_ethanol() -> None:
    atoms = molecule("CH3CH2OH")  # C C O and the hydroxyl's hydrogen come first
    before = atoms.get_dihedral(0, 1, 2, 3)
    atoms.set_dihedral(0, 1, 2, 3, before + 120, indices=[3])
    assert canonical_smiles(atoms.numbers, atoms.positions) == "[CH3][CH2][OH]"


def test_hydrogens_that_stay_atoms_are_not_complained_about(capfd: pytest.CaptureFixture[str]) -> None:
    assert smiles("H") == "[H]"
    assert capfd.readouterr().err == ""


def test_components_apart_are_kept() -> None:
    one, two = molecule("CH4"), molecule("H2O")
    two.positions += [9, 0, 0]
    both = one + two
    assert canonical_smiles(both.numbers, both.positions) == "[CH4].[OH2]"


@pytest.mark.parametrize(
    ("numbers", "positions", "message"),
    [
        ([119, 1], np.eye(2, 3), r"atomic numbers must be integers in 1\.\.118, got 119"),
        ([6, 0], np.eye(2, 3), "got 0"),
        ([6.0, 1.0], np.eye(2, 3), "got float64"),
        ([6], np.eye(2, 3), r"expected numbers \(N,\) and positions \(N, 3\), got \(1,\) and \(2, 3\)"),
        ([], np.zeros((0, 3)), r"got \(0,\) and \(0, 3\)"),
        ([6, 1], np.full((2, 3), np.nan), "positions must be finite"),
    ],
)
def test_atoms_that_are_none_are_refused(numbers: list[float], positions: np.ndarray, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        canonical_smiles(numbers, positions)


def test_one_compound_on_both_sides_of_a_split_is_found_under_any_name() -> None:
    train = {"uracil1": "u", "benzene": "b", "ethanol": "e"}
    test = {"benzene2": "b", "benzene3": "b", "acetone": "a", "uracil": "u"}
    pairs = [("uracil1", "uracil"), ("benzene", "benzene2"), ("benzene", "benzene3")]
    assert same_molecules(train, test) == pairs
    assert same_molecules(train, {"acetone": "a"}) == []


def test_tanimoto_distances_are_those_counted_by_hand() -> None:
    # The environments of each, up to two bonds wide, of those that cover the same bonds only the narrower:
    #   methane  CH4
    #   ethane   CH3, CH3 with a CH3
    #   propane  CH3, CH2, CH3 with a CH2, CH2 with two CH3
    #   butane   CH3, CH2, CH3 with a CH2, CH2 with a CH3 and a CH2, all of it as seen from a CH2
    found = tanimoto_distances(ALKANES)
    expected = [
        [0, 1, 1, 1],
        [1, 0, 1 - 1 / 5, 1 - 1 / 6],
        [1, 1 - 1 / 5, 0, 1 - 3 / 6],
        [1, 1 - 1 / 6, 1 - 3 / 6, 0],
    ]
    np.testing.assert_allclose(found, expected, atol=1e-12)


def test_rings_are_part_of_the_environments() -> None:
    ring, chain = tanimoto_distances(["[CH2]1[CH2][CH2]1", "[CH2][CH2][CH2]"])[0]
    assert ring == 0 and chain > 0.8


def test_atoms_of_unusual_valence_have_fingerprints() -> None:
    assert tanimoto_distances(["[NH4]", "[NH3]"]).tolist() == [[0, 1], [1, 0]]


def test_what_is_no_smiles_is_refused() -> None:
    for text in ("C(", "", "water"):
        with pytest.raises(ValueError, match="is not the SMILES of a molecule"):
            tanimoto_distances(["C", text])


def test_clusters_follow_the_distances() -> None:
    # Propane and butane are nearest (1/2); ethane joins them at (0.8 + 0.833) / 2; methane shares nothing.
    assert cluster(ALKANES, 4).tolist() == [0, 1, 2, 3]
    assert cluster(ALKANES, 3).tolist() == [0, 1, 2, 2]
    assert cluster(ALKANES, 2).tolist() == [0, 1, 1, 1]
    assert cluster(ALKANES, 1).tolist() == [0, 0, 0, 0]
    assert cluster(ALKANES[::-1], 3).tolist() == [0, 0, 1, 2]


def test_clusters_are_those_of_average_linkage() -> None:
    compounds = sorted({smiles(name) for name in LINKED})
    pairs = squareform(tanimoto_distances(compounds), checks=False)

    def together(labels: np.ndarray) -> list[list[bool]]:
        return (labels[:, None] == labels[None]).tolist()

    average, single = (fcluster(linkage(pairs, kind), 6, "maxclust") for kind in ("average", "single"))
    assert together(cluster(compounds, 6)) == together(average) != together(single)


def test_reruns_of_one_compound_share_a_cluster_and_weigh_no_more() -> None:
    repeated = [ALKANES[i] for i in (3, 0, 3, 1, 2, 3, 0)]
    assert cluster(repeated, 4).tolist() == [0, 1, 0, 2, 3, 0, 1]
    assert cluster(repeated, 3).tolist() == [0, 1, 0, 2, 0, 0, 1]


@pytest.mark.parametrize("clusters", [0, 5])
def test_more_clusters_than_compounds_are_refused(clusters: int) -> None:
    with pytest.raises(ValueError, match=f"between 1 and the 4 distinct molecules, got {clusters}"):
        cluster([*ALKANES, ALKANES[0]], clusters)


def test_folds_split_no_cluster_and_hold_each_name_once() -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        labels = np.concatenate([np.arange(10), rng.integers(0, 10, 70)])
        names = [f"m{i}" for i in range(80)]
        parts = folds(names, labels)
        assert len(parts) == 5 and sorted(name for part in parts for name in part) == sorted(names)
        for label in range(10):
            members = {name for name, other in zip(names, labels.tolist(), strict=True) if other == label}
            assert [members <= set(part) for part in parts].count(True) == 1
        # Greedy filling leaves no two folds further apart than the largest cluster.
        sizes = [len(part) for part in parts]
        assert max(sizes) - min(sizes) <= np.bincount(labels).max()


def test_folds_are_balanced_largest_cluster_first() -> None:
    names = list("abcdefgh")
    labels = [0, 1, 1, 1, 2, 2, 3, 3]  # sizes 1, 3, 2, 2
    assert folds(names, labels, 2) == [["a", "b", "c", "d"], ["e", "f", "g", "h"]]
    assert folds(names, labels, 3) == [["b", "c", "d"], ["a", "e", "f"], ["g", "h"]]


def test_folds_of_wrong_input_are_refused() -> None:
    with pytest.raises(ValueError, match="between 1 and the 2 clusters, got 5"):
        folds(["a", "b", "c"], [0, 1, 1])
    with pytest.raises(ValueError, match="between 1 and the 2 clusters, got 0"):
        folds(["a", "b", "c"], [0, 1, 1], 0)
    with pytest.raises(ValueError, match="one label for each of 2 distinct names, got 2 labels"):
        folds(["a", "b", "b"], [0, 1], 1)
    with pytest.raises(ValueError, match="one label for each of 1 distinct names, got 2 labels"):
        folds(["a", "a"], [0, 1], 1)
