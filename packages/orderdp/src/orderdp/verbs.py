"""What the verbs of the command do; their options are explained in `cli`."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.table import Table
from shared.checkpoints import atomic_write, load
from shared.logs import console
from shared.records import one_line
from shared.runs import checkpoint_of, find_run

from orderdp.plots import draw_usage, draw_weights
from orderdp.selection import sizes
from orderdp.surrogate import never_kept, order_weights, surrogate_loss

STATE = "OrderDPData"  # Lightning keeps a datamodule's state under the name of its class


def plan(
    n: int, prune: float, explore: float, batch_size: int, epochs: int, losses: Path | None, out: Path | None
) -> None:
    """Print what a pruning will cost and favour; draw γ."""
    if not 0 <= prune < 1:
        raise ValueError(f"prune must lie in [0, 1), got {prune}")
    for option, value in {"n": n, "batch_size": batch_size, "epochs": epochs}.items():
        if value < 1:
            raise ValueError(f"{option} must be at least 1, got {value}")
    values = None if losses is None else read_losses(losses)
    if values is not None and len(values) != n:
        raise ValueError(f"{losses} holds {len(values)} losses, expected n = {n}")
    # 1 - 0.7 is a little more than 0.3 in binary, which must not push the pool below what is kept.
    s, q = sizes(n, round(1 - prune, 12), explore)
    gamma = order_weights(n, s, q)
    steps, all_steps = -(-q // batch_size), -(-n // batch_size)
    rows: dict[str, Any] = {
        "pool s": s,
        "kept q": q,
        "exploration ρ = s/n": f"{s / n:.6g}",
        "exploitation κ = q/s": f"{q / s:.6g}",
        "kept q/n": f"{q / n:.6g}",
        "steps an epoch": f"{steps} instead of {all_steps}",
        f"steps in {epochs} epochs": f"{steps * epochs} instead of {all_steps * epochs}",
        "never kept in a round": f"{never_kept(s, q)} samples of lowest score",
        "chance of the highest score": f"{gamma[0]:.4g}, of the median {gamma[n // 2]:.4g}, by chance {q / n:.4g}",
    }
    if values is not None:
        surrogate = surrogate_loss(values, s, q)
        rows["mean loss L"] = f"{values.mean():.6g}"
        times = f", {surrogate / values.mean():.4g} times L" if values.mean() else ""
        rows["surrogate L_q"] = f"{surrogate:.6g}{times}"
    table = Table(show_header=False)
    for name, value in rows.items():
        table.add_row(name, str(value))
    console.print(table)
    if out is not None:
        draw_weights(gamma, q / n, out)
        console.print(f"written: {out}", markup=False, soft_wrap=True)


def usage(run: str, top: int, select: str, out: Path | None) -> None:
    """Draw how often each sample was trained on; list those most used."""
    if top < 1:
        raise ValueError(f"top must be at least 1, got {top}")
    folder, state = read_state(run, select)
    visits, scores = state["visits"].numpy(), state["scores"].numpy()
    file = folder / "figures" / "usage.png" if out is None else out
    draw_usage(visits, state["rounds_begun"], file)
    console.print(
        f"{len(visits)} samples in {state['rounds_begun']} rounds: trained on {visits.sum()} times, "
        f"{(visits == 0).sum()} samples never, the most used {visits.max()} times"
    )
    # The newest loss decides between samples used equally often.
    order = np.lexsort((-scores, -visits))[:top]
    table = Table(title="most used: hard samples, or wrong labels", title_justify="left")
    for heading in ("index in the training part", "visits", "score"):
        table.add_column(heading, justify="right")
    for index in order:
        table.add_row(str(index), str(visits[index]), f"{scores[index]:.4f}")
    console.print(table)
    console.print(f"written: {file}", markup=False, soft_wrap=True)


def export_scores(run: str, out: Path, select: str) -> None:
    """Write index, score and visits of every training sample as CSV."""
    if out.is_dir():
        raise IsADirectoryError(f"out must name a file, got the folder {out}")
    _, state = read_state(run, select)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["index", "score", "visits"])
    for index, (score, visits) in enumerate(zip(state["scores"].tolist(), state["visits"].tolist(), strict=True)):
        writer.writerow([index, f"{score + 0.0:.8g}", visits])
    with atomic_write(out) as file:
        file.write(text.getvalue().encode())
    console.print(f"written: {out}", markup=False, soft_wrap=True)


def read_state(run: str, select: str) -> tuple[Path, dict[str, Any]]:
    """Read the pruner's state off a run's checkpoint.

    Raises:
        FileNotFoundError: if there is no such run or checkpoint.
        ValueError: if the checkpoint was written before the first round.
    """
    folder = find_run("orderdp", run)
    checkpoint = checkpoint_of(folder, "orderdp", select)
    state = load(checkpoint, package="orderdp", map_location="cpu").get(STATE, {}).get("pruner")
    if state is None:
        raise ValueError(f"{checkpoint} holds no scores")
    return folder, state


def read_losses(file: Path) -> NDArray[np.float64]:
    """Read one loss per sample: a CSV with a column `score` or `loss`, or a text file with one number a line.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if a line holds no finite number.
    """
    if not file.is_file():
        raise FileNotFoundError(f"there is no file {file}")
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
        columns = lines[0].split(",") if lines else []
        named = [place for place, name in enumerate(columns) if name.strip() in ("score", "loss")]
        words = [line.split(",")[named[0]] for line in lines[1:]] if named else lines
        values = np.array([float(word) for word in words], dtype=np.float64)
    except (ValueError, IndexError, UnicodeDecodeError) as error:
        raise ValueError(
            f"{file} must hold one loss a line or a column `score` or `loss`: {one_line(error)}"
        ) from error
    if not len(values):
        raise ValueError(f"{file} must hold at least one loss")
    if not np.isfinite(values).all():
        first = int(np.flatnonzero(~np.isfinite(values))[0])
        raise ValueError(f"{file}: loss {first} is {values[first]}, as of a sample never trained on; expected a number")
    return values
