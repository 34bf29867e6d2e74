"""The embedded scenes: cameras, points, and the cache of photographs."""

import importlib.util
import json
import logging
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
import torch
import trimesh
from megs2 import mesh_scenes
from megs2.mesh_scenes import (
    OFFSETS,
    RADIUS,
    SCENES,
    default_cache,
    fibonacci_cameras,
    mesh_scene,
    photographs,
    recipe_key,
)
from megs2.meshes import Light, Mesh, Shading, corner_normals, find_pybullet_data, read_mesh, render
from safetensors.torch import load_file, save_file

needs_meshes = pytest.mark.skipif(
    importlib.util.find_spec("pybullet_data") is None, reason="the wheel of pybullet has no build for this platform"
)


def ball(colour=0.5):
    made = trimesh.creation.icosphere(subdivisions=2)
    faces = np.asarray(made.faces, np.int64)
    corners = made.vertices[faces]
    uv, material = np.zeros((len(faces), 3, 2)), np.zeros(len(faces), np.int64)
    texture = np.full((1, 1, 3), colour)
    return Mesh(np.asarray(made.vertices, float), faces, corner_normals(corners), uv, material, (texture,))


def take(cache, mesh=None, cameras=None, **more):
    cameras = fibonacci_cameras(3, size=16) if cameras is None else cameras
    return photographs(ball() if mesh is None else mesh, cameras, Shading(), supersample=2, cache=cache, **more)


def centres(part, count):
    return torch.stack([camera.centre for camera in fibonacci_cameras(count, offset=OFFSETS[part])])


def test_cameras_look_at_the_origin_from_one_sphere_with_z_up():
    for camera in fibonacci_cameras(20, radius=2.5, offset=0.7, size=64):
        assert float(camera.centre.norm()) == pytest.approx(2.5, abs=1e-5)
        assert torch.allclose(camera.translation, torch.tensor([0, 0, 2.5]), atol=1e-5)  # the origin, straight ahead
        up = camera.rotation @ torch.tensor([0.0, 0, 1])
        assert abs(float(up[0])) < 1e-6 and float(up[1]) < 0  # y points down in the picture
        assert (camera.width, camera.height) == (64, 64)
        assert camera.fx == pytest.approx(32 / np.tan(np.deg2rad(20)))


def test_cameras_cover_the_sphere_evenly():
    eyes = centres("train", 48) / RADIUS
    assert torch.allclose(eyes.mean(0), torch.zeros(3), atol=0.02)
    assert torch.allclose(eyes.T @ eyes / 48, torch.eye(3) / 3, atol=0.02)  # the second moment of the sphere
    apart = torch.cdist(eyes, eyes) + 9 * torch.eye(48)
    assert float(torch.rad2deg(2 * torch.asin(apart.min() / 2))) > 20


def test_the_unit_sphere_fits_into_the_picture():
    camera = fibonacci_cameras(5, size=96)[2]
    edge = camera.fx * np.tan(np.arcsin(1 / RADIUS))
    assert 46 < edge < 48


def test_no_camera_of_one_part_is_a_camera_of_another():
    parts = {"train": 48, "val": 8, "test": 16}
    for one in parts:
        for other in parts:
            if one != other:
                apart = torch.cdist(centres(one, parts[one]), centres(other, parts[other])).min() / RADIUS
                assert float(torch.rad2deg(2 * torch.asin(apart / 2))) > 6
    # Equal counts give equal heights; the azimuths still differ.
    for count in (1, 7, 40, 200):
        assert float(torch.cdist(centres("train", count), centres("test", count)).min()) > 1e-3


