"""The readers, on small files in each published format, and what a window may cover."""

import logging
import pickle
import zipfile
from pathlib import Path

import ase.io
import numpy as np
import pytest
from ase import Atoms
from ase.build import molecule
from atom.trajectories import KNOWN_NAMES, Trajectory, read_trajectory, write_npz

WATER = np.array([8, 1, 1])


def moving(frames: int = 5, dtype: type = np.float64) -> np.ndarray:
    """Make water whose frame f is its shape shifted by f Å along x: a frame's first number tells its place."""
    shape = molecule("H2O").positions - molecule("H2O").positions[0]
    return (shape + np.arange(frames)[:, None, None] * np.array([1.0, 0, 0])).astype(dtype)


def places(trajectory: Trajectory) -> list[int]:
    return trajectory.positions[:, 0, 0].round().astype(int).tolist()


def save(path: Path, **arrays: object) -> Path:
    np.savez(path, **arrays)
    return path


def md17(path: Path, frames: int = 5, **changed: object) -> Path:
    entries = {
        "R": moving(frames),
        "z": WATER.astype(np.uint8),
        "E": np.zeros((frames, 1)),
        "F": np.zeros((frames, 3, 3)),
        "name": np.array("water"),
        "theory": np.array("unknown"),
        "md5": np.array("d41d8cd98f00b204e9800998ecf8427e"),
    }
    return save(path, **{**entries, **changed})


def rmd17(path: Path, old_indices: list[int], **changed: object) -> Path:
    """Write frames whose place in the original run is `old_indices`."""
    frames = len(old_indices)
    coords = moving(max(old_indices) + 1)[old_indices]
    entries = {
        "nuclear_charges": WATER.astype(np.int64),
        "coords": coords,
        "energies": np.zeros(frames),
        "forces": np.zeros((frames, 3, 3)),
        "old_indices": np.array(old_indices, dtype=np.float64),
        "old_energies": np.zeros(frames),
        "old_forces": np.zeros((frames, 3, 3)),
    }
    return save(path, **{**entries, **changed})


def made(frames: int = 6, **changed: object) -> Trajectory:
    return Trajectory(
        **{"name": "w", "positions": moving(frames), "numbers": WATER, "frame_fs": 1.0, "source": "here", **changed}
    )


def test_md17_is_read_at_half_a_femtosecond(tmp_path: Path) -> None:
    found = read_trajectory(md17(tmp_path / "md17_water.npz"))
    np.testing.assert_array_equal(found.positions, moving())
    assert found.numbers.tolist() == [8, 1, 1] and found.numbers.dtype == np.int64
    assert (found.name, found.frame_fs, found.source) == ("water", 0.5, str(tmp_path / "md17_water.npz"))
    assert len(found) == 5 and not len(found.breaks)


@pytest.mark.parametrize(
    ("file", "name", "frame_fs"),
    [
        ("aspirin_dft.npz", "aspirin_dft", 0.5),
        ("md22_DHA.npz", "DHA", None),
        ("aspirin_ccsd-train.npz", "aspirin_ccsd-train", None),  # a sample of frames, not a run
        ("md_.npz", "md_", None),
    ],
)
def test_spacing_is_assumed_of_md17_files_only(tmp_path: Path, file: str, name: str, frame_fs: float | None) -> None:
    found = read_trajectory(md17(tmp_path / file))
    assert (found.name, found.frame_fs) == (name, frame_fs)


def test_own_files_tell_their_spacing(tmp_path: Path) -> None:
    path = md17(tmp_path / "md_water.npz", frame_fs=np.array(2.0), method=np.array("gfn2"), seed=np.array(3))
    assert read_trajectory(path).frame_fs == 2.0
    assert read_trajectory(path, frame_fs=2).frame_fs == 2.0
    with pytest.raises(ValueError, match="its frames are 2 fs apart, but frame_fs is 4"):
        read_trajectory(path, frame_fs=4)


