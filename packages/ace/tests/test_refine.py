"""Grow-and-refine: groups equal those of brute force, nothing is lost, and the budget holds."""

import logging
import math
import re
import sys
import types

import numpy as np
import pytest
from ace.playbook import Bullet, Playbook, PlaybookError, Section, number, render
from ace.refine import Merged, deduplicate, ngram_embedder, prune, sentence_embedder, similar_groups
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from sklearn.feature_extraction.text import CountVectorizer


def on_circle(*degrees):
    """Unit vectors whose cosines are those of the angles between them."""
    radians = np.radians(degrees)
    return np.stack([np.cos(radians), np.sin(radians)], axis=1).astype(np.float32)


def angles(texts):
    """An embedder of texts that begin with an angle."""
    return on_circle(*(float(text.split()[0]) for text in texts))


def playbook_of(*sections, step=0):
    """Sections A, B, ... of bullets with these contents, numbered on, with counters that differ."""
    texts = [(name, text) for name, part in zip("ABCDEF", sections, strict=False) for text in part]
    bullets = [
        (name, Bullet(f"{name.lower()}-{n:05d}", str(text), n, 2 * n, step)) for n, (name, text) in enumerate(texts, 1)
    ]
    parts = (tuple(b for home, b in bullets if home == name) for name in "ABCDEF"[: len(sections)])
    return Playbook(tuple(Section(name, part) for name, part in zip("ABCDEF", parts, strict=False)), len(bullets) + 1)


def brute_force(embeddings, labels, threshold):
    """Groups by comparing every pair, over and over until nothing joins."""
    groups = [{i} for i in range(len(labels))]
    joined = True
    while joined:
        joined = False
        for a in groups:
            for b in groups:
                near = (embeddings[i] @ embeddings[j] >= threshold and labels[i] == labels[j] for i in a for j in b)
                if a is not b and any(near):
                    groups = [group for group in groups if group not in (a, b)] + [a | b]
                    joined = True
                    break
            if joined:
                break
    return sorted(sorted(group) for group in groups)


@settings(deadline=None)
@given(
    hnp.arrays(np.int8, st.tuples(st.integers(0, 14), st.just(3)), elements=st.integers(-3, 3)),
    st.data(),
    st.sampled_from([0.3, 0.72, 0.913, 1.0]),
    st.integers(1, 5),
)
def test_groups_are_those_of_brute_force_whatever_the_block(points, data, threshold, block):
    lengths = np.linalg.norm(points, axis=1, keepdims=True)
    embeddings = np.divide(points, lengths, out=np.zeros(points.shape), where=lengths > 0)
    labels = [data.draw(st.sampled_from("ab")) for _ in points]
    expected = brute_force(embeddings, labels, threshold - 1e-6)
    assert similar_groups(embeddings.astype(np.float32), labels, threshold, block) == expected
    assert sorted(index for group in expected for index in group) == list(range(len(points)))


def test_a_chain_is_one_group():
    embeddings = on_circle(0, 40, 20)  # 0 and 40 meet through 20 alone
    for block in (1, 2, 3):
        assert similar_groups(embeddings, "aaa", math.cos(math.radians(25)), block) == [[0, 1, 2]]
        assert similar_groups(embeddings, "aaa", math.cos(math.radians(15)), block) == [[0], [1], [2]]
        assert similar_groups(embeddings, "aab", math.cos(math.radians(25)), block) == [[0], [1], [2]]


def test_the_threshold_itself_is_similar_and_above_one_nothing_is():
    embeddings = np.array([[1, 0], [0.6, 0.8], [0.6, 0.8], [0, 0], [0, 0]], np.float32)
    assert similar_groups(embeddings, "aaaaa", 0.6) == [[0, 1, 2], [3], [4]]
    assert similar_groups(embeddings, "aaaaa", 0.601) == [[0], [1, 2], [3], [4]]
    assert similar_groups(embeddings, "aaaaa", 1.0) == [[0], [1, 2], [3], [4]]
    assert similar_groups(embeddings, "aaaaa", 1.0 + 1e-9) == [[0], [1], [2], [3], [4]]


