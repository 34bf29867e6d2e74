"""Pictures of meshes against closed forms, on meshes made here."""

import math
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
import trimesh
from megs2.camera import look_at
from megs2.meshes import (
    LIGHTS,
    Light,
    Mesh,
    Shading,
    albedo,
    corner_normals,
    find_pybullet_data,
    read_mesh,
    render,
    shade,
    surface_points,
)
from PIL import Image

FRONT = Shading(0.0, lights=(Light((1.0, 0.0, 0.0), 1.0),))
CORNERS = np.array([[0, -1, -1], [0, 1, -1], [0, 1, 1], [0, -1, 1]], float)  # in the plane x = 0, seen from +x
UV = np.array([[0, 0], [1, 0], [1, 1], [0, 1]], float)


def mesh_of(vertices, faces, colour=(0.5, 0.25, 0.75), texture=None, uv=None, crease=45.0):
    vertices, faces = np.asarray(vertices, float), np.asarray(faces)
    picture = np.asarray(colour, float).reshape(1, 1, 3) if texture is None else np.asarray(texture, float)
    uv = np.zeros((len(faces), 3, 2)) if uv is None else np.asarray(uv, float)[faces]
    normals = corner_normals(vertices[faces], crease=crease)
    return Mesh(vertices, faces, normals, uv, np.zeros(len(faces), int), (picture,))


def quad(**more):
    return mesh_of(CORNERS, [[0, 1, 2], [0, 2, 3]], uv=UV, **more)


def sphere(radius=1.0, **more):
    ball = trimesh.creation.icosphere(subdivisions=4, radius=radius)
    return mesh_of(ball.vertices, ball.faces, **more)


def camera(eye=(4.0, 0.0, 0.0), size=32, fov=40.0):
    to = {"dtype": torch.float64}
    up = torch.tensor([0.0, 0, 1], **to)
    return look_at(torch.tensor(eye, **to), torch.zeros(3, **to), up, fov=fov, width=size, height=size)


def test_a_wall_that_faces_light_and_camera_shows_its_albedo():
    picture = render(quad(), camera(size=8, fov=10), FRONT, supersample=2)
    assert picture.dtype == torch.float32
    assert torch.allclose(picture, torch.tensor([0.5, 0.25, 0.75]).expand(8, 8, 3))


def test_light_at_60_degrees_gives_the_ambient_share_and_half_of_the_diffuse_one_from_either_side_of_the_wall():
    shading = Shading(0.0, lights=(Light((1.0, math.sqrt(3), 0.0), 1.0),))
    lit = torch.tensor([0.5, 0.25, 0.75]) * (0.3 + 0.7 * 0.5)
    for vertices in (CORNERS, CORNERS[::-1]):  # wound towards the camera, and away from it
        wall = mesh_of(vertices, [[0, 1, 2], [0, 2, 3]])
        assert torch.allclose(render(wall, camera(size=4, fov=10), shading), lit.expand(4, 4, 3))
    behind = render(quad(), camera((-4.0, 0.0, 0.0), size=4, fov=10), shading)
    assert torch.allclose(behind, 0.3 * torch.tensor([0.5, 0.25, 0.75]).expand(4, 4, 3))


def test_shading_is_the_formula_of_the_specification_for_two_lights():
    normal, towards, colour = np.array([0.6, 0, 0.8]), np.array([0, 0, 1.0]), np.array([0.2, 0.3, 0.4])
    lights = (Light((0.0, 0.0, 5.0), 0.75), Light((3.0, 0.0, 4.0), 0.25))  # n.l = 0.8 and 1
    half = np.array([0.6, 0, 1.8]) / math.hypot(0.6, 1.8)
    expected = colour * (0.3 + 0.7 * (0.75 * 0.8 + 0.25 * 1)) + 0.1 * (0.8**3 + (normal @ half) ** 3)
    found = shade(colour[None], normal[None], towards[None], Shading(0.1, 3.0, lights))
    assert np.allclose(found[0], expected, atol=1e-12)


def test_a_light_behind_a_surface_gives_no_highlight_and_a_strong_one_is_cut_at_white():
    grazing = np.array([[0.3, 0.0, math.sqrt(0.91)]])
    away = Shading(1.0, 1.0, (Light((1.0, 0.0, -0.01), 1.0),))
    assert np.allclose(shade(np.ones((1, 3)), np.array([[0.0, 0.0, 1.0]]), grazing, away), 0.3)
    mirrored = Shading(5.0, 1.0, (Light((0.0, 0.0, 1.0), 1.0),))
    assert (shade(np.ones((1, 3)), grazing, grazing, mirrored) == 1).all()


