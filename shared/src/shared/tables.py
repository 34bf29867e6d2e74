"""Records and claims as Markdown, on the console and as a figure, always made from `results.json`.

Everywhere a gain is a paired difference by seed, positive where the method is better, whether more or
less of the metric is wanted. The same records give the same text and, with the same matplotlib, the same
bytes of the figure, so that a test can tell whether a README shows what was measured.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shared.claims import (
    VERDICTS,
    Claim,
    Direction,
    Judgement,
    PairedDifference,
    gain,
    judge,
    mean_interval,
    mean_sd,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.table import Table

    from shared.records import Results

NOTE = (
    "Mean ± standard deviation over seeds. A gain is the mean difference between runs of one seed, "
    "positive where the method is better, with its 95% Student-t interval."
)
NONE = "–"
# Blue and vermilion of Okabe & Ito's palette, told apart with every kind of colour vision.
COLOURS = {"the paper's method": "#0072B2", "baseline": "#D55E00", "other": "#767676"}


@dataclass(frozen=True)
class Metric:
    """How a metric is shown.

    Attributes:
        name: its key in the records.
        label: its name in tables and figures.
        percent: show a fraction as per cent.
        higher_is_better: whether more of it is wanted.
        digits: digits behind the point of a mean; a gain has one more.
    """

    name: str
    label: str
    percent: bool = False
    higher_is_better: bool = True
    digits: int = 1

    @property
    def scale(self) -> float:
        """What a value is multiplied by to be shown."""
        return 100.0 if self.percent else 1.0

    @property
    def heading(self) -> str:
        """The label with its unit."""
        return f"{self.label} (%)" if self.percent else self.label

    @property
    def direction(self) -> Direction:
        """What is wanted, as claims say it."""
        return "higher" if self.higher_is_better else "lower"

    def text(self, value: float) -> str:
        """Format one value."""
        return f"{value * self.scale:z.{self.digits}f}"

    def mean_text(self, values: Sequence[float]) -> str:
        """Format mean ± standard deviation; the mean alone of a single value."""
        mean, sd = mean_sd(values)
        if not values:
            return NONE
        return self.text(mean) if math.isnan(sd) else f"{self.text(mean)} ± {self.text(sd)}"

    def gain_text(self, difference: PairedDifference) -> str:
        """Format a gain with its interval."""
        if difference.n == 0:
            return "not enough seeds"
        mean, low, high = (
            f"{value * self.scale:+z.{self.digits + 1}f}"
            for value in (difference.mean, difference.low, difference.high)
        )
        return f"{mean} [{low}, {high}]" if difference.n > 1 else f"{mean} (not enough seeds)"


@dataclass(frozen=True)
class Report:
    """What a package's tables and figure show.

    Attributes:
        method: the paper's method.
        baselines: what it is measured against; gains are over the strongest of them.
        metrics: what is shown; the first is the main metric, which gains and figure are about.
        titles: setting -> title; also the order of the settings, the first giving the headline.
        labels: method -> name to show, where it differs.
        drawings: name of a PNG beside the results -> what draws it (see `drawing`); the README shows them too.

    Raises:
        ValueError: if there is no metric.
    """

    method: str
    baselines: Sequence[str]
    metrics: Sequence[Metric]
    titles: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    drawings: Mapping[str, Callable[[Results, Path], None]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.metrics:
            raise ValueError("a report's metrics are empty, expected at least the main metric")

    def label(self, method: str) -> str:
        """Return the name to show for a method."""
        return self.labels.get(method, method)

    def title(self, setting: str) -> str:
        """Return the name to show for a setting."""
        return self.titles.get(setting, setting)

    def settings(self, results: Results) -> list[str]:
        """List the settings that have records: the titled ones in their order, then the others."""
        return _in_order({r.setting for r in results.records}, list(self.titles))

    def methods(self, results: Results, setting: str) -> list[str]:
        """List the methods that have records in a setting: the paper's, the baselines, then the others."""
        found = {r.method for r in results.records if r.setting == setting}
        return _in_order(found, [self.method, *self.baselines])


def _in_order(found: set[str], first: Sequence[str]) -> list[str]:
    return [name for name in first if name in found] + sorted(found - set(first))


def strongest_baseline(results: Results, report: Report, setting: str) -> str | None:
    """Return the baseline with the best mean of the main metric, the first of equals; None without any."""
    main = report.metrics[0]
    means = {
        method: mean_sd(list(values.values()))[0]
        for method in report.baselines
        if (values := results.values(method, setting, main.name))
    }
    if not means:
        return None
    return max(means, key=lambda method: means[method] if main.higher_is_better else -means[method])


