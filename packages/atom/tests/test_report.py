"""The comparison's own figure and what its tables name."""

from contextlib import contextmanager

import atom.report
import pytest
from atom.comparison import METHODS, SETTINGS, study
from atom.report import LAGS, PANELS, REPORT, STYLES, draw_lags
from matplotlib.figure import Figure
from PIL import Image
from shared.results import Record, Results


def record(method, seed, setting, first, slope=1.0):
    metrics = {f"lag{p}": first + slope * p for p in range(1, LAGS + 1)}
    return Record(method, seed, setting, metrics, 1.0, "0", {}, "cpu")


@pytest.fixture
def results():
    records = [record("atom", seed, setting, first=seed) for seed in range(3) for setting in PANELS]
    records += [record("identity", 0, PANELS[0], first=10.0, slope=2.0), record("ridge", 0, PANELS[-1], first=5.0)]
    return Results("atom", "0.1.0", records)


@pytest.fixture
def image(monkeypatch):
    """The figure that is drawn instead of a file."""
    found = Figure()

    @contextmanager
    def drawing(path, size):
        yield found

    monkeypatch.setattr(atom.report, "drawing", drawing)
    return found


def test_each_line_is_the_mean_over_seeds_at_each_lag(results, image, tmp_path):
    draw_lags(results, tmp_path / "lags.png")
    lines = [{line.get_label(): line for line in axes.get_lines()} for axes in image.axes]
    first, *_, last = (sorted(found) for found in lines)
    assert first == ["ATOM", "identity"]
    assert last == ["ATOM", "ridge"]
    for found in lines:
        assert list(found["ATOM"].get_xdata()) == list(range(1, 9))
        assert list(found["ATOM"].get_ydata()) == pytest.approx([1 + p for p in range(1, 9)])  # of seeds 0, 1 and 2
    assert list(lines[0]["identity"].get_ydata()) == [10 + 2 * p for p in range(1, 9)]


def test_a_method_with_a_lag_missing_is_left_out(results, image, tmp_path):
    short = Record("egno", 0, PANELS[0], {f"lag{p}": 1.0 for p in range(1, LAGS)}, 1.0, "0", {}, "cpu")
    draw_lags(Results("atom", "0.1.0", [*results.records, short]), tmp_path / "lags.png")
    assert [line.get_label() for line in image.axes[0].get_lines()] == ["ATOM", "identity"]


def test_panels_say_what_they_show(results, image, tmp_path):
    draw_lags(results, tmp_path / "lags.png")
    assert [axes.get_title() for axes in image.axes] == [REPORT.titles[setting] for setting in PANELS]
    assert all(axes.get_ylim()[0] == 0 for axes in image.axes)
    assert image.axes[0].get_ylabel() == "mean squared error (10⁻² Å²)"


def test_the_figure_is_written_and_equal_for_equal_records(results, tmp_path):
    draw_lags(results, tmp_path / "one.png")
    draw_lags(results, tmp_path / "two.png")
    with Image.open(tmp_path / "one.png") as picture:
        assert picture.size[0] > 2 * picture.size[1] > 600
    assert (tmp_path / "one.png").read_bytes() == (tmp_path / "two.png").read_bytes()


def test_everything_that_is_named_exists(tmp_path):
    methods = study(tmp_path).methods
    assert set(PANELS) <= set(SETTINGS)
    assert REPORT.titles.keys() == SETTINGS.keys()
    assert set(STYLES) <= set(METHODS)
    assert {REPORT.method, *REPORT.baselines} == set(METHODS)
    assert REPORT.labels.keys() <= methods.keys()


def test_every_measure_is_an_error_or_a_ratio_of_errors():
    assert [metric.name for metric in REPORT.metrics if metric.higher_is_better] == []
    assert [metric.name for metric in REPORT.metrics][:2] == ["s2t", "s2s"]
    assert len({(colour, marker) for colour, marker in STYLES.values()}) == len(STYLES)
