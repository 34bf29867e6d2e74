"""The command `megs2`. What it needs is imported when it runs, so that every `--help` answers at once."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from shared.cli import Paper
from shared.cli import main as run


def convert(
    input: str,
    out: Path,
    to: Literal["same", "sg", "3dgs"] = "same",
    lobes: int = 3,
    degree: int = 3,
    half: bool = False,
) -> None:
    """Write a scene in another format, or with another colour model.

    Args:
        input: a .ply of 3DGS or of MEGS², a .safetensors of this package, a run folder, or `last`.
        out: the file to write: .ply for viewers, .safetensors for the compact format.
        to: `sg` fits lobes to spherical harmonics, `3dgs` fits harmonics to lobes, for viewers that know nothing else.
        lobes: of each Gaussian, 1 to 3; with `sg`.
        degree: of the harmonics, 0 to 3; with `3dgs`.
        half: half precision, for .safetensors.
    """
    from megs2.verbs import convert

    convert(input, out, to, lobes, degree, half)


def prune(
    input: str,
    out: Path,
    budget_mb: float | None = None,
    cameras: str | None = None,
    worth: Literal["colour", "weight"] = "colour",
) -> None:
    """Cut a trained scene down to a budget of memory, at once and without training.

    Args:
        input: a .ply of 3DGS or of MEGS², a .safetensors of this package, a run folder, or `last`.
        out: the file to write, .ply or .safetensors.
        budget_mb: megabytes (10^6 bytes) that the scene may take in memory; has to be given.
        cameras: what importance is measured by: a cameras.json, or the folder of a capture, whose training views
            count; orbits around the scene when null.
        worth: of a Gaussian: its blending weight times the mean colour that is seen, or the weight alone.
    """
    from megs2.verbs import prune

    prune(input, out, budget_mb, cameras, worth)


def render(
    input: str,
    out: Path = Path("pictures"),
    path: str = "orbit",
    frames: int = 60,
    size: tuple[int, int] = (512, 512),
    fov: float = 40.0,
    fps: int = 30,
    film: str | None = "film.gif",
    background: tuple[float, float, float] = (1.0, 1.0, 1.0),
) -> None:
    """Draw a scene along a path of cameras.

    Args:
        input: a .ply of 3DGS or of MEGS², a .safetensors of this package, a run folder, or `last`.
        out: folder for the pictures, 0000.png and so on, and the film.
        path: `orbit`, a cameras.json, or the folder of a capture, whose training views are drawn.
        frames: of an orbit.
        size: width and height of its pictures, pixels.
        fov: its horizontal angle of view, degrees.
        fps: frames of a second of the film.
        film: its name, .gif or (with PyAV) .mp4; null for none.
        background: behind the scene, three numbers in [0, 1].
    """
    from megs2.verbs import render_scene

    render_scene(input, out, path, frames, size, fov, fps, film, background)


def scene(input: str, size: int = 512) -> None:
    """Print how many Gaussians and lobes a scene has, and what takes how much memory.

    Args:
        input: a .ply of 3DGS or of MEGS², a .safetensors of this package, a run folder, or `last`.
        size: of the picture for which the memory of drawing is measured, pixels.
    """
    from megs2.verbs import info

    info(input, size)


def plot(run: str = "last", out: Path | None = None, select: str = "last") -> None:
    """Draw a run's scene beside its test photographs, the places and numbers of its lobes, and one colour by direction.

    Args:
        run: a run folder, or `last`.
        out: folder for the figures; that of the run when null.
        select: which checkpoint: last, best, or a file.
    """
    from megs2.verbs import plot

    plot(run, out, select)


PAPER = Paper(
    name="megs2",
    title="MEGS²: memory-efficient Gaussian splatting by spherical Gaussians and unified pruning",
    cli="megs2.app:Megs2CLI",
    verbs={"convert": convert, "prune": prune, "render": render, "scene": scene, "plot": plot},
    study="megs2.comparison:study",
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    return run(PAPER, argv)
