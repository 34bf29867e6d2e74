from __future__ import annotations

import logging
import struct
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from megs2.camera import look_at
from megs2.compact import extra_of
from megs2.formats import load, save
from megs2.gaussians import Gaussians, build, from_points
from megs2.module import psnr
from megs2.rasterizer import render
from plyfile import PlyData, PlyElement

CAMERA = look_at(torch.tensor([0.0, -4, 1]), torch.zeros(3), torch.tensor([0.0, 0, 1]), fov=40, width=32, height=24)


def scene(kind: str, n: int = 40) -> Gaussians:
    g = torch.Generator().manual_seed(n)
    degree = int(kind[2]) if kind.startswith("sh") else 0
    made = from_points(
        torch.randn(n, 3, generator=g), torch.rand(n, 3, generator=g), sh_degree=degree, lobes=3 * (kind == "sg"),
        generator=g,
    )  # fmt: skip
    made.quats.copy_(torch.randn(n, 4, generator=g))
    made.rest.copy_(0.2 * torch.randn(made.rest.shape, generator=g))
    made.opacities.copy_(torch.randn(n, generator=g))
    if kind == "sg":
        made.counts[:] = torch.randint(0, 4, (n,), generator=g)
        made.sharpness.copy_(4 * torch.randn(n, 3, generator=g))
    return made


def picture(made: Gaussians) -> torch.Tensor:
    return render(made, CAMERA, torch.ones(3)).image


def same_gaussians(first: Gaussians, second: Gaussians) -> bool:
    """Whether two scenes have the same Gaussians in an order of the number of lobes; unused slots do not count."""
    first = first.select(torch.argsort(first.counts, stable=True))
    if not torch.equal(first.counts, second.counts):
        return False
    for name in (field.name for field in fields(Gaussians)):
        a, b = getattr(first, name), getattr(second, name)
        if name in ("axes", "sharpness", "amplitudes"):
            a, b = a[first.active], b[second.active]
        if not torch.equal(a, b):
            return False
    return True


@pytest.mark.parametrize("suffix", [".ply", ".safetensors"])
@pytest.mark.parametrize("kind", ["sh0", "sh1", "sh2", "sh3", "sg"])
def test_what_is_written_is_read_bit_by_bit_and_draws_the_same(kind: str, suffix: str, tmp_path: Path) -> None:
    made = scene(kind)
    save(tmp_path / f"a{suffix}", made)
    found = load(tmp_path / f"a{suffix}")
    assert same_gaussians(made, found)
    torch.testing.assert_close(picture(found), picture(made), rtol=0, atol=1e-6)


@pytest.mark.parametrize("suffix", [".ply", ".safetensors"])
@pytest.mark.parametrize("kind", ["sh3", "sg"])
def test_an_empty_scene_is_a_scene(kind: str, suffix: str, tmp_path: Path) -> None:
    save(tmp_path / f"a{suffix}", scene(kind).select(torch.zeros(40, dtype=torch.bool)))
    assert len(load(tmp_path / f"a{suffix}")) == 0


@pytest.mark.parametrize("kind", ["sh3", "sg"])
def test_half_precision_draws_nearly_the_same_at_nearly_half_the_size(kind: str, tmp_path: Path) -> None:
    made = scene(kind, 2000)
    save(tmp_path / "a.safetensors", made)
    save(tmp_path / "b.safetensors", made, half=True)
    assert psnr(picture(load(tmp_path / "b.safetensors")), picture(made)) > 50
    sizes = [(tmp_path / name).stat().st_size for name in ("a.safetensors", "b.safetensors")]
    assert sizes[1] < 0.62 * sizes[0]
    # beside a header, the file is as large as the scene is said to be
    assert sizes[0] == pytest.approx(made.static_bytes() + (0 if kind == "sg" else 2000), abs=1200)


def by_hand(rows: list[tuple[float, ...]], names: list[str], element: str) -> bytes:
    """Write a PLY byte by byte."""
    header = f"ply\nformat binary_little_endian 1.0\nelement {element} {len(rows)}\n"
    header += "".join(f"property float {name}\n" for name in names) + "end_header\n"
    return header.encode() + b"".join(struct.pack(f"<{len(row)}f", *row) for row in rows)


