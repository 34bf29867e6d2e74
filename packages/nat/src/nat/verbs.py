"""What the verbs of the command do; their options are explained in `cli`."""

from __future__ import annotations

import csv
import io
import logging
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from rich.table import Table
from shared.checkpoints import Manifest, atomic_write, save_weights
from shared.logs import console, metrics_table
from shared.records import one_line
from shared.runs import find_run
from shared.seeding import generator
from torch import Tensor
from torchvision.transforms import v2

from nat.app import NATCLI, draw_geometry
from nat.attack import attack_mode, margin, pgd
from nat.attack_suite import parse_attacks, parse_eps
from nat.evaluate import masking_report, robust_correct, robustness_curve, summarise, write_report
from nat.geometry import entropy
from nat.pictures import read_picture
from nat.plots import perturbation_figure, robustness_curve_figure

log = logging.getLogger(__name__)

PICTURES = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".ppm", ".pgm", ".tif", ".tiff"}
CURVE = (0.0, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 4.0)  # radii of the robustness curve, in multiples of eps


def evaluate(
    run: str, attacks: str, eps: str | None, select: str, out: Path | None, masking: bool, accelerator: str
) -> None:
    """Attack a trained network on the whole test set; write metrics, curve and checks."""
    names = parse_attacks(attacks)
    cli = NATCLI.of_run(run, select=select)
    radius = cli.model.threat.eps if eps is None else parse_eps(eps)
    device = pick_device(accelerator)
    model = cli.model.model.to(device).eval()
    batches = [(x.to(device), y.to(device)) for x, y in test_batches(cli)]
    noise = generator(cli.model.seed, "evaluate", device=device)
    parts = [robust_correct(model, x, y, names, radius, generator=noise) for x, y in batches]
    correct = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
    metrics = summarise(correct)
    x, y = (torch.cat(column) for column in zip(*batches, strict=True))
    size = len(batches[0][0])
    radii = sorted({min(factor * radius, 1.0) for factor in CURVE})
    curve = robustness_curve(model, x, y, radii, generator=noise, batch_size=size)
    checks = []
    if masking and radius > 0:
        checks = masking_report(model, x, y, radius, noise, correct=correct, batch_size=size)
    folder = out or find_run("nat", run) / "evaluation"
    files = write_report(folder, metrics, curve, checks)
    files.append(robustness_curve_figure({cli.model.method: curve}, folder / "curve.png"))
    console.print(metrics_table(metrics, title=f"eps {radius:.4g}"))
    for check in checks:
        console.print(f"{'ok     ' if check.passed else 'WARNING'} {check.message}", markup=False, soft_wrap=True)
    console.print(f"written: {', '.join(map(str, files))}", markup=False, soft_wrap=True)


def attack(
    image: Path, run: str, label: int | None, eps: str | None, steps: int, select: str, out: Path, seed: int
) -> None:
    """Attack one picture; write the adversarial picture and a figure of what changed."""
    cli = NATCLI.of_run(run, select=select)
    model = cli.model.model.eval()
    x = load_picture(image, cli)
    radius = cli.model.threat.eps if eps is None else parse_eps(eps)
    with torch.no_grad():
        before = model(x)
    y = before.argmax(1) if label is None else torch.tensor([label])
    if label is not None and not 0 <= label < before.shape[1]:
        raise ValueError(f"label must lie in [0, {before.shape[1]}), got {label}")
    x_adv = pgd(model, x, y, eps=radius, alpha=max(radius / 4, 1e-9), steps=steps, generator=generator(seed))
    with torch.no_grad():
        after = model(x_adv)
    out.mkdir(parents=True, exist_ok=True)
    pixels = (x_adv[0] * 255).round().to(torch.uint8)  # torchvision would cut the fraction off
    v2.functional.to_pil_image(pixels).save(out / "adversarial.png")
    names = cli.datamodule.class_names
    p, p_adv = before.softmax(1)[0], after.softmax(1)[0]
    perturbation_figure(x[0], x_adv[0], p, p_adv, names, out / "attack.png")
    found, fooled = int(p.argmax()), int(p_adv.argmax())
    table = Table(title=f"{image.name}, eps {radius:.4g}", title_justify="left")
    for heading in ("", "prediction", "probability", f"probability of {names[int(y)]}"):
        table.add_column(heading)
    table.add_row("before", names[found], f"{p[found]:.4f}", f"{p[y].item():.4f}")
    table.add_row("after", names[fooled], f"{p_adv[fooled]:.4f}", f"{p_adv[y].item():.4f}")
    console.print(table)
    console.print(f"written: {out / 'adversarial.png'}, {out / 'attack.png'}", markup=False, soft_wrap=True)


