"""The root README: its table is that of the results, its commands and links are there; `make readme` and its check."""

import re
import shutil

import pytest
from readme import main, packages, papers_table, stale
from shared.results import Record, Results


def test_no_generated_file_is_out_of_date(root):
    assert stale(root) == []


def test_its_make_commands_are_targets(root):
    text = (root / "README.md").read_text()
    targets = set(re.findall(r"^([a-z-]+):", (root / "Makefile").read_text(), re.MULTILINE))
    used = set(re.findall(r"(?:^    |`)make ([a-z-]+)", text, re.MULTILINE))
    assert {"train", "test"} <= used
    assert used <= targets


def test_its_packages_and_configs_are_there(root):
    text = (root / "README.md").read_text()
    there = {package.name: package for package in packages(root)}
    for name in re.findall(r"(?:--package|PKG=)[ =]?(\w+)", text):
        assert name in {*there, "NAME"}
    for name, config in re.findall(r"--package (\w+) train --config (\w+)", text):
        assert (there[name].folder / "src" / name / "configs" / f"{config}.yaml").is_file()


def test_links_lead_to_files(root):
    for file in (root / "README.md", root / "shared" / "README.md", *(p.folder / "README.md" for p in packages(root))):
        for link in re.findall(r"\]\(([^)#\s]+)[^)]*\)", file.read_text(encoding="utf-8")):
            assert "://" in link or (file.parent / link).exists(), f"{file}: {link}"


@pytest.fixture
def workspace(root, tmp_path):
    """One package that has been measured and one that has not."""
    from new import write

    (tmp_path / "README.md").write_text("# Top\n<!-- papers:begin -->\nold\n<!-- papers:end -->\nend\n")
    shutil.copy(root / "pyproject.toml", tmp_path)
    write(tmp_path, "unmeasured")
    folder = write(tmp_path, "toy").folder
    results = Results("toy", "0.1.0")
    for seed in range(6):
        for method, accuracy in (("smoothed", 0.9), ("plain", 0.8)):
            metrics = {"accuracy": accuracy + seed / 1000, "n": 597.0}
            results.add(Record(method, seed, "digits", metrics, 1.0, "h", {"toy": "0.1.0"}, "cpu"))
    results.save(folder / "results" / "results.json")
    return tmp_path


def test_the_table_has_a_row_for_what_was_measured_and_none_for_the_rest(workspace):
    assert main(["--root", str(workspace)]) == 0
    text = (workspace / "README.md").read_text()
    assert text.startswith("# Top\n<!-- papers:begin -->\n| paper |")
    assert text.endswith("<!-- papers:end -->\nend\n")
    (row,) = (line for line in text.splitlines() if line.startswith("| ["))
    cells = [cell.strip() for cell in row.strip("|").split(" | ")]
    assert cells[0].startswith("[toy](packages/toy): ")
    assert cells[1] == "`uv run --package toy train`"
    # 0.9 and 0.8 plus seed / 1000: means 0.9025 and 0.8025, and every pair 0.1 apart
    assert "label smoothing 90.2 ± 0.2" in cells[2] or "label smoothing 90.3 ± 0.2" in cells[2]
    assert "gain +10.00 [+10.00, +10.00] (6 seeds)" in cells[2]
    assert cells[3] == "1 holds"


def test_a_check_names_what_is_out_of_date_and_changes_nothing(workspace, capsys):
    before = {
        file: file.read_bytes() for file in workspace.rglob("*") if file.is_file() and "__pycache__" not in file.parts
    }
    assert main(["--check", "--root", str(workspace)]) == 1
    named = {line.removeprefix("out of date: ") for line in capsys.readouterr().out.splitlines()}
    assert named == {
        "README.md",
        "packages/toy/README.md",
        "packages/toy/results/results.md",
        "packages/toy/results/results.png",
    }
    assert {
        file: file.read_bytes() for file in workspace.rglob("*") if file.is_file() and "__pycache__" not in file.parts
    } == before


def test_writing_twice_changes_nothing_and_a_changed_record_is_seen(workspace, capsys):
    assert main(["--root", str(workspace)]) == 0
    assert main(["--check", "--root", str(workspace)]) == 0
    file = workspace / "packages" / "toy" / "results" / "results.json"
    file.write_text(file.read_text().replace('"accuracy": 0.9,', '"accuracy": 0.7,'))
    capsys.readouterr()
    assert main(["--check", "--root", str(workspace)]) == 1
    assert len(capsys.readouterr().out.splitlines()) == 4


def test_a_reports_drawings_are_written_and_shown(workspace):
    report = workspace / "packages" / "toy" / "src" / "toy" / "report.py"
    report.write_text(f"""{report.read_text()}

def draw(results, path):
    path.write_text(str(len(results.records)))


REPORT = Report(REPORT.method, REPORT.baselines, REPORT.metrics, drawings={{"count.png": draw}})
""")
    assert main(["--root", str(workspace)]) == 0
    toy = workspace / "packages" / "toy"
    assert (toy / "results" / "count.png").read_text() == "12"
    assert "![count](results/count.png)" in (toy / "README.md").read_text()


def test_a_readme_without_markers_is_an_error_that_names_it_and_nothing_is_written(workspace, capsys):
    readme = workspace / "packages" / "toy" / "README.md"
    readme.write_text(readme.read_text().replace("<!-- results:end -->", ""))
    assert main(["--root", str(workspace)]) == 2
    assert str(readme) in capsys.readouterr().err
    assert not (workspace / "packages" / "toy" / "results" / "results.md").exists()


def test_a_bar_in_a_cell_does_not_end_it(workspace):
    file = workspace / "packages" / "toy" / "pyproject.toml"
    file.write_text(re.sub(r"^description = .*$", 'description = "a | b"', file.read_text(), flags=re.MULTILINE))
    assert r"[toy](packages/toy): a \| b |" in papers_table(packages(workspace))
