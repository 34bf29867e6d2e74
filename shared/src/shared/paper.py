"""What a package tells about itself; see `shared.cli` for what is made of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shared.papercli import PaperCLI
    from shared.results import Study

TRACEBACK_VARIABLE = "PAPERS_TRACEBACK"


@dataclass(frozen=True)
class Paper:
    """What a package tells about its command.

    Attributes:
        name: the package's name, which is also the command's.
        title: one line: what the paper does.
        cli: `module:Class` of its `PaperCLI`, imported only when a run starts.
        verbs: further verbs; name -> function whose typed signature and docstring become its options.
        training_verbs: further verbs that take the options of `train`; name -> function of the arguments.
        study: `module:function` that returns the paper's `shared.results.Study`, given the results folder; it
            brings the verbs `compare` and `tune`.
    """

    name: str
    title: str
    cli: str
    verbs: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    training_verbs: Mapping[str, Callable[[list[str]], Any]] = field(default_factory=dict)
    study: str | None = None

    @property
    def folder(self) -> Path:
        """Where the package's code is."""
        spec = find_spec(self.name)
        assert spec is not None and spec.origin is not None
        return Path(spec.origin).parent

    @property
    def configs(self) -> Path:
        """Folder of the package's own configs."""
        return self.folder / "configs"

    @property
    def results(self) -> Path:
        """The package's `results` in a checkout, or the folder of that name here if it is installed elsewhere."""
        project = self.folder.parents[1]
        return project / "results" if (project / "pyproject.toml").is_file() else Path("results")

    def load_cli(self) -> type[PaperCLI]:
        """Import the package's `PaperCLI`, and with it torch and Lightning."""
        loaded: type[PaperCLI] = _load(self.cli)
        return loaded

    def load_study(self) -> Study:
        """Import what the package compares."""
        assert self.study is not None
        study: Study = _load(self.study)(self.results)
        return study


def _load(name: str) -> Any:
    module, attribute = name.split(":")
    return getattr(import_module(module), attribute)
