"""The command `ace`. What it needs is imported when it runs, so that every `--help` answers at once."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from shared.cli import Paper
from shared.cli import main as run

LISTED = ("merge", "validate")  # actions of `playbook` that take any number of files


class Playbook:
    """Show, check and change playbooks.

    A FILE is a playbook as .json, .md or .txt, or the run folder that it is in, or `last` for the newest run.
    """

    def show(self, file: str) -> None:
        """Show the bullets of each section with their counters.

        Args:
            file: a playbook, a run folder, or `last`.
        """
        from ace.book_verbs import show

        show(file)

    def stats(self, file: str, exact: bool = False) -> None:
        """Count bullets, tokens, tags, and bullets that never helped or did more harm than good.

        Args:
            file: a playbook, a run folder, or `last`.
            exact: count tokens with the embedded model's tokeniser, in place of one for four bytes.
        """
        from ace.book_verbs import stats

        stats(file, exact)

    def diff(self, first: str, second: str) -> None:
        """Show which bullets were added, removed or changed from one playbook to another.

        Args:
            first: a playbook, a run folder, or `last`.
            second: likewise.
        """
        from ace.book_verbs import diff

        diff(first, second)

    def merge(self, files: list[str], out: Path | None = None) -> None:
        """Put several playbooks together; say what becomes of their bullets.

        Args:
            files: two playbooks or more, one behind the other. Bullets keep their ids unless an earlier file has the
                number; texts that are the same count as one bullet, with the sums of the counters.
            out: the file to write, .json, .md or .txt; nothing is written when null.
        """
        from ace.book_verbs import merge

        merge(files, out)

    def dedup(
        self,
        file: str,
        threshold: float = 0.9,
        across_sections: bool = False,
        embedder: str | None = None,
        out: Path | None = None,
    ) -> None:
        """Make one bullet of similar ones; show which.

        Args:
            file: a playbook, a run folder, or `last`.
            threshold: least cosine of similar bullets, above 0.
            across_sections: whether bullets of different sections can be similar.
            embedder: a sentence transformer (extra `embeddings`), by folder or name; character n-grams when null.
            out: the file to write; nothing is written when null.
        """
        from ace.book_verbs import dedup

        dedup(file, threshold, across_sections, embedder, out)

    def prune(self, file: str, *, budget: int, exact: bool = False, out: Path | None = None) -> None:
        """Drop bullets until a playbook fits a budget; show which.

        Args:
            file: a playbook, a run folder, or `last`.
            budget: most tokens of the playbook's text form.
            exact: count tokens with the embedded model's tokeniser, in place of one for four bytes.
            out: the file to write; nothing is written when null.
        """
        from ace.book_verbs import prune

        prune(file, budget, exact, out)

    def validate(self, files: list[str]) -> int:
        """Say what is wrong with playbooks, a line each; exit code 1 if anything is.

        Args:
            files: playbooks or run folders, one behind the other.
        """
        from ace.book_verbs import validate

        return validate(files)

    def export(
        self,
        file: str,
        format: Literal["md", "json", "prompt"] = "md",
        order: Literal["sections", "ids"] | None = None,
        counters: bool | None = None,
    ) -> None:
        """Print a playbook as text, as JSON, or as a Generator sees it.

        Args:
            file: a playbook, a run folder, or `last`.
            format: md for the text form, json for the canonical one, or prompt: what the Generator of that run had in
                its context.
            order: of the bullets of a prompt; when null, as in the run, or else by sections.
            counters: show helpful and harmful in a prompt; when null, as in the run, or else true.
        """
        from ace.book_verbs import export

        export(file, format, order, counters)


def online(arguments: list[str]) -> dict[str, float]:
    """Go through the test samples online: answer first, learn afterwards; takes any setting of train.

    The config is `country_online` where none is named. `--trainer.max_epochs` as an option, not in a config, has the
    playbook warmed up by so many epochs of training first.
    """
    from ace.app import AceCLI

    return AceCLI.online(arguments)


def predict(
    question: str | None = None,
    context: str = "",
    file: Path | None = None,
    run: str = "last",
    playbook: Path | None = None,
    out: Path | None = None,
) -> int:
    """Answer questions with what a run has learned; exit code 1 if the model could not answer all.

    Args:
        question: to answer.
        context: what the question is about.
        file: in place of a question, JSONL with `question` and optionally `context` and `id`, or the names that the
            run's `data.fields` has for them.
        run: a run folder, or `last`: its model, roles and context are used.
        playbook: a playbook's file in place of the run's context.
        out: JSONL to write, an object for each question: id, question, answer, bullet_ids, error, and the further
            fields of the file; a field of these names becomes `given_answer` and the like. When null,
            predictions.jsonl for a file, and nothing for a question.
    """
    from ace.verbs import predict

    return predict(question, context, file, run, playbook, out)


def replay(run: str, out: Path | None = None) -> int:
    """Repeat a run from its log of completions, with no model; exit code 1 if anything comes out otherwise.

    Args:
        run: a run folder, or `last`.
        out: folder for the repetition; a temporary one when null.
    """
    from ace.verbs import replay

    return replay(run, out)


def cost(
    run: str, price_in: float | None = None, price_cached: float | None = None, price_out: float | None = None
) -> None:
    """Add up the calls and tokens of a run, role by role, and what they cost.

    Args:
        run: a run folder, or `last`, or a log of completions (.jsonl).
        price_in: of a million tokens read; no prices when null.
        price_cached: of a million tokens that the server had in its cache; that of the others when null.
        price_out: of a million tokens written; nothing when null.
    """
    from ace.verbs import cost

    cost(run, price_in, price_cached, price_out)


def serve_llm(
    backend: Literal["transformers", "llamacpp"] = "transformers",
    gguf: Path | None = None,
    host: str = "127.0.0.1",
    port: int = 8000,
    batch_size: int = 16,
    context_size: int | None = None,
) -> None:
    """Serve a local model behind an OpenAI-compatible endpoint on this machine.

    Args:
        backend: transformers, or llamacpp, which enforces JSON schemas (extra `llamacpp`).
        gguf: model file; the embedded SmolLM2-135M-Instruct when null.
        host: address to listen at. There is no key: whoever reaches another one than 127.0.0.1 can use the model.
        port: to listen at; 0 for any that is free.
        batch_size: most requests that are answered together.
        context_size: tokens of prompt and answer together; the backend's own when null.
    """
    from ace.server import serve

    serve(backend, gguf, host, port, batch_size, context_size)


PAPER = Paper(
    name="ace",
    title="ACE: language models that improve through an evolving playbook",
    cli="ace.app:AceCLI",
    verbs={"playbook": Playbook, "predict": predict, "replay": replay, "cost": cost, "serve-llm": serve_llm},
    training_verbs={"online": online},
    study="ace.comparison:study",
)


def listed(arguments: Sequence[str]) -> list[str]:
    """Write the files of `playbook merge A B C` as the one list that its option is."""
    words = list(arguments)
    if words[:1] != ["playbook"] or not set(words[1:2]) & set(LISTED):
        return words
    files: list[str] = []
    options: list[str] = []
    rest = iter(words[2:])
    for word in rest:
        if not word.startswith("-"):
            files.append(word)
            continue
        options.append(word)
        if word == "--out":
            options.extend(value for value in [next(rest, None)] if value is not None)
    given_as_list = len(files) == 1 and files[0].startswith("[")
    return [*words[:2], *(files if given_as_list or not files else [json.dumps(files)]), *options]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    return run(PAPER, listed(sys.argv[1:] if argv is None else argv))