def test_photographs_are_renderings_in_8_bits_and_the_cache_returns_them_bit_for_bit(tmp_path, monkeypatch):
    cameras = fibonacci_cameras(3, size=16)
    fresh = take(tmp_path / "new" / "folder")
    assert fresh.dtype == torch.uint8 and fresh.shape == (3, 16, 16, 3)
    exact = torch.stack([render(ball(), camera, Shading(), supersample=2) for camera in cameras])
    assert float((fresh / 255 - exact).abs().max()) <= 0.5 / 255 + 1e-6
    monkeypatch.setattr(mesh_scenes, "render", None)  # a second rendering would fail
    assert torch.equal(take(tmp_path / "new" / "folder"), fresh)
    assert [path.suffix for path in (tmp_path / "new" / "folder").iterdir()] == [".safetensors"]


@pytest.mark.parametrize("damage", ["cut", "empty", "bit", "shape", "recipe", "folder"])
def test_a_damaged_or_foreign_cache_file_is_replaced_with_a_warning(tmp_path, caplog, damage):
    fresh = take(tmp_path)
    (path,) = tmp_path.iterdir()
    data, images = path.read_bytes(), load_file(path)["images"]
    # A header of safetensors is a length and JSON; its free text is ours.
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])["__metadata__"]
    if damage == "cut":
        path.write_bytes(data[:-100])
    elif damage == "empty":
        path.write_bytes(b"")
    elif damage == "bit":
        path.write_bytes(data[:-5] + bytes([data[-5] ^ 1]) + data[-4:])
    elif damage == "shape":
        save_file({"images": images.reshape(16, 3, 16, 3)}, path, metadata=header)  # the same bytes
    elif damage == "recipe":
        save_file({"images": images}, path, metadata=header | {"recipe": "0" * 64})
    else:
        path.unlink()
        path.mkdir()
    with caplog.at_level(logging.WARNING):
        assert torch.equal(take(tmp_path), fresh)
    assert path.name in caplog.text
    if damage != "folder":
        caplog.clear()
        assert torch.equal(take(tmp_path), fresh) and not caplog.text


def test_the_key_depends_on_all_that_a_photograph_shows():
    mesh, cameras, shading = ball(), fibonacci_cameras(3, size=16), Shading()
    moved = [*cameras[:2], replace(cameras[2], translation=cameras[2].translation + 1e-3)]
    light = Shading(lights=(Light((0, 0, 1), 1.0),))
    normals = mesh.normals.copy()
    normals[0, 0] *= -1
    keys = [
        recipe_key(*changed)
        for changed in [
            (mesh, cameras, shading, 4),
            (mesh, cameras, shading, 3),
            (mesh, cameras, Shading(ks=0.4), 4),
            (mesh, cameras, Shading(power=31), 4),
            (mesh, cameras, light, 4),
            (mesh, cameras[:2], shading, 4),
            (mesh, cameras[::-1], shading, 4),
            (mesh, moved, shading, 4),
            (mesh, [camera.resized(17, 16) for camera in cameras], shading, 4),
            (ball(0.51), cameras, shading, 4),
            (replace(mesh, vertices=mesh.vertices * 1.01), cameras, shading, 4),
            (replace(mesh, normals=normals), cameras, shading, 4),
            (replace(mesh, uv=mesh.uv + 0.1), cameras, shading, 4),
        ]
    ]
    assert len(set(keys)) == len(keys)
    assert recipe_key(ball(), fibonacci_cameras(3, size=16), Shading(), 4) == keys[0]


def test_a_cache_that_cannot_be_written_or_a_broken_off_rendering_leaves_nothing_behind(tmp_path, caplog, monkeypatch):
    (tmp_path / "file").write_text("mine")
    with caplog.at_level(logging.WARNING):
        assert torch.equal(take(tmp_path / "file"), take(tmp_path / "good"))
    assert "cannot be kept" in caplog.text and (tmp_path / "file").read_text() == "mine"

    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(mesh_scenes, "save_file", interrupted)
    with pytest.raises(KeyboardInterrupt):
        take(tmp_path / "broken")
    assert not list((tmp_path / "broken").iterdir())


