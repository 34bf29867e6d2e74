"""What the comparison's tables and figures show. Colours are those of Okabe and Ito; each method has its own marker."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

from shared.tables import Metric, Report, drawing

if TYPE_CHECKING:
    from shared.records import Results

BUDGETS = [50, 100, 200]  # kilobytes
STYLES = {  # method: label, colour, marker
    "megs2": ("MEGS²", "#0072B2", "o"),
    "gaussianspa": ("GaussianSpa, SH degree 3", "#D55E00", "s"),
    "sh0": ("pruned, SH degree 0", "#009E73", "^"),
    "fixed axes": ("pruned, fixed axes", "#CC79A7", "D"),
    "3dgs": ("3DGS, SH degree 3, unpruned", "#767676", "v"),
    "unpruned": ("lobes, unpruned", "#56B4E9", "P"),
}


def means(results: Results, method: str, setting: str, metric: str) -> float | None:
    """Return the mean over seeds of a metric; None if it was not measured."""
    values = results.values(method, setting, metric)
    return fmean(values.values()) if values else None


def draw_curve(results: Results, path: Path) -> None:
    """Draw PSNR against the bytes of the scene.

    Args:
        results: the records.
        path: the PNG to write.
    """
    with drawing(path, (5.6, 3.8)) as image:
        axes = image.subplots()
        for method, (label, colour, marker) in STYLES.items():
            at = [f"glossy-{budget}" for budget in BUDGETS]
            pairs = [(means(results, method, s, "kilobytes"), means(results, method, s, "psnr")) for s in at]
            points = [(size, value) for size, value in pairs if size is not None and value is not None]
            if points:
                axes.plot(*zip(*points, strict=True), color=colour, marker=marker, label=label, linewidth=1.4)
        axes.set_xscale("log")
        axes.set_xticks([50, 100, 200, 500, 1000], ["50", "100", "200", "500", "1000"])
        axes.minorticks_off()
        axes.set_xlabel("memory of the scene (kB)")
        axes.set_ylabel("PSNR of test views (dB)")
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(fontsize=7, frameon=False)


REPORT = Report(
    method="megs2",
    baselines=["gaussianspa", "sh0", "fixed axes", "3dgs", "unpruned"],
    metrics=[
        Metric("psnr", "PSNR (dB)", digits=2),
        Metric("ssim", "SSIM", digits=3),
        Metric("kilobytes", "memory (kB)", higher_is_better=False, digits=0),
        Metric("gaussians", "Gaussians", digits=0),
        Metric("lobes", "lobes of a Gaussian", digits=2),
    ],
    titles={
        **{f"glossy-{budget}": f"Glossy duck, mug and torus at {budget} kB" for budget in BUDGETS},
        "ablations": "Ablations on the same scenes at 100 kB",
        "diffuse": "Duck without highlights at 100 kB",
    },
    labels={
        **{method: label for method, (label, _, _) in STYLES.items()},
        "sequential": "Gaussians first, lobes second",
        "hard": "hard: cut at once",
        "ratios": "fixed shares, no dual updates",
        "0 lobes": "no lobes",
        "1 lobe": "one lobe at most",
        "2 lobes": "two lobes at most",
    },
    drawings={"psnr-against-bytes.png": draw_curve},
)
