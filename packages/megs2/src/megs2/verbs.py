"""The verbs of the command: convert, prune, render, info, plot."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

import torch
from rich.table import Table
from shared.logs import console
from tqdm import tqdm

from megs2.app import Megs2CLI
from megs2.camera import Camera
from megs2.captures import load_capture
from megs2.figures import draw_scene
from megs2.fitting import to_harmonics, to_lobes
from megs2.formats import bytes_by_part, check_suffix, load, save
from megs2.gaussians import Gaussians
from megs2.importance import blending_weights, visible_colours
from megs2.memory import drawing_bytes
from megs2.module import fastest_colours
from megs2.paths import orbit_of, read_cameras
from megs2.pictures import check_film, save_film, save_png
from megs2.pruning import Pruner, Pruning, costs_of, cut
from megs2.rasterizer import Backend, choose_backend, render
from megs2.scene import Scene

ORBITS = (-30.0, 10.0, 50.0)  # elevations, degrees


def scene_of(name: str) -> Gaussians:
    """Return the scene of a file, of a run folder, or of the newest run (`last`).

    Raises:
        FileNotFoundError: if there is neither such a file nor such a run.
        ValueError: if the file holds no scene.
    """
    if Path(name).is_file():
        return load(name)
    if Path(name).suffix in (".ply", ".safetensors"):
        raise FileNotFoundError(f"{name}: no such file")
    return Megs2CLI.of_run(name).model.scene.gaussians.detach()


def _device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def _backend() -> Backend:
    return choose_backend("auto", _device())


def convert(input: str, out: Path, to: Literal["same", "sg", "3dgs"], lobes: int, degree: int, half: bool) -> None:
    """Write a scene in another format or colour model; see `cli.convert`."""
    check_suffix(out)
    if not 1 <= lobes <= 3:
        raise ValueError(f"lobes must lie in 1..3, got {lobes}")
    scene = scene_of(input)
    if to == "sg" and not scene.max_lobes:
        scene, error = to_lobes(scene, lobes)
        _say_error("lobes fitted to the harmonics", error)
    elif to == "3dgs" and scene.max_lobes:
        scene, error = to_harmonics(scene, degree)
        _say_error("harmonics fitted to the lobes", error)
    save(out, scene, half=half)
    console.print(f"{out}: {len(scene):,} Gaussians, {out.stat().st_size / 1e6:.3f} MB", soft_wrap=True)


def _say_error(what: str, error: torch.Tensor) -> None:
    if len(error):
        mean, worst = float(error.square().mean().sqrt()), float(error.max())
        console.print(f"{what}: root mean square error of colours in [0, 1], over the sphere and before the clamp, "
                      f"{mean:.4f}; of the worst Gaussian {worst:.4f}", soft_wrap=True)  # fmt: skip


def _cameras(source: str, scene: Gaussians, frames: int, size: tuple[int, int], fov: float) -> list[Camera]:
    """Return an orbit, or the cameras of a file or of a capture's training views."""
    if source == "orbit":
        return orbit_of(scene.means, frames, fov=fov, width=size[0], height=size[1])
    if Path(source).is_dir():
        return [view.camera for view in load_capture(Path(source)).train]
    return read_cameras(Path(source))


def _all_around(scene: Gaussians) -> list[Camera]:
    """Return three orbits, which see a scene from nearly all sides."""
    return [
        camera for height in ORBITS for camera in orbit_of(scene.means, 12, elevation=height, width=256, height=256)
    ]