@pytest.mark.parametrize("light", [(1.0, 0.0, 0.0), (1.0, 1.0, 0.0), (0.5, -0.3, 0.8)])
def test_the_highlight_of_a_sphere_is_where_the_normal_halves_light_and_view(light):
    size = 96  # seen from far away, so that there is one direction of view
    picture = render(
        sphere(colour=(0, 0, 0)), camera((100.0, 0.0, 0.0), size, fov=1.4), Shading(1.0, 200.0, (Light(light, 1.0),))
    )
    rows, columns = torch.meshgrid(torch.arange(size) + 0.5, torch.arange(size) + 0.5, indexing="ij")
    inside = torch.hypot(rows - size / 2, columns - size / 2) < 36  # of the disc of 39 pixels
    bright = (picture[..., 0] * inside) ** 4
    found = [float((bright * axis).sum() / bright.sum()) for axis in (columns, rows)]
    half = np.array(light) / np.linalg.norm(light) + [1.0, 0, 0]
    half /= np.linalg.norm(half)
    focal = size / 2 / math.tan(math.radians(0.7))
    expected = [size / 2 + focal * half[1] / (100 - half[0]), size / 2 - focal * half[2] / (100 - half[0])]
    assert np.allclose(found, expected, atol=0.7)


def test_the_silhouette_of_a_sphere_is_the_analytic_disc_before_white():
    size, radius, distance = 64, 0.8, 4.0
    picture = render(sphere(radius, colour=(0, 0, 0)), camera((distance, 0, 0), size), FRONT)
    focal = size / 2 / math.tan(math.radians(20))
    disc = focal * math.tan(math.asin(radius / distance))
    middle = torch.arange(size) + 0.5 - size / 2
    away = torch.hypot(middle[:, None], middle[None, :])
    assert (picture[away > disc + 0.75] == 1).all()
    assert (picture[away < disc - 0.75] == 0).all()
    assert float((1 - picture[..., 0]).sum()) == pytest.approx(math.pi * disc**2, rel=5e-3)


def test_a_texture_stands_upright_with_its_first_row_on_top_and_its_first_column_on_the_left():
    red, green, blue, black = np.array([[1, 0, 0], [0, 1, 0], [0, 0, 1], [0, 0, 0]], float)
    texture = np.array([[red, green], [blue, black]]).repeat(16, 0).repeat(16, 1)
    # From +x with z up, +y is on the right, as u is.
    picture = render(quad(texture=texture), camera(size=8, fov=2 * math.degrees(math.atan(0.25))), FRONT).numpy()
    for place, colour in (((1, 1), red), ((1, 6), green), ((6, 1), blue), ((6, 6), black)):
        assert np.allclose(picture[place], colour, atol=1e-6), place


def test_a_texture_is_looked_up_bilinearly_between_the_centres_of_its_pixels_and_repeats():
    texture = np.random.default_rng(0).random((3, 4, 3))
    uv = np.array([[0.125, 5 / 6], [0.25, 5 / 6], [0.125, 4 / 6], [1.125, -1 / 6], [0.0, 0.5]])
    expected = [
        texture[0, 0],
        (texture[0, 0] + texture[0, 1]) / 2,
        (texture[0, 0] + texture[1, 0]) / 2,
        texture[0, 0],
        (texture[1, 3] + texture[1, 0]) / 2,
    ]
    wall = mesh_of(np.eye(3), [[0, 1, 2]], texture=texture)
    found = [albedo(replace(wall, uv=np.tile(at, (1, 3, 1))), np.zeros(1, int), np.eye(3)[:1])[0] for at in uv]
    assert np.allclose(found, expected, atol=1e-12)


def test_each_face_takes_the_texture_of_its_own_material():
    wall = quad()
    pictures = (np.zeros((1, 1, 3)), np.ones((1, 1, 3)))
    two = replace(wall, material=np.array([1, 0]), textures=pictures)
    assert np.array_equal(albedo(two, np.array([0, 1, 0]), np.full((3, 3), 1 / 3))[:, 0], [1, 0, 1])


def test_supersampling_is_the_mean_of_the_larger_picture():
    ball, view = sphere(), camera((3.0, 0.4, 1.0), size=12)
    large = render(ball, view.resized(36, 36), Shading(), supersample=1)
    mean = large.reshape(12, 3, 12, 3, 3).mean((1, 3))
    assert torch.allclose(render(ball, view, Shading(), supersample=3), mean, atol=1e-6)


