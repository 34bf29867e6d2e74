"""The verbs on scenes: convert, prune, render, scene, plot."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from megs2.cli import main
from megs2.colours import colours
from megs2.formats import load, save
from megs2.gaussians import Gaussians, from_points
from megs2.paths import orbit, write_cameras
from PIL import Image


def scene(kind: str, n: int = 120) -> Gaussians:
    g = torch.Generator().manual_seed(n)
    made = from_points(
        torch.randn(n, 3, generator=g), torch.rand(n, 3, generator=g), sh_degree=2 * (kind == "sh"),
        lobes=3 * (kind == "sg"), generator=g,
    )  # fmt: skip
    made.rest.copy_(0.1 * torch.randn(made.rest.shape, generator=g))
    made.opacities.copy_(torch.randn(n, generator=g))
    made.counts[:] = torch.randint(0, 4, (n,), generator=g) if kind == "sg" else 0
    return made


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    save("sh.ply", scene("sh"))
    save("sg.ply", scene("sg"))


def the_error(capsys: pytest.CaptureFixture[str]) -> str:
    errors = [line for line in capsys.readouterr().err.splitlines() if "error: " in line]
    assert len(errors) == 1
    return errors[0]


def test_harmonics_become_lobes_and_lobes_harmonics_with_the_error_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["convert", "sh.ply", "lobes.safetensors", "--to", "sg"]) == 0
    assert main(["convert", "lobes.safetensors", "back.ply", "--to", "3dgs"]) == 0
    said = " ".join(capsys.readouterr().err.split())
    assert said.count("root mean square error") == 2
    lobes, back = load("lobes.safetensors"), load("back.ply")
    assert lobes.max_lobes == 3
    assert back.sh_degree == 3
    place = torch.tensor([0.0, 0.0, 9.0])
    apart = (colours(scene("sh"), place).clamp(max=1) - colours(back, place).clamp(max=1)).abs()
    assert float(apart.mean()) < 0.05


def test_a_change_of_format_alone_changes_no_number() -> None:
    assert main(["convert", "sh.ply", "a.safetensors"]) == 0
    assert torch.equal(load("a.safetensors").rest, scene("sh").rest)
    assert main(["convert", "a.safetensors", "b.safetensors", "--half", "true"]) == 0
    assert Path("b.safetensors").stat().st_size < Path("a.safetensors").stat().st_size


def test_pruning_meets_the_budget_and_keeps_what_is_seen(capsys: pytest.CaptureFixture[str]) -> None:
    made = scene("sg")
    made.means[:5] += torch.tensor([0.0, 0, 500.0])  # which no camera sees
    save("sg.ply", made)
    write_cameras(Path("cameras.json"), orbit(torch.zeros(3), 6.0, 5, width=64, height=48))
    for extra in ([], ["--cameras", "cameras.json"]):
        assert main(["prune", "sg.ply", "small.ply", "--budget_mb", "0.005", *extra]) == 0
        small = load("small.ply")
        assert 4500 < small.static_bytes() <= 5000
        assert float(small.means[:, 2].max()) < 100
    assert "of 120 Gaussians" in capsys.readouterr().err


def test_rendering_writes_pictures_and_a_film() -> None:
    assert main(["render", "sg.ply", "--out", "out", "--frames", "4", "--size", "[40,30]"]) == 0
    files = sorted(file.name for file in Path("out").iterdir())
    assert files == ["0000.png", "0001.png", "0002.png", "0003.png", "film.gif"]
    with Image.open("out/0002.png") as picture:
        assert picture.size == (40, 30)
        assert len(set(picture.getdata())) > 50  # not the background alone
    write_cameras(Path("cameras.json"), orbit(torch.zeros(3), 6.0, 2, width=20, height=16))
    assert main(["render", "sg.ply", "--out", "two", "--path", "cameras.json", "--film", "null"]) == 0
    assert sorted(file.name for file in Path("two").iterdir()) == ["0000.png", "0001.png"]


def test_a_scene_is_described(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["scene", "sg.ply", "--size", "64"]) == 0
    said = " ".join(capsys.readouterr().err.split())
    made = scene("sg")
    assert "120 Gaussians" in said
    assert f"{made.static_bytes():,}" in said
    assert f"{int((made.counts == 2).sum())} with 2" in said
    assert "while drawing 64 x 64" in said
    assert main(["scene", "sh.ply"]) == 0
    assert "spherical harmonics of degree 2" in " ".join(capsys.readouterr().err.split())


def test_an_empty_scene_is_described_and_drawn() -> None:
    save("none.ply", scene("sg").select(torch.zeros(120, dtype=torch.bool)))
    assert main(["scene", "none.ply", "--size", "16"]) == 0
    assert main(["render", "none.ply", "--frames", "1", "--size", "[8,8]"]) == 0
    with Image.open("pictures/0000.png") as picture:
        assert set(picture.getdata()) == {(255, 255, 255)}
    assert main(["prune", "none.ply", "less.ply", "--budget_mb", "1"]) == 0
    assert main(["convert", "none.ply", "other.ply", "--to", "3dgs"]) == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["convert", "nothing.ply", "a.ply"], "nothing.ply: no such file"),
        (["convert", "nothing", "a.ply"], "nothing"),
        (["convert", "sg.ply", "a.obj"], "expected a name that ends in .ply or .safetensors"),
        (["convert", "sh.ply", "a.ply", "--to", "sg", "--lobes", "9"], "lobes must lie in 1..3, got 9"),
        (["convert", "sg.ply", "a.ply", "--to", "3dgs", "--degree", "7"], "degree must lie in 0..3, got 7"),
        (["prune", "sg.ply", "a.ply", "--budget_mb", "0"], "budget_mb must be a finite number above 0"),
        (["prune", "sg.ply", "a.ply", "--budget_mb", "1", "--cameras", "no.json"], "no.json: no such file"),
        (["render", "sg.ply", "--film", "film.avi"], "expected a film that ends in .gif or .mp4"),
        (["render", "sg.ply", "--frames", "0"], "frames"),
        (["render", "sg.ply", "--background", "[2,0,0]"], "background must be three numbers in [0, 1]"),
        (["scene", "sg.ply", "--size", "0"], "size must be at least 1, got 0"),
        (["plot", "--run", "nowhere"], "nowhere"),
        (["prune", "sg.ply", "a.ply"], "budget_mb must be given"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_cannot_work_is_one_sentence_and_leaves_nothing(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    assert message in the_error(capsys)
    assert {file.name for file in Path().iterdir()} <= {"sh.ply", "sg.ply"}


def test_text_that_is_no_json_is_named() -> None:
    Path("cameras.json").write_text(json.dumps({"a": 1}))
    assert main(["render", "sg.ply", "--path", "cameras.json"]) == 2
