import io
import math

import matplotlib
import pytest
from matplotlib.figure import Figure
from rich.console import Console
from shared.claims import Claim, paired_difference
from shared.results import Record, Results
from shared.tables import (
    COLOURS,
    Metric,
    Report,
    _draw_setting,
    console_tables,
    figure,
    markdown,
    strongest_baseline,
    summary_row,
    update_block,
)

ACCURACY = Metric("acc", "accuracy", percent=True)
LOSS = Metric("loss", "loss", higher_is_better=False, digits=2)
REPORT = Report("ours", ["plain", "old"], [ACCURACY, LOSS], titles={"digits": "Digits | 8×8"}, labels={"ours": "Ours"})
CLAIM = Claim(
    "better", "Ours beats plain (Table 1).", "acc", "digits", "ours", ("plain", "old"), "higher", 3,
    margin=-0.005, published="+1.5",
)  # fmt: skip


def results_of(accuracies, setting="digits"):
    """One record per value; the loss is one minus the accuracy, the seconds are 2.0, 2.1, ..."""
    records = [
        Record(method, seed, setting, {"acc": acc, "loss": 1 - acc}, 2.0 + seed / 10, "hash", {}, "cpu")
        for method, values in accuracies.items()
        for seed, acc in enumerate(values)
    ]
    return Results("paper", "0.1.0", records)


# Gains of ours in points: over plain 1, 2, 3 (mean 2, half width 2.48); over old 4, 4, 4.
RESULTS = results_of(
    {
        "ours": [0.70, 0.72, 0.74],
        "plain": [0.69, 0.70, 0.71],
        "old": [0.66, 0.68, 0.70],
        "ablation": [0.80],
    }
)

MARKDOWN = """\
**Digits | 8×8**

| method | seeds | accuracy (%) | loss | gain in accuracy over plain | seconds |
| --- | --: | --: | --: | --: | --: |
| Ours | 3 | 72.0 ± 2.0 | 0.28 ± 0.02 | +2.00 [-0.48, +4.48] | 2.1 |
| plain | 3 | 70.0 ± 1.0 | 0.30 ± 0.01 | – | 2.1 |
| old | 3 | 68.0 ± 2.0 | 0.32 ± 0.02 | -2.00 [-4.48, +0.48] | 2.1 |
| ablation | 1 | 80.0 | 0.20 | +11.00 (not enough seeds) | 2.0 |

Mean ± standard deviation over seeds. A gain is the mean difference between runs of one seed, positive \
where the method is better, with its 95% Student-t interval.

| claim | measured as | gain of | gain | seeds | verdict | published |
| --- | --- | --- | --- | --- | --- | --- |
| `better`: Ours beats plain (Table 1). | accuracy (%), Digits \\| 8×8, margin -0.5 | Ours over plain | \
+2.00 [-0.48, +4.48] | 3 | holds | +1.5 |
|  |  | Ours over old | +4.00 [+4.00, +4.00] | 3 |  |  |
"""


def test_markdown_is_what_the_records_come_to_by_hand():
    assert markdown(RESULTS, [CLAIM], REPORT) == MARKDOWN


def test_settings_come_in_the_order_of_their_titles_then_by_name():
    both = Results("paper", "0.1.0", [])
    for setting in ("b", "a", "digits"):
        both.records += results_of({"ours": [0.5]}, setting).records
    text = markdown(both, [], REPORT)
    titles = [line for line in text.splitlines() if line.startswith("**")]
    assert titles == ["**Digits | 8×8**", "**a**", "**b**"]
    assert "claim" not in text


def test_gain_is_positive_where_less_is_better_and_less_is_got():
    report = Report("ours", ["plain", "old"], [LOSS])
    ours = next(line for line in markdown(RESULTS, [], report).splitlines() if line.startswith("| ours"))
    assert "| 0.28 ± 0.02 | +0.020 [-0.005, +0.045] |" in ours


def test_strongest_baseline_has_the_best_mean_of_the_main_metric():
    assert strongest_baseline(RESULTS, REPORT, "digits") == "plain"
    assert strongest_baseline(RESULTS, Report("ours", ["old", "plain"], [LOSS]), "digits") == "plain"
    rising = Metric("loss", "loss")
    assert strongest_baseline(RESULTS, Report("ours", ["plain", "old"], [rising]), "digits") == "old"


def test_strongest_baseline_is_never_an_ablation_or_the_method():
    assert strongest_baseline(RESULTS, Report("ours", ["old"], [ACCURACY]), "digits") == "old"
    assert strongest_baseline(RESULTS, Report("ours", ["absent"], [ACCURACY]), "digits") is None


def test_table_without_a_measured_baseline_shows_no_gain():
    text = markdown(results_of({"ours": [0.5, 0.6]}), [], REPORT)
    assert "| gain in accuracy | seconds |" in text
    assert "| Ours | 2 | 55.0 ± 7.1 | 0.45 ± 0.07 | – | 2.0 |" in text


