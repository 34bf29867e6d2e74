"""What a paper claims, in a form that measured records confirm or refute, and the statistics for it.

A package writes its claims down before it runs anything, in `results/claims.yaml`:

    - id: nasty-term-helps
      text: The nasty term raises worst-case robust accuracy (Sec. 4.2, Table 1).
      metric: worst
      setting: digits
      better: nat
      than: at_mix          # or a list: the claim is then made against each of them
      direction: higher     # or lower, where less is better
      margin: 0.0           # optional; in the metric's unit; -0.005 says "not worse by more than 0.005"
      min_seeds: 5
      published: 0.9        # optional: the paper's own figure, a number or text
      note: ...             # optional

`judge` pairs the records of both methods by seed. A gain is positive where `better` is better, whatever
the direction, and the claim holds if the whole 95% interval of the mean gain lies above the margin.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from shared.records import read_yaml

if TYPE_CHECKING:
    from shared.records import Results

Direction = Literal["higher", "lower"]
Verdict = Literal["refuted", "not measured", "not separated", "holds"]

# From the weakest: a claim against several methods is as good as its weakest part. One refutation
# settles it, and what was not measured cannot be called merely close.
VERDICTS: tuple[Verdict, ...] = ("refuted", "not measured", "not separated", "holds")
LEVEL = 0.95  # of every interval
TEXT_KEYS = ("id", "text", "metric", "setting", "better")
REQUIRED_KEYS = (*TEXT_KEYS, "than", "direction", "min_seeds")
OPTIONAL_KEYS = ("margin", "published", "note")


def mean_sd(values: Sequence[float]) -> tuple[float, float]:
    """Return mean and sample standard deviation (n - 1 in the denominator).

    Args:
        values: one number per seed.

    Returns:
        Mean and deviation; NaN where there are too few values for it (none; fewer than two).
    """
    mean = statistics.fmean(values) if values else math.nan
    return mean, statistics.stdev(values) if len(values) > 1 else math.nan


def mean_interval(values: Sequence[float]) -> tuple[float, float]:
    """Return the 95% Student-t interval of the mean.

    Args:
        values: one number per seed, taken as independent draws.

    Returns:
        Lower and upper end; minus and plus infinity for fewer than two values.
    """
    if len(values) < 2:
        return -math.inf, math.inf
    from scipy.stats import t

    mean, sd = mean_sd(values)
    half = float(t.ppf((1 + LEVEL) / 2, len(values) - 1)) * sd / math.sqrt(len(values))
    return mean - half, mean + half


@dataclass(frozen=True)
class PairedDifference:
    """The mean of differences within pairs.

    Attributes:
        n: number of pairs.
        mean: mean difference; NaN without pairs.
        sd: sample standard deviation of the differences; NaN for fewer than two pairs.
        low: lower end of the 95% interval of the mean; minus infinity for fewer than two pairs.
        high: its upper end; plus infinity for fewer than two pairs.
    """

    n: int
    mean: float
    sd: float
    low: float
    high: float


def paired_difference(a: Mapping[int, float], b: Mapping[int, float]) -> PairedDifference:
    """Compare two methods on the seeds that both have run.

    A seed fixes split, initialisation and order of the data for both, so what varies between seeds but
    not between methods cancels in the difference.

    Args:
        a: seed -> value of the first method.
        b: seed -> value of the second.

    Returns:
        The difference a - b over the common seeds.
    """
    differences = [a[seed] - b[seed] for seed in sorted(a.keys() & b.keys())]
    return PairedDifference(len(differences), *mean_sd(differences), *mean_interval(differences))


def gain(a: Mapping[int, float], b: Mapping[int, float], direction: Direction) -> PairedDifference:
    """Return the paired difference of a to b, its sign such that positive means: a is better."""
    return paired_difference(a, b) if direction == "higher" else paired_difference(b, a)


@dataclass(frozen=True)
class Claim:
    """One claim of `claims.yaml`; the keys are explained in the module's docstring."""

    id: str
    text: str
    metric: str
    setting: str
    better: str
    than: tuple[str, ...]
    direction: Direction
    min_seeds: int
    margin: float = 0.0
    published: float | str | None = None
    note: str | None = None


@dataclass(frozen=True)
class Judgement:
    """What the records say about a claim.

    Attributes:
        claim: the claim.
        gains: method of `than` -> paired gain over it, positive where the claim's `better` is better.
        verdict: the weakest over `gains`, in the order of `VERDICTS`.
    """

    claim: Claim
    gains: Mapping[str, PairedDifference]
    verdict: Verdict