SH3 = [
    "x", "y", "z", "nx", "ny", "nz", "f_dc_0", "f_dc_1", "f_dc_2", *[f"f_rest_{i}" for i in range(45)], "opacity",
    "scale_0", "scale_1", "scale_2", "rot_0", "rot_1", "rot_2", "rot_3",
]  # fmt: skip
SG1 = [
    "x", "y", "z", "nx", "ny", "nz", "rgb_base_0", "rgb_base_1", "rgb_base_2", "sg_axis_count", "sg_dir_0_0",
    "sg_dir_0_1", "sg_dir_0_2", "sg_sharp_0", "sg_rgb_0_0", "sg_rgb_0_1", "sg_rgb_0_2", "scale_0", "scale_1", "scale_2",
    "rot_0", "rot_1", "rot_2", "rot_3", "opacity",
]  # fmt: skip


def test_a_file_of_3dgs_is_read_by_its_fields(tmp_path: Path) -> None:
    (tmp_path / "a.ply").write_bytes(by_hand([tuple(float(i + 1) for i in range(62))], SH3, "vertex"))
    found = load(tmp_path / "a.ply")
    assert found.means.tolist() == [[1, 2, 3]]
    assert found.base.tolist() == [[7, 8, 9]]
    # 15 of red, then 15 of green, then 15 of blue
    assert found.rest[0, 0].tolist() == [10, 25, 40]
    assert found.rest[0, 14].tolist() == [24, 39, 54]
    assert found.opacities.tolist() == [55]
    assert found.scales.tolist() == [[56, 57, 58]]
    assert found.quats.tolist() == [[59, 60, 61, 62]]


def test_a_file_of_the_release_is_read_by_its_fields(tmp_path: Path) -> None:
    (tmp_path / "a.ply").write_bytes(by_hand([tuple(float(i + 1) for i in range(25))], SG1, "vertex_1"))
    found = load(tmp_path / "a.ply")
    assert found.counts.tolist() == [1]
    assert found.base.tolist() == [[7, 8, 9]]
    assert found.axes[0, 0].tolist() == [11, 12, 13]
    assert found.sharpness[0].tolist() == [14, 0, 0]
    assert found.amplitudes[0, 0].tolist() == [15, 16, 17]
    assert found.scales.tolist() == [[18, 19, 20]]
    assert found.quats.tolist() == [[21, 22, 23, 24]]
    assert found.opacities.tolist() == [25]


@pytest.mark.parametrize(("kind", "names"), [("sh3", SH3), ("sg", SG1)])
def test_fields_are_written_in_the_order_of_the_releases(kind: str, names: list[str], tmp_path: Path) -> None:
    save(tmp_path / "a.ply", scene(kind))
    elements = {element.name: element for element in PlyData.read(tmp_path / "a.ply").elements}
    assert list(elements) == (["vertex"] if kind == "sh3" else [f"vertex_{i}" for i in range(4)])
    of = elements["vertex" if kind == "sh3" else "vertex_1"]
    assert [p.name for p in of.properties] == names
    assert all(p.val_dtype == "f4" for p in of.properties)


def test_unknown_fields_and_other_orders_and_text_are_read_too(tmp_path: Path) -> None:
    made = scene("sh1")
    save(tmp_path / "a.ply", made)
    rows = PlyData.read(tmp_path / "a.ply")["vertex"].data
    names = [*reversed(rows.dtype.names), "extra"]
    turned = np.zeros(len(rows), [(name, "f8") for name in names])
    for name in rows.dtype.names:
        turned[name] = rows[name]
    PlyData([PlyElement.describe(turned, "vertex")], text=True).write(str(tmp_path / "b.ply"))
    assert same_gaussians(made, load(tmp_path / "b.ply"))


def test_infinite_opacities_are_made_finite_and_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    made = scene("sh0")
    made.opacities[:3] = torch.tensor([float("inf"), float("-inf"), float("inf")])
    save(tmp_path / "a.ply", made)
    with caplog.at_level(logging.WARNING):
        found = load(tmp_path / "a.ply")
    assert found.opacities[:3].tolist() == [15, -15, 15]
    assert "3 infinite opacities were made finite" in caplog.text


def broken(kind: str, change: Callable[[Gaussians], object]) -> Gaussians:
    made = scene(kind)
    change(made)
    return made


