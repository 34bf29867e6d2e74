from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from megs2 import mesh_scenes
from megs2.camera import View
from megs2.data import CaptureData


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / "cache"))


def data(**options: Any) -> CaptureData:
    made = CaptureData(size=12, points=50, **options)
    made.setup()
    return made


def test_views_are_those_of_the_mesh_and_each_is_seen_once_an_epoch() -> None:
    made = data()
    assert [len(part) for part in (made.capture.train, made.capture.val, made.capture.test)] == [48, 8, 16]
    assert made.capture.points.shape == (50, 3)
    made.trainer = SimpleNamespace(
        fit_loop=SimpleNamespace(epoch_progress=SimpleNamespace(current=SimpleNamespace(processed=0)))
    )  # type: ignore[assignment]
    names = [view.name for view in made.train_dataloader()]
    assert sorted(names) == sorted(view.name for view in made.capture.train)
    assert names != [view.name for view in made.capture.train]
    assert [view.name for view in made.test_dataloader()] == [view.name for view in made.capture.test]


def test_settings_can_be_chosen_by_views_that_are_not_tested() -> None:
    made = data(test_on="val")
    chosen = {view.name for view in made.test_dataloader()}
    assert chosen == {view.name for view in made.capture.val}
    assert not chosen & {view.name for view in made.capture.test}


def test_the_seed_changes_the_points_alone() -> None:
    a, b = data(seed=0).capture, data(seed=1).capture
    assert not torch.equal(a.points, b.points)
    assert torch.equal(a.test[3].image, b.test[3].image)


def test_a_capture_without_validation_views_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    made = data()
    object.__setattr__(made.capture, "val", [])
    assert list(made.val_dataloader()) == []


def test_a_view_is_moved_with_its_camera() -> None:
    view = data().capture.train[0]
    moved = data().transfer_batch_to_device(view, torch.device("meta"), 0)
    assert isinstance(moved, View)
    assert moved.image.device.type == moved.camera.rotation.device.type == "meta"


def test_an_unknown_scene_names_those_there_are() -> None:
    with pytest.raises(ValueError, match="duck"):
        data(scene="teapot")
    assert "duck" in mesh_scenes.SCENES


@pytest.mark.parametrize(
    ("options", "message"),
    [({"noise": -1.0}, "noise must be"), ({"test_on": "train"}, "test_on must be one of test, val")],
)
def test_options_out_of_range_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        CaptureData(**options)


def test_a_folder_that_is_no_capture_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="expected sparse/0"):
        CaptureData(root=str(tmp_path)).setup()