def test_metric_that_a_record_lacks_is_left_open():
    record = Record("ours", 0, "digits", {"acc": 0.5}, 1.0, "hash", {}, "cpu")
    assert "| Ours | 1 | 50.0 | – | – | 1.0 |" in markdown(Results("paper", "1", [record]), [], REPORT)


def test_number_that_rounds_to_zero_has_no_minus():
    assert LOSS.text(-0.001) == "0.00"
    difference = paired_difference({0: 0.0, 1: 0.0}, {0: 1e-9, 1: 1e-9})
    assert LOSS.gain_text(difference) == "+0.000 [+0.000, +0.000]"


def test_no_pairs_read_as_not_enough_seeds():
    assert ACCURACY.gain_text(paired_difference({0: 1.0}, {1: 1.0})) == "not enough seeds"


def test_console_shows_the_intervals_of_the_markdown():
    console = Console(file=io.StringIO(), width=200)
    for table in console_tables(RESULTS, [CLAIM], REPORT):
        console.print(table)
    text = console.file.getvalue()
    assert text.count("+2.00 [-0.48, +4.48]") == 2  # once as the method's gain, once as the claim's
    assert "+4.00 [+4.00, +4.00]" in text
    assert "Digits | 8×8" in text
    assert text.count("holds") == 2


def test_summary_is_the_headline_of_the_first_setting_and_the_verdicts():
    unmeasured = Claim("x", "X.", "acc", "elsewhere", "ours", ("plain",), "higher", 2)
    assert summary_row(RESULTS, [CLAIM, unmeasured], REPORT) == {
        "headline": "accuracy (%): Ours 72.0 ± 2.0, plain 70.0 ± 1.0, gain +2.00 [-0.48, +4.48]",
        "seeds": 3,
        "claims": {"holds": 1, "not separated": 0, "not measured": 1, "refuted": 0},
    }


def test_summary_without_records_says_so():
    row = summary_row(Results("paper", "0.1.0"), [CLAIM], REPORT)
    assert (row["headline"], row["seeds"], row["claims"]["not measured"]) == ("not measured", 0, 1)


def test_block_is_replaced_between_its_markers_only():
    text = "a\n<!-- x:begin -->\nold\n<!-- x:end -->\nb\n<!-- y:begin -->\n<!-- y:end -->\n"
    new = update_block(text, "x", "\nnew\nlines\n")
    assert new == text.replace("old", "new\nlines")
    assert update_block(new, "x", "new\nlines") == new


@pytest.mark.parametrize(
    "text",
    [
        "",
        "<!-- x:begin -->",
        "<!-- x:end -->",
        "<!-- x:end --><!-- x:begin -->",
        "<!-- x:begin --><!-- x:begin --><!-- x:end -->",
        "<!-- y:begin --><!-- y:end -->",
    ],
)
def test_block_without_its_two_markers_is_refused(text):
    with pytest.raises(ValueError, match="<!-- x:begin --> and <!-- x:end -->"):
        update_block(text, "x", "body")


def test_figure_draws_every_seed_their_mean_and_its_interval():
    panel = Figure().subplots()
    _draw_setting(panel, RESULTS, REPORT, "digits")
    seeds, mean, interval = panel.lines[:3]
    assert list(seeds.get_xdata()) == pytest.approx([70.0, 72.0, 74.0])
    assert list(mean.get_xdata()) == pytest.approx([72.0])
    half = 4.302652730 * 2 / math.sqrt(3)  # t(0.975; 2), deviation 2
    assert list(interval.get_xdata()) == pytest.approx([72 - half, 72 + half], rel=1e-9)
    assert [label.get_text() for label in panel.get_yticklabels()] == ["Ours", "plain", "old", "ablation"]
    assert len(panel.lines) == 3 * 3 + 2  # no interval for the single seed of the ablation
    assert [panel.lines[i].get_color() for i in (1, 4, 7, 10)] == [
        COLOURS["the paper's method"], COLOURS["baseline"], COLOURS["baseline"], COLOURS["other"],
    ]  # fmt: skip


def test_figure_of_the_same_records_is_the_same_file_whatever_the_readers_style(tmp_path):
    figure(RESULTS, REPORT, tmp_path / "a.png")
    with matplotlib.rc_context({"font.size": 20, "axes.facecolor": "black"}):
        figure(RESULTS, REPORT, tmp_path / "b.png")
        assert matplotlib.rcParams["font.size"] == 20
    drawn = (tmp_path / "a.png").read_bytes()
    assert drawn == (tmp_path / "b.png").read_bytes()
    assert drawn.startswith(b"\x89PNG")
    assert b"Matplotlib" not in drawn
    figure(results_of({"ours": [0.7, 0.8]}), REPORT, tmp_path / "b.png")
    assert drawn != (tmp_path / "b.png").read_bytes()


def test_figure_of_nothing_is_refused_and_leaves_no_file(tmp_path):
    with pytest.raises(ValueError, match="paper has no records yet"):
        figure(Results("paper", "0.1.0"), REPORT, tmp_path / "a.png")
    assert not list(tmp_path.iterdir())


def test_report_without_a_metric_is_refused():
    with pytest.raises(ValueError, match="metrics are empty"):
        Report("ours", ["plain"], [])