@pytest.mark.parametrize("suffix", [".ply", ".safetensors"])
@pytest.mark.parametrize(
    ("kind", "change"),
    [
        ("sh0", lambda s: s.means[[5, 9]].fill_(0) is None or s.means.__setitem__(([5, 9], 0), float("nan"))),
        ("sh2", lambda s: s.rest.__setitem__(([5, 9], 3, 1), float("inf"))),
        ("sh0", lambda s: s.quats.__setitem__([5, 9], 0.0)),
        ("sh0", lambda s: s.opacities.__setitem__([5, 9], float("nan"))),
        ("sh0", lambda s: s.scales.__setitem__(([5, 9], 2), float("-inf"))),
        (
            "sg",
            lambda s: (
                s.counts.__setitem__(slice(None), 0),
                s.counts.__setitem__([5, 9], 1),
                s.axes.__setitem__([5, 9], 0),
            ),
        ),
        ("sg", lambda s: (s.counts.__setitem__(slice(None), 1), s.sharpness.__setitem__(([5, 9], 0), float("nan")))),
    ],
    ids=["means", "harmonics", "rotations", "opacities", "scales", "axes", "sharpness"],
)
def test_rows_that_are_not_finite_are_refused_with_their_number(
    kind: str, change: Callable[[Gaussians], object], suffix: str, tmp_path: Path
) -> None:
    save(tmp_path / f"a{suffix}", broken(kind, change))
    with pytest.raises(ValueError, match="2 of 40 Gaussians are not finite, the first is"):
        load(tmp_path / f"a{suffix}")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"plywood", "not a PLY file that can be read"),
        (b"", "not a safetensors file that can be read"),
        (b"\x00" * 64, "not a safetensors file that can be read"),
        (by_hand([(0.0, 0.0, 0.0)], ["x", "y", "z"], "vertex"), "no scene of Gaussians, it lacks"),
        (
            by_hand([(0.0, 0.0, 0.0)], ["x", "y", "z"], "point"),
            "expected an element vertex, or vertex_0 and so on, got point",
        ),
        (by_hand([tuple([0.5] * 62)], SH3, "vertex")[:-9], "not a PLY file that can be read"),
        (
            by_hand([tuple([0.5] * 61)], [n for n in SH3 if n != "f_rest_7"], "vertex"),
            "44 properties f_rest, expected 0, 9, 24 or 45",
        ),
        (by_hand([tuple([0.5] * 61)], [n for n in SH3 if n != "rot_2"], "vertex"), "lacks rot_2"),
    ],
    ids=["no PLY", "empty", "zeros", "points", "no vertex", "cut off", "harmonics", "rotation"],
)
def test_what_is_no_scene_is_refused(content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "a.ply").write_bytes(content)
    with pytest.raises(ValueError, match=message):
        load(tmp_path / "a.ply")


def test_files_that_are_not_there_and_names_without_a_format_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no such file"):
        load(tmp_path / "a.ply")
    with pytest.raises(FileNotFoundError, match="no such file"):
        load(tmp_path)
    with pytest.raises(ValueError, match=r"expected a name that ends in .ply or .safetensors"):
        save(tmp_path / "a.obj", scene("sg"))
    with pytest.raises(ValueError, match="a PLY has no half precision"):
        save(tmp_path / "a.ply", scene("sg"), half=True)
    assert list(tmp_path.iterdir()) == []


def test_a_compact_file_of_another_kind_or_damaged_is_refused(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    path = tmp_path / "a.safetensors"
    save(path, scene("sg"), extra={"budget_mb": "0.1"})
    assert extra_of(path) == {"budget_mb": "0.1"}
    tensors, about = load_file(path), {"format": "megs2", "version": "1", "max_lobes": "3"}
    for change, other, message in (
        ({}, {"format": "jpeg"}, "no scene of this package, its format is 'jpeg'"),
        ({}, {"version": "9"}, "version 9 of the format, expected 1"),
        ({"axes": tensors["axes"][:-1].clone()}, {}, "axes has shape"),
        ({"scales": tensors["scales"][:, :2].clone()}, {}, r"scales has shape \(40, 2\), expected \(40, 3\)"),
        ({"counts": tensors["counts"] + 9}, {}, "expected up to 3 lobes"),
    ):
        save_file(tensors | change, path, about | other)
        with pytest.raises(ValueError, match=message):
            load(path)
    del tensors["quats"]
    save_file(tensors, path, about)
    with pytest.raises(ValueError, match="the scene lacks quats"):
        load(path)


def test_numbers_too_large_for_half_precision_are_refused(tmp_path: Path) -> None:
    made = replace(scene("sg"), base=torch.full((40, 3), 1e6))
    with pytest.raises(ValueError, match="120 numbers are too large for half precision"):
        save(tmp_path / "a.safetensors", made, half=True)
    assert not (tmp_path / "a.safetensors").exists()


def test_lobes_and_harmonics_together_have_no_ply(tmp_path: Path) -> None:
    n = torch.zeros(2, 3)
    both = build(n, n, torch.ones(2, 4), torch.zeros(2), n, rest=torch.zeros(2, 3, 3), axes=torch.ones(2, 1, 3))
    with pytest.raises(ValueError, match="a PLY holds up to 3 lobes, or harmonics"):
        save(tmp_path / "a.ply", both)
