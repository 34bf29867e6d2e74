"""Grow-and-refine: bullets that say the same become one, and a playbook over its budget is pruned (Sec. 3.2).

What is similar is decided by the cosine of embeddings. Groups are connected components, so that each bullet is in
exactly one, and counters are summed by code. The paper names no rule for pruning; the one here is ours.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ace.playbook import Bullet, Playbook, PlaybookError, by_number

Embedder = Callable[[Sequence[str]], NDArray[np.float32]]  # N texts -> (N, d), rows of length 1, or 0 for no content
Combine = Callable[[Sequence[str]], str | None]

FEATURES = 4096
ROUNDING = 1e-6  # by which a unit row of float32 can miss 1 when multiplied by itself

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Merged:
    """A group that became one bullet.

    Attributes:
        kept: the bullet that stays, with the summed counters.
        group: the bullets as they were, the lowest id first.
    """

    kept: Bullet
    group: tuple[Bullet, ...]


def ngram_embedder(texts: Sequence[str]) -> NDArray[np.float32]:
    """Embed texts by their character n-grams (3 to 5, within words), without a model.

    Term frequencies are hashed into `FEATURES` signed buckets. There is no inverse document frequency, which would make
    the similarity of two bullets depend on all others and so change as bullets are merged. Texts that differ in a
    number alone are similar in this sense.

    Args:
        texts: N texts.

    Returns:
        (N, 4096), rows of length 1; a row of zeros for a blank text.
    """
    from sklearn.feature_extraction.text import HashingVectorizer

    if not texts:
        return np.zeros((0, FEATURES), np.float32)
    hashing = HashingVectorizer(analyzer="char_wb", ngram_range=(3, 5), n_features=FEATURES, dtype=np.float32)
    return hashing.transform(texts).toarray()


def sentence_embedder(model: str | Path) -> Embedder:
    """Return an embedder by a sentence transformer (the released code: all-mpnet-base-v2).

    Args:
        model: folder of the model, or its name on the Hugging Face hub.

    Raises:
        ImportError: if sentence-transformers is not installed.
    """
    try:
        from sentence_transformers import SentenceTransformer
    except ImportError as error:
        raise ImportError("sentence embeddings need the extra: uv run --package ace --extra embeddings ...") from error
    network = SentenceTransformer(str(model))

    def embed(texts: Sequence[str]) -> NDArray[np.float32]:
        rows = network.encode(list(texts), normalize_embeddings=True, convert_to_numpy=True, show_progress_bar=False)
        return np.asarray(rows, np.float32)

    return embed


def similar_groups(
    embeddings: NDArray[np.float32], labels: Sequence[Hashable], threshold: float, block: int = 1024
) -> list[list[int]]:
    """Partition rows into groups: connected by cosines of at least the threshold, within one label.

    Args:
        embeddings: (N, d), rows of length 1 or 0.
        labels: N labels, such as sections.
        threshold: above 0; above 1, nothing is similar to anything.
        block: rows that are compared at a time, so that memory grows with N and not with its square.

    Returns:
        Every index once, in ascending order within its group; groups ordered by their first index. Most hold one.

    Raises:
        ValueError: if shapes, lengths of rows or an option are not as above.
    """
    if not threshold > 0 or block < 1:
        raise ValueError(f"threshold must be above 0 and block at least 1, got {threshold} and {block}")
    if embeddings.ndim != 2 or len(embeddings) != len(labels):
        raise ValueError(f"embeddings must be of {len(labels)} rows, one for each label, got shape {embeddings.shape}")
    lengths = np.linalg.norm(embeddings, axis=1)
    if not np.all((np.abs(lengths - 1) < 1e-3) | (lengths == 0)):
        raise ValueError("each embedding must have length 1, or 0 for a blank text")
    members: dict[Hashable, list[int]] = {}
    for index, label in enumerate(labels):
        members.setdefault(label, []).append(index)
    groups: list[list[int]] = []
    for indices in members.values():
        found: dict[int, list[int]] = {}
        for index, component in zip(indices, _components(embeddings[indices], threshold, block), strict=True):
            found.setdefault(component, []).append(index)
        groups.extend(found.values())
    return sorted(groups)


def _components(x: NDArray[np.float32], threshold: float, block: int) -> list[int]:
    """Number the connected components of rows (n, d) whose cosine reaches the threshold; returns n numbers."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    n = len(x)
    component: NDArray[np.integer] = np.arange(n)
    if threshold > 1:
        return component.tolist()
    for start in range(0, n, block):
        rows, columns = np.nonzero(x[start : start + block] @ x[start:].T >= threshold - ROUNDING)
        # The links so far go in as well, as one edge from each row to a row of its component.
        _, first, inverse = np.unique(component, return_index=True, return_inverse=True)
        tails, heads = np.append(rows + start, np.arange(n)), np.append(columns + start, first[inverse])
        graph = coo_array((np.ones(len(tails)), (tails, heads)), shape=(n, n))
        component = connected_components(graph, directed=False)[1]
    return component.tolist()