def test_highlights_move_with_the_camera_and_a_diffuse_surface_looks_the_same_from_everywhere():
    face, normal = np.full((2, 3), 0.5), np.tile([0.0, 0.0, 1.0], (2, 1))
    towards = np.array([[0, 0, 1.0], [0.6, 0, 0.8]])
    matt, glossy = shade(face, normal, towards, Shading(0.0)), shade(face, normal, towards, Shading(0.5))
    assert np.array_equal(matt[0], matt[1]) and abs(glossy[0] - glossy[1]).max() > 0.01


def test_normals_of_a_sphere_are_radial_and_those_of_a_cube_stay_flat():
    ball = trimesh.creation.icosphere(subdivisions=3)
    corners = ball.vertices[ball.faces]
    assert ((corner_normals(corners) * corners).sum(-1) > 0.9999).all()
    cube = trimesh.creation.box()
    assert np.allclose(corner_normals(cube.vertices[cube.faces]), cube.face_normals[:, None], atol=1e-12)
    everything = corner_normals(cube.vertices[cube.faces], crease=91)
    assert abs((everything * cube.face_normals[:, None]).sum(-1) - 1).min() > 0.1


def test_a_seam_of_the_texture_and_a_face_wound_the_wrong_way_do_not_show_in_the_normals():
    ball = trimesh.creation.icosphere(subdivisions=3)
    corners = np.array(ball.vertices[ball.faces])  # every face has vertices of its own
    corners[7] = corners[7][::-1]
    normals = corner_normals(corners)
    along = (normals * corners).sum(-1)
    assert (along[7] < -0.99).all() and (np.delete(along, 7, 0) > 0.999).all()


def test_points_of_the_surface_lie_on_it_evenly_with_their_albedo_and_scatter_as_told():
    texture = np.zeros((64, 64, 3))
    texture[:, 32:] = 1
    wall, count = quad(texture=texture), 20000
    points, colours = surface_points(wall, count, generator=torch.Generator().manual_seed(0))
    assert (points[:, 0] == 0).all() and float(points.abs().max()) <= 1
    assert torch.allclose(points.mean(0), torch.zeros(3), atol=5 / math.sqrt(count))
    assert torch.allclose(points[:, 1:].var(0), torch.full((2,), 1 / 3), atol=0.02)  # even in [-1, 1]
    inside = (points[:, 1].abs() - 0.5).abs() < 0.45  # away from the colours' edge and from where they repeat
    assert torch.equal(colours[inside, 0], (points[inside, 1] > 0).float())
    noisy, same = surface_points(wall, count, noise=0.03, generator=torch.Generator().manual_seed(0))
    assert torch.equal(colours, same)
    assert torch.allclose((noisy - points).std(0), torch.full((3,), 0.03), rtol=0.03)
    assert float((noisy - points).norm(dim=1).max()) < 0.03 * 6


def test_points_fall_on_faces_in_proportion_to_their_area():
    vertices = [[0, 0, 0], [3, 0, 0], [0, 1, 0], [0, 0, 5], [1, 0, 5], [0, 1, 5]]  # areas 1.5 and 0.5
    mesh = mesh_of(vertices, [[0, 1, 2], [3, 4, 5]])
    points, _ = surface_points(mesh, 10000, generator=torch.Generator().manual_seed(1))
    assert float((points[:, 2] == 0).double().mean()) == pytest.approx(0.75, abs=0.02)


def write_obj(folder, texture="paint.png"):
    paint = np.array([[[255, 0, 0], [0, 255, 0]], [[0, 0, 255], [0, 0, 0]]], np.uint8)
    Image.fromarray(paint).save(folder / "paint.png")
    (folder / "sub").mkdir()
    (folder / "sub" / "m.mtl").write_text(f"newmtl skin\nKd 0.2 0.4 0.6\n{f'map_Kd {texture}' if texture else ''}\n")
    path = folder / "sub" / "m.obj"
    path.write_text(
        "mtllib m.mtl\nv 0 0 0\nv 4 0 0\nv 4 2 0\nv 0 2 0\nvt 0 0\nvt 1 0\nvt 1 1\nvt 0 1\nusemtl skin\n"
        "f 1/1 2/2 3/3\nf 1/1 3/3 4/4\nf 1/1 1/1 2/2\n"
    )
    return path


