"""The playbook: its two forms read back to what was written, and refuse what is no playbook."""

import json
import re
from dataclasses import replace

import pytest
from ace.playbook import (
    APPWORLD_SECTIONS,
    FINANCE_SECTIONS,
    Bullet,
    Playbook,
    PlaybookError,
    Section,
    load,
    number,
    render,
    section_key,
    slug,
)
from hypothesis import given
from hypothesis import strategies as st

# Pieces that an escaping must not confuse, besides arbitrary text.
PIECES = ["⏎", "\\", "\n", "\r", "\u2028", "\x85", "\x1c", "\x0b", " ", "\t", "\u3000", "u", "u2028", "u000d", "u0041"]
PIECES += ["::", "[calc-00001]", "helpful=1 harmful=2 ::", "##", "#", "## A", "\ufeff", '"', "n", "é", "😀"]
# Not st.text(), which spends seconds on a table of all characters.
anything = st.integers(0, 0x10FFFF).filter(lambda code: not 0xD800 <= code < 0xE000).map(chr)
contents = st.lists(st.sampled_from(PIECES) | anything, max_size=8).map("".join)
counts = st.integers(0, 9) | st.integers(0, 10**12)
names = st.sampled_from(["A", "# B", "C: D", "É & F", "[calc-00001] G", "helpful=1", "OTHERS", "1"])


@st.composite
def playbooks(draw, steps=None):
    numbers = draw(st.lists(st.integers(0, 120_000), unique=True, max_size=6))
    bullets = [
        Bullet(
            f"{draw(st.sampled_from(['a', 'calc']))}-{n:05d}",
            draw(contents),
            draw(counts),
            draw(counts),
            0 if steps is None else draw(steps),
        )
        for n in numbers
    ]
    sections = draw(st.lists(names, unique=True, min_size=1, max_size=4))
    homes = [draw(st.integers(0, len(sections) - 1)) for _ in bullets]
    parts = ([b for b, home in zip(bullets, homes, strict=True) if home == i] for i in range(len(sections)))
    made = tuple(Section(name, tuple(part)) for name, part in zip(sections, parts, strict=True))
    return Playbook(made, max(numbers, default=0) + 1)


@given(playbooks())
def test_text_reads_back_to_the_same_playbook(playbook):
    assert Playbook.from_text(playbook.to_text()) == playbook


@given(playbooks())
def test_text_survives_editors_that_change_line_ends_and_trailing_blanks(playbook):
    text = playbook.to_text()
    assert Playbook.from_text("\ufeff" + text.replace("\n", " \t\r\n")) == playbook


@given(playbooks())
def test_every_bullet_is_one_line(playbook):
    lines = render(playbook, "ids").splitlines()
    assert [re.match(r"\[(.+?)\]", line)[1] for line in lines] == sorted(playbook.by_id, key=lambda i: (number(i), i))


@given(playbooks(steps=st.integers(0, 99)), st.integers(0, 5))
def test_json_reads_back_to_the_same_playbook_and_the_same_bytes(playbook, deleted):
    playbook = replace(playbook, next_id=playbook.next_id + deleted)
    text = playbook.to_json()
    assert Playbook.from_json(text) == playbook
    assert Playbook.from_json(text).to_json() == text
    assert Playbook.from_json(json.dumps(json.loads(text))) == playbook


