"""Nearest vertices against loops, and neighbourhoods of learned size by hand."""

import math

import difflift.neighbours
import pytest
import torch
from difflift.neighbours import Neighbourhoods, NeighbourhoodSize, cumulative_mask, nearest, similar_sizes
from hypothesis import given, settings
from hypothesis import strategies as st


def points(n, d=3, seed=0):
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def by_loops(h, sizes, k):
    """Sort the vertices of each graph by (other than v, distance to v, index), for each of its vertices v."""
    rows, start, at = [], 0, h.tolist()
    for size in sizes:
        mates = range(start, start + size)
        for v in mates:
            order = sorted(mates, key=lambda u, v=v: (u != v, math.dist(at[u], at[v]), u))
            rows.append((order + [-1] * k)[:k])
        start += size
    return rows


@st.composite
def batches(draw):
    """Up to 8 vertices of up to 4 graphs on a small grid, so that ties and equal vertices are common."""
    sizes = draw(st.lists(st.integers(0, 8), min_size=1, max_size=4).filter(lambda s: 1 <= sum(s) <= 8))
    coordinate = st.integers(-1, 2)
    at = draw(st.lists(st.tuples(coordinate, coordinate), min_size=sum(sizes), max_size=sum(sizes)))
    return torch.tensor(at, dtype=torch.float32), sizes


@settings(deadline=None, max_examples=100)
@given(batches(), st.integers(1, 10))
def test_nearest_vertices_are_those_of_a_sort(batch, k):
    h, sizes = batch
    assert nearest(h, torch.tensor(sizes), k).tolist() == by_loops(h, sizes, k)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_nearest_vertices_of_many_graphs_of_unlike_sizes(dtype):
    sizes = [1, 30, 2, 17, 64, 3, 1, 33]
    h = points(sum(sizes)).to(dtype)
    assert nearest(h, torch.tensor(sizes), 9).tolist() == by_loops(h, sizes, 9)


@pytest.mark.parametrize("chunk", [1, 7, 100, 1000])
def test_result_does_not_depend_on_how_many_distances_are_held(monkeypatch, chunk):
    """One row at a time, several, whole graphs, and several graphs."""
    sizes = torch.tensor([20, 3, 1, 25, 18, 2, 3])
    h = points(int(sizes.sum())).mul(2).round()  # with ties
    whole = nearest(h, sizes, 6)
    monkeypatch.setattr(difflift.neighbours, "CHUNK", chunk)
    assert torch.equal(nearest(h, sizes, 6), whole)


def test_equal_vertices_come_in_the_order_of_their_indices_after_the_vertex_itself():
    found = nearest(torch.full((40, 8), 0.1), torch.tensor([40]), 40).tolist()
    assert found == [[v, *(u for u in range(40) if u != v)] for v in range(40)]


def test_vertices_close_together_and_far_from_the_origin_are_told_apart():
    h = 1000 + torch.arange(40)[:, None].square() / 1024
    assert nearest(h, torch.tensor([40]), 40)[0].tolist() == list(range(40))


def test_no_vertex_of_another_graph_is_near_however_far_the_own_ones_are():
    h = torch.tensor([[0.0], [1e12], [0.0], [1e12]])
    assert nearest(h, torch.tensor([2, 2]), 3).tolist() == [[0, 1, -1], [1, 0, -1], [2, 3, -1], [3, 2, -1]]


def test_embeddings_get_no_gradient_and_are_left_as_they_were():
    h = points(5).requires_grad_()
    before = h.detach().clone()
    assert not nearest(h, torch.tensor([5]), 3).requires_grad
    assert torch.equal(h.detach(), before)


def test_groups_of_graphs_have_similar_sizes_and_few_distances(monkeypatch):
    monkeypatch.setattr(difflift.neighbours, "CHUNK", 2000)
    sizes = torch.tensor([3, 40, 1, 2, 21, 25, 100, 3, 5, 6, 7, 31, 20])
    groups = list(similar_sizes(sizes))
    members = torch.cat([group for group, _ in groups]).tolist()
    assert sorted(members) == list(range(len(sizes)))
    for group, longest in groups:
        assert sizes[group].max() <= longest < 2 * sizes[group].min()
        assert len(group) == 1 or len(group) * longest**2 <= 2000


def test_mask_counts_the_sizes_beyond_each_place():
    """k among 2 .. 5: m_0 = m_1 = Σ o, m_2 = o_3 + o_4 + o_5, m_3 = o_4 + o_5, m_4 = o_5."""
    o = torch.tensor([[0.1, 0.2, 0.3, 0.4]], dtype=torch.float64)
    expected = torch.tensor([[1.0, 1.0, 0.9, 0.7, 0.4]], dtype=torch.float64)
    torch.testing.assert_close(cumulative_mask(o), expected)
    assert cumulative_mask(torch.eye(4)).tolist() == [
        [1, 1, 0, 0, 0],
        [1, 1, 1, 0, 0],
        [1, 1, 1, 1, 0],
        [1, 1, 1, 1, 1],
    ]


