"""The records of a comparison, and the file that holds them."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

DIGITS = 6  # significant, of every number kept


@dataclass(frozen=True)
class Cell:
    """One run of a comparison: a method in a setting with a seed, and the hash of its settings."""

    method: str
    setting: str
    seed: int
    config_hash: str

    def __str__(self) -> str:
        return f"{self.method} in {self.setting}, seed {self.seed}"


@dataclass(frozen=True)
class Record:
    """One finished cell. Numbers are kept to six significant digits, in memory as in the file.

    Attributes:
        method: name of the method.
        seed: the run's seed.
        setting: name of the setting.
        metrics: metric -> value.
        seconds: wall-clock time of training and testing.
        config_hash: hash of the settings without the seed.
        versions: of python, torch and the package.
        device: what the cell ran on.

    Raises:
        ValueError: if a number is not finite; the message names the cell.
    """

    method: str
    seed: int
    setting: str
    metrics: Mapping[str, float]
    seconds: float
    config_hash: str
    versions: Mapping[str, str]
    device: str

    def __post_init__(self) -> None:
        for name, value in {**self.metrics, "seconds": self.seconds}.items():
            if not math.isfinite(value):
                cell = f"{self.method} in {self.setting}, seed {self.seed}"
                raise ValueError(f"{cell}: {name} is {value}, expected a finite number")
        object.__setattr__(self, "metrics", {k: _rounded(v) for k, v in self.metrics.items()})
        object.__setattr__(self, "seconds", _rounded(self.seconds))


def _rounded(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")


@dataclass
class Results:
    """The records of a package, in the order setting, method, seed.

    Attributes:
        package: the package's name.
        version: the package's version when it last measured.
        records: one per cell.
    """

    package: str
    version: str
    records: list[Record] = field(default_factory=list)

    @classmethod
    def load(cls, path: Path) -> Results:
        """Read `results.json`.

        Raises:
            FileNotFoundError: if there is no such file.
            ValueError: if it is something else, or damaged; the message names it.
        """
        if not path.is_file():
            raise FileNotFoundError(f"{path}: no such file; `compare` writes it")
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            results = cls(str(content["package"]), str(content["version"]))
            for entry in content["records"]:
                _check_types(entry)
                record = Record(**entry)
                if results.find(record.method, record.setting, record.seed):
                    raise ValueError(f"{record.method} in {record.setting}, seed {record.seed} is there twice")
                results.add(record)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise ValueError(f"{path}: not a results file that `compare` wrote ({one_line(error)})") from error
        return results

    def save(self, path: Path) -> None:
        """Write `results.json` in one step: a reader finds the old file or the new one."""
        text = json.dumps(asdict(self), indent=2, sort_keys=True, allow_nan=False, ensure_ascii=False)
        write_text(path, f"{text}\n")

    def add(self, record: Record) -> None:
        """Add a record, in place of an earlier one of the same cell."""
        key = (record.setting, record.method, record.seed)
        others = [r for r in self.records if (r.setting, r.method, r.seed) != key]
        self.records = sorted([*others, record], key=lambda r: (r.setting, r.method, r.seed))

    def find(self, method: str, setting: str, seed: int) -> Record | None:
        """Return the record of a cell, if there is one."""
        return next((r for r in self.records if (r.method, r.setting, r.seed) == (method, setting, seed)), None)

    def values(self, method: str, setting: str, metric: str) -> dict[int, float]:
        """Return seed -> value of a metric, over the records that have it."""
        return {
            r.seed: r.metrics[metric]
            for r in self.records
            if (r.method, r.setting) == (method, setting) and metric in r.metrics
        }


def read_yaml(path: Path) -> Any:
    """Read a YAML file; one that is none is a ValueError of one sentence that names it."""
    import yaml

    try:
        return yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} cannot be read as YAML: {one_line(error)}") from error


def write_text(path: Path, text: str) -> None:
    """Write a file in one step."""
    from shared.checkpoints import atomic_write  # brings torch with it, which reading does without

    with atomic_write(path) as file:
        file.write(text.encode())


def _check_types(entry: dict[str, Any]) -> None:
    kinds: dict[str, Any] = {"seed": int, "metrics": dict, "seconds": (int, float), "versions": dict}
    for item in fields(Record):
        if not isinstance(entry[item.name], kinds.get(item.name, str)):
            raise TypeError(f"a record's {item.name} is {entry[item.name]!r}")


def one_line(error: BaseException) -> str:
    """Return an error's message on one line, with its type unless it is a ValueError."""
    text = " ".join(str(error).split())
    return text if text and isinstance(error, ValueError) else f"{type(error).__name__}: {text}".rstrip(": ")


def package_version(package: str) -> str:
    """Return the installed version of a package, or `unknown` where it is only on the path."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "unknown"