def markdown(results: Results, claims: Sequence[Claim], report: Report) -> str:
    """Render a table per setting and one of the claims.

    Args:
        results: the records.
        claims: the package's claims; none for no table of them.
        report: what to show.

    Returns:
        Markdown that ends in a newline.
    """
    parts = []
    for setting in report.settings(results):
        header, rows = _setting_rows(results, report, setting)
        parts += [f"**{report.title(setting)}**", _markdown_table(header, rows, numeric=True)]
    parts.append(NOTE)
    rows = [row for claim in claims for row in _claim_rows(judge(claim, results), report)]
    if rows:
        header = ["claim", "measured as", "gain of", "gain", "seeds", "verdict", "published"]
        parts.append(_markdown_table(header, rows))
    return "\n\n".join(parts) + "\n"


def console_tables(results: Results, claims: Sequence[Claim], report: Report) -> list[Table]:
    """Render the tables of `markdown` for the console, the claims by their ids."""
    tables = [
        _console_table(report.title(setting), *_setting_rows(results, report, setting))
        for setting in report.settings(results)
    ]
    rows = [
        [judgement.claim.id, *gain_cells, judgement.verdict]
        for judgement in (judge(claim, results) for claim in claims)
        for gain_cells in _gain_rows(judgement, report)
    ]
    if rows:
        tables.append(_console_table("claims", ["claim", "gain of", "gain", "seeds", "verdict"], rows))
    return tables


def summary_row(results: Results, claims: Sequence[Claim], report: Report) -> dict[str, Any]:
    """Sum a package up for the root README.

    Returns:
        `headline`: one line on the main metric of the paper's method and the strongest baseline in the
        first setting; `seeds`: how many pairs of runs it rests on; `claims`: verdict -> how often.
    """
    verdicts = [judge(claim, results).verdict for claim in claims]
    counts = {verdict: verdicts.count(verdict) for verdict in reversed(VERDICTS)}
    settings = report.settings(results)
    values = results.values(report.method, settings[0], report.metrics[0].name) if settings else {}
    if not values:
        return {"headline": "not measured", "seeds": 0, "claims": counts}
    main, setting = report.metrics[0], settings[0]
    headline = f"{main.heading}: {report.label(report.method)} {main.mean_text(list(values.values()))}"
    pairs = len(values)
    best = strongest_baseline(results, report, setting)
    if best is not None:
        others = results.values(best, setting, main.name)
        difference = gain(values, others, main.direction)
        headline += f", {report.label(best)} {main.mean_text(list(others.values()))}"
        headline += f", gain {main.gain_text(difference)}"
        pairs = difference.n
    return {"headline": headline, "seeds": pairs, "claims": counts}


def update_block(text: str, name: str, body: str) -> str:
    """Replace what stands between `<!-- NAME:begin -->` and `<!-- NAME:end -->`.

    Args:
        text: a document, such as a README.
        name: the block's name.
        body: what is to stand there.

    Returns:
        The document with the new block; the markers stay.

    Raises:
        ValueError: unless each marker is there once, in this order.
    """
    begin, end = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
    if text.count(begin) != 1 or text.count(end) != 1 or text.index(begin) > text.index(end):
        raise ValueError(f"expected the markers {begin} and {end} once each and in this order")
    return f"{text.partition(begin)[0]}{begin}\n{body.strip()}\n{end}{text.partition(end)[2]}"


def _setting_rows(results: Results, report: Report, setting: str) -> tuple[list[str], list[list[str]]]:
    main, best = report.metrics[0], strongest_baseline(results, report, setting)
    over = f" over {report.label(best)}" if best is not None else ""
    header = [
        "method",
        "seeds",
        *(metric.heading for metric in report.metrics),
        f"gain in {main.label}{over}",
        "seconds",
    ]
    rows = []
    for method in report.methods(results, setting):
        seconds = [r.seconds for r in results.records if (r.method, r.setting) == (method, setting)]
        difference = NONE
        if best is not None and method != best:
            own, others = (results.values(name, setting, main.name) for name in (method, best))
            difference = main.gain_text(gain(own, others, main.direction))
        shown = [
            metric.mean_text(list(results.values(method, setting, metric.name).values())) for metric in report.metrics
        ]
        mean_seconds = f"{mean_sd(seconds)[0]:.1f}"
        rows.append([report.label(method), str(len(seconds)), *shown, difference, mean_seconds])
    return header, rows


def _metric(claim: Claim, report: Report) -> Metric:
    named = (metric for metric in report.metrics if metric.name == claim.metric)
    return next(named, Metric(claim.metric, claim.metric, digits=3))


def _claim_rows(judgement: Judgement, report: Report) -> list[list[str]]:
    claim, metric = judgement.claim, _metric(judgement.claim, report)
    text = f"`{claim.id}`: {claim.text} {claim.note or ''}".strip()
    measure = f"{metric.heading}, {report.title(claim.setting)}"
    if claim.margin:
        measure += f", margin {claim.margin * metric.scale:+g}"
    published = "" if claim.published is None else str(claim.published)
    first, *others = _gain_rows(judgement, report)
    return [
        [text, measure, *first, judgement.verdict, published],
        *(["", "", *other, "", ""] for other in others),
    ]