def test_text_form_is_that_of_the_paper():
    bullets = (Bullet("calc-00012", "a :: b", 3, 1), Bullet("calc-00002", "c"))
    playbook = Playbook((Section("A & B", bullets), Section("C")), 13)
    assert playbook.to_text() == (
        "## A & B\n[calc-00012] helpful=3 harmful=1 :: a :: b\n[calc-00002] helpful=0 harmful=0 :: c\n\n## C\n"
    )


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (
            r"\frac{\nu}{\rho} and C:\new and '\n'.join(x) and \d+",
            r"\frac{\nu}{\rho} and C:\new and '\n'.join(x) and \d+",
        ),
        ("a\nb", "a⏎b"),
        (" a ", r"\u0020a\u0020"),
        ("\t", r"\u0009"),
        ("a\\\nb", r"a\\⏎b"),
        ("a⏎b", r"a\⏎b"),
        ("a\r\n", r"a\u000d⏎"),
        (" a\u2028b  ", r"\u0020a\u2028b \u0020"),
        (r"\u2028 \u0041 u2028", r"\\u2028 \u0041 u2028"),
    ],
)
def test_escapes_touch_no_more_than_they_must(content, line):
    playbook = Playbook((Section("A", (Bullet("a-00001", content),)),), 2)
    assert render(playbook, "ids", counters=False) == f"[a-00001] {line}"
    assert Playbook.from_text(playbook.to_text()) == playbook


def test_json_has_a_line_for_each_bullet():
    playbook = Playbook((Section("A", (Bullet("a-00001", "é\nb", 1, 2, 3), Bullet("a-00003", "c"))), Section("B")), 7)
    assert playbook.to_json() == (
        '{\n  "next_id": 7,\n  "sections": [\n'
        '    {"name": "A", "bullets": [\n'
        '      {"id": "a-00001", "content": "é\\nb", "helpful": 1, "harmful": 2, "step": 3},\n'
        '      {"id": "a-00003", "content": "c", "helpful": 0, "harmful": 0, "step": 0}\n'
        '    ]},\n    {"name": "B", "bullets": []}\n  ]\n}\n'
    )
    assert Playbook(()).to_json() == '{\n  "next_id": 1,\n  "sections": []\n}\n'


def test_files_of_the_appworld_agent_are_read():
    rules = "## HARD RULES\r\n[shr-00001] End with ``` and a newline(\\n).\r\n\r\n[shr-00010] Look.\r\n"
    playbook = Playbook.from_text(f"{rules}## APIs:\r\n[api-00004] x\r\n")
    rules = (Bullet("shr-00001", "End with ``` and a newline(\\n)."), Bullet("shr-00010", "Look."))
    assert playbook.sections == (Section("HARD RULES", rules), Section("APIs", (Bullet("api-00004", "x"),)))
    assert playbook.next_id == 11


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("some prose", "line 3: must be `## SECTION` or"),
        ("[calc-00002]", "line 3: must be"),
        ("[calc-00002] helpful=x harmful=0 :: a", "line 3: must be"),
        ("[calc-00002] helpful=1 :: a", "line 3: must be"),
        (
            "[calc-00002] helpful=1 harmful=-1 :: a",
            "line 3: bullet calc-00002: helpful, harmful and step must be at least",
        ),
        ("[calc-2] helpful=1 harmful=1 :: a", "line 3: the id of a bullet must be like calc-00012, got 'calc-2'"),
        ("[Calc-00002] a", "line 3: the id"),
        ("[calc-0000٢] a", "line 3: the id"),
        ("[calc-00001] again", "line 3: id calc-00001 is that of line 2 already"),
        ("## a:", "line 3: section 'a' is there already, as 'A'"),
        ("## :", "line 3: the name of a section"),
        ("### B", "line 3: must be"),
        (f"[calc-00002] helpful={'9' * 5000} harmful=0 :: a", "line 3: "),
        (f"[calc-{'9' * 5000}] a", "line 3: the id"),
    ],
)
def test_a_bad_line_is_refused_with_its_number(line, message):
    with pytest.raises(PlaybookError, match=re.escape(message)):
        Playbook.from_text(f"## A\n[calc-00001] first\n{line}\n[calc-00009] last\n")


def test_a_bullet_without_a_section_is_refused():
    with pytest.raises(PlaybookError, match="line 2: bullet a-00001 stands before"):
        Playbook.from_text("\n[a-00001] x")


BULLET = {"id": "a-00004", "content": "x", "helpful": 0, "harmful": 0, "step": 0}