def test_tg80_has_dots_in_names_and_no_spacing(tmp_path: Path) -> None:
    path = save(tmp_path / "tg80_1.3-butadiene.npz", coords=moving(3, np.float32), nuclear_charges=WATER * 1.0)
    found = read_trajectory(path)
    np.testing.assert_array_equal(found.positions, moving(3, np.float32))
    assert found.positions.dtype == np.float32 and found.numbers.dtype == np.int64
    assert (found.name, found.frame_fs) == ("1.3-butadiene", None)


@pytest.mark.parametrize(
    ("stored", "expected"), [(">f8", "float64"), ("<f4", "float32"), (">f2", "float32"), ("i4", "float64")]
)
def test_any_number_type_becomes_a_native_float(tmp_path: Path, stored: str, expected: str) -> None:
    found = read_trajectory(md17(tmp_path / "a.npz", R=np.ones((5, 3, 3), stored)))
    assert found.positions.dtype == np.dtype(expected) and found.positions.dtype.isnative
    assert (found.positions == 1).all()


def test_content_decides_and_not_the_suffix(tmp_path: Path) -> None:
    path = md17(tmp_path / "md17_water.npz")
    assert len(read_trajectory(path.rename(tmp_path / "water.data"))) == 5


def test_xyz_of_md22_has_energies_as_comments_and_forces_as_columns(tmp_path: Path) -> None:
    text = ""
    for number, frame in enumerate(moving()):
        text += f"3\n-620662.7{number}\n"
        for symbol, (x, y, z) in zip("OHH", frame.tolist(), strict=True):
            text += f"{symbol} {x} {y} {z} 0.5 -1.5 2.0\n"
    path = tmp_path / "md22_water.xyz"
    path.write_text(text)
    found = read_trajectory(path, frame_fs=1.0)
    np.testing.assert_allclose(found.positions, moving(), atol=1e-12)
    assert found.numbers.tolist() == [8, 1, 1] and (found.name, found.frame_fs) == ("water", 1.0)


@pytest.mark.parametrize("file", ["run@2.extxyz", "run.traj", "run.xyz"])
def test_all_frames_are_read_through_ase(tmp_path: Path, file: str) -> None:
    written = [Atoms("OH2", positions) for positions in moving()]
    # The writer parses an @ in a name, the reader must not.
    ase.io.write(tmp_path / "plain", written, format="traj" if file.endswith("traj") else "extxyz")
    (tmp_path / "plain").rename(tmp_path / file)
    found = read_trajectory(tmp_path / file)
    np.testing.assert_allclose(found.positions, moving(), atol=1e-7)
    assert found.frame_fs is None and found.name == Path(file).stem


def test_known_names_are_those_of_the_published_files() -> None:
    assert {key: len(names) for key, names in KNOWN_NAMES.items()} == {"md17": 8, "rmd17": 10, "md22": 7, "tg80": 16}
    assert all(len(set(names)) == len(names) for names in KNOWN_NAMES.values())


