"""The comparison's own figure: what its curves are made of."""

from ace.report import PANELS, REPORT, STYLES, curve, draw_collapse, points_of
from shared.records import Record, Results


def record(method, seed, setting="country", **metrics):
    named = {name.replace("_at_", "@"): value for name, value in metrics.items()}
    return Record(method, seed, setting, {"accuracy": 0.5, "n": 4.0, **named}, 1.0, "hash", {}, "cpu")


RESULTS = Results(
    "ace",
    "0.1.0",
    [
        record("ace", 0, accuracy_at_0=0.2, accuracy_at_10=0.6, tokens_at_10=90.0),
        record("ace", 1, accuracy_at_0=0.4, accuracy_at_10=0.8),
        record("base", 0, accuracy_at_0=0.2, accuracy_at_5=0.2),
        record("ace", 0, "other", accuracy_at_99=1.0),
    ],
)


def test_a_curve_is_the_mean_over_seeds_at_each_step_of_one_setting():
    assert curve(RESULTS, "ace", "country", "accuracy") == {0: 0.30000000000000004, 10: 0.7}
    assert curve(RESULTS, "ace", "country", "tokens") == {10: 90.0}
    assert curve(RESULTS, "ace", "country", "retention") == {}
    assert points_of(RESULTS, "country") == {0, 5, 10}


def test_the_figure_is_the_same_each_time_and_another_for_other_results(tmp_path):
    for name, results in (("a", RESULTS), ("b", RESULTS), ("c", Results("ace", "0.1.0", RESULTS.records[1:]))):
        draw_collapse(results, tmp_path / f"{name}.png")
    a, b, c = ((tmp_path / f"{name}.png").read_bytes() for name in "abc")
    assert a.startswith(b"\x89PNG")
    assert a == b != c


def test_every_method_of_the_figure_is_one_of_the_tables_and_every_panel_has_a_title():
    assert set(STYLES) == {REPORT.method, *REPORT.baselines}
    assert set(PANELS) == {"accuracy", "tokens", "retention"}