@pytest.mark.parametrize(
    ("embeddings", "labels", "threshold", "message"),
    [
        (on_circle(0, 1), "a", 0.9, "embeddings must be of 1 rows, one for each label, got shape (2, 2)"),
        (on_circle(0)[0], "ab", 0.9, "got shape (2,)"),
        (2 * on_circle(0, 1), "ab", 0.9, "each embedding must have length 1"),
        (on_circle(0, math.nan), "ab", 0.9, "each embedding must have length 1"),
        (on_circle(0), "a", 0.0, "threshold must be above 0 and block at least 1, got 0.0 and 1024"),
        (on_circle(0), "a", math.nan, "threshold must be above 0"),
    ],
)
def test_bad_embeddings_are_refused(embeddings, labels, threshold, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        similar_groups(embeddings, labels, threshold)


def test_ngram_embeddings_are_normalised_counts_in_few_buckets():
    """Hashing into 4096 buckets disturbs cosines by about 1/64 (one standard deviation, all n-grams apart)."""
    texts = ["Round to two decimals.", "Round to two decimals!", "round  TO two decimals.", "Use net income", "€"]
    embeddings = ngram_embedder(texts)
    exact = CountVectorizer(analyzer="char_wb", ngram_range=(3, 5)).fit_transform(texts).toarray().astype(float)
    exact /= np.linalg.norm(exact, axis=1, keepdims=True)
    assert embeddings.shape == (5, 4096)
    assert embeddings.dtype == np.float32
    np.testing.assert_allclose(embeddings @ embeddings.T, exact @ exact.T, atol=4 / 64)
    assert embeddings[0] @ embeddings[2] == pytest.approx(1, abs=1e-6)
    assert np.count_nonzero(ngram_embedder(["a", "ab"]), axis=1).tolist() == [1, 3]  # " a "; " ab", "ab ", " ab "
    np.testing.assert_array_equal(ngram_embedder(texts[3:]), embeddings[3:])
    assert not ngram_embedder([" "]).any()
    assert ngram_embedder([]).shape == (0, 4096)


def test_deduplication_keeps_the_lowest_id_and_sums_counters():
    playbook = playbook_of(["0 a", "50 b", "2 c"], ["1 d", "3 e"])
    after, merged = deduplicate(playbook, angles, 0.99)
    one, two, three, four, five = playbook.bullets
    kept = [Bullet("a-00001", "0 a", 4, 8), Bullet("b-00004", "1 d", 9, 18)]
    assert after.sections == (Section("A", (kept[0], two)), Section("B", (kept[1],)))
    assert merged == [Merged(kept[0], (one, three)), Merged(kept[1], (four, five))]
    assert after.next_id == 6
    across, _ = deduplicate(playbook, angles, 0.99, across_sections=True)
    assert across.sections == (Section("A", (Bullet("a-00001", "0 a", 13, 26), two)), Section("B"))


def test_the_lowest_id_is_kept_where_it_stands():
    playbook = Playbook(
        (Section("A", (Bullet("a-100000", "1"), Bullet("b-00007", "50"), Bullet("c-00002", "0"))),), 100_001
    )
    after, _ = deduplicate(playbook, angles, 0.99)
    assert [bullet.id for bullet in after.bullets] == ["b-00007", "c-00002"]


circles = st.lists(st.lists(st.integers(0, 24).map(lambda n: 15 * n), max_size=6), min_size=1, max_size=3)


@settings(deadline=None)
@given(circles, st.sampled_from([0.8, 0.95, 1.0]), st.booleans())
def test_deduplication_is_idempotent_and_conserves_counters(degrees, threshold, across):
    playbook = playbook_of(*degrees)
    after, merged = deduplicate(playbook, angles, threshold, across_sections=across)
    assert deduplicate(after, angles, threshold, across_sections=across) == (after, [])
    for counter in ("helpful", "harmful"):
        assert sum(getattr(b, counter) for b in after.bullets) == sum(getattr(b, counter) for b in playbook.bullets)
    gone = [bullet.id for group in merged for bullet in group.group[1:]]
    assert sorted([*gone, *after.by_id]) == sorted(playbook.by_id)
    assert after.next_id == playbook.next_id
    assert deduplicate(playbook, angles, 1.0 + 1e-9, across_sections=across) == (playbook, [])


@settings(deadline=None, max_examples=30)
@given(st.lists(st.sampled_from(["Round it.", "Round it", "round it!", "Use x", "use  X", "", "Add"]), max_size=8))
def test_deduplication_by_ngrams_is_idempotent(texts):
    after, _ = deduplicate(playbook_of(texts), ngram_embedder, 0.6)
    assert deduplicate(after, ngram_embedder, 0.6) == (after, [])


def test_deduplication_is_idempotent_for_an_embedder_that_looks_at_all_texts():
    def ranks(texts):
        return on_circle(*(10 * sorted(texts).index(text) * 10 / len(texts) for text in texts))

    playbook = playbook_of(["a", "b", "c", "d", "a"])
    after, merged = deduplicate(playbook, ranks, 0.99)
    assert deduplicate(after, ranks, 0.99) == (after, [])
    assert [group.kept.id for group in merged] == ["a-00001"]


def test_a_shrinking_corpus_is_looked_at_again():
    """Survivors stand 20 degrees apart among four texts and 0 degrees apart among fewer."""

    def embed(texts):
        return on_circle(*(float(text) * (len(texts) > 3) for text in texts))

    after, merged = deduplicate(playbook_of(["0", "0", "20", "40"]), embed, 0.99)
    assert [bullet.content for bullet in after.bullets] == ["0"]
    assert [len(group.group) for group in merged] == [2, 3]
    assert after.bullets[0].helpful == 1 + 2 + 3 + 4


def test_a_model_may_write_the_content_of_a_group():
    asked = []

    def combine(contents):
        asked.append(contents)
        return " 0 both\n"

    after, merged = deduplicate(playbook_of(["0 a", "50 b", "1 c"]), angles, 0.99, combine)
    assert asked == [["0 a", "1 c"]]
    assert after.bullets[0] == merged[0].kept == Bullet("a-00001", "0 both", 4, 8)
    assert [bullet.id for bullet in after.bullets] == ["a-00001", "a-00002"]


def test_what_a_model_wrote_is_not_merged_again_at_once():
    after, merged = deduplicate(playbook_of(["0 a", "50 b", "1 c"]), angles, 0.99, lambda contents: "50 both")
    assert [bullet.content for bullet in after.bullets] == ["50 both", "50 b"]
    assert len(merged) == 1


@pytest.mark.parametrize("answer", [None, " \n", ValueError("cut")])
def test_a_failed_merge_loses_nothing(answer, caplog):
    def combine(contents):
        if contents[0].startswith("90"):
            return "90 fine"
        if isinstance(answer, ValueError):
            raise answer
        return answer

    playbook = playbook_of(["0 a", "90 b", "1 c", "91 d"])
    with caplog.at_level(logging.WARNING):
        after, merged = deduplicate(playbook, angles, 0.99, combine)
    assert [bullet.content for bullet in after.bullets] == ["0 a", "90 fine", "1 c"]
    assert (after.bullets[0], after.bullets[2]) == (playbook.bullets[0], playbook.bullets[2])
    assert len(merged) == 1
    assert "similar bullets stay unmerged: a-00001, a-00003: " in caplog.text


def test_another_exception_of_the_model_is_not_hidden():
    def combine(contents):
        raise RuntimeError("down")

    with pytest.raises(RuntimeError, match="down"):
        deduplicate(playbook_of(["0", "1"]), angles, 0.99, combine)


def test_sentence_embeddings_need_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)
    with pytest.raises(ImportError, match="--extra embeddings"):
        sentence_embedder("all-mpnet-base-v2")


