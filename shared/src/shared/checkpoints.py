"""Checkpoints that survive a crash, and that cannot run code when they are read.

A file is written beside its destination, flushed to the disk and renamed over it, so that a reader (and
the next run) finds the old file or the new one and never a part. Each file carries a manifest saying
what wrote it. Reading never unpickles anything but tensors and plain containers.
"""

from __future__ import annotations

import json
import os
import pickle
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

import psutil
import torch
from lightning.fabric.plugins import CheckpointIO
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as safetensors_bytes
from torch import Tensor

from shared.records import package_version


class CheckpointError(ValueError):
    """A checkpoint cannot be read or written; the message is one sentence that names the file."""


@dataclass(frozen=True)
class Manifest:
    """What wrote a checkpoint.

    Attributes:
        package: the paper's package name.
        version: that package's version.
        config_hash: hash of the resolved settings (`shared.papercli.config_hash`).
        torch: torch's version.
    """

    package: str
    version: str
    config_hash: str
    torch: str

    @classmethod
    def of(cls, package: str, config_hash: str = "") -> Manifest:
        """Describe the running process."""
        return cls(package, package_version(package), config_hash, str(torch.__version__))


@contextmanager
def atomic_write(path: Path) -> Iterator[IO[bytes]]:
    """Open a temporary file for writing that replaces `path` when the block ends, and vanishes if it raises.

    Args:
        path: the destination; its folder is made where it is missing.

    Yields:
        The open temporary file, in the destination's folder so that the rename is atomic.
    """
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder, expected the name of a file to write")
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        _fsync_folder(path.parent)  # the rename itself must reach the disk
    finally:
        temporary.unlink(missing_ok=True)


def _fsync_folder(folder: Path) -> None:
    with suppress(OSError):  # not every file system lets a folder be opened
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def save(checkpoint: Mapping[str, Any], path: Path, manifest: Manifest) -> None:
    """Write a checkpoint and its manifest atomically; an older file at `path` stays until the new one is whole.

    Args:
        checkpoint: tensors and plain containers (what Lightning hands over).
        path: the destination, by habit `*.ckpt`.
        manifest: stored under the key `manifest`.

    Raises:
        CheckpointError: if the disk is full or the folder cannot be written.
    """
    try:
        with atomic_write(path) as file:
            torch.save({**checkpoint, "manifest": asdict(manifest)}, file)
    except (OSError, RuntimeError) as error:  # torch's zip writer reports a full disk as a RuntimeError
        raise CheckpointError(f"cannot write the checkpoint {path}: {_reason(error)}") from error


def load(path: Path, *, package: str | None = None, map_location: Any = None, mmap: bool = False) -> dict[str, Any]:
    """Read a checkpoint that `save` wrote, without running code from it.

    Args:
        path: the file.
        package: the package that must have written it; None accepts any.
        map_location: as in `torch.load`.
        mmap: map the tensors instead of reading them, which makes looking at a large file cheap.

    Returns:
        The checkpoint with its `manifest`.

    Raises:
        FileNotFoundError: if there is no such file.
        CheckpointError: if the file is truncated, holds anything but tensors and plain containers, or
            was written by something else.
    """
    if not path.is_file():
        raise FileNotFoundError(f"there is no checkpoint {path}")
    try:
        checkpoint = torch.load(path, map_location=map_location, weights_only=True, mmap=mmap)
    except pickle.UnpicklingError as error:
        foreign = re.search(r"GLOBAL (\S+)", str(error))
        what = f"it holds {foreign[1]}, which could run code" if foreign else "it is damaged or of another kind"
        raise CheckpointError(f"{path} is refused: {what}") from error
    except (RuntimeError, EOFError, OSError, ValueError, LookupError) as error:
        raise CheckpointError(f"{path} is truncated or no checkpoint ({_reason(error)})") from error
    found = checkpoint.get("manifest", {}) if isinstance(checkpoint, dict) else {}
    if not isinstance(found, dict) or "package" not in found:
        raise CheckpointError(f"{path} was not written by this collection: it has no manifest")
    if package is not None and found["package"] != package:
        raise CheckpointError(f"{path} was written by the package {found['package']}, not by {package}")
    return checkpoint


