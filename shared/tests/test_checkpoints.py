import os
import pickle
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest
import torch
from shared.checkpoints import (
    CheckpointError,
    Manifest,
    atomic_write,
    load,
    load_weights,
    newest,
    remove_leftovers,
    save,
    save_weights,
)

MANIFEST = Manifest("nat", "0.1.0", "abc", "2.6")


def checkpoint(step: int) -> dict:
    return {"global_step": step, "state_dict": {"net.weight": torch.full((3,), float(step))}}


class Bomb:
    """Runs code when unpickled: it makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


def test_what_is_saved_is_loaded_with_its_manifest(tmp_path):
    save(checkpoint(5), tmp_path / "a.ckpt", MANIFEST)
    found = load(tmp_path / "a.ckpt", package="nat")
    assert torch.equal(found["state_dict"]["net.weight"], torch.full((3,), 5.0))
    assert found["manifest"] == {"package": "nat", "version": "0.1.0", "config_hash": "abc", "torch": "2.6"}
    assert [file.name for file in tmp_path.iterdir()] == ["a.ckpt"]


def test_a_write_that_fails_keeps_the_old_file_and_leaves_nothing_else(tmp_path):
    path = tmp_path / "a"
    path.write_bytes(b"old")
    with pytest.raises(KeyError), atomic_write(path) as file:
        file.write(b"new")
        raise KeyError
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_full_disk_leaves_the_previous_checkpoint_intact(tmp_path):
    # A limit on file sizes makes write() fail half way, as a full disk does.
    program = """
        import resource, signal, sys, torch
        from pathlib import Path
        from shared.checkpoints import CheckpointError, Manifest, load, save
        path, manifest = Path(sys.argv[1]), Manifest("nat", "0", "", "")
        save({"global_step": 1, "w": torch.ones(10)}, path, manifest)
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
        try:
            save({"global_step": 2, "w": torch.ones(1_000_000)}, path, manifest)
        except CheckpointError as error:
            print(error)
        print(load(path)["global_step"])
    """
    path = tmp_path / "last.ckpt"
    result = subprocess.run(
        [sys.executable, "-c", dedent(program), str(path)], capture_output=True, text=True, check=True
    )
    first, second = result.stdout.splitlines()
    assert first.startswith(f"cannot write the checkpoint {path}:")
    assert second == "1"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("kept", [0, 10, 0.5, 0.99])
def test_a_truncated_file_is_named_in_one_sentence(tmp_path, kept):
    path = tmp_path / "a.ckpt"
    save(checkpoint(1), path, MANIFEST)
    data = path.read_bytes()
    path.write_bytes(data[: kept if isinstance(kept, int) else int(len(data) * kept)])
    with pytest.raises(CheckpointError, match=r"a\.ckpt (is truncated|is refused)") as caught:
        load(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("writer", [torch.save, lambda obj, path: path.write_bytes(pickle.dumps(obj))])
def test_code_in_a_pickle_that_poses_as_a_checkpoint_does_not_run(tmp_path, writer):
    path, touched = tmp_path / "a.ckpt", tmp_path / "touched"
    writer({"state_dict": Bomb(touched)}, path)
    with pytest.raises(CheckpointError, match="refused"):
        load(path)
    with pytest.raises(CheckpointError, match="refused"):
        load_weights(path)
    assert not touched.exists()


def test_a_foreign_checkpoint_is_refused(tmp_path):
    torch.save({"state_dict": {}}, tmp_path / "bare.ckpt")
    with pytest.raises(CheckpointError, match="no manifest"):
        load(tmp_path / "bare.ckpt")
    save(checkpoint(1), tmp_path / "nat.ckpt", MANIFEST)
    with pytest.raises(CheckpointError, match="written by the package nat, not by atom"):
        load(tmp_path / "nat.ckpt", package="atom")
    with pytest.raises(FileNotFoundError, match=r"there is no checkpoint .*gone\.ckpt"):
        load(tmp_path / "gone.ckpt")


def test_the_newest_is_the_one_with_the_most_steps_whatever_its_date(tmp_path):
    for step in (3, 9, 6):
        save(checkpoint(step), tmp_path / f"epoch={step}.ckpt", MANIFEST)
    os.utime(tmp_path / "epoch=3.ckpt", (2**31, 2**31))
    assert newest(tmp_path).name == "epoch=9.ckpt"


def test_the_best_is_resumed_from_only_if_there_is_no_other(tmp_path):
    save(checkpoint(9), tmp_path / "best.ckpt", MANIFEST)  # written within an epoch
    assert newest(tmp_path).name == "best.ckpt"
    save(checkpoint(6), tmp_path / "epoch=6.ckpt", MANIFEST)
    assert newest(tmp_path).name == "epoch=6.ckpt"


def test_a_folder_in_the_place_of_a_file_is_named(tmp_path):
    (tmp_path / "taken").mkdir()
    with pytest.raises(CheckpointError, match="taken is a folder, expected the name of a file to write"):
        save(checkpoint(1), tmp_path / "taken", MANIFEST)


def test_resuming_falls_back_to_the_newest_good_checkpoint_and_says_so(tmp_path):
    for step in (3, 6, 9):
        save(checkpoint(step), tmp_path / f"epoch={step}.ckpt", MANIFEST)
    damaged = tmp_path / "epoch=9.ckpt"
    damaged.write_bytes(damaged.read_bytes()[:-100])
    said = []
    assert newest(tmp_path, package="nat", warn=said.append).name == "epoch=6.ckpt"
    assert "epoch=9.ckpt is truncated" in said[0]
    assert said[1] == f"falling back to {tmp_path / 'epoch=6.ckpt'}"


def test_only_leftovers_of_dead_processes_are_removed(tmp_path):
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    mine, theirs = (tmp_path / f".a.ckpt.{process}.tmp" for process in (os.getpid(), ended.pid))
    for file in (mine, theirs):
        file.write_bytes(b"half")
    with pytest.raises(FileNotFoundError):
        newest(tmp_path)
    assert theirs.exists()  # looking changes nothing
    remove_leftovers(tmp_path)
    assert mine.exists()
    assert not theirs.exists()


def test_a_checkpoint_without_a_number_of_steps_is_passed_over(tmp_path):
    save({"global_step": "many"}, tmp_path / "odd.ckpt", MANIFEST)
    save(checkpoint(1), tmp_path / "good.ckpt", MANIFEST)
    said = []
    assert newest(tmp_path, warn=said.append).name == "good.ckpt"
    assert "odd.ckpt has no number of steps, but 'many'" in said[0]


def test_no_good_checkpoint_at_all_is_an_error(tmp_path):
    (tmp_path / "a.ckpt").write_bytes(b"nothing")
    with pytest.raises(FileNotFoundError, match="no usable checkpoint"):
        newest(tmp_path, warn=lambda _: None)


def test_weights_round_trip_through_safetensors_and_out_of_checkpoints(tmp_path):
    weights = {"weight": torch.randn(2, 3), "count": torch.tensor(4)}
    save_weights(weights, tmp_path / "w.safetensors", MANIFEST)
    save({"state_dict": {f"net.{k}": v for k, v in weights.items()}}, tmp_path / "w.ckpt", MANIFEST)
    for path in (tmp_path / "w.safetensors", tmp_path / "w.ckpt"):
        found = load_weights(path, package="nat", prefix="net.")
        assert found.keys() == weights.keys()
        assert all(torch.equal(found[k], weights[k]) for k in weights)


def test_unusable_weights_are_named(tmp_path):
    (tmp_path / "w.safetensors").write_bytes(b"x" * 40)
    with pytest.raises(CheckpointError, match=r"w\.safetensors is truncated or no safetensors file"):
        load_weights(tmp_path / "w.safetensors")
    save(checkpoint(1), tmp_path / "a.ckpt", MANIFEST)
    with pytest.raises(CheckpointError, match=r"holds no weights named model\.\*"):
        load_weights(tmp_path / "a.ckpt", prefix="model.")
    with pytest.raises(FileNotFoundError, match=r"gone\.safetensors"):
        load_weights(tmp_path / "gone.safetensors")
