"""What becomes of bullets when playbooks are put together, how two differ, and the verbs of `ace playbook`."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from ace.books import changes, faults, join
from ace.cli import listed, main
from ace.playbook import Bullet, Playbook, Section, load, render

FIRST = Playbook(
    (
        Section("FORMULAS & CALCULATIONS", (Bullet("calc-00001", "a yard is three feet", 2, 1, step=4),)),
        Section("OTHERS", (Bullet("misc-00003", "ask when in doubt"),)),
    ),
    next_id=6,
)
SECOND = Playbook(
    (
        Section(
            "Formulas and calculations",
            (
                Bullet("calc-00003", "a mile is 1760 yards", 1),
                Bullet("calc-00004", "A yard  is three FEET", 5, 7),
            ),
        ),
        Section("UNITS OF TIME", (Bullet("uot-00002", "an hour has sixty minutes", step=2),)),
    ),
    next_id=9,
)


@pytest.fixture(autouse=True)
def files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("a.json").write_text(FIRST.to_json())
    Path("b.md").write_text(SECOND.to_text())
    return tmp_path


def run(*words, code=0):
    assert main(["playbook", *map(str, words)]) == code


def test_join_keeps_ids_but_where_the_number_is_taken_and_sums_counters_of_equal_texts():
    joined, (_, report) = join([("a", FIRST), ("b", SECOND)])
    formulas, others, time = joined.sections
    assert formulas.name == "FORMULAS & CALCULATIONS"
    # misc-00003 has the number 3 already, and the second file's own next id is above the first's.
    assert formulas.bullets == (
        Bullet("calc-00001", "a yard is three feet", 7, 8, step=4),
        Bullet("calc-00009", "a mile is 1760 yards", 1),
    )
    assert others == FIRST.sections[1]
    assert time == SECOND.sections[1]
    assert joined.next_id == 10
    assert report.renamed == {"calc-00003": "calc-00009"}
    assert report.known == {"calc-00004": "calc-00001"}


def test_join_conserves_the_sums_of_counters():
    joined, _ = join([("a", FIRST), ("b", SECOND), ("c", SECOND)])
    for counter in ("helpful", "harmful"):
        sums = [sum(getattr(b, counter) for b in book.bullets) for book in (joined, FIRST, SECOND)]
        assert sums[0] == sums[1] + 2 * sums[2]
    assert len(joined) == 4  # the third file says nothing new


def test_join_with_an_empty_playbook_or_itself_changes_no_bullet():
    assert join([("a", FIRST), ("e", Playbook.empty(()))])[0] == FIRST
    doubled, _ = join([("a", FIRST), ("a", FIRST)])
    assert [(b.id, b.content) for b in doubled.bullets] == [(b.id, b.content) for b in FIRST.bullets]
    assert [b.helpful for b in doubled.bullets] == [4, 0]


def test_join_of_one_text_twice_in_a_later_file_makes_one_bullet():
    twice = Playbook((Section("OTHERS", (Bullet("misc-00007", "x", 1), Bullet("misc-00008", "X", 2))),), 9)
    joined, _ = join([("a", FIRST), ("b", twice)])
    assert joined.get("misc-00007") == Bullet("misc-00007", "x", 3)
    assert joined.get("misc-00008") is None


def test_changes_lists_what_was_added_removed_changed_and_moved():
    x, y, z = Bullet("a-00001", "x"), Bullet("a-00002", "y"), Bullet("b-00003", "z")
    old = Playbook((Section("A", (x, y)), Section("B")), 9)
    new = Playbook((Section("A", (replace(x, helpful=1),)), Section("B", (y, z))), 9)
    assert changes(old, new) == {
        "A": [(Bullet("a-00001", "x"), Bullet("a-00001", "x", 1)), (Bullet("a-00002", "y"), None)],
        "B": [(None, Bullet("a-00002", "y")), (None, Bullet("b-00003", "z"))],
    }
    assert changes(old, old) == {}


def test_a_step_is_no_change_since_the_text_form_has_none():
    assert changes(FIRST, Playbook.from_text(FIRST.to_text())) == {}


def test_faults_are_blank_bullets_and_texts_that_come_twice():
    book = Playbook((Section("A", (Bullet("a-00001", "x y"), Bullet("a-00002", " "), Bullet("a-00003", "X  Y"))),), 9)
    assert faults(book) == ["bullet a-00002 is blank", "bullet a-00003 says the same as a-00001"]
    assert faults(FIRST) == []


def test_diff_prints_lines_of_the_text_form_and_counts(capsys):
    changed = replace(FIRST, sections=(Section("FORMULAS & CALCULATIONS", (Bullet("calc-00001", "a [b]", 2, 1),)),))
    Path("c.json").write_text(changed.to_json())
    run("diff", "a.json", "c.json")
    assert capsys.readouterr().out.splitlines() == [
        "--- a.json",
        "+++ c.json",
        "@@ FORMULAS & CALCULATIONS @@",
        "-[calc-00001] helpful=2 harmful=1 :: a yard is three feet",
        "+[calc-00001] helpful=2 harmful=1 :: a [b]",
        "@@ OTHERS @@",
        "-[misc-00003] helpful=0 harmful=0 :: ask when in doubt",
        "0 added, 1 removed, 1 changed",
    ]


def test_merge_takes_files_one_behind_the_other_and_writes_only_with_out(capsys, files):
    before = {file.name: file.read_bytes() for file in files.iterdir()}
    run("merge", "a.json", "b.md")
    assert {file.name: file.read_bytes() for file in files.iterdir()} == before
    assert "nothing is written" in capsys.readouterr().err
    run("merge", "a.json", "--out", "c.json", "b.md")
    assert load(Path("c.json")) == join([("a", FIRST), ("b", load(Path("b.md")))])[0]
    out = capsys.readouterr().out
    assert "b.md: calc-00003 -> calc-00006" in out  # in the text form its next id is 5
    assert "b.md: calc-00004 says the same as calc-00001" in out


def test_files_with_commas_and_brackets_in_their_names_are_merged(files):
    Path("[x], y.json").write_text(FIRST.to_json())
    run("merge", "b.md", "[x], y.json", "--out=c.json")
    assert len(load(Path("c.json"))) == 4


@pytest.mark.parametrize("words", [["playbook", "diff", "a", "b"], ["train", "merge", "a"], ["playbook"], []])
def test_other_verbs_keep_their_arguments(words):
    assert listed(words) == words
    assert listed(["playbook", "merge", "[a,b]", "--out", "c"]) == ["playbook", "merge", "[a,b]", "--out", "c"]


def test_dedup_shows_groups_and_writes_what_is_left(capsys):
    similar = "the capital of France is Paris"
    bullets = (Bullet("a-00001", similar, 1), Bullet("a-00002", f"{similar}.", 2, 1), Bullet("a-00003", "zebra"))
    Path("s.json").write_text(Playbook((Section("A", bullets),), 9).to_json())
    run("dedup", "s.json")
    assert capsys.readouterr().out.splitlines() == [
        "@@ 2 similar bullets @@",
        f"-[a-00001] helpful=1 harmful=0 :: {similar}",
        f"-[a-00002] helpful=2 harmful=1 :: {similar}.",
        f"+[a-00001] helpful=3 harmful=1 :: {similar}",
        "3 bullets, 2 without those that are similar to an earlier one",
    ]
    run("dedup", "s.json", "--threshold=1.01", "--out=t.json")
    assert load(Path("t.json")).bullets == bullets
    run("dedup", "s.json", "--out=s.json")  # its own file, as asked
    assert load(Path("s.json")).bullets == (replace(bullets[0], helpful=3, harmful=1), bullets[2])


def test_prune_drops_the_least_helpful_until_the_estimate_fits(capsys):
    run("prune", "a.json", "--budget=26", "--out=p.md")
    assert Path("p.md").read_text() == render(replace(FIRST, sections=(FIRST.sections[0], Section("OTHERS")))) + "\n"
    out = capsys.readouterr().out
    assert out.splitlines()[0] == "-[misc-00003] helpful=0 harmful=0 :: ask when in doubt"
    before = -(-len(render(FIRST).encode()) // 4)
    assert f"2 bullets of {before} tokens, 1 of 24 within the budget of 26" in out


def test_stats_sum_up_sections(capsys):
    Path("s.json").write_text(join([("a", FIRST), ("b", SECOND)])[0].to_json())
    run("stats", "s.json")
    rows = [
        [cell.strip() for cell in row.split("│")[1:-1]] for row in capsys.readouterr().out.splitlines() if "│" in row
    ]
    found = {row[0]: row[1:] for row in rows}
    # bullets, tokens, helpful, harmful, unused, net harmful
    tokens = -(-len(b"## OTHERS\n[misc-00003] helpful=0 harmful=0 :: ask when in doubt") // 4)
    assert found["OTHERS"] == ["1", str(tokens), "0", "0", "1", "0"]
    assert [found["all"][i] for i in (0, 2, 3, 4, 5)] == ["4", "8", "8", "2", "1"]


def test_show_prints_contents_as_they_are(capsys):
    Path("s.json").write_text(Playbook((Section("A", (Bullet("a-00001", "x [red]y[/red] $z"),)),), 9).to_json())
    run("show", "s.json")
    assert "x [red]y[/red] $z" in capsys.readouterr().out


def test_terminal_codes_are_shown_as_such_and_exported_as_they_are(capfdbinary):
    content = "a\x1b[2J\x1b]0;title\x07\x9b31m\x7f\r b\n\tc"
    book = Playbook((Section("A\x1b[1m", (Bullet("a-00001", content),)),), 9)
    Path("s.json").write_text(book.to_json())
    run("show", "s.json")
    out = capfdbinary.readouterr().out.decode()
    assert r"a\x1b[2J\x1b]0;title\x07\x9b31m\x7f\x0d b" in out
    assert r"A\x1b[1m (1)" in out
    for words in (["stats", "s.json"], ["diff", "s.json", "a.json"], ["prune", "s.json", "--budget=2"]):
        run(*words)
        out += capfdbinary.readouterr().out.decode()
    assert not any(letter in out for letter in "\x1b\x07\x9b\x7f\r")
    run("export", "s.json", "--format=json")
    assert capfdbinary.readouterr().out.decode() == book.to_json()


def test_validate_names_each_fault_on_a_line_and_exits_with_1(capsys):
    Path("twice.md").write_text("## A\n[a-00001] x\n[a-00001] y\n")
    Path("same.md").write_text("## A\n[a-00001] x\n[a-00002] x\n")
    run("validate", "a.json", "b.md")
    run("validate", "a.json", "twice.md", "same.md", "none.json", code=1)
    assert capsys.readouterr().out.splitlines() == [
        "a.json: 2 bullets, all is well",
        "b.md: 3 bullets, all is well",
        "a.json: 2 bullets, all is well",
        "twice.md: line 3: id a-00001 is that of line 2 already",
        "same.md: bullet a-00002 says the same as a-00001",
        "there is no playbook none.json",
    ]


def test_export_prints_the_bytes_of_a_file_of_that_form(capfdbinary):
    for form, text in (("json", FIRST.to_json()), ("md", FIRST.to_text()), ("prompt", render(FIRST) + "\n")):
        run("export", "a.json", f"--format={form}")
        assert capfdbinary.readouterr().out == text.encode()
    run("export", "a.json", "--format=prompt", "--order=ids", "--counters=false")
    assert capfdbinary.readouterr().out == b"[calc-00001] a yard is three feet\n[misc-00003] ask when in doubt\n"


def test_a_run_folder_stands_for_its_playbook_and_its_own_prompt(capfdbinary):
    Path("run").mkdir()
    Path("run/playbook.json").write_text(FIRST.to_json())
    Path("run/context.txt").write_text("- a yard is three feet\n")
    run("export", "run", "--format=json")
    assert json.loads(capfdbinary.readouterr().out)["next_id"] == 6
    run("export", "run", "--format=prompt")
    assert capfdbinary.readouterr().out == b"- a yard is three feet\n"
    run("export", "run", "--format=prompt", "--counters=true")
    assert capfdbinary.readouterr().out == render(FIRST).encode() + b"\n"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["show", "none.json"], "there is no playbook none.json"),
        (["show", "."], "holds no playbook.json"),
        (["show", "last"], "there is no run under runs/ace"),
        (["show", "x.pdf"], "must end in .json, .md or .txt"),
        (["merge", "a.json"], "merge needs two playbooks or more, got 1"),
        (["merge", "a.json", "b.md", "--out=x.pdf"], "out must end in .json, .md, .txt, got x.pdf"),
        (["dedup", "a.json", "--out=."], "out must"),
        (["dedup", "a.json", "--threshold=0"], "threshold must be above 0"),
        (["prune", "a.json", "--budget=-1"], "budget must be at least 0"),
        (["prune", "a.json", "--budget=1"], "more than the budget of 1"),
        (["export", "a.json", "--format=md", "--order=ids"], "order and counters belong to the format prompt"),
    ],
)
def test_bad_input_is_one_sentence_and_writes_nothing(words, sentence, capsys, files):
    before = sorted(files.iterdir())
    run(*words, code=2)
    error = capsys.readouterr().err
    assert sentence in error.splitlines()[0]
    assert sorted(files.iterdir()) == before