def test_several_at_once_agree(tmp_path):
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: take(tmp_path), range(8)))
    assert all(torch.equal(found[0], other) for other in found)
    assert len(list(tmp_path.iterdir())) == 1


def test_the_cache_lies_where_the_desktop_standard_says(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_cache() == tmp_path / "megs2"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert default_cache() == tmp_path / "home" / ".cache" / "megs2"


def small(name, cache, **more):
    return mesh_scene(name, **({"size": 12, "train": 4, "val": 2, "test": 3, "points": 500, "cache": cache} | more))


@needs_meshes
def test_a_scene_has_its_parts_and_only_its_points_depend_on_the_seed(tmp_path):
    one, same, other = (small("torus", tmp_path, seed=seed) for seed in (0, 0, 1))
    assert [view.name for view in one.val] == ["val_000", "val_001"]
    assert [len(part) for part in (one.train, one.val, one.test)] == [4, 2, 3]
    assert torch.equal(one.background, torch.ones(3)) and one.points.shape == one.colours.shape == (500, 3)
    assert torch.equal(one.points, same.points) and not torch.equal(one.points, other.points)
    for part in ("train", "val", "test"):
        for a, b in zip(getattr(one, part), getattr(other, part), strict=True):
            assert torch.equal(a.image, b.image) and torch.equal(a.camera.centre, b.camera.centre)
    # A view's picture is that of its own camera, not of a neighbour's.
    recipe = SCENES["torus"]
    mesh = read_mesh(find_pybullet_data() / recipe.file, up=recipe.up, colour=recipe.colour)
    view = one.test[1]
    assert float((render(mesh, view.camera, recipe.shading) - view.image).abs().max()) <= 0.5 / 255 + 1e-6
    assert torch.equal(view.image * 255, (view.image * 255).round())


@needs_meshes
def test_points_are_within_the_noise_of_the_surface(tmp_path):
    exact = small("mug", tmp_path, noise=0.0)
    noisy = small("mug", tmp_path, noise=0.03)
    assert float(exact.points.norm(dim=1).max()) <= 1 + 1e-6
    assert float((noisy.points - exact.points).square().mean().sqrt()) == pytest.approx(0.03, rel=0.08)
    assert torch.equal(exact.colours, noisy.colours)


@needs_meshes
@pytest.mark.parametrize("name", SCENES)
def test_every_scene_fills_the_unit_sphere_and_keeps_clear_of_the_pictures_edge(tmp_path, name):
    scene = small(name, tmp_path, points=20000, noise=0.0, train=2, val=0, test=0)
    assert 0.9 < float(scene.points.norm(dim=1).max()) <= 1 + 1e-6
    for view in scene.train:
        assert 0.05 < float((view.image.amin(-1) < 1).float().mean()) < 0.95
        assert float(view.image[[0, 0, -1, -1], [0, -1, 0, -1]].min()) == 1


@needs_meshes
def test_a_duck_is_yellow_and_stands_upright_with_dark_eyes_in_its_upper_half(tmp_path):
    scene = small("duck_diffuse", tmp_path, points=5000, noise=0.0)
    assert float((scene.colours[:, 0] > 0.7).float().mean()) > 0.8 and float(scene.colours[:, 2].median()) < 0.2
    eyes = scene.colours.amax(1) < 0.2
    assert eyes.any() and float(scene.points[eyes, 2].min()) > 0.2


@needs_meshes
def test_unknown_names_and_bad_numbers_are_refused_in_a_sentence(tmp_path):
    with pytest.raises(ValueError, match=r"data\.name is 'goose', expected one of duck, mug, torus, "):
        mesh_scene("goose")
    with pytest.raises(ValueError, match="train is 0"):
        small("duck", tmp_path, train=0)
    with pytest.raises(ValueError, match="size is 0"):
        small("duck", tmp_path, size=0)
    with pytest.raises(ValueError, match=r"noise is -0\.1"):
        small("duck", tmp_path, noise=-0.1)
    assert not list(tmp_path.iterdir())
