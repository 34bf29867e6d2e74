"""What `ace playbook` does; its options are explained in `cli`.

What a playbook holds goes to stdout, for a pipe; what is said about a file that was written, to stderr. Nothing changes
a file unless it is told where to write.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ace.books import changes, faults, join
from ace.completion import approximate_tokens
from ace.playbook import Bullet, Order, Playbook, PlaybookError, Section, load, number, render

WRITTEN = (".json", ".md", ".txt")

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def show(file: str) -> None:
    """Print a table of each section that has bullets."""
    playbook, console = read(file), stdout()
    for section in playbook.sections:
        if not section.bullets:
            continue
        table = Table(title=plain(f"{section.name} ({len(section.bullets)})"), title_justify="left")
        for heading in ("id", "helpful", "harmful", "lesson"):
            table.add_column(heading, justify="right" if heading in ("helpful", "harmful") else "left")
        for bullet in section.bullets:
            table.add_row(Text(bullet.id), str(bullet.helpful), str(bullet.harmful), plain(bullet.content))
        console.print(table)
    empty = sum(not section.bullets for section in playbook.sections)
    line(f"{len(playbook)} bullets in {len(playbook.sections) - empty} sections; {empty} more are empty")


def stats(file: str, exact: bool) -> None:
    """Print a table of sections, with their sums."""
    playbook, count = read(file), counter(exact)
    table = Table(title=Text(file), title_justify="left")
    headings = ("section", "bullets", "tokens", "helpful", "harmful", "unused", "net harm")
    for heading in headings:
        table.add_column(heading, justify="left" if heading == "section" else "right", overflow="fold")
    for section in playbook.sections:
        table.add_row(
            plain(section.name), *figures(section.bullets, count(render(replace(playbook, sections=(section,)))))
        )
    table.add_section()
    table.add_row("all", *figures(playbook.bullets, count(render(playbook))))
    stdout().print(table)


def diff(first: str, second: str) -> None:
    """Print changes as in a unified diff."""
    found = changes(read(first), read(second))
    line(f"--- {first}", "red")
    line(f"+++ {second}", "green")
    counts = {"added": 0, "removed": 0, "changed": 0}
    for name, pairs in found.items():
        line(f"@@ {name} @@", "cyan")
        for was, now in pairs:
            counts["added" if was is None else "removed" if now is None else "changed"] += 1
            if was is not None:
                line(f"-{written(was)}", "red")
            if now is not None:
                line(f"+{written(now)}", "green")
    line(", ".join(f"{count} {what}" for what, count in counts.items()))


def merge(files: Sequence[str], out: Path | None) -> None:
    """Print what becomes of each file's bullets; write the whole."""
    if len(files) < 2:
        raise ValueError(f"merge needs two playbooks or more, got {len(files)}")
    check_out(out)
    joined, report = join([(file, read(file)) for file in files])
    table = Table(title=Text(f"{len(joined)} bullets"), title_justify="left")
    for heading in ("file", "bullets", "taken", "with a new id", "known already"):
        table.add_column(heading, justify="left" if heading == "file" else "right", overflow="fold")
    for part in report:
        taken = part.bullets - len(part.known)
        table.add_row(Text(part.file), *map(str, (part.bullets, taken, len(part.renamed), len(part.known))))
    stdout().print(table)
    for part in report:
        for old, new in part.renamed.items():
            line(f"{part.file}: {old} -> {new}")
        for old, same in part.known.items():
            line(f"{part.file}: {old} says the same as {same}")
    write(joined, out)


def dedup(file: str, threshold: float, across_sections: bool, embedder: str | None, out: Path | None) -> None:
    """Print groups of similar bullets as changes; write what is left."""
    check_out(out)
    playbook = read(file)
    from ace.refine import deduplicate, ngram_embedder, sentence_embedder

    embed = ngram_embedder if embedder is None else sentence_embedder(embedder)
    refined, merged = deduplicate(playbook, embed, threshold, across_sections=across_sections)
    for group in merged:
        line(f"@@ {len(group.group)} similar bullets @@", "cyan")
        for bullet in group.group:
            line(f"-{written(bullet)}", "red")
        line(f"+{written(group.kept)}", "green")
    line(f"{len(playbook)} bullets, {len(refined)} without those that are similar to an earlier one")
    write(refined, out)


def prune(file: str, budget: int, exact: bool, out: Path | None) -> None:
    """Print the bullets that are dropped, in that order; write what is left."""
    check_out(out)
    playbook, count = read(file), counter(exact)
    from ace.refine import prune

    pruned, dropped = prune(playbook, budget, lambda book: count(render(book)))
    for bullet in dropped:
        line(f"-{written(bullet)}", "red")
    line(
        f"{len(playbook)} bullets of {count(render(playbook))} tokens, "
        f"{len(pruned)} of {count(render(pruned))} within the budget of {budget}"
    )
    write(pruned, out)