def prune(
    input: str, out: Path, budget_mb: float | None, cameras: str | None, worth: Literal["colour", "weight"]
) -> None:
    """Cut a trained scene down to a budget at once; see `cli.prune`."""
    check_suffix(out)
    if budget_mb is None:
        raise ValueError("budget_mb must be given, the megabytes that the scene may take")
    options = Pruning(method="hard", budget_mb=budget_mb, worth=worth)
    scene = scene_of(input).to(_device())
    places = _all_around(scene) if cameras is None else _cameras(cameras, scene, 12, (256, 256), 40.0)
    places = [camera.to(_device()) for camera in places]
    weights = blending_weights(scene, places, backend=_backend())
    values = weights * visible_colours(scene, places) if worth == "colour" and len(scene) else weights
    kept = Pruner(options, costs_of(scene)).choose(scene, weights, values)
    module = Scene(scene)
    cut(module, {}, kept)
    small = module.gaussians.detach()
    save(out, small.to("cpu"))
    console.print(
        f"{out}: {len(small):,} of {len(scene):,} Gaussians, {int(small.counts.sum()):,} of "
        f"{int(scene.counts.sum()):,} lobes, {small.static_bytes() / 1e6:.3f} of {scene.static_bytes() / 1e6:.3f} MB",
        soft_wrap=True,
    )


def render_scene(
    input: str, out: Path, path: str, frames: int, size: Sequence[int], fov: float, fps: int, film: str | None,
    background: Sequence[float],
) -> None:  # fmt: skip
    """Draw a scene along a path; see `cli.render`."""
    if film is not None:
        check_film(out / film, fps)
    if len(size) != 2 or min(size) < 1 or frames < 1 or fps < 1 or not 0 < fov < 180:
        raise ValueError(
            f"expected size of two positive numbers, frames and fps >= 1, fov in (0, 180), got {list(size)}, {frames}, "
            f"{fps}, {fov}"
        )
    if len(background) != 3 or not all(0 <= value <= 1 for value in background):
        raise ValueError(f"background must be three numbers in [0, 1], got {list(background)}")
    scene = scene_of(input)
    cameras = _cameras(path, scene, frames, (size[0], size[1]), fov)
    scene, behind = scene.to(_device()), torch.tensor(background, device=_device())
    out.mkdir(parents=True, exist_ok=True)
    pictures = []
    for number, camera in enumerate(tqdm(cameras, desc="frames", disable=None, leave=False)):
        with torch.no_grad():
            image = render(scene, camera.to(_device()), behind, colour=fastest_colours, backend=_backend()).image
        save_png(out / f"{number:04d}.png", image)
        pictures.append(image.cpu())
    if film is not None:
        save_film(out / film, pictures, fps)
    console.print(f"{out}: {len(pictures)} pictures{f' and {film}' if film else ''}", soft_wrap=True)


def info(input: str, size: int) -> None:
    """Print what a scene consists of, and what it takes; see `cli.info`."""
    if size < 1:
        raise ValueError(f"size must be at least 1, got {size}")
    scene = scene_of(input)
    table = Table(title=f"{input}: {len(scene):,} Gaussians", title_justify="left")
    table.add_column("part")
    table.add_column("bytes", justify="right")
    for part, size_of in bytes_by_part(scene).items():
        if size_of:
            table.add_row(part, f"{size_of:,}")
    table.add_row("in all", f"{scene.static_bytes():,}")
    camera = orbit_of(scene.means, 1, width=size, height=size)[0].to(_device())
    used = drawing_bytes(scene.to(_device()), camera, colour=fastest_colours, backend=_backend())
    table.add_row(f"while drawing {size} x {size}, beside it", f"{used:,}")
    console.print(table)
    if scene.max_lobes:
        counts = torch.bincount(scene.counts, minlength=scene.max_lobes + 1).tolist()
        shares = ", ".join(f"{count:,} with {lobes}" for lobes, count in enumerate(counts))
        mean = float(scene.counts.sum()) / max(1, len(scene))
        console.print(f"lobes of a Gaussian: {mean:.2f} on average; {shares}", soft_wrap=True)
    else:
        console.print(f"spherical harmonics of degree {scene.sh_degree}")


def plot(run: str, out: Path | None, select: str) -> None:
    """Draw a run's scene beside its test photographs, and its lobes; see `cli.plot`."""
    cli = Megs2CLI.of_run(run, select=select)
    from shared.runs import find_run

    folder = find_run("megs2", run) / "figures" if out is None else out
    cli.datamodule.setup()
    scene = cli.model.scene.gaussians.detach()
    capture = cli.datamodule.capture
    for file in draw_scene(scene, replace(capture, test=capture.test or capture.train), folder):
        console.print(str(file), soft_wrap=True)