def deduplicate(
    playbook: Playbook,
    embed: Embedder,
    threshold: float = 0.90,
    combine: Combine | None = None,
    across_sections: bool = False,
) -> tuple[Playbook, list[Merged]]:
    """Make one bullet of each group of similar ones: that of the lowest id, in its place, with summed counters.

    Without `combine`, a second call changes nothing. The groups that are reported are a dry run too, since the
    playbook that is passed in stays as it is.

    Args:
        playbook: what to refine.
        embed: maps contents to embeddings.
        threshold: least cosine of similar bullets, above 0; above 1 nothing is merged.
        combine: writes one content from those of a group, such as a model's call. Where it returns None or a blank
            text, or raises ValueError, the group stays unmerged. Without, the first content is kept.
        across_sections: whether bullets of different sections can be similar.

    Returns:
        The new playbook, and the groups in the order of the playbook.

    Raises:
        ValueError: as of `similar_groups`.
    """
    merged: list[Merged] = []
    while True:
        sections = [i for i, section in enumerate(playbook.sections) for _ in section.bullets]
        labels = [0] * len(sections) if across_sections else sections
        groups = similar_groups(embed([bullet.content for bullet in playbook.bullets]), labels, threshold)
        kept = dict(playbook.by_id)
        found = []
        for group in (group for group in groups if len(group) > 1):
            bullets = sorted((playbook.bullets[i] for i in group), key=by_number)
            content = _combined(bullets, combine)
            if content is None:
                continue
            helpful, harmful = sum(bullet.helpful for bullet in bullets), sum(bullet.harmful for bullet in bullets)
            found.append(Merged(replace(bullets[0], content=content, helpful=helpful, harmful=harmful), tuple(bullets)))
            for bullet in bullets[1:]:
                del kept[bullet.id]
            kept[bullets[0].id] = found[-1].kept
        merged += found
        playbook = playbook.with_bullets(kept) if found else playbook
        # Once more without a model: an embedder that looks at all texts may find survivors similar among themselves.
        if not found or combine is not None:
            return playbook, merged


def _combined(bullets: Sequence[Bullet], combine: Combine | None) -> str | None:
    """Return the content for a group, or None if it stays unmerged."""
    if combine is None:
        return bullets[0].content
    try:
        content = combine([bullet.content for bullet in bullets])
        if content is not None and content.strip():
            return content.strip()
        reason = "no text"
    except ValueError as error:
        reason = str(error)
    _log.warning("similar bullets stay unmerged: %s: %s", ", ".join(bullet.id for bullet in bullets), reason)
    return None


def prune(playbook: Playbook, budget: int, count: Callable[[Playbook], int]) -> tuple[Playbook, list[Bullet]]:
    """Drop bullets until the playbook, as prompts show it, fits the token budget.

    The lowest helpful − harmful goes first, then the oldest step, then the lowest id. Bullets of the newest step go
    only when no other is left, the last added first. Bullets of step 0 are older than training and none is the newest.

    Args:
        playbook: what to prune.
        budget: most tokens, at least 0.
        count: counts the tokens of a playbook as prompts show it. It is called as often as the logarithm of the number
            of bullets dropped: a sum over lines would only be near the truth, since tokens can span them.

    Returns:
        The playbook, and what was dropped, in order.

    Raises:
        ValueError: if the budget is negative.
        PlaybookError: if the section headers alone exceed it.
    """
    if budget < 0:
        raise ValueError(f"budget must be at least 0 tokens, got {budget}")
    newest = max((bullet.step for bullet in playbook.bullets), default=0)
    new = [bullet for bullet in playbook.bullets if bullet.step == newest > 0]
    old = [bullet for bullet in playbook.bullets if not bullet.step == newest > 0]
    victims = sorted(old, key=lambda bullet: (bullet.helpful - bullet.harmful, bullet.step, by_number(bullet)))
    victims += sorted(new, key=by_number, reverse=True)

    def without(dropped: int) -> Playbook:
        gone = {bullet.id for bullet in victims[:dropped]}
        return playbook.with_bullets({bullet.id: bullet for bullet in playbook.bullets if bullet.id not in gone})

    def fits(dropped: int) -> bool:
        return count(without(dropped)) <= budget

    if fits(0):
        return playbook, []
    low, high = 0, 1  # 0 is too few; twice as many are tried until they are enough
    while high < len(victims) and not fits(high):
        low, high = high, 2 * high
    high = min(high, len(victims))
    if high == len(victims) and not fits(high):
        headers = count(without(high))
        raise PlaybookError(f"the playbook has {headers} tokens without any bullet, more than the budget of {budget}")
    dropped = bisect_left(range(high), True, lo=low + 1, key=fits)
    return without(dropped), victims[:dropped]
