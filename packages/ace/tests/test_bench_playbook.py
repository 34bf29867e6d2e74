"""Speed of the playbook's operations at the sizes of the specification.

Limits are of this process's own seconds, and both sides of a ratio are timed in turns within one run, so that a busy
machine matters little.
"""

import statistics
import time

import numpy as np
import pytest
from ace.operations import Add, Delete, Merge, Update, apply
from ace.playbook import FINANCE_SECTIONS, Bullet, Playbook, Section
from ace.refine import deduplicate, similar_groups

WORDS = ["revenue", "goodwill", "ratio", "round", "decimal", "interest", "lease", "\\frac", "quarter", "net", "equity"]


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    threadpoolctl = pytest.importorskip("threadpoolctl")
    with threadpoolctl.threadpool_limits(1):
        yield


def playbook_of(size):
    """Bullets of a dozen words, spread over the finance sections."""
    random = np.random.default_rng(0)
    texts = [" ".join(random.choice(WORDS, 12)) + f" {n}" for n in range(size)]
    bullets = [Bullet(f"b-{n:05d}", text, n % 7, n % 3, n) for n, text in enumerate(texts, 1)]
    parts = (tuple(bullets[i :: len(FINANCE_SECTIONS)]) for i in range(len(FINANCE_SECTIONS)))
    return Playbook(tuple(map(Section, FINANCE_SECTIONS, parts)), size + 1)


def unit_rows(count, repeats):
    """Random directions (count, 384), some of them again with a little noise."""
    random = np.random.default_rng(0)
    rows = random.standard_normal((count, 384))
    rows[-repeats:] = rows[:repeats] + 0.1 * random.standard_normal((repeats, 384))
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


@pytest.mark.benchmark(group="read a playbook of 10,000 bullets", timer=time.process_time)
@pytest.mark.parametrize("form", ["json", "text"])
def test_ten_thousand_bullets_are_read_in_a_fifth_of_a_second(benchmark, form):
    playbook = playbook_of(10_000)
    text, read = {
        "json": (playbook.to_json(), Playbook.from_json),
        "text": (playbook.to_text(), Playbook.from_text),
    }[form]
    found = benchmark(read, text)
    assert [b.content for b in found.bullets] == [b.content for b in playbook.bullets]
    assert benchmark.stats.stats.min < 0.2


@pytest.mark.benchmark(group="apply 100 operations to 10,000 bullets", timer=time.process_time)
def test_a_hundred_operations_take_less_than_fifty_milliseconds(benchmark):
    playbook = playbook_of(10_000)
    delta = [Add(section=FINANCE_SECTIONS[i % 7], content=f"new {i}") for i in range(40)]
    delta += [Update(id=f"b-{i:05d}", content=f"changed {i}") for i in range(1, 31)]
    delta += [Merge(ids=(f"b-{i:05d}", f"b-{i + 1:05d}"), content=f"both {i}") for i in range(101, 131, 2)]
    delta += [Delete(id=f"b-{i:05d}") for i in range(201, 216)]
    after, report = benchmark(apply, playbook, delta)
    assert (len(report.done), len(after)) == (100, 10_000 + 40 - 15 - 15)
    assert benchmark.stats.stats.min < 0.05


@pytest.mark.benchmark(group="de-duplicate 2,000 bullets, without embedding", timer=time.process_time)
def test_two_thousand_bullets_are_deduplicated_in_less_than_a_second(benchmark):
    playbook, rows = playbook_of(2000), unit_rows(2000, 200)
    place = {bullet.content: i for i, bullet in enumerate(playbook.bullets)}

    def embed(texts):
        return rows[[place[text] for text in texts]]

    after, merged = benchmark(deduplicate, playbook, embed, 0.9, None, True)
    assert (len(after), len(merged)) == (1800, 200)
    assert benchmark.stats.stats.min < 1


@pytest.mark.benchmark(group="groups of 400 rows (rounds of both)")
def test_groups_are_found_faster_than_by_a_loop_over_pairs(benchmark):
    rows = unit_rows(400, 40)
    labels = [0] * len(rows)

    def loop():
        """The greedy grouping of the released code, which compares pairs one at a time."""
        groups, taken = [], set()
        for i in range(len(rows)):
            if i not in taken:
                group = [i] + [j for j in range(i + 1, len(rows)) if j not in taken and rows[i] @ rows[j] >= 0.9]
                taken.update(group)
                groups.append(group)
        return groups

    def race(rounds=3):
        times = {side: [] for side in (loop, own)}
        for _ in range(rounds):
            for side, seconds in times.items():
                start = time.process_time()
                side()
                seconds.append(time.process_time() - start)
        return times

    def own():
        return similar_groups(rows, labels, 0.9)

    assert own() == loop()
    times = benchmark.pedantic(race, rounds=1)
    ratio = statistics.median(a / b for a, b in zip(times[loop], times[own], strict=True))
    benchmark.extra_info["ratio"] = ratio
    print(f"\nblocks are {ratio:.0f} times as fast as the loop (target 10)")
    assert ratio > 10
