import matplotlib
import nat.plots as plots
import numpy as np
import pytest
import torch
from matplotlib.image import imread
from nat.plots import diagnostics_figure, perturbation_figure, robustness_curve_figure


@pytest.fixture
def drawn(monkeypatch):
    """Figures as they are saved, so that a test can ask what is drawn."""
    figures = []
    save = plots.save

    def keep(figure, path):
        figures.append(figure)
        return save(figure, path)

    monkeypatch.setattr(plots, "save", keep)
    return figures


def legend_texts(figure):
    return [text.get_text() for legend in figure.legends for text in legend.get_texts()]


def networks(**values):
    return {name: torch.tensor(value) for name, value in values.items()}


def diagnostics(path, **changes):
    arguments = {
        "entropies": networks(nat=[0.0, 0.5, 1.0, 2.0], at_mix=[1.0, 1.0, 1.0, 1.0]),
        "margins": networks(nat=[-1.0, 0.5, 2.0, 3.0], at_mix=[1.0, 2.0, 3.0, 5.0]),
        "probabilities": networks(nat=[[0.9, 0.1, 0.0], [0.2, 0.7, 0.1]], at_mix=[[0.8, 0.1, 0.1], [0, 1, 0.0]]),
        "distances": networks(nat=[1.0, 2.0, 3.0, 4.0], at_mix=[0.5, 0.5, 0.5, 0.5]),
    }
    return diagnostics_figure(**(arguments | changes), path=path)


def test_curve_is_drawn_in_per_cent_by_rising_eps(tmp_path, drawn):
    curves = {"nat": {0.2: 0.25, 0.0: 1.0, 0.1: 0.5}, "vanilla": {0.0: 0.9, 0.1: 0.0}}
    path = robustness_curve_figure(curves, tmp_path / "new" / "curve.png")
    first, second = drawn[0].axes[0].lines
    assert first.get_xydata().tolist() == [[0, 100], [0.1, 50], [0.2, 25]]
    assert second.get_xydata().tolist() == [[0, 90], [0.1, 0]]
    assert legend_texts(drawn[0]) == ["nat", "vanilla"]
    assert first.get_color() != second.get_color()
    assert first.get_linestyle() != second.get_linestyle()
    assert path.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("channels", [1, 3])
def test_perturbation_is_amplified_to_the_whole_grey_range(tmp_path, drawn, channels):
    x = torch.full((channels, 2, 2), 0.5)
    delta = torch.tensor([[0.1, -0.1], [0.0, 0.05]])
    before, after = torch.tensor([0.7, 0.2, 0.1]), torch.tensor([0.1, 0.8, 0.1])
    perturbation_figure(x, x + delta, before, after, ["cat", "dog", "owl"], tmp_path / "a.png")
    clean, attacked, difference, bars = drawn[0].axes
    assert clean.get_title() == "clean: cat (70%)"
    assert attacked.get_title() == "attacked: dog (80%)"
    assert difference.get_title() == "difference × 5"
    shown = difference.images[0].get_array().reshape(2, 2, channels)
    np.testing.assert_allclose(shown[..., 0], [[1, 0], [0.5, 0.75]], atol=1e-6)
    heights = [round(patch.get_height(), 6) for patch in bars.patches]
    assert heights == [0.7, 0.2, 0.1, 0.1, 0.8, 0.1]


def test_unperturbed_image_has_a_grey_difference(tmp_path, drawn):
    x, p = torch.rand(1, 2, 2, generator=torch.Generator().manual_seed(0)), torch.tensor([0.5, 0.5])
    perturbation_figure(x, x, p, p, ["a", "b"], tmp_path / "a.png")
    difference = drawn[0].axes[2]
    assert difference.get_title() == "difference: none"
    assert (difference.images[0].get_array() == 0.5).all()


def test_only_the_likeliest_classes_have_bars(tmp_path, drawn):
    x = torch.zeros(1, 2, 2)
    before, after = torch.tensor([0.6, 0.05, 0.3, 0.05]), torch.tensor([0.1, 0.8, 0.05, 0.05])
    perturbation_figure(x, x, before, after, ["a", "b", "c", "d"], tmp_path / "a.png", max_classes=2)
    assert [label.get_text() for label in drawn[0].axes[3].get_xticklabels()] == ["a", "b"]