def _gain_rows(judgement: Judgement, report: Report) -> list[list[str]]:
    """Return what is compared, the gain and the number of pairs, for each method of the claim's `than`."""
    claim, metric = judgement.claim, _metric(judgement.claim, report)
    return [
        [
            f"{report.label(claim.better)} over {report.label(other)}",
            metric.gain_text(difference),
            str(difference.n) if difference.n >= claim.min_seeds else f"{difference.n} of {claim.min_seeds}",
        ]
        for other, difference in judgement.gains.items()
    ]


def _markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]], numeric: bool = False) -> str:
    cells = [[" ".join(cell.split()).replace("|", "\\|") for cell in row] for row in (header, *rows)]
    rule = ["---"] + ["--:" if numeric else "---"] * (len(header) - 1)
    return "\n".join(f"| {' | '.join(row)} |" for row in (cells[0], rule, *cells[1:]))


def _console_table(title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table(title=Text(title), title_justify="left")
    for name in header:
        table.add_column(Text(name), overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))  # Text, because brackets are markup otherwise
    return table


def figure(results: Results, report: Report, path: Path) -> None:
    """Draw the main metric: for each setting and method every seed, their mean and its 95% interval.

    Args:
        results: the records.
        report: what to show.
        path: the PNG to write.

    Raises:
        ValueError: if there are no records.
    """
    from matplotlib.lines import Line2D

    settings, main = report.settings(results), report.metrics[0]
    if not settings:
        raise ValueError(f"{path}: nothing to draw, {results.package} has no records yet")
    heights = [len(report.methods(results, setting)) + 1.6 for setting in settings]
    with drawing(path, (6.4, 0.34 * sum(heights) + 0.9)) as image:
        axes = image.subplots(len(settings), 1, squeeze=False, gridspec_kw={"height_ratios": heights})
        for setting, panel in zip(settings, axes[:, 0], strict=True):
            _draw_setting(panel, results, report, setting)
        axes[-1, 0].set_xlabel(
            f"{main.heading}, {main.direction} is better\nbars: mean and its 95% interval, small dots: seeds"
        )
        kinds = {_kind(report, method) for setting in settings for method in report.methods(results, setting)}
        marks = [
            Line2D([], [], marker="o", color=colour, label=kind) for kind, colour in COLOURS.items() if kind in kinds
        ]
        image.legend(handles=marks, loc="outside upper right", ncols=len(marks), frameon=False, fontsize=9)


@contextmanager
def drawing(path: Path, size: tuple[float, float]) -> Iterator[Figure]:
    """Open an empty figure, and write it to a PNG when the block ends; equal drawings give equal bytes.

    Args:
        path: the PNG.
        size: width and height in inches.
    """
    import matplotlib
    from matplotlib.figure import Figure

    from shared.checkpoints import atomic_write

    with matplotlib.rc_context():
        matplotlib.rcdefaults()  # a reader's own style would give other bytes
        image = Figure(figsize=size, layout="constrained")
        yield image
        png = io.BytesIO()
        image.savefig(png, format="png", dpi=150, metadata={"Software": None})
    with atomic_write(path) as file:
        file.write(png.getvalue())


def _draw_setting(panel: Any, results: Results, report: Report, setting: str) -> None:
    main, methods = report.metrics[0], report.methods(results, setting)
    for row, method in enumerate(methods):
        values = [v * main.scale for _, v in sorted(results.values(method, setting, main.name).items())]
        if not values:
            continue
        colour = COLOURS[_kind(report, method)]
        mean, (low, high) = mean_sd(values)[0], mean_interval(values)
        # seeds go below the mean, side by side where their values coincide
        offsets = [row + 0.16 + 0.06 * (place % 3) for place in range(len(values))]
        panel.plot(values, offsets, "o", color=colour, alpha=0.35, markersize=4, markeredgewidth=0)
        panel.plot(mean, row - 0.08, "o", color=colour, markersize=6.5)
        if math.isfinite(low):
            panel.plot([low, high], [row - 0.08] * 2, color=colour, linewidth=2, solid_capstyle="round")
    panel.set_yticks(range(len(methods)), [report.label(method) for method in methods])
    panel.set_ylim(len(methods) - 0.4, -0.6)
    panel.set_title(report.title(setting), loc="left", fontsize=11)
    panel.grid(axis="x", color="#DDDDDD", linewidth=0.8)
    panel.set_axisbelow(True)
    panel.tick_params(axis="y", length=0)
    panel.spines[["top", "right", "left"]].set_visible(False)


def _kind(report: Report, method: str) -> str:
    if method == report.method:
        return "the paper's method"
    return "baseline" if method in report.baselines else "other"