def test_sentence_embeddings_are_normalised_float32(monkeypatch):
    class Network:
        def __init__(self, name):
            self.name = name

        def encode(self, texts, normalize_embeddings, **options):
            assert (self.name, normalize_embeddings) == ("folder", True)
            return np.eye(2)[[len(text) for text in texts]]

    monkeypatch.setitem(sys.modules, "sentence_transformers", types.SimpleNamespace(SentenceTransformer=Network))
    rows = sentence_embedder("folder")(("", "x"))
    np.testing.assert_array_equal(rows, np.eye(2, dtype=np.float32))
    assert rows.dtype == np.float32


def words(text):
    return len(text.split())


def one_by_one(playbook, budget, count, order, counters):
    """Drop the bullet that the rule names, render and count again, until it fits."""
    dropped = []
    while count(render(playbook, order, counters)) > budget:
        newest = max(bullet.step for bullet in playbook.bullets + tuple(dropped))
        old = [bullet for bullet in playbook.bullets if bullet.step < newest or newest == 0]
        if old:
            victim = min(old, key=lambda b: (b.helpful - b.harmful, b.step, number(b.id)))
        else:
            victim = max(playbook.bullets, key=lambda b: number(b.id))
        dropped.append(victim)
        playbook = playbook.with_bullets({b.id: b for b in playbook.bullets if b is not victim})
    return playbook, dropped


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 9), st.integers(0, 2), st.integers(0, 2), st.integers(0, 3)), max_size=9),
    st.integers(4, 60),
    st.sampled_from(["sections", "ids"]),
    st.booleans(),
)
def test_pruning_equals_dropping_one_by_one(rows, budget, order, counters):
    bullets = [Bullet(f"a-{n:05d}", "word " * row[0], *row[1:]) for n, row in enumerate(rows, 1)]
    playbook = Playbook((Section("A", tuple(bullets[::2])), Section("B", tuple(bullets[1::2]))), len(bullets) + 1)
    found = prune(playbook, budget, lambda p: words(render(p, order, counters)))
    assert found == one_by_one(playbook, budget, words, order, counters)
    assert words(render(found[0], order, counters)) <= budget