def test_perturbation_figure_refuses_shapes_that_do_not_agree(tmp_path):
    x, p = torch.zeros(1, 2, 2), torch.tensor([0.5, 0.5])
    with pytest.raises(ValueError, match=r"one image \(C, H, W\) .*got \(1, 1, 2, 2\) and \(1, 1, 2, 2\)"):
        perturbation_figure(x[None], x[None], p, p, ["a", "b"], tmp_path / "a.png")
    with pytest.raises(ValueError, match="got 3 names"):
        perturbation_figure(x, x, p, p, ["a", "b", "c"], tmp_path / "a.png")
    assert list(tmp_path.iterdir()) == []


def test_histograms_share_their_bins_and_sum_to_all_points(tmp_path, drawn):
    diagnostics(tmp_path / "d.png")
    *_, entropy, margin, distance = drawn[0].get_axes()
    for axes in (entropy, margin, distance):
        values = [patch.get_data() for patch in axes.patches]
        assert len(values) == 4  # an outline and a fill for each of two networks
        for shares, edges, _ in values:
            assert shares.sum() == pytest.approx(100)
            np.testing.assert_array_equal(edges, values[0][1])
    # An entropy of zero has no place on a logarithmic axis: it is counted at the floor.
    shares, edges, _ = entropy.patches[0].get_data()
    assert edges[0] == pytest.approx(1e-6)
    assert shares[0] == 25


def test_medians_are_marked(tmp_path, drawn):
    diagnostics(tmp_path / "d.png")
    *_, entropy, margin, distance = drawn[0].get_axes()
    medians = [
        [line.get_xdata()[0] for line in axes.lines if line.get_marker() == "v"] for axes in (entropy, margin, distance)
    ]
    assert medians == [[0.75, 1.0], [1.25, 2.5], [2.5, 0.5]]


def test_examples_have_a_panel_each_and_a_bar_for_each_network_and_class(tmp_path, drawn):
    diagnostics(tmp_path / "d.png", class_names=["x", "y", "z"])
    first, second, *below = drawn[0].get_axes()
    assert len(below) == 3
    assert [round(p.get_height(), 6) for p in first.patches] == [0.9, 0.1, 0.0, 0.8, 0.1, 0.1]
    assert [round(p.get_height(), 6) for p in second.patches] == [0.2, 0.7, 0.1, 0.0, 1.0, 0.0]
    assert [label.get_text() for label in first.get_xticklabels()] == ["x", "y", "z"]
    assert legend_texts(drawn[0]) == ["nat", "at_mix"]


def test_bins_exist_where_all_values_are_equal(tmp_path):
    zeros = networks(nat=[0.0, 0.0])
    one = networks(nat=[[1.0, 0.0]])
    path = diagnostics(tmp_path / "d.png", entropies=zeros, margins=zeros, probabilities=one, distances=zeros)
    assert path.exists()


def test_diagnostics_refuse_networks_that_do_not_agree(tmp_path):
    with pytest.raises(ValueError, match=r"margins must be about \['nat', 'at_mix'\].*got \['nat'\]"):
        diagnostics(tmp_path / "d.png", margins=networks(nat=[1.0]))
    with pytest.raises(ValueError, match=r"probabilities must be \(E, K\)"):
        diagnostics(tmp_path / "d.png", probabilities=networks(nat=[[1.0]], at_mix=[[1.0, 0.0]]))
    for empty in ({}, {"nat": {}}):
        with pytest.raises(ValueError, match="curves must hold at least one network"):
            robustness_curve_figure(empty, tmp_path / "c.png")
    assert list(tmp_path.iterdir()) == []


def test_equal_figures_are_equal_files_and_the_backend_is_left_alone(tmp_path):
    backend = matplotlib.rcParams._get_backend_or_none()
    first, second = diagnostics(tmp_path / "1.png"), diagnostics(tmp_path / "2.png")
    assert first.read_bytes() == second.read_bytes()
    assert matplotlib.__version__.encode() not in first.read_bytes()
    assert matplotlib.rcParams._get_backend_or_none() == backend


def test_figure_is_not_blank(tmp_path):
    path = robustness_curve_figure({"nat": {0.0: 1.0, 1.0: 0.0}}, tmp_path / "c.png")
    blue = np.array([0x00, 0x72, 0xB2]) / 255
    assert (np.abs(imread(path)[..., :3] - blue).max(-1) < 0.01).sum() > 1000
