"""Incidence matrices and complexes against dense algebra."""

import pytest
import torch
from difflift.complexes import Complex, Incidence, block_offsets, edge_incidence, empty_incidence

R, C, D = 6, 5, 3


def incidence(seed=0, weight=None):
    """A random matrix: two thirds of the places are entries, a quarter of those with m = 0; column 4 has none."""
    rng = torch.Generator().manual_seed(seed)
    place = (torch.rand(R, C, generator=rng) < 2 / 3) & (torch.arange(C) < C - 1)
    row, col = place.nonzero().T
    order = torch.randperm(len(row), generator=rng)
    member = (torch.rand(len(row), generator=rng) < 0.75).double()
    weight = torch.tensor([1, 0, 0.5, 1, 1], dtype=torch.float64) if weight is None else weight
    return Incidence(row[order], col[order], member, weight, R)


def dense_members(b):
    m = torch.zeros(b.shape, dtype=torch.float64)
    for r, c, value in zip(b.row.tolist(), b.col.tolist(), b.member.tolist(), strict=True):
        m[r, c] = value
    return m


def signal(rows, seed=1):
    return torch.randn(rows, D, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("seed", range(5))
def test_operations_are_those_of_the_dense_matrix(seed):
    b, x, y = incidence(seed), signal(R), signal(C)
    m = dense_members(b)
    dense = m * b.weight
    assert (m.sum() < len(b.row)) and (m[:, :4].sum(0) > 0).all()
    assert b.shape == (R, C)
    assert b.to_dense().tolist() == dense.tolist() == b.to_sparse().to_dense().tolist()
    torch.testing.assert_close(b.up(x), dense.T @ x)
    torch.testing.assert_close(b.down(y), dense @ y)
    torch.testing.assert_close(b.degrees, dense.sum(1))
    assert b.sizes.tolist() == m.sum(0).tolist()
    torch.testing.assert_close(b.member_mean(x)[:4], (m.T @ x)[:4] / m.sum(0)[:4, None])


def test_mean_over_members_does_not_ask_whether_the_cell_is_included():
    included = incidence(weight=torch.ones(C, dtype=torch.float64))
    excluded = incidence(weight=torch.zeros(C, dtype=torch.float64))
    assert torch.equal(included.member_mean(signal(R)), excluded.member_mean(signal(R)))


def test_mean_of_a_cell_without_members_is_zero():
    assert incidence().member_mean(signal(R))[4].tolist() == [0, 0, 0]


@pytest.mark.parametrize("s", [0.0, 1.0])
def test_gradient_of_an_inclusion_is_what_the_cell_would_add(s):
    """d/ds of tr(gᵀ B y) is Σ_r m_rc g_r · y_c, at s = 0 as at s = 1; likewise for Bᵀ."""
    g, y, x, f = signal(R), signal(C), signal(R, 3), signal(C, 4)
    weight = torch.full((C,), s, dtype=torch.float64, requires_grad=True)
    b = incidence(weight=weight)
    ((b.down(y) * g).sum() + (b.up(x) * f).sum()).backward()
    m = dense_members(b)
    torch.testing.assert_close(weight.grad, ((m.T @ g) * y).sum(1) + ((m.T @ x) * f).sum(1))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("which", ["rows", "cols", "both"])
def test_selected_rows_and_columns_are_those_of_the_dense_matrix(seed, which):
    b = incidence(seed)
    rows = torch.tensor([True, False, True, True, False, True]) if which != "cols" else None
    cols = torch.tensor([False, True, True, False, True]) if which != "rows" else None
    part = b.select(rows, cols)
    expected = b.to_dense()
    expected = expected if rows is None else expected[rows]
    expected = expected if cols is None else expected[:, cols]
    assert part.to_dense().tolist() == expected.tolist()
    assert part.shape == tuple(expected.shape)
    assert (part.member != 0).all()


def test_matrix_without_columns_sums_to_zero():
    b = empty_incidence(R, torch.empty(0, dtype=torch.float64))
    assert b.shape == (R, 0)
    assert b.to_dense().shape == (R, 0)
    assert b.up(signal(R)).shape == (0, D)
    assert b.down(signal(0)).tolist() == [[0.0] * D] * R
    assert b.degrees.tolist() == [0] * R
    assert b.down(signal(0)).dtype == torch.float64


def test_column_of_an_edge_has_its_weight_at_both_ends():
    b = edge_incidence(torch.tensor([[0, 1, 0], [1, 3, 2]]), torch.tensor([1.0, 0.0, 0.5]), 4)
    assert b.to_dense().tolist() == [[1, 0, 0.5], [1, 0, 0], [0, 0, 0.5], [0, 0, 0]]
    assert b.sizes.tolist() == [2, 2, 2]


def test_offsets_of_blocks():
    assert block_offsets(torch.tensor([3, 0, 2])).tolist() == [0, 3, 3, 5]


def two_graphs():
    """A triangle 0 1 2 whose edge 1 2 was added, with its 2-cell; a path 3 4 5 and an excluded edge 3 5 and cell."""
    edges = torch.tensor([[0, 0, 3, 4, 1, 3], [1, 2, 4, 5, 2, 5]])
    s_1, s_2 = torch.tensor([1.0, 1, 1, 1, 1, 0]), torch.tensor([1.0, 0])
    b2 = Incidence(torch.tensor([0, 1, 4, 2, 3, 5]), torch.tensor([0, 0, 0, 1, 1, 1]), torch.ones(6), s_2, 6)
    return Complex(
        b1=edge_incidence(edges, s_1, 6),
        b2=b2,
        batch_0=torch.tensor([0, 0, 0, 1, 1, 1]),
        batch_1=torch.tensor([0, 0, 1, 1, 0, 1]),
        batch_2=torch.tensor([0, 1]),
        graphs=2,
        edges=4,
        p_1=torch.tensor([1.0, 1, 1, 1, 0.75, 0.25]),
        p_2=torch.tensor([1.0, 0.0]),
        candidates=4,
    )


def test_pruned_complex_has_the_included_cells_only():
    full = two_graphs()
    pruned = full.pruned()
    assert pruned.b1.to_dense().tolist() == full.b1.to_dense()[:, :5].tolist()
    assert pruned.b2.to_dense().tolist() == [[1], [1], [0], [0], [1]]
    assert pruned.batch_1.tolist() == [0, 0, 1, 1, 0]
    assert pruned.batch_2.tolist() == [0]
    assert pruned.p_1.tolist() == [1, 1, 1, 1, 0.75]
    assert pruned.p_2.tolist() == [1]
    assert (pruned.graphs, pruned.edges, pruned.candidates) == (2, 4, 4)


def test_added_cells_are_the_included_ones_beyond_the_edges():
    assert two_graphs().added == two_graphs().pruned().added == 2  # the edge 1 2, and its 2-cell


def test_penalty_is_the_mean_probability_of_the_cells_that_may_be_left_out():
    assert two_graphs().penalty.item() == (0.75 + 0.25 + 1 + 0) / 4


def test_penalty_without_candidates_is_zero():
    edges = torch.tensor([[0], [1]])
    b1 = edge_incidence(edges, torch.ones(1), 2)
    none = torch.zeros(0, dtype=torch.long)
    plain = Complex(
        b1, empty_incidence(1, b1.weight), torch.zeros(2), torch.zeros(1), none, 1, 1, torch.ones(1), none.float()
    )
    assert plain.penalty.item() == 0
    assert plain.added == 0