def predict(folder: Path, run: str, select: str, out: Path | None) -> None:
    """Classify every picture below a folder; those that cannot be read are named at the end."""
    if out is not None and out.is_dir():
        raise IsADirectoryError(f"out must name a file, got the folder {out}")
    if not folder.is_dir():
        raise FileNotFoundError(f"there is no folder {folder}")
    files = sorted(file for file in folder.rglob("*") if file.suffix.lower() in PICTURES)
    if not files:
        raise FileNotFoundError(f"{folder} holds no pictures ({', '.join(sorted(PICTURES))})")
    cli = NATCLI.of_run(run, select=select)
    names = cli.datamodule.class_names
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["file", "label", "probability", "entropy", "margin"])
    unreadable: list[str] = []
    with attack_mode(cli.model.model), torch.no_grad():
        for file in files:
            try:
                x = load_picture(file, cli)
            except (OSError, ValueError) as error:
                unreadable.append(one_line(error))
                continue
            logits = cli.model.model(x)
            top = logits.argmax(1)
            row = (logits.softmax(1)[0, top], entropy(logits), margin(logits, top))
            writer.writerow([file, names[int(top)], *(f"{value.item():.6g}" for value in row)])
    if out is None:
        print(text.getvalue(), end="")
    else:
        with atomic_write(out) as handle:
            handle.write(text.getvalue().encode())
    if unreadable:
        raise ValueError(f"{len(unreadable)} of {len(files)} pictures were left out: {'; '.join(unreadable[:3])}")


def diagnose(runs: list[str], labels: list[str] | None, select: str, out: Path) -> None:
    """Draw probabilities, entropies, margins and boundary distances of several runs on their test set."""
    if not runs:
        raise ValueError("runs must name at least one run folder, as in [RUN,BASELINE_RUN]")
    labels = labels or [Path(run).name for run in runs]
    if len(labels) != len(runs) or len(set(labels)) != len(labels):
        raise ValueError(f"labels must be {len(runs)} different names, got {', '.join(labels)}")
    clis = [NATCLI.of_run(run, select=select) for run in runs]
    data = clis[0].datamodule
    for run, cli in zip(runs, clis, strict=True):
        if (cli.datamodule.dataset, cli.datamodule.image_shape) != (data.dataset, data.image_shape):
            raise ValueError(f"{run} was trained on {cli.datamodule.dataset}, {runs[0]} on {data.dataset}")
    networks = {label: cli.model.model for label, cli in zip(labels, clis, strict=True)}
    means = draw_geometry(networks, test_batches(clis[0]), data.class_names, out)
    for label, values in means.items():
        text = ", ".join(f"{name} {value:.4g}" for name, value in values.items())
        console.print(f"{label}: {text}", markup=False, soft_wrap=True)
    console.print(f"written: {out}", markup=False, soft_wrap=True)


def export(run: str, out: Path, format: str, select: str) -> None:
    """Write the network without adversary and optimiser."""
    cli = NATCLI.of_run(run, select=select)
    model = cli.model.model.eval()
    if format == "safetensors":
        save_weights(model.state_dict(), out, Manifest.of("nat"))
    else:
        channels, height, width = cli.datamodule.image_shape
        with torch.no_grad():
            traced: Any = torch.jit.trace(model, torch.rand(2, channels, height, width), check_trace=False)  # type: ignore[no-untyped-call]
        with atomic_write(out) as file:
            torch.jit.save(traced, file)
    console.print(
        f"written: {out} ({cli.model.arch}, {cli.model.num_classes} classes; images in [0, 1] -> logits)",
        markup=False, soft_wrap=True,
    )  # fmt: skip


def pick_device(accelerator: str) -> torch.device:
    """Turn Lightning's names of accelerators into a device."""
    if accelerator == "auto":
        found = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
        return found or torch.device("cpu")
    name = {"gpu": "cuda"}.get(accelerator, accelerator)
    usable = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if not usable.get(name, False):
        usable_names = ", ".join(key for key, value in usable.items() if value)
        raise ValueError(f"accelerator must be auto or, on this machine, {usable_names}; got {accelerator!r}")
    return torch.device(name)


def test_batches(cli: NATCLI) -> Any:
    """Return the loader of a run's test set."""
    cli.datamodule.setup("test")
    return cli.datamodule.test_dataloader()


def load_picture(path: Path, cli: NATCLI) -> Tensor:
    """Read a picture as the network's input (1, C, H, W) in [0, 1]: resized, and grey where C is 1."""
    if not path.is_file():
        raise FileNotFoundError(f"there is no picture {path}")
    channels, height, width = cli.datamodule.image_shape
    picture: Image.Image = read_picture(path)
    if picture.size != (width, height):
        log.info("%s is resized from %d x %d to %d x %d", path.name, *picture.size, width, height)
    x = v2.functional.to_image(picture.convert("L") if channels == 1 else picture)
    x = v2.functional.to_dtype(x, torch.float32, scale=True)
    return v2.functional.resize(x, [height, width], antialias=True).as_subclass(Tensor)[None].clamp(0, 1)
