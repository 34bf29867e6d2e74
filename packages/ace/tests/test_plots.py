"""What the figures of a run draw, and that equal data give equal files."""

import json
import logging

import ace.plots as plots
import pytest
from ace.playbook import Bullet, Playbook, Section
from ace.plots import draw_counters, draw_progress, draw_run, draw_usage, label_of, most_tagged, running_accuracy

STEPS = [
    {"step": 1, "before": [False], "tokens": 10.0},
    {"step": 2, "before": [], "tokens": 12.0},
    {"step": 3, "before": [True, True, False], "tokens": 30.0},
]
HISTORY = [{"step": 0.0, "accuracy": 0.25, "tokens": 0.0}, {"step": 3.0, "accuracy": 0.5, "tokens": 30.0}]
USAGE = {
    "reflector": {"calls": 2, "prompt_tokens": 10, "cached_tokens": 0, "completion_tokens": 7},
    "curator": {"calls": 1, "prompt_tokens": 100, "cached_tokens": 60, "completion_tokens": 5},
}
BOOK = Playbook(
    (
        Section("A", (Bullet("a-00001", "never"), Bullet("a-00002", "bad", 1, 4), Bullet("a-00004", "later", 3))),
        Section("B", (Bullet("b-00003", "good $x_1", 3),)),
    ),
    9,
)


@pytest.fixture
def drawn(monkeypatch):
    """Figures as they are saved, so that a test can ask what is drawn."""
    figures = []
    drawing = plots.drawing

    class Kept:
        def __init__(self, path, size):
            self.inner = drawing(path, size)

        def __enter__(self):
            figures.append(self.inner.__enter__())
            return figures[-1]

        def __exit__(self, *error):
            return self.inner.__exit__(*error)

    monkeypatch.setattr(plots, "drawing", Kept)
    return figures


def bars(axes):
    return {
        container.get_label(): [(bar.get_x(), bar.get_width()) for bar in container] for container in axes.containers
    }


def test_running_accuracy_is_that_of_all_samples_so_far():
    assert running_accuracy(STEPS) == {1: 0.0, 3: 2 / 4}
    assert running_accuracy([]) == {}


def test_progress_shows_validation_running_accuracy_and_size_against_steps(tmp_path, drawn):
    draw_progress(HISTORY, STEPS, tmp_path / "progress.png")
    left, right = drawn[0].axes
    validation, running = (line.get_xydata().tolist() for line in left.lines)
    assert validation == [[0, 25], [3, 50]]
    assert running == [[1, 0], [3, 50]]
    assert right.lines[0].get_xydata().tolist() == [[0, 0], [1, 10], [2, 12], [3, 30]]
    assert left.lines[0].get_color() != left.lines[1].get_color()


def test_most_tagged_orders_by_tags_then_age_and_leaves_out_what_was_never_tagged():
    assert [bullet.id for bullet in most_tagged(BOOK)] == ["a-00002", "b-00003", "a-00004"]
    assert [bullet.id for bullet in most_tagged(BOOK, top=1)] == ["a-00002"]


def test_counters_go_right_where_helpful_and_left_where_harmful(tmp_path, drawn):
    draw_counters(BOOK, tmp_path / "counters.png")
    (axes,) = drawn[0].axes
    assert bars(axes) == {"helpful": [(0, 1), (0, 3), (0, 3)], "harmful": [(0, -4), (0, 0), (0, 0)]}
    assert [text.get_text() for text in axes.get_yticklabels()][1] == "b-00003  good $x_1"
    assert axes.yaxis_inverted()  # the most tagged is on top


def test_a_label_is_short_one_line_and_of_letters_that_the_font_has():
    assert label_of(Bullet("a-00001", "one\ntwo 日本")) == "a-00001  one two ??"
    assert len(label_of(Bullet("a-00001", "x" * 200))) == len("a-00001  ") + 50


def test_usage_stacks_fresh_cached_and_written_tokens(tmp_path, drawn):
    draw_usage(USAGE, tmp_path / "usage.png")
    (axes,) = drawn[0].axes
    assert [text.get_text() for text in axes.get_yticklabels()] == ["curator (1 calls)", "reflector (2 calls)"]
    assert bars(axes) == {
        "read": [(0, 40), (0, 10)],
        "read, cached": [(40, 60), (10, 0)],
        "written": [(100, 5), (10, 7)],
    }


def test_a_run_draws_no_empty_figure(tmp_path):
    draw_run(tmp_path, HISTORY[:1], Playbook.empty(), {})
    assert not (tmp_path / "figures").exists()


def test_a_run_draws_all_figures_and_equal_runs_give_equal_files(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        lines = "".join(json.dumps(step) + "\n" for step in STEPS)
        (tmp_path / name / "steps.jsonl").write_text(lines + '{"step": 4, "bef')  # a kill has cut the last line
        draw_run(tmp_path / name, HISTORY, BOOK, USAGE)
    files = [{file.name: file.read_bytes() for file in (tmp_path / n / "figures").iterdir()} for n in ("a", "b")]
    assert set(files[0]) == {"progress.png", "counters.png", "usage.png"}
    assert files[0] == files[1]


@pytest.mark.parametrize(
    "line", ["{", "[]", "3", "{}", '{"step": 1, "tokens": 2, "before": 3}', '{"step": "1", "tokens": 2, "before": []}']
)
def test_a_damaged_log_of_steps_costs_its_figure_alone_and_is_named(tmp_path, caplog, line):
    (tmp_path / "steps.jsonl").write_text(f"{json.dumps(STEPS[0])}\n{line}\n")
    with caplog.at_level(logging.WARNING):
        draw_run(tmp_path, HISTORY, BOOK, USAGE)
    assert "progress.png is left out" in caplog.text
    assert "steps.jsonl, line 2: " in caplog.text
    assert {file.name for file in (tmp_path / "figures").iterdir()} == {"counters.png", "usage.png"}


def test_large_numbers_are_drawn(tmp_path, drawn):
    most = 10**12
    draw_counters(Playbook((Section("A", (Bullet("a-00001", "x", most, most),)),), 2), tmp_path / "counters.png")
    assert bars(drawn[0].axes[0]) == {"helpful": [(0, most)], "harmful": [(0, -most)]}
    huge = {"calls": 1, "prompt_tokens": 10**25, "cached_tokens": 10**24, "completion_tokens": 10**23}
    draw_usage({"curator": huge}, tmp_path / "usage.png")
    assert bars(drawn[1].axes[0])["read"] == [(0, pytest.approx(9e24))]