def validate(files: Sequence[str]) -> int:
    """Print a line for each fault, and for each file without any; return 1 if there is a fault."""
    faulty = 0
    for file in files:
        try:
            playbook = read(file)
            found = [f"{file}: {fault}" for fault in faults(playbook)]
        except (ValueError, OSError) as error:
            found = [str(error)]
        faulty += bool(found)
        for fault in found or [f"{file}: {len(playbook)} bullets, all is well"]:
            line(fault)
    return int(faulty > 0)


def export(file: str, format: Literal["md", "json", "prompt"], order: Order | None, counters: bool | None) -> None:
    """Print a playbook to stdout, byte for byte what a file of that form holds."""
    if format != "prompt" and not (order is None and counters is None):
        raise ValueError(f"order and counters belong to the format prompt, got format {format}")
    path = locate(file)
    context = path.with_name("context.txt")
    if format == "prompt" and order is None and counters is None and str(path) != file and context.is_file():
        text = context.read_bytes().decode()  # the run's own roles wrote it
    elif format == "prompt":
        text = render(read(file), order or "sections", counters is not False) + "\n"
    else:
        playbook = read(file)
        text = playbook.to_json() if format == "json" else playbook.to_text()
    sys.stdout.flush()
    sys.stdout.buffer.write(text.encode())
    sys.stdout.buffer.flush()


def locate(file: str) -> Path:
    """Find the file of a playbook: itself, or that of a run folder, or of the newest run for `last`.

    Raises:
        FileNotFoundError: if the run has none.
    """
    path = Path(file)
    if file == "last" and not path.exists():
        from shared.runs import find_run  # imports torch: a second, which a file need not wait for

        path = find_run("ace", file)
    if not path.is_dir():
        return path
    if not (path / "playbook.json").is_file():
        raise FileNotFoundError(
            f"{path} holds no playbook.json: expected a playbook's file, or the folder of a run of ACE that has ended"
        )
    return path / "playbook.json"


def read(file: str) -> Playbook:
    """Read the playbook that a file, run folder or `last` means.

    Raises:
        FileNotFoundError: if there is none.
        PlaybookError: if it is not valid.
    """
    return load(locate(file))


def check_out(out: Path | None) -> None:
    """Refuse a file that cannot become a playbook, before anything is computed.

    Raises:
        PlaybookError: if its name has another suffix.
        IsADirectoryError: if it is a folder.
    """
    if out is None:
        return
    if out.is_dir():
        raise IsADirectoryError(f"out must name a file, got the folder {out}")
    if out.suffix not in WRITTEN:
        raise PlaybookError(f"out must end in {', '.join(WRITTEN)}, got {out}")


def write(playbook: Playbook, out: Path | None) -> None:
    """Write a playbook in the form that its name asks for, whole or not at all; say so, or that nothing is written."""
    if out is None:
        print("nothing is written without --out FILE", file=sys.stderr)
        return
    from shared.checkpoints import atomic_write

    with atomic_write(out) as file:
        file.write((playbook.to_json() if out.suffix == ".json" else playbook.to_text()).encode())
    print(f"written: {out}", file=sys.stderr)


def counter(exact: bool) -> Callable[[str], int]:
    """Return what counts tokens: the embedded model's tokeniser, or an estimate by length."""
    if not exact:
        return approximate_tokens
    from ace.local_model import find_gguf

    return tokenizer_counter(find_gguf())


def tokenizer_counter(model: Path) -> Callable[[str], int]:
    """Return what counts tokens as a model does, without loading its weights.

    Args:
        model: a GGUF file, or a folder in the format of transformers.

    Raises:
        ValueError: if it cannot be read.
    """
    from transformers import AutoTokenizer

    from ace.local_model import converted

    folder = converted(model) if model.is_file() else model
    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    return lambda text: len(tokenizer(text, add_special_tokens=False).input_ids)


def figures(bullets: Sequence[Bullet], tokens: int) -> list[str]:
    """Return the cells of a row of `stats`."""
    helpful, harmful = sum(b.helpful for b in bullets), sum(b.harmful for b in bullets)
    unused = sum(b.helpful == b.harmful == 0 for b in bullets)
    return list(map(str, (len(bullets), tokens, helpful, harmful, unused, sum(b.harmful > b.helpful for b in bullets))))


def written(bullet: Bullet) -> str:
    """Return a bullet's line of the text form."""
    return render(Playbook((Section("-", (bullet,)),), number(bullet.id) + 1), "ids")


def stdout() -> Console:
    """Return a console on stdout as it is now."""
    return Console(file=sys.stdout)


def plain(text: str, style: str = "") -> Text:
    """Return a text as a terminal may be given it: control characters, which could take it over, as their codes.

    Args:
        text: what a playbook holds; its line breaks and tabs stay.
        style: of all of it.
    """
    return Text(_CONTROL.sub(lambda match: f"\\x{ord(match[0]):02x}", text), style=style)


def line(text: str, style: str | None = None) -> None:
    """Print a line that is not broken, coloured on a terminal."""
    stdout().print(plain(text, style or ""), soft_wrap=True)
