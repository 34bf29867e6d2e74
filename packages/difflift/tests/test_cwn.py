"""CWN: the sums over triples and boundaries written out by loops, and what `edges` and `all` update."""

import pytest
import torch
from difflift.complexes import Complex, Incidence, edge_incidence
from difflift.cwn import CWN, upper_sum
from difflift.networks import projection_sum
from torch.nn.functional import elu

D = 3
# A square with a diagonal, two triangles on it, the square itself, and a vertex of its own.
EDGES = torch.tensor([[0, 1, 2, 0, 0], [1, 2, 3, 3, 2]])
CELLS = ((0, 1, 4), (4, 2, 3), (0, 1, 2, 3))


def square(s_1=None, s_2=None):
    s_1 = torch.ones(5, dtype=torch.float64) if s_1 is None else torch.as_tensor(s_1, dtype=torch.float64)
    s_2 = torch.ones(3, dtype=torch.float64) if s_2 is None else torch.as_tensor(s_2, dtype=torch.float64)
    row = torch.tensor([e for cell in CELLS for e in cell])
    col = torch.tensor([c for c, cell in enumerate(CELLS) for _ in cell])
    b2 = Incidence(row, col, torch.ones(len(row), dtype=torch.float64), s_2, 5)
    zeros = (torch.zeros(n, dtype=torch.long) for n in (5, 5, 3))
    return Complex(edge_incidence(EDGES, s_1, 5), b2, *zeros, 1, 0, s_1, s_2)


def features():
    return torch.randn(5, D, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def network(**options):
    torch.manual_seed(0)
    return CWN(D, **options).double()


def by_loops(update, x, c):
    """The new signals of one rank, cell by cell and triple by triple, of cells that are all members as listed."""
    b, s = (c.b1.to_dense() != 0, c.b2.to_dense() != 0), (torch.ones(5), c.b1.weight, c.b2.weight)
    r, rows = update.rank, []
    for e in range(len(x[r])):
        parts = [x[r][e]]
        if r < 2:
            total = torch.zeros(D, dtype=torch.float64)
            for cell in range(len(x[r + 1])):
                for other in range(len(x[r])):
                    if b[r][e, cell] and b[r][other, cell] and other != e:
                        message = update.upper(torch.cat([x[r][other], x[r + 1][cell]]))
                        total = total + s[r + 1][cell] * s[r][other] * message
            parts.append(total)
        if r > 0:
            members = [v for v in range(len(x[r - 1])) if b[r - 1][v, e]]
            parts.append(sum(s[r - 1][v] * update.lower(x[r - 1][v]) for v in members))
        rows.append(elu(update.join(torch.cat(parts))))
    return torch.stack(rows)


def test_first_signals_are_sums_over_members():
    x = features()
    c = square()
    x_0, x_1, x_2 = projection_sum(x, c)
    assert x_0 is x
    torch.testing.assert_close(x_1, c.b1.to_dense().T @ x)
    torch.testing.assert_close(x_2, c.b2.to_dense().T @ c.b1.to_dense().T @ x)


def test_first_signals_of_cells_leave_excluded_members_out():
    x = features()
    x_2 = projection_sum(x, square(s_1=[1, 0, 1, 1, 1]))[2]
    torch.testing.assert_close(x_2[0], x[0] + x[1] + x[0] + x[2])


@pytest.mark.parametrize("update", ["edges", "all"])
@pytest.mark.parametrize("s_1", [[1, 1, 1, 1, 1], [1, 0.25, 1, 0.5, 1]])
def test_a_layer_is_the_formula_by_loops(update, s_1):
    c, net = square(s_1, [1, 0.75, 0.5]), network(layers=2, update=update)
    signals = projection_sum(features(), c)
    for layer in net.layers:
        new = {int(rank): by_loops(part, signals, c) for rank, part in layer.items()}
        signals = tuple(new.get(rank, old) for rank, old in enumerate(signals))
    for ours, theirs in zip(net(features(), c), signals, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)


def test_upper_sum_counts_a_neighbour_once_for_each_cell_that_is_shared():
    # Message 1 from everyone: edge 0 is in a triangle and the square, so 2 + 3; the diagonal in two triangles, 2 + 2.
    c = square()
    out = upper_sum(c.b2, torch.ones(5, dtype=torch.float64), torch.ones(10, 1, dtype=torch.float64))
    assert out.flatten().tolist() == [5, 5, 5, 5, 4]


def test_update_edges_leaves_vertices_and_cells_as_projected():
    x, c = features(), square()
    x_0, x_1, x_2 = network(update="edges")(x, c)
    first = projection_sum(x, c)
    assert torch.equal(x_0, first[0])
    assert torch.equal(x_2, first[2])
    assert (x_1 - first[1]).abs().min() > 0


def test_update_all_changes_every_rank():
    x, c = features(), square()
    for new, old in zip(network(update="all")(x, c), projection_sum(x, c), strict=True):
        assert (new - old).abs().min() > 0


def test_an_unknown_update_is_named():
    with pytest.raises(ValueError, match="update must be 'edges' or 'all', got 'some'"):
        CWN(D, update="some")