def judge(claim: Claim, results: Results) -> Judgement:
    """Hold a claim against the records.

    Args:
        claim: the claim.
        results: the records; those of other settings are ignored.

    Returns:
        Its gains and verdict: `holds` if the interval lies above the margin, `refuted` if it lies below,
        `not separated` if it contains the margin, `not measured` with fewer pairs than `min_seeds`.
    """
    values = results.values(claim.better, claim.setting, claim.metric)
    gains = {
        other: gain(values, results.values(other, claim.setting, claim.metric), claim.direction) for other in claim.than
    }
    return Judgement(claim, gains, min((_verdict(claim, g) for g in gains.values()), key=VERDICTS.index))


def _verdict(claim: Claim, difference: PairedDifference) -> Verdict:
    if difference.n < claim.min_seeds:
        return "not measured"
    if difference.low > claim.margin:
        return "holds"
    return "refuted" if difference.high < claim.margin else "not separated"


def load_claims(
    path: Path,
    *,
    methods: Collection[str] | None = None,
    settings: Collection[str] | None = None,
    metrics: Collection[str] | None = None,
) -> list[Claim]:
    """Read `claims.yaml`.

    Args:
        path: the file.
        methods: the methods that a claim may name; None to allow any.
        settings: the settings that it may name.
        metrics: the metrics that it may name.

    Returns:
        The claims in the file's order.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if the file is not a list of claims, or a claim has an unknown, missing or malformed
            key or an id used before; the message names file, claim and key.
    """
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file; claims are written down before the runs")
    entries = read_yaml(path)
    if not isinstance(entries, list):
        raise ValueError(f"{path}: expected a list of claims, got {type(entries).__name__}")
    allowed = {"better": methods, "than": methods, "setting": settings, "metric": metrics}
    claims: list[Claim] = []
    for place, entry in enumerate(entries):
        name = entry.get("id") if isinstance(entry, dict) else None
        where = f"{path}: claim {name!r}" if name is not None else f"{path}: claim number {place + 1}"
        claim = _claim(entry, where)
        if any(claim.id == other.id for other in claims):
            raise ValueError(f"{where}: id is used by an earlier claim, expected a new one")
        for key, choices in allowed.items():
            named = getattr(claim, key)
            for word in named if isinstance(named, tuple) else (named,):
                if choices is not None and word not in choices:
                    raise ValueError(f"{where}: {key} is {word!r}, expected one of {', '.join(choices)}")
        claims.append(claim)
    return claims


def _claim(entry: Any, where: str) -> Claim:
    """Check one entry of the file key by key."""
    if not isinstance(entry, dict):
        raise ValueError(f"{where}: expected a mapping, got {entry!r}")

    def check(key: str, ok: bool, expected: str) -> None:
        if not ok:
            raise ValueError(f"{where}: {key} is {entry.get(key)!r}, expected {expected}")

    for key in entry:
        if key not in (*REQUIRED_KEYS, *OPTIONAL_KEYS):
            raise ValueError(f"{where}: unknown key {key!r}, expected {', '.join((*REQUIRED_KEYS, *OPTIONAL_KEYS))}")
    for key in REQUIRED_KEYS:
        if key not in entry:
            raise ValueError(f"{where}: missing key {key!r}")
    for key in TEXT_KEYS:
        check(key, _is_text(entry[key]), "text (in quotes, where YAML would read a number)")
    than = entry["than"] if isinstance(entry["than"], list) else [entry["than"]]
    check("than", bool(than) and all(map(_is_text, than)), "a method or a list of methods")
    check("than", len(set(than)) == len(than), "each method once")
    check("than", entry["better"] not in than, f"methods other than {entry['better']!r}")
    check("direction", entry["direction"] in ("higher", "lower"), "higher or lower")
    check("margin", _is_number(entry.get("margin", 0.0)), "a finite number")
    min_seeds = entry["min_seeds"]
    # one pair has no interval
    check("min_seeds", type(min_seeds) is int and min_seeds >= 2, "a whole number of at least 2")
    published, note = entry.get("published"), entry.get("note")
    check("published", published is None or _is_number(published) or _is_text(published), "a number or text")
    check("note", note is None or _is_text(note), "text")
    return Claim(**{**entry, "than": tuple(than), "margin": float(entry.get("margin", 0.0))})


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
