"""Deltas: what each operation changes, what it leaves, and what is skipped."""

from itertools import chain

import pytest
from ace.operations import Add, Delete, Merge, Operation, Update, apply, parse_operations
from ace.playbook import Bullet, Playbook, Section
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

PLAYBOOK = Playbook(
    (
        Section("A", (Bullet("a-00002", "two", 1, 2, 1), Bullet("a-00001", "one", 3, 0, 2))),
        Section("FORMULAS & CALCULATIONS", (Bullet("calc-00004", "four", 5, 6, 3),)),
    ),
    next_id=9,
)
IDS = [bullet.id for bullet in PLAYBOOK.bullets]
ids = st.sampled_from([*IDS, "a-00009", "misc-00010", "x"])
texts = st.sampled_from(["one", " ONE ", "new", "newer", "  ", "four"])
operations = st.one_of(
    st.builds(Add, section=st.sampled_from(["A", "a:", "nowhere", "formulas_and_calculations"]), content=texts),
    st.builds(Update, id=ids, content=texts),
    st.builds(Merge, ids=st.lists(ids, max_size=3).map(tuple), content=texts),
    st.builds(Delete, id=ids),
)


def sums(playbook):
    return sum(b.helpful for b in playbook.bullets), sum(b.harmful for b in playbook.bullets)


def test_an_addition_goes_to_the_end_of_its_section():
    after, report = apply(PLAYBOOK, [Add(section="formulas_and_calculations:", content=" new ")], step=7)
    new = Bullet("calc-00009", "new", step=7)
    assert after.sections == (PLAYBOOK.sections[0], Section("FORMULAS & CALCULATIONS", (PLAYBOOK.bullets[2], new)))
    assert after.next_id == 10
    assert report.done == [(Add(section="formulas_and_calculations:", content=" new "), "calc-00009")]


def test_an_unknown_section_stands_for_others_at_the_end():
    delta = [Add(section="nowhere", content="x"), Add(section="", content="y")]
    after, _ = apply(PLAYBOOK, delta)
    assert after.sections[:2] == PLAYBOOK.sections
    assert after.sections[2:] == (Section("OTHERS", (Bullet("misc-00009", "x"), Bullet("misc-00010", "y"))),)
    named, _ = apply(Playbook((Section("Others"), Section("A"))), delta[:1])
    assert named.sections == (Section("Others", (Bullet("misc-00001", "x"),)), Section("A"))


def test_an_update_keeps_all_but_the_content():
    after, _ = apply(PLAYBOOK, [Update(id="a-00002", content="changed")], step=7)
    assert after.get("a-00002") == Bullet("a-00002", "changed", 1, 2, 1)
    assert [b.id for b in after.bullets] == IDS


def test_a_merge_keeps_the_lowest_id_and_its_place_and_sums_counters():
    after, report = apply(PLAYBOOK, [Merge(ids=("calc-00004", "a-00002", "a-00001"), content="all")], step=7)
    assert after.sections == (Section("A", (Bullet("a-00001", "all", 9, 8, 2),)), Section("FORMULAS & CALCULATIONS"))
    assert report.done[0][1] == "a-00001"


def test_deleted_ids_are_not_used_again():
    playbook = Playbook((Section("A", (Bullet("a-00005", "x"),)),), 6)
    emptied, _ = apply(playbook, [Delete(id="a-00005")])
    after, _ = apply(Playbook.from_json(emptied.to_json()), [Add(section="A", content="y")])
    assert [b.id for b in after.bullets] == ["a-00006"]