def newest(folder: Path, *, package: str | None = None, warn: Callable[[str], None] = print) -> Path:
    """Find the checkpoint to resume from: the readable one with the most steps, `best` only if there is no other.

    Damaged and foreign files are passed over with a warning; nothing is changed.

    Args:
        folder: where a run keeps its checkpoints.
        package: as in `load`.
        warn: receives one sentence for each file that is passed over, and one naming the fallback.

    Returns:
        The path of the checkpoint.

    Raises:
        FileNotFoundError: if no file in the folder is good.
    """
    progress: dict[Path, tuple[bool, int]] = {}
    passed_over = False
    for path in sorted(folder.glob("*.ckpt")):
        try:
            step = load(path, package=package, map_location="cpu", mmap=True).get("global_step", 0)
            if not isinstance(step, int):
                raise CheckpointError(f"{path} has no number of steps, but {step!r}")
        except CheckpointError as error:
            passed_over = True
            warn(str(error))
        else:
            progress[path] = (path.stem != "best", step)  # best.ckpt may have been written within an epoch
    if not progress:
        raise FileNotFoundError(f"there is no usable checkpoint in {folder}")
    best = max(progress, key=lambda path: progress[path])
    if passed_over:
        warn(f"falling back to {best}")
    return best


def remove_leftovers(folder: Path) -> None:
    """Delete what interrupted writes left in a folder; the files of processes that still run are kept."""
    for file in folder.glob(".*.tmp"):
        process = file.name.split(".")[-2]
        if not (process.isdigit() and psutil.pid_exists(int(process))):
            file.unlink(missing_ok=True)


def save_weights(weights: Mapping[str, Tensor], path: Path, manifest: Manifest) -> None:
    """Write weights alone as safetensors, atomically, with the manifest in the file's metadata.

    Args:
        weights: names and tensors of any shape.
        path: the destination, `*.safetensors`.
        manifest: what wrote it.

    Raises:
        CheckpointError: if the file cannot be written.
    """
    copies = {name: tensor.detach().cpu().contiguous() for name, tensor in weights.items()}
    try:
        with atomic_write(path) as file:
            file.write(safetensors_bytes(copies, metadata={"manifest": json.dumps(asdict(manifest))}))
    except OSError as error:
        raise CheckpointError(f"cannot write the weights {path}: {_reason(error)}") from error


def load_weights(path: Path, *, package: str | None = None, prefix: str = "") -> dict[str, Tensor]:
    """Read weights from a `.safetensors` file or from a checkpoint's `state_dict`, on the CPU.

    Args:
        path: the file.
        package: the package that must have written a checkpoint; safetensors files of any origin are
            accepted, as they can hold nothing but tensors.
        prefix: of a checkpoint's entries keep those that start with this, without it.

    Returns:
        Names and tensors.

    Raises:
        FileNotFoundError: if there is no such file.
        CheckpointError: if it cannot be read, or no entry has the prefix.
    """
    if path.suffix == ".safetensors":
        if not path.is_file():
            raise FileNotFoundError(f"there is no weights file {path}")
        try:
            with safe_open(path, framework="pt") as file:
                return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no mapping
        except (SafetensorError, OSError) as error:
            raise CheckpointError(f"{path} is truncated or no safetensors file ({_reason(error)})") from error
    state = load(path, package=package, map_location="cpu").get("state_dict", {})
    weights = {name.removeprefix(prefix): w for name, w in state.items() if name.startswith(prefix)}
    if not weights:
        raise CheckpointError(f"{path} holds no weights named {prefix}*")
    return weights


class AtomicCheckpointIO(CheckpointIO):
    """Lightning's checkpoint plugin over `save` and `load`.

    Args:
        manifest: written into every checkpoint; its package is required of every checkpoint read.
    """

    def __init__(self, manifest: Manifest) -> None:
        self.manifest = manifest

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        """Write `checkpoint` to `path`; `storage_options` are not used."""
        save(checkpoint, Path(path), self.manifest)

    def load_checkpoint(self, path: Any, map_location: Any = None, weights_only: bool | None = None) -> dict[str, Any]:
        """Read `path`; `weights_only` is ignored, as nothing else is ever allowed."""
        return load(Path(path), package=self.manifest.package, map_location=map_location)

    def remove_checkpoint(self, path: Any) -> None:
        """Delete `path` if it is there."""
        Path(path).unlink(missing_ok=True)


def _reason(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error).splitlines()[0] if str(error) else type(error).__name__
