"""Prompts from template files, which a user can replace one by one.

A template is a jinja2 text in parts that begin with a line `[[system]]`, `[[user]]` or `[[assistant]]`, a turn of the
conversation each. It is cut into turns before anything is filled in, so that no question or answer can forge a turn.
Templates run in jinja2's sandbox without a loader: they see the values they are given, and no files.
"""

from __future__ import annotations

import re
from importlib.resources import files
from pathlib import Path
from typing import Any, cast

from jinja2 import StrictUndefined, Template, TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from ace.completion import Message, Role

TURN = re.compile(r"^\[\[(system|user|assistant)\]\][ \t]*$", re.MULTILINE)
SUFFIX = ".jinja"
# What an expression of a template can raise.
FAULTS = (TemplateError, TypeError, ValueError, ArithmeticError, LookupError, AttributeError, RecursionError)


class Prompts:
    """Conversations made from templates.

    Args:
        folder: files NAME.jinja of the user's, in place of the package's own of the same name.

    Raises:
        FileNotFoundError: if there is no such folder.
        ValueError: if it holds no templates, a file in it has another name than one of the package's, or is no valid
            template.
    """

    def __init__(self, folder: Path | None = None) -> None:
        sources = {
            file.name.removesuffix(SUFFIX): (file.name, file.read_text("utf-8"))
            for file in files("ace").joinpath("templates").iterdir()
        }
        if folder is not None:
            if not folder.is_dir():
                raise FileNotFoundError(f"there is no folder of templates {folder}")
            own = sorted(folder.glob(f"*{SUFFIX}"))
            if not own:
                names = ", ".join(f"{name}{SUFFIX}" for name in sorted(sources))
                raise ValueError(f"{folder}: expected a folder with one or more of the templates {names}, got none")
            for file in own:
                if file.stem not in sources:
                    raise ValueError(f"{file}: expected a template named one of {', '.join(sorted(sources))}")
                try:
                    sources[file.stem] = (str(file), file.read_text("utf-8-sig"))
                except UnicodeDecodeError as error:
                    raise ValueError(f"{file}: not UTF-8 text: {error}") from error
        self.turns = {name: _turns(where, text) for name, (where, text) in sources.items()}

    def fill(self, name: str, **values: Any) -> tuple[Message, ...]:
        """Fill a template.

        Args:
            name: of the template.
            values: what it speaks of.

        Raises:
            ValueError: if it uses a value that is not given, or forbidden things.
        """
        try:
            return tuple(Message(role, template.render(values).strip("\n")) for role, template in self.turns[name])
        except FAULTS as error:
            reason = str(error) or type(error).__name__
            raise ValueError(f"the template {name} cannot be filled: {reason}") from error


def _turns(where: str, text: str) -> list[tuple[Role, Template]]:
    """Cut a template into its turns."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True, undefined=StrictUndefined, autoescape=False
    )
    before, *parts = TURN.split(text)
    if before.strip() or not parts:
        raise ValueError(f"{where}: a template must begin with a line [[system]] or [[user]]")
    roles = [cast("Role", role) for role in parts[::2]]
    if roles[-1] != "user":
        raise ValueError(f"{where}: the last turn of a template must be [[user]], got [[{roles[-1]}]]")
    try:
        return [(role, environment.from_string(part)) for role, part in zip(roles, parts[1::2], strict=True)]
    except (TemplateError, RecursionError, SyntaxError) as error:  # of those, Python's own for blocks nested too deep
        raise ValueError(f"{where}: not a valid template: {error}") from error