def test_a_mesh_is_turned_upright_centred_and_scaled_to_the_unit_sphere_and_loses_faces_without_area(tmp_path):
    mesh = read_mesh(write_obj(tmp_path, "../paint.png"), up="y")
    assert len(mesh.faces) == 2
    half = np.array([2.0, 1.0]) / math.sqrt(5)
    corners = {tuple(np.round(v, 9)) for v in mesh.vertices[mesh.faces].reshape(-1, 3)}
    assert corners == {tuple(np.round([x * half[0], 0, z * half[1]], 9)) for x in (-1, 1) for z in (-1, 1)}
    assert np.allclose(mesh.normals, [0, -1, 0])  # +z of the file comes to look at -y
    assert np.allclose(mesh.textures[0], [[[1, 0, 0], [0, 1, 0]], [[0, 0, 1], [0, 0, 0]]])
    unturned = read_mesh(tmp_path / "sub" / "m.obj", up="z")
    assert np.allclose(unturned.normals, [0, 0, 1])
    # Whichever way vertices were numbered, uv belongs to the corner: u grows with x, v with the height.
    for place, uv in zip(mesh.corners.reshape(-1, 3), mesh.uv.reshape(-1, 2), strict=True):
        assert np.allclose(uv, (place[[0, 2]] / half + 1) / 2)


def test_the_parts_of_a_file_keep_their_places_and_their_colours(tmp_path):
    (tmp_path / "two.mtl").write_text("newmtl a\nKd 1 0 0\nnewmtl b\nKd 0 0 1\n")
    (tmp_path / "two.obj").write_text(
        "mtllib two.mtl\nv 0 0 0\nv 1 0 0\nv 0 1 0\nv 0 0 4\nv 1 0 4\nv 0 1 4\n"
        "o first\nusemtl a\nf 1 2 3\no second\nusemtl b\nf 4 5 6\n"
    )
    mesh = read_mesh(tmp_path / "two.obj", up="z")
    lower = mesh.corners[:, :, 2] < 0
    assert sorted(lower.all(1)) == [False, True] and sorted((~lower).all(1)) == [False, True]
    found = albedo(mesh, np.arange(2), np.full((2, 3), 1 / 3))
    assert np.allclose(found, np.where(lower[:, :1], [1, 0, 0], [0, 0, 1]))


def test_a_plain_material_gives_its_diffuse_colour_and_a_file_without_one_the_given_colour(tmp_path):
    path = write_obj(tmp_path, texture=None)
    assert np.allclose(read_mesh(path).textures[0], [[[0.2, 0.4, 0.6]]], atol=1 / 255)
    trimesh.creation.box().export(tmp_path / "box.ply")
    assert np.allclose(read_mesh(tmp_path / "box.ply", colour=(0.1, 0.2, 0.3)).textures[0], [[[0.1, 0.2, 0.3]]])


def test_bad_files_and_numbers_are_refused_in_a_sentence(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"nothing\.obj does not exist"):
        read_mesh(tmp_path / "nothing.obj")
    with pytest.raises(FileNotFoundError, match=r"no\.png"):
        read_mesh(write_obj(tmp_path, "no.png"))
    (tmp_path / "empty.obj").write_text("v 0 0 0\n")
    with pytest.raises(ValueError, match=r"empty\.obj"):
        read_mesh(tmp_path / "empty.obj")
    (tmp_path / "noise.ply").write_bytes(b"not a mesh")
    with pytest.raises(ValueError, match=r"noise\.ply cannot be read"):
        read_mesh(tmp_path / "noise.ply")
    with pytest.raises(ValueError, match="up is 'x'"):
        read_mesh(tmp_path / "empty.obj", up="x")
    with pytest.raises(ValueError, match="supersample is 0"):
        render(quad(), camera(), FRONT, supersample=0)
    with pytest.raises(ValueError, match="points is 0"):
        surface_points(quad(), 0)
    with pytest.raises(ValueError, match="ks is -1"):
        Shading(-1.0)
    with pytest.raises(ValueError, match=r"add up to 0\.6"):
        Shading(lights=LIGHTS[:1])


def test_without_the_wheels_the_remedy_is_named(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(FileNotFoundError, match=r"pip install pybullet==3\.2\.7"):
        find_pybullet_data()
    monkeypatch.setitem(sys.modules, "trimesh.ray.ray_pyembree", None)
    with pytest.raises(ModuleNotFoundError, match="pip install embreex"):
        render(quad(), camera(), FRONT)
