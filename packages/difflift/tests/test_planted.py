"""The planted task: trees, labels, and what the tree does not tell."""

from collections import Counter
from itertools import product

import networkx as nx
import numpy as np
import pytest
import torch
from difflift.planted import planted, planted_labels, prufer_trees


@pytest.mark.parametrize(
    ("sequence", "vertices", "edges"),
    [
        ([], 1, []),
        ([], 2, [(0, 1)]),
        ([1], 3, [(0, 1), (1, 2)]),
        ([3, 3, 3, 4], 6, [(0, 3), (1, 3), (2, 3), (3, 4), (4, 5)]),  # the textbook's example, from 0
    ],
)
def test_prufer_sequences_decode_as_by_hand(sequence, vertices, edges):
    decoded = prufer_trees(np.array([sequence], dtype=np.int64), vertices)[0]
    assert sorted(tuple(sorted(edge)) for edge in decoded.tolist()) == edges


def test_each_of_the_125_trees_of_five_vertices_is_decoded_once():
    sequences = np.array(list(product(range(5), repeat=3)))
    trees = {frozenset(map(frozenset, edges)) for edges in prufer_trees(sequences, 5).tolist()}
    assert len(trees) == 125
    for sequence, edges in zip(sequences.tolist(), prufer_trees(sequences, 5).tolist(), strict=True):
        assert nx.to_prufer_sequence(nx.Graph(edges)) == sequence


def test_every_graph_is_a_tree():
    for graph in planted(graphs=40, vertices=17, seed=1):
        assert nx.is_tree(nx.Graph(graph.edge_index.t().tolist()))
        assert graph.edge_index.shape == (2, 32)
        assert graph.is_undirected() and graph.is_coalesced()


def test_the_sixteen_trees_of_four_vertices_are_equally_likely():
    graphs = planted(graphs=4000, vertices=4, noise_dims=0, seed=2)
    counts = Counter(tuple(graph.edge_index.flatten().tolist()) for graph in graphs)
    assert len(counts) == 16
    chi2 = sum((count - 250) ** 2 / 250 for count in counts.values())
    assert chi2 < 37.7  # the 99.9 % quantile with 15 degrees of freedom


def test_labels_by_hand():
    group = np.array([[0, 0, 0, 1, 2, 2]])
    value = np.array([[3.0, -1.0, -1.0, 5.0, 2.0, -2.0]])
    # group 0: the others' sums are -2, 2, 2; group 1 has one vertex; group 2: -2 and 2
    assert planted_labels(group, value, 3).tolist() == [[0, 1, 1, 0, 0, 1]]


def test_labels_equal_the_mean_over_the_others_by_brute_force():
    for graph in planted(graphs=30, vertices=23, groups=9, seed=3):
        value = graph.x[:, 9]
        for u in range(23):
            others = [float(value[w]) for w in range(23) if w != u and graph.group[w] == graph.group[u]]
            assert int(graph.y[u]) == (len(others) > 0 and np.mean(others) > 0)


def test_features_are_group_value_and_noise():
    graphs = planted(graphs=200, vertices=40, groups=8, noise_dims=16, noise=2.0, seed=4)
    x = torch.cat([graph.x for graph in graphs])
    group = torch.cat([graph.group for graph in graphs])
    assert x.shape == (8000, 25) and x.dtype == torch.float32
    assert torch.equal(x[:, :8], torch.nn.functional.one_hot(group, 8).float())
    assert abs(x[:, 8].mean()) < 0.045 and abs(x[:, 8].std() - 1) < 0.035  # four standard errors
    assert abs(x[:, 9:].mean()) < 0.023 and abs(x[:, 9:].std() - 2) < 0.016
    assert group.bincount().sub(1000).abs().max() < 120
    assert torch.corrcoef(x[:, 8:].T).fill_diagonal_(0).abs().max() < 0.06  # value and noise are independent


def test_about_half_of_the_vertices_are_of_class_one():
    y = torch.cat([graph.y for graph in planted(graphs=1000, seed=5)])
    # 1/2, less the vertices that are alone in their group: (1 - (7/8)^39) / 2. Labels in one group depend on each
    # other, so that the standard error is about 1 / sqrt(4 · 8000) of 8000 groups.
    assert abs(y.float().mean() - (1 - (7 / 8) ** 39) / 2) < 4 / np.sqrt(32000)


def test_edges_say_nothing_about_groups():
    same = torch.cat(
        [graph.group[graph.edge_index[0]] == graph.group[graph.edge_index[1]] for graph in planted(seed=6)]
    )
    edges = len(same) // 2
    assert edges == 240 * 39
    assert abs(same.float().mean() - 1 / 8) < 4 * np.sqrt(1 / 8 * 7 / 8 / edges)


def test_degrees_say_nothing_about_labels():
    graphs = planted(graphs=500, seed=7)
    degree = torch.cat([torch.bincount(graph.edge_index[0], minlength=40) for graph in graphs]).float()
    y = torch.cat([graph.y for graph in graphs]).float()
    assert abs(torch.corrcoef(torch.stack([degree, y]))[0, 1]) < 4 / np.sqrt(len(y))


def test_graphs_are_a_function_of_the_arguments():
    state = np.random.get_state()[1].copy(), torch.get_rng_state()
    first, second, other = planted(5, 10, seed=8), planted(5, 10, seed=8), planted(5, 10, seed=9)
    for a, b in zip(first, second, strict=True):
        assert all(torch.equal(value, b[key]) for key, value in a.to_dict().items())
    assert not torch.equal(first[0].x, other[0].x)
    assert not torch.equal(first[0].edge_index, other[0].edge_index)
    assert np.array_equal(np.random.get_state()[1], state[0]) and torch.equal(torch.get_rng_state(), state[1])


def test_one_vertex_is_alone_in_its_group():
    (graph,) = planted(graphs=1, vertices=1, noise_dims=0, seed=1)
    assert graph.edge_index.shape == (2, 0) and graph.y.tolist() == [0] and graph.x.shape == (1, 9)


@pytest.mark.parametrize("option", [{"graphs": 0}, {"vertices": 0}, {"groups": 0}, {"noise_dims": -1}, {"noise": -0.1}])
def test_an_option_out_of_range_is_named(option):
    (name, value), least = *option.items(), 0 if "noise" in next(iter(option)) else 1
    with pytest.raises(ValueError, match=f"{name} must be at least {least}, got {value}"):
        planted(**option)
