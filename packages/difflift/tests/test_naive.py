"""The dense reference of the hypergraph lifting, against loops over pairs and against the sparse functions."""

import pytest
import torch
from difflift.complexes import Incidence
from difflift.naive import dense_lift, dense_neighbours
from difflift.neighbours import nearest


def random_batch(seed, sizes, scale=None):
    """Embeddings, edges, batch, sizes of neighbourhoods and inclusions; small integers where `scale` is given."""
    rng = torch.Generator().manual_seed(seed)
    n, batch = sum(sizes), torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    h = torch.randn(n, 3, generator=rng, dtype=torch.float64)
    if scale:
        h = torch.randint(-scale, scale + 1, (n, 3), generator=rng).double()
    u, v = torch.triu_indices(n, n, offset=1)
    edge = (batch[u] == batch[v]) & (torch.rand(len(u), generator=rng) < 0.4)
    k = torch.randint(1, 6, (n,), generator=rng)
    include = torch.randint(2, (n,), generator=rng).double()
    return h, torch.stack([u, v])[:, edge], batch, k, include


def brute_force(h, edges, batch, k, include):
    """Ask of each pair of a vertex and a candidate how many vertices come before it."""
    n, points = len(h), h.tolist()
    columns = [[float(v in ends) for v in range(n)] for ends in edges.T.tolist()]
    for v in range(n):

        def rank(u, v=v):
            return (u != v, sum((a - b) ** 2 for a, b in zip(points[u], points[v], strict=True)), u)

        mates = [u for u in range(n) if batch[u] == batch[v]]
        before = [sum(rank(w) < rank(u) for w in mates) for u in range(n)]
        columns.append([float(include[v]) * float(u in mates and before[u] < k[v]) for u in range(n)])
    return torch.tensor(columns, dtype=torch.float64).view(-1, n).T


def test_worked_example():
    """Two graphs on a line: 0 and 1 (joined) and 5; 4 and 5 (joined)."""
    h = torch.tensor([[0.0], [1.0], [5.0], [4.0], [5.0]])
    k, include = torch.tensor([2, 1, 3, 2, 4]), torch.tensor([1.0, 1.0, 1.0, 0.0, 1.0])
    b = dense_lift(h, torch.tensor([[0, 3], [1, 4]]), torch.tensor([0, 0, 0, 1, 1]), k, include)
    expected = [
        [1, 0, 1, 0, 1, 0, 0],
        [1, 0, 1, 1, 1, 0, 0],
        [0, 0, 0, 0, 1, 0, 0],
        [0, 1, 0, 0, 0, 0, 1],
        [0, 1, 0, 0, 0, 0, 1],
    ]
    assert b.tolist() == expected


@pytest.mark.parametrize("scale", [None, 1], ids=["no ties", "ties"])
@pytest.mark.parametrize("sizes", [[8], [1, 1], [3, 7, 1, 2]], ids=str)
def test_incidence_is_that_of_loops_over_pairs(sizes, scale):
    batch = random_batch(0, sizes, scale)
    assert dense_lift(*batch).tolist() == brute_force(*batch).tolist()


@pytest.mark.parametrize("scale", [None, 1], ids=["no ties", "ties"])
@pytest.mark.parametrize("seed", range(3))
def test_incidence_is_that_of_nearest_vertices_and_a_mask(seed, scale):
    sizes = [5, 30, 1, 2, 17]
    h, edges, batch, k, include = random_batch(seed, sizes, scale)
    index = nearest(h, torch.tensor(sizes), 5)
    v, j = ((index >= 0) & (torch.arange(5) < k[:, None])).nonzero(as_tuple=True)
    n, e = len(h), edges.shape[1]
    sparse = Incidence(
        row=torch.cat([edges.flatten(), index[v, j]]),
        col=torch.cat([torch.arange(e).repeat(2), e + v]),
        member=h.new_ones(2 * e + len(v)),
        weight=torch.cat([h.new_ones(e), include]),
        rows=n,
    )
    assert dense_lift(h, edges, batch, k, include).tolist() == sparse.to_dense().tolist()


def test_equal_vertices_come_in_the_order_of_their_indices_after_the_vertex_itself():
    order = dense_neighbours(torch.full((40, 8), 0.1), torch.zeros(40, dtype=torch.long)).tolist()
    assert order == [[v, *(u for u in range(40) if u != v)] for v in range(40)]


def test_vertices_close_together_and_far_from_the_origin_are_told_apart():
    """Where |a|² + |b|² - 2ab has lost all its digits in float32."""
    h = 1000 + torch.arange(40)[:, None].square() / 1024
    order = dense_neighbours(h, torch.zeros(40, dtype=torch.long))
    assert order[0].tolist() == list(range(40))


def test_other_graphs_come_last_however_far_the_own_vertices_are():
    h = torch.tensor([[0.0], [0.0], [1e4], [-1e4]])
    order = dense_neighbours(h, torch.tensor([0, 1, 0, 1]))
    assert order[:, :2].tolist() == [[0, 2], [1, 3], [2, 0], [3, 1]]


def test_arguments_are_left_as_they_were():
    batch = random_batch(0, [5, 3])
    before = [t.clone() for t in batch]
    dense_lift(*batch)
    for tensor, copy in zip(batch, before, strict=True):
        torch.testing.assert_close(tensor, copy, rtol=0, atol=0)