def pruned(bullets, budget):
    playbook = Playbook((Section("A", tuple(bullets)),), 99)
    after, dropped = prune(playbook, budget, lambda p: words(render(p, "ids", False)))  # two words a bullet
    assert after.next_id == 99
    return [number(bullet.id) for bullet in after.bullets], [number(bullet.id) for bullet in dropped]


def test_the_least_helpful_go_first_then_the_oldest_and_the_newest_step_last():
    bullets = [
        Bullet("a-00001", "x", 5, 0, step=1),
        Bullet("a-00002", "x", 1, 1, step=2),
        Bullet("a-00003", "x", 2, 2, step=1),
        Bullet("a-00004", "x", 0, 1, step=2),
        Bullet("a-00005", "x", 0, 9, step=3),
        Bullet("a-00006", "x", 9, 0, step=3),
    ]
    assert pruned(bullets, 12) == ([1, 2, 3, 4, 5, 6], [])
    assert pruned(bullets, 6) == ([1, 5, 6], [4, 3, 2])
    assert pruned(bullets, 4) == ([5, 6], [4, 3, 2, 1])
    assert pruned(bullets, 1) == ([], [4, 3, 2, 1, 6, 5])


def test_bullets_from_before_training_go_by_their_counters():
    bullets = [Bullet("a-00001", "x", 1), Bullet("a-00002", "x", 0), Bullet("a-00003", "x", 2)]
    assert pruned(bullets, 4) == ([1, 3], [2])
    assert pruned(bullets, 1) == ([], [2, 1, 3])
    assert pruned([bullet.__class__(bullet.id, "x", bullet.helpful, 0, 1) for bullet in bullets], 4) == ([1, 2], [3])


def test_pruning_counts_few_times():
    playbook = playbook_of(["word"] * 1000)
    calls = []

    def count(text):
        calls.append(text)
        return words(text)

    assert len(prune(playbook, 5002 - 5, lambda p: count(render(p)))[1]) == 1
    assert len(calls) == 2
    calls.clear()
    _, dropped = prune(playbook, 500, lambda p: count(render(p)))
    assert len(dropped) == 1000 - (500 - 2) // 5
    assert len(calls) <= 2 * math.log2(1000) + 2


def test_headers_beyond_the_budget_are_refused():
    playbook = playbook_of(["x"], ["y"])
    with pytest.raises(PlaybookError, match="the playbook has 4 tokens without any bullet, more than the budget of 3"):
        prune(playbook, 3, lambda p: words(render(p)))
    with pytest.raises(PlaybookError, match="4 tokens without any bullet"):
        prune(playbook_of([], []), 3, lambda p: words(render(p)))
    assert prune(playbook, 4, lambda p: words(render(p)))[0].sections == (Section("A"), Section("B"))
    with pytest.raises(ValueError, match="budget must be at least 0 tokens, got -1"):
        prune(playbook, -1, lambda p: words(render(p)))