def test_rmd17_is_sorted_into_the_order_of_the_run(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    found = read_trajectory(rmd17(tmp_path / "rmd17_water.npz", [30, 10, 20, 0]))
    assert places(found) == [0, 10, 20, 30]
    assert found.frame_fs == 5.0  # every tenth frame of 0.5 fs
    assert found.name == "water" and not len(found.breaks) and not caplog.records


def test_gaps_in_rmd17_become_breaks_and_are_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    found = read_trajectory(rmd17(tmp_path / "rmd17_water.npz", [6, 0, 2, 4, 9, 11, 11]))
    assert places(found) == [0, 2, 4, 6, 9, 11, 11]
    assert found.frame_fs == 1.0 and found.breaks.tolist() == [3, 5]
    assert "2 of 6 steps are not the usual 2 frames" in caplog.text and caplog.records[0].levelno == logging.WARNING
    assert found.starts(1).tolist() == [0, 1, 2, 4] and found.starts(2).tolist() == [0, 1]


def test_file_order_is_kept_on_request_and_has_no_spacing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = rmd17(tmp_path / "rmd17_water.npz", [6, 0, 2])
    found = read_trajectory(path, order="file")
    assert places(found) == [6, 0, 2] and found.frame_fs is None and found.starts(2).tolist() == [0]
    assert "no velocities" in caplog.text
    assert read_trajectory(path, order="file", frame_fs=5.0).frame_fs == 5.0


def test_old_indices_count_more_than_the_name_of_the_file(tmp_path: Path) -> None:
    path = rmd17(tmp_path / "md17_water.npz", [30, 10, 20, 0])
    assert read_trajectory(path).frame_fs == 5.0


def test_file_order_has_no_spacing_even_if_the_file_has_one(tmp_path: Path) -> None:
    path = rmd17(tmp_path / "a.npz", [6, 0, 3], frame_fs=np.array(2.0))
    assert read_trajectory(path, order="file").frame_fs is None
    assert read_trajectory(path).frame_fs == 2.0


def test_file_order_that_is_time_order_is_checked_like_it(tmp_path: Path) -> None:
    found = read_trajectory(rmd17(tmp_path / "rmd17_water.npz", [0, 2, 4, 9]), order="file")
    assert (found.frame_fs, found.breaks.tolist()) == (1.0, [2])


@pytest.mark.parametrize("indices", [[7], [7, 7, 7]])
def test_rmd17_without_two_different_times_has_no_spacing(tmp_path: Path, indices: list[int]) -> None:
    found = read_trajectory(rmd17(tmp_path / "rmd17_water.npz", indices))
    assert found.frame_fs is None and not len(found.starts(1))


def test_windows_cross_no_break() -> None:
    broken = made(8, breaks=np.array([2, 6]))  # runs of frames 0-2, 3-6 and 7
    for horizon in range(1, 9):
        brute = [t for t in range(8) if t + horizon < 8 and not {2, 6} & set(range(t, t + horizon))]
        assert broken.starts(horizon).tolist() == brute
    assert made(8).starts(5).tolist() == [0, 1, 2]
    with pytest.raises(ValueError, match="horizon must be at least 1 frame, got 0"):
        broken.starts(0)


def test_heavy_drops_hydrogens_and_nothing_else() -> None:
    whole = made(numbers=np.array([1, 8, 6]), breaks=np.array([1]))
    kept = whole.heavy()
    assert kept.numbers.tolist() == [8, 6] and kept.breaks.tolist() == [1] and kept.frame_fs == 1.0
    np.testing.assert_array_equal(kept.positions, moving(6)[:, 1:])
    assert whole.numbers.tolist() == [1, 8, 6]
    with pytest.raises(ValueError, match="w has no atom but hydrogen"):
        made(numbers=np.array([1, 1, 1])).heavy()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_written_files_are_read_back_unchanged(tmp_path: Path, dtype: type) -> None:
    positions = np.random.default_rng(0).normal(size=(4, 3, 3)).astype(dtype)
    path = tmp_path / "new" / "md_w.npz"
    write_npz(made(positions=positions, frame_fs=1.5), path, method="gfn2", seed=7)
    found = read_trajectory(path)
    np.testing.assert_array_equal(found.positions, positions)
    assert found.positions.dtype == dtype and (found.name, found.frame_fs) == ("w", 1.5)
    assert [p.name for p in path.parent.iterdir()] == ["md_w.npz"]
    with np.load(path) as archive:
        assert sorted(archive.files) == ["R", "frame_fs", "method", "name", "seed", "z"]
        assert (str(archive["name"]), str(archive["method"]), int(archive["seed"])) == ("w", "gfn2", 7)


def test_an_unknown_spacing_stays_unknown(tmp_path: Path) -> None:
    write_npz(made(frame_fs=None), tmp_path / "md_w.npz")
    assert read_trajectory(tmp_path / "md_w.npz").frame_fs is None


def test_a_failed_write_leaves_the_old_file_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "md_w.npz"
    write_npz(made(), path)
    before = path.read_bytes()

    def fail(file: object, **entries: object) -> None:
        file.write(b"half")
        raise OSError("no space left")

    monkeypatch.setattr(np, "savez", fail)
    with pytest.raises(OSError, match="no space"):
        write_npz(made(3), path)
    assert path.read_bytes() == before and len(list(tmp_path.iterdir())) == 1


def test_what_cannot_be_written_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="is a folder, expected the name of a file to write"):
        write_npz(made(), tmp_path)
    with pytest.raises(ValueError, match="here: MD17 has no key for 1 breaks"):
        write_npz(made(breaks=np.array([1])), tmp_path / "a.npz")
    with pytest.raises(ValueError, match="entry 'frame_fs' is a key of the trajectory itself"):
        write_npz(made(frame_fs=None), tmp_path / "a.npz", frame_fs=1.0)
    with pytest.raises(ValueError, match="entry 'what' holds Python objects"):
        write_npz(made(), tmp_path / "a.npz", what=np.array([{}]))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"R": np.where(np.arange(45).reshape(5, 3, 3) == 28, np.nan, 1.0)}, "frame 3 holds a position .* not finite"),
        ({"R": np.full((5, 3, 3), np.inf)}, r"frame 0 holds a position that is not finite \(5 of 5 frames do\)"),
        ({"R": np.zeros((5, 3))}, r"positions must be floats of shape \(frames, atoms, 3\), got float64 \(5, 3\)"),
        ({"R": np.zeros((5, 3, 3), complex)}, "must be floats of shape .* got complex128"),
        ({"R": np.zeros((0, 3, 3)), "E": np.zeros(0), "F": np.zeros((0, 3, 3))}, r"got float64 \(0, 3, 3\)"),
        ({"z": np.array([8, 1])}, r"one atomic number for each of the 3 atoms, got an array of shape \(2,\)"),
        ({"z": np.array([8, 0, 1])}, r"atomic numbers must lie in 1\.\.118, got 0 for atom 1"),
        ({"z": np.array([8, 1, -6])}, "got -6 for atom 2"),
        ({"z": np.array([8, 1, 119])}, "got 119 for atom 2"),
        ({"z": np.array([8, 1.5, 1])}, "z must be a list of integers, got float64"),
        ({"z": np.array(["O", "H", "H"])}, "z must be a list of integers, got <U1"),
        ({"E": np.zeros(4)}, r"E has shape \(4,\) but R has \(5, 3, 3\)"),
        ({"F": np.zeros((5, 2, 3))}, r"F has shape \(5, 2, 3\) but R has \(5, 3, 3\)"),
        ({"frame_fs": np.array([1.0, 2.0])}, r"frame_fs must be one number, got float64 of shape \(2,\)"),
        ({"frame_fs": np.array(0.0)}, "frame_fs must be a positive number of femtoseconds, got 0.0"),
        ({"frame_fs": np.array(np.nan)}, "frame_fs must be a positive number of femtoseconds, got nan"),
        ({"old_indices": np.arange(4)}, r"old_indices has shape \(4,\)"),
        ({"old_indices": np.zeros((5, 2))}, "old_indices must be a list of integers"),
    ],
)
def test_arrays_that_are_no_trajectory_are_refused(tmp_path: Path, changed: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        read_trajectory(md17(tmp_path / "bad.npz", **changed))
    assert str(tmp_path / "bad.npz") in str(caught.value)


def test_unknown_keys_are_listed_with_the_accepted_ones(tmp_path: Path) -> None:
    path = save(tmp_path / "a.npz", R=moving(), charges=WATER)
    with pytest.raises(ValueError, match=r"a.npz holds the keys \['R', 'charges'\], expected R and z .* or coords and"):
        read_trajectory(path)


class Trap:
    """A pickled object that leaves a trace when it is loaded."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self.path,)


def test_pickled_objects_are_never_loaded(tmp_path: Path) -> None:
    trap = np.array([Trap(tmp_path / "sprung"), None, None], dtype=object)
    path = md17(tmp_path / "a.npz", z=trap)
    with pytest.raises(ValueError, match=r"a.npz: \['z'\] hold pickled Python objects, which are never loaded"):
        read_trajectory(path)
    assert not (tmp_path / "sprung").exists()
    np.load(path, allow_pickle=True)["z"]
    assert (tmp_path / "sprung").exists()  # the trap works
    (tmp_path / "b.traj").write_bytes(pickle.dumps(Trap(tmp_path / "again")))
    with pytest.raises(ValueError, match="is neither an npz archive nor"):
        read_trajectory(tmp_path / "b.traj")
    assert not (tmp_path / "again").exists()


def test_objects_under_unused_keys_do_not_matter(tmp_path: Path) -> None:
    assert len(read_trajectory(md17(tmp_path / "a.npz", name=np.array({"a": 1}, dtype=object)))) == 5


def test_damaged_archives_are_refused(tmp_path: Path) -> None:
    whole = md17(tmp_path / "a.npz").read_bytes()
    cut = tmp_path / "cut.npz"
    cut.write_bytes(whole[: len(whole) // 2])
    flipped = tmp_path / "flipped.npz"
    middle = whole.index(moving().tobytes()[100:200])
    flipped.write_bytes(whole[:middle] + bytes(b ^ 255 for b in whole[middle : middle + 8]) + whole[middle + 8 :])
    foreign = tmp_path / "foreign.npz"
    with zipfile.ZipFile(foreign, "w") as archive:
        archive.writestr("R", b"text")
        archive.writestr("z.npy", b"text")
    for path in (cut, flipped, foreign):
        with pytest.raises(ValueError, match=f"{path.name} cannot be read as an npz archive"):
            read_trajectory(path)


def test_files_that_are_none_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"none.npz is missing, expected the file of one trajectory"):
        read_trajectory(tmp_path / "none.npz")
    with pytest.raises(ValueError, match="is a folder, expected the file of one trajectory"):
        read_trajectory(tmp_path)
    (tmp_path / "empty.npz").touch()
    with pytest.raises(ValueError, match=r"empty.npz is empty, expected a trajectory"):
        read_trajectory(tmp_path / "empty.npz")
    (tmp_path / "text.xyz").write_text("no molecule")
    with pytest.raises(ValueError, match=r"text.xyz is neither an npz archive nor an .xyz, .extxyz or ASE .traj file"):
        read_trajectory(tmp_path / "text.xyz")
    (tmp_path / "short.xyz").write_text("3\n\nO 0 0 0\nH 0 0 1\n")
    with pytest.raises(ValueError, match=r"short.xyz cannot be read by ASE as extxyz"):
        read_trajectory(tmp_path / "short.xyz")
    ase.io.write(tmp_path / "whole.traj", Atoms("OH2", moving()[0]))
    (tmp_path / "cut.traj").write_bytes((tmp_path / "whole.traj").read_bytes()[:60])
    with pytest.raises(ValueError, match=r"cut.traj cannot be read by ASE as traj"):
        read_trajectory(tmp_path / "cut.traj")


@pytest.mark.parametrize(("symbols", "named"), [("HOH", "HOH"), ("OH", "OH"), ("NH2", "NH2")])
def test_atoms_may_not_change_between_frames(tmp_path: Path, symbols: str, named: str) -> None:
    frames = [Atoms("OH2", moving()[0])] * 2 + [Atoms(symbols, moving()[0][: len(Atoms(symbols))])]
    ase.io.write(tmp_path / "a.xyz", frames, format="extxyz")
    with pytest.raises(ValueError, match=f"a.xyz: frame 2 has atoms {named} but frame 0 has OH2"):
        read_trajectory(tmp_path / "a.xyz")


def test_bad_options_are_refused(tmp_path: Path) -> None:
    path = md17(tmp_path / "a.npz")
    with pytest.raises(ValueError, match="order must be one of original, file, got 'time'"):
        read_trajectory(path, order="time")
    for value in (0.0, -1.0, float("inf"), float("nan")):
        with pytest.raises(ValueError, match=f"frame_fs must be a positive number of femtoseconds, got {value}"):
            read_trajectory(path, frame_fs=value)