def as_json(next_id=5, **changes):
    return json.dumps({"next_id": next_id, "sections": [{"name": "A", "bullets": [BULLET | changes]}]})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not JSON: "),
        ("[" * 100_000, "not JSON: "),
        ("[]", "the playbook must be an object, got []"),
        ('{"sections": []}', "the playbook must have the keys next_id, sections, got sections"),
        ('{"sections": [], "next_id": 1, "next_id": 2}', "key 'next_id' comes twice"),
        ('{"sections": [3], "next_id": 1}', "section 1 must be an object, got 3"),
        (as_json(tag="b"), "section 1, bullet 1 must have the keys id, content, helpful, harmful, step, got"),
        (as_json(helpful=True), "section 1, bullet 1: helpful must be of type int, got True"),
        (as_json(step=1.0), "section 1, bullet 1: step must be of type int, got 1.0"),
        (as_json(content=None), "section 1, bullet 1: content must be of type str, got None"),
        (as_json(harmful=-1), "bullet a-00004: helpful, harmful and step must be at least 0, got 0, -1 and 0"),
        (as_json(content="\ud800"), "bullet a-00004: half a surrogate pair is no text"),
        (as_json(id="A-00004"), "the id of a bullet must be like"),
        (as_json(next_id=4), "next_id must be above 4, the highest in use, got 4"),
    ],
)
def test_bad_json_is_refused_with_what_is_wrong(text, message):
    with pytest.raises(PlaybookError, match=re.escape(message)):
        Playbook.from_json(text)


def test_a_negative_step_is_refused():
    with pytest.raises(PlaybookError, match="must be at least 0, got 0, 0 and -1"):
        Bullet("a-00001", "x", step=-1)


def test_twins_are_refused():
    a = Bullet("a-00001", "x")
    with pytest.raises(PlaybookError, match="bullet 'a-00001' comes twice"):
        Playbook((Section("A", (a,)), Section("B", (a,))), 2)
    with pytest.raises(PlaybookError, match="section 'a and b' comes twice"):
        Playbook((Section("A & B"), Section("a and b")))


@pytest.mark.parametrize("name", ["", " ", " A", "A ", "A:", ":", "A\nB", "A\u2028B", "\udc00"])
def test_a_section_name_that_is_no_header_is_refused(name):
    with pytest.raises(PlaybookError, match="the name of a section"):
        Section(name)


def test_section_keys_and_slugs():
    assert (
        section_key("FORMULAS & CALCULATIONS")
        == section_key("formulas_and_calculations:")
        == "formulas_and_calculations"
    )
    assert section_key("PROBLEM-SOLVING HEURISTICS") == "problem-solving_heuristics"
    assert [slug(name) for name in FINANCE_SECTIONS] == ["sai", "calc", "code", "err", "prob", "ctx", "misc"]
    assert [slug(name) for name in APPWORLD_SECTIONS] == [
        "sahr",
        "atufs",
        "ucsat",
        "cmacs",
        "phaw",
        "vc",
        "tap",
        "misc",
    ]
    assert [slug(name) for name in ("Warnings", "AI", "1 2", "3 Rules", "天气")] == [
        "warn",
        "ai",
        "misc",
        "rule",
        "misc",
    ]


def test_tags_count_once_for_each_bullet_that_is_there():
    playbook = Playbook(
        (Section("A", (Bullet("a-00001", "x", 1, 1), Bullet("a-00002", "y"), Bullet("a-00003", "z"))),), 4
    )
    tagged = playbook.tagged({"a-00001": "helpful", "a-00002": "harmful", "a-00003": "neutral", "a-00009": "helpful"})
    assert [(b.helpful, b.harmful) for b in tagged.bullets] == [(2, 1), (0, 1), (0, 0)]
    assert [b.content for b in tagged.bullets] == ["x", "y", "z"]
    assert tagged.next_id == 4
    assert [b.helpful for b in playbook.bullets] == [1, 0, 0]
    with pytest.raises(ValueError, match="the tag of a-00001 must be helpful, harmful or neutral, got 'good'"):
        playbook.tagged({"a-00001": "good"})