@pytest.mark.parametrize(
    ("delta", "reason"),
    [
        ([Add(section="A", content=" \n")], "the content is blank"),
        ([Add(section="A", content="  FOUR\n")], "a bullet with this content is there already"),
        ([Add(section="A", content="x"), Add(section="B", content="X")], "a bullet with this content is there already"),
        ([Update(id="a-00003", content="x")], "there is no bullet a-00003"),
        ([Update(id="a-00001", content=" ")], "the content is blank"),
        ([Add(section="A", content="x"), Update(id="a-00009", content="y")], "there is no bullet a-00009"),
        (
            [Delete(id="a-00001"), Update(id="a-00001", content="x")],
            "bullet a-00001 was removed by an",
        ),
        ([Delete(id="a-00001"), Delete(id="a-00001")], "bullet a-00001 was removed by an"),
        ([Merge(ids=("a-00001", "a-00002"), content="x"), Delete(id="a-00002")], "bullet a-00002 was removed by an"),
        ([Merge(ids=("a-00001", "a-00001"), content="x")], "merging needs two bullets or more, got 1"),
        ([Merge(ids=(), content="x")], "merging needs two bullets or more, got 0"),
        ([Merge(ids=("a-00001", "a-00002", "a-00003"), content="x")], "there is no bullet a-00003"),
        ([Merge(ids=("a-00001", "a-00002"), content="")], "the content is blank"),
    ],
)
def test_what_cannot_be_applied_is_skipped_with_a_reason(delta, reason):
    after, report = apply(PLAYBOOK, delta)
    assert report.skipped[0][0] == delta[-1]
    assert report.skipped[0][1].startswith(reason)
    assert after == apply(PLAYBOOK, delta[:-1])[0]


@pytest.mark.parametrize(
    "freed",
    [Delete(id="a-00001"), Update(id="a-00001", content="x"), Merge(ids=("a-00001", "a-00002"), content="x")],
)
def test_a_text_may_be_added_again_once_it_is_gone(freed):
    first = Add(section="A", content="first")
    after, report = apply(PLAYBOOK, [first, freed, Add(section="A", content="one")])
    assert not report.skipped
    assert after.bullets[-2].content == "one"


@pytest.mark.parametrize(
    "made", [Update(id="a-00001", content="made"), Merge(ids=("a-00001", "a-00002"), content="made")]
)
def test_a_text_that_an_operation_made_is_not_added_again(made):
    _, report = apply(PLAYBOOK, [Add(section="A", content="x"), made, Add(section="A", content="Made")])
    assert [reason for _, reason in report.skipped] == ["a bullet with this content is there already"]


@given(st.lists(operations, max_size=8), st.lists(operations, max_size=8))
def test_a_delta_is_pure_and_keeps_the_playbook_valid(delta, more):
    before = PLAYBOOK.to_json()
    after, report = apply(PLAYBOOK, delta, step=4)
    assert PLAYBOOK.to_json() == before
    assert len(report.done) + len(report.skipped) == len(delta)
    again, _ = apply(after, more)
    made = [int(i.split("-")[1]) for done in (report, _) for op, i in done.done if isinstance(op, Add)]
    assert made == list(range(9, 9 + len(made)))
    assert again.next_id == 9 + len(made)
    touched = set(chain.from_iterable(getattr(op, "ids", [getattr(op, "id", "")]) for op, _ in report.done))
    for bullet in PLAYBOOK.bullets:
        assert bullet.id in touched or after.get(bullet.id) == bullet


@given(st.lists(operations.filter(lambda op: not isinstance(op, Delete)), max_size=8))
def test_counters_are_conserved_by_all_but_deletion(delta):
    assert sums(apply(PLAYBOOK, delta)[0]) == sums(PLAYBOOK)


@given(st.lists(operations, max_size=8))
def test_one_delta_equals_its_operations_one_by_one(delta):
    """Save for those that name a bullet of this very delta, which one by one would be there."""
    whole, report = apply(PLAYBOOK, delta)
    single = PLAYBOOK
    for operation, _ in report.done:
        single, _ = apply(single, [operation])
    assert single == whole