def test_gradient_of_the_mask_says_which_sizes_hold_a_place():
    """d/do_k of Σ_j a_j m_j is Σ_{j<k} a_j, less a_0: the vertex itself is a member whatever is chosen."""
    o = torch.eye(4)[[1]].requires_grad_()
    (cumulative_mask(o) * torch.tensor([1.0, 10, 100, 1000, 10_000])).sum().backward()
    assert o.grad.tolist() == [[10, 110, 1110, 11_110]]


def sizes_of(k_max=5, n=7, **options):
    torch.manual_seed(0)
    return NeighbourhoodSize(3, k_max, **options).double(), points(n), torch.tensor([n])


@pytest.mark.parametrize("gradient", ["cumulative", "none"])
def test_size_is_the_most_probable_one_in_evaluation(gradient):
    size, h, sizes = sizes_of(gradient=gradient)
    size.logits[2].weight.data.mul_(10)  # for a choice that differs among the vertices
    hoods = size.eval()(h, nearest(h, sizes, 5))
    k = size.logits(h).argmax(1) + 2
    assert len(k.unique()) > 1
    assert torch.equal(hoods.k, k)
    assert hoods.mask.tolist() == [[float(j < size) for j in range(5)] for size in k.tolist()]


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("learned", [True, False])
def test_size_beyond_the_graph_is_that_of_the_graph(training, learned):
    size, h, _ = sizes_of(k_max=8, learned=learned)
    if learned:
        size.logits[2].bias.data[-1] = 100  # all want 8
    hoods = size.train(training)(h, nearest(h, torch.tensor([1, 4, 2]), 8))
    assert hoods.k.tolist() == [1, 4, 4, 4, 4, 2, 2]
    assert hoods.mask.sum(1).tolist() == [1, 4, 4, 4, 4, 2, 2]
    assert ((hoods.mask == 1) == (hoods.index >= 0)).all()


def test_sizes_are_drawn_while_training():
    size, h, sizes = sizes_of()
    index = nearest(h, sizes, 5)
    torch.manual_seed(1)
    first = [size(h, index).k.tolist() for _ in range(20)]
    torch.manual_seed(1)
    assert [size(h, index).k.tolist() for _ in range(20)] == first
    assert {k for draw in first for k in draw} == {2, 3, 4, 5}


def test_gradient_of_a_choice_reaches_its_logits_through_the_mask():
    """With Σ_j a_j m_j as loss and softmax q: d/dlogit_i = q_i (A_i - Σ q A), where A_i = Σ_{j < k_i} a_j."""
    size, h, sizes = sizes_of()
    a = torch.tensor([1.0, 2, -3, 5, 7], dtype=torch.float64)
    hoods = size.eval()(h, nearest(h, sizes, 5))
    (hoods.mask * a).sum().backward()
    q = torch.softmax(size.logits(h), 1).detach()
    held = a.cumsum(0)[1:]
    expected = q * (held - (q * held).sum(1, keepdim=True))
    torch.testing.assert_close(size.logits[2].bias.grad, expected.sum(0))


def test_no_gradient_reaches_the_choice_as_published():
    size, h, sizes = sizes_of(gradient="none")
    hoods = size(h.requires_grad_(), nearest(h, sizes, 5))
    assert not hoods.mask.requires_grad


def test_fixed_size_has_no_parameters():
    size, h, sizes = sizes_of(learned=False)
    assert list(size.parameters()) == []
    assert size(h, nearest(h, sizes, 5)).k.tolist() == [5] * 7


def test_mean_is_that_over_the_members():
    h = points(4)
    index = torch.tensor([[0, 2, 3], [1, -1, -1], [2, 0, 1], [3, 1, -1]])
    mask = torch.tensor([[1.0, 1, 0], [1, 0, 0], [1, 1, 1], [1, 1, 0]], dtype=torch.float64)
    expected = torch.stack([(h[0] + h[2]) / 2, h[1], (h[2] + h[0] + h[1]) / 3, (h[3] + h[1]) / 2])
    torch.testing.assert_close(Neighbourhoods(index, mask, mask.sum(1).long()).mean(h), expected)


@pytest.mark.parametrize(
    ("options", "message"),
    [({"k_max": 1}, "k_max must be at least 2, got 1"), ({"tau": 0.0}, "tau must be a finite number > 0, got 0.0")],
)
def test_options_out_of_range_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        NeighbourhoodSize(3, **options)