@pytest.mark.parametrize("order", ["sections", "ids"])
def test_render_by_id_appends_new_bullets_at_the_end(order):
    before = Playbook((Section("A", (Bullet("a-99999", "x"),)), Section("B", (Bullet("b-00002", "y"),))), 100_000)
    new = Bullet("a-100000", "z")
    after = Playbook((Section("A", (*before.bullets[:1], new)), before.sections[1]), 100_001)
    assert render(after, order, False).startswith(render(before, order, False)) == (order == "ids")
    assert render(after, "ids", False) == "[b-00002] y\n[a-99999] x\n[a-100000] z"
    assert render(after, "sections", False) == "## A\n[a-99999] x\n[a-100000] z\n\n## B\n[b-00002] y"


def test_ids_and_counters_end_at_the_same_bounds_however_they_are_given():
    last, most = f"a-{10**15 - 1}", 10**12
    full = Playbook((Section("A", (Bullet(last, "x", most, most),)),), 10**15)
    assert Playbook.from_text(full.to_text()) == Playbook.from_json(full.to_json()) == full
    with pytest.raises(PlaybookError, match=r"next_id must be at most 10{15}, got 10{14}1$"):
        replace(full, next_id=10**15 + 1)
    for text, said in {
        f"[a-{10**15}] x": "the id of a bullet must be like calc-00012",
        f"[a-00001] helpful={most + 1} harmful=0 :: x": "bullet a-00001: helpful, harmful and step must be at most",
        f"[a-00001] helpful=0 harmful={most + 1} :: x": "bullet a-00001: helpful, harmful and step must be at most",
        f"[a-00001] helpful={'1' * 5000} harmful=0 :: x": "at most 1000000000000, got a number of 5000 digits",
    }.items():
        with pytest.raises(PlaybookError, match=said):
            Playbook.from_text(f"## A\n{text}\n")
    for old, new, said in [
        (f'"next_id": {10**15}', f'"next_id": {10**15 + 1}', "next_id must be at most"),
        (f'"harmful": {most}', f'"harmful": {most + 1}', "must be at most"),
        ('"step": 0', f'"step": {most + 1}', "must be at most"),
    ]:
        with pytest.raises(PlaybookError, match=said):
            Playbook.from_json(full.to_json().replace(old, new))
    with pytest.raises(PlaybookError, match="must be at most"):
        full.tagged({last: "helpful"})


def test_bullets_are_found_by_id():
    playbook = Playbook((Section("A"), Section("B", (Bullet("b-00002", "y"),))), 3)
    assert playbook.get("b-00002") == Bullet("b-00002", "y")
    assert playbook.get("b-00003") is None
    assert (len(playbook), len(Playbook.empty())) == (1, 0)
    assert [section.name for section in Playbook.empty().sections] == list(FINANCE_SECTIONS)


def test_files_are_read_by_suffix(tmp_path):
    playbook = Playbook((Section("A", (Bullet("a-00002", "é", 1, 2),)),), 9)
    (tmp_path / "p.json").write_text(playbook.to_json(), "utf-8")
    (tmp_path / "p.md").write_text(playbook.to_text(), "utf-8-sig")
    assert load(tmp_path / "p.json") == playbook
    assert load(tmp_path / "p.md") == replace(playbook, next_id=3)
    with pytest.raises(FileNotFoundError, match=r"there is no playbook .*q\.txt"):
        load(tmp_path / "q.txt")
    with pytest.raises(PlaybookError, match=r"p\.yaml: the name of a playbook's file must end in"):
        load(tmp_path / "p.yaml")
    (tmp_path / "r.txt").write_bytes(b"## A\n\xff")
    with pytest.raises(PlaybookError, match=r"r\.txt: .*utf-8"):
        load(tmp_path / "r.txt")
    (tmp_path / "s.md").write_text("## A\n<<<<<<< HEAD\n")
    with pytest.raises(PlaybookError, match=r"s\.md: line 2: must be"):
        load(tmp_path / "s.md")