@given(st.permutations([Update(id="a-00002", content="x"), Delete(id="a-00001"), Update(id="calc-00004", content="y")]))
def test_operations_on_different_bullets_commute(delta):
    expected = (Section("A", (Bullet("a-00002", "x", 1, 2, 1),)), Section("FORMULAS & CALCULATIONS"))
    after, _ = apply(PLAYBOOK, delta)
    assert after.sections[0] == expected[0]
    assert after.sections[1].bullets == (Bullet("calc-00004", "y", 5, 6, 3),)


def test_additions_in_two_orders_differ_in_ids_alone():
    delta = [Add(section="A", content="x"), Add(section="nowhere", content="y")]
    one, other = apply(PLAYBOOK, delta)[0], apply(PLAYBOOK, delta[::-1])[0]
    contents = [[(s.name, b.content) for s in p.sections for b in s.bullets] for p in (one, other)]
    assert contents[0] == contents[1]
    assert ([b.id for b in one.bullets[-1:]], [b.id for b in other.bullets[-1:]]) == (["misc-00010"], ["misc-00009"])


def test_what_would_pass_the_highest_id_or_counter_is_skipped():
    most = 10**12
    bullets = (Bullet("a-00001", "x", most), Bullet("a-00002", "y", 1), Bullet("a-00003", "z", 0, 1))
    nearly = Playbook((Section("A", bullets),), 10**15 - 1)
    add = [Add(section="A", content=content) for content in ("one", "two")]
    merge = [Merge(ids=("a-00001", other), content="m") for other in ("a-00002", "a-00003")]
    after, report = apply(nearly, [*add, *merge])
    assert report.done == [(add[0], f"a-{10**15 - 1}"), (merge[1], "a-00001")]
    assert [reason for _, reason in report.skipped] == [
        "there is no id for a further bullet below 1000000000000000",
        "the counters would add up to more than 1000000000000",
    ]
    assert after.next_id == 10**15
    assert after.bullets[0] == Bullet("a-00001", "m", most, 1)
    assert after.get("a-00002") == bullets[1]


def test_an_empty_delta_is_the_identity():
    after, report = apply(PLAYBOOK, [])
    assert after is PLAYBOOK
    assert report.done == report.skipped == []


def test_operations_are_validated_each_alone():
    raw = [
        {"type": "add", "section": "A", "content": "x", "why": "because"},
        {"type": "MERGE", "ids": ["a-00001", "a-00002"], "content": "x"},
        {"type": "ADD", "section": "A"},
        {"type": "REPLACE", "id": "a-00001"},
        {"section": "A", "content": "x"},
        "ADD x",
        {"type": "UPDATE", "id": 1, "content": "x"},
        {"type": "ADD", "section": "A", "content": "\ud800"},
        {"type": "MERGE", "ids": "a-00001", "content": "x"},
        {"type": "ADD", "section": "\udfff", "content": "x"},
        {"type": "UPDATE", "id": "\udfff", "content": "x"},
        {"type": "DELETE", "id": "a-00001"},
    ]
    parsed, rejected = parse_operations(raw)
    assert parsed == [
        Add(section="A", content="x"),
        Merge(ids=("a-00001", "a-00002"), content="x"),
        Delete(id="a-00001"),
    ]
    assert [sentence.split(" is not valid: ")[0] for sentence in rejected] == [f"operation {i}" for i in range(3, 12)]
    assert rejected[0].endswith("ADD.content: Field required")
    assert "'REPLACE'" in rejected[1]
    assert all("\n" not in sentence for sentence in rejected)
    assert raw[0]["type"] == "add"


@pytest.mark.parametrize("raw", [None, {"type": "ADD"}, "x", 3])
def test_operations_that_are_no_list_are_rejected(raw):
    assert parse_operations(raw) == ([], [f"operations must be a list, got {raw!r}"])


def test_the_schema_asks_for_every_field():
    schema = TypeAdapter(list[Operation]).json_schema()
    assert schema["$defs"]["Add"]["required"] == ["type", "section", "content"]
    assert schema["$defs"]["Merge"]["required"] == ["type", "ids", "content"]
