"""TopoModelX's networks on our complexes: what they compute, and that the lifting learns through them."""

import pytest
import torch
from difflift import CWN, CycleLifting, DiffLift, LiftedNetwork, NoLifting
from difflift.topomodelx_network import CELLS, HOMES, TopoModelX, neighbours_by, with_loops
from difflift.tu import mutag
from torch_geometric.data import Batch, Data


@pytest.fixture(scope="module")
def molecules():
    return mutag()[:12]


def seeded(build):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return build()


def model_with(name, **options):
    target = "cell" if name in CELLS else "hypergraph"
    return seeded(
        lambda: LiftedNetwork(
            7, 2, lambda f: DiffLift(f, target=target, longest=None, **options), lambda w: TopoModelX(w, name), width=16
        )
    )


@pytest.mark.parametrize("name", HOMES)
def test_a_training_step_reaches_the_lifting(name, molecules):
    model = model_with(name).train()
    logits, lifted = seeded(lambda: model(Batch.from_data_list(molecules)))
    assert logits.shape == (12, 2)
    assert logits.isfinite().all()
    assert (lifted.b1.weight == 0).any()  # so that excluded cells are there to do harm
    torch.nn.functional.cross_entropy(logits, torch.tensor([0, 1] * 6)).backward()
    for part in (model.lifting.branch.scorer, model.lifting.size, model.lifting.encoder):
        gradients = [p.grad for p in part.parameters() if p.grad is not None]
        assert all(gradient.isfinite().all() for gradient in gradients)
        assert sum(float(gradient.abs().sum()) for gradient in gradients) > 0
    before = model.lifting.branch.scorer[0].weight.detach().clone()
    torch.optim.Adam(model.parameters(), 0.01).step()
    assert not torch.equal(before, model.lifting.branch.scorer[0].weight)


@pytest.mark.parametrize("name", HOMES)
def test_a_graphs_logits_do_not_depend_on_its_batch(name, molecules):
    model = model_with(name, selection="all").eval()
    with torch.no_grad():
        together = model(Batch.from_data_list(molecules))[0]
        alone = torch.cat([model(Batch.from_data_list([graph]))[0] for graph in molecules])
    torch.testing.assert_close(alone, together, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", HOMES)
@pytest.mark.parametrize("edges", [[], [[0, 1]]])
def test_vertices_without_cells_give_finite_signals(name, edges):
    ends = torch.tensor(edges, dtype=torch.long).reshape(-1, 2).t()
    data = Data(x=torch.randn(3, 7, generator=torch.Generator().manual_seed(0)), edge_index=ends)
    lifting = CycleLifting if name in CELLS else NoLifting
    model = seeded(lambda: LiftedNetwork(7, 2, lifting, lambda w: TopoModelX(w, name), width=8)).eval()
    with pytest.warns() if edges else torch.no_grad():
        logits = model(data)[0]
    assert logits.isfinite().all()


def test_unigin_is_the_sum_over_edges_of_the_sum_over_members():
    # One layer on a path 0-1-2: a vertex's sum over edges of the members' sum is deg(v) x_v + its neighbours.
    data = Data(x=torch.tensor([[1.0], [2], [4]]), edge_index=torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]]))
    network = seeded(lambda: TopoModelX(3, "unigin", layers=1))
    x = torch.randn(3, 3, generator=torch.Generator().manual_seed(1))
    own = network.network.initial_linear_layer(x)
    sums = torch.stack([own[0] + own[1], own[0] + 2 * own[1] + own[2], own[1] + own[2]])
    expected = torch.relu(network.network.layers[0].linear(own + sums))
    torch.testing.assert_close(network(x, NoLifting(1)(data))[0], expected)


def test_networks_on_cells_return_a_signal_of_every_cell(molecules):
    complex = CycleLifting(7)(Batch.from_data_list(molecules))
    x = torch.randn(len(complex.batch_0), 8)
    shapes = [tuple(signal.shape) for signal in CWN(8)(x, complex)]
    for name in CELLS:
        assert [tuple(signal.shape) for signal in TopoModelX(8, name)(x, complex)] == shapes


def test_neighbours_share_a_column_once_and_are_not_their_own():
    b = torch.tensor([[1.0, 1, 0], [1, 1, 0], [0, 1, 1], [0, 0, 1]]).to_sparse()
    expected = [[0, 1, 1, 0], [1, 0, 1, 0], [1, 1, 0, 1], [0, 0, 1, 0]]
    assert neighbours_by(b).to_dense().tolist() == expected  # the first two share two columns
    looped = with_loops(b).to_dense()
    torch.testing.assert_close(looped, torch.cat([b.to_dense(), torch.eye(4)], dim=1))


def test_bad_options_are_refused(monkeypatch):
    with pytest.raises(ValueError, match=r"name must be one of unigcn, .*, got 'gat'"):
        TopoModelX(8, "gat")
    with pytest.raises(ValueError, match="layers must be at least 1, got 0"):
        TopoModelX(8, layers=0)
    monkeypatch.setitem(__import__("sys").modules, "topomodelx.nn.hypergraph.unigin", None)
    with pytest.raises(ImportError, match="which is not installed"):
        TopoModelX(8)
