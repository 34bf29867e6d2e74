"""The lifting as a transform: the same matrices, also in data sets and batches of PyG."""

import pickle

import pytest
import torch
from difflift import CycleLifting, DiffLift, Graphs, NoLifting
from difflift.transform import LiftTransform
from difflift.tu import mutag
from torch_geometric.data import Batch, Data, InMemoryDataset
from torch_geometric.loader import DataLoader


@pytest.fixture(scope="module")
def molecules():
    single = Data(x=torch.eye(7)[:1], edge_index=torch.empty(2, 0, dtype=torch.long), y=torch.tensor([0]))
    return [*mutag()[:5], single]


def lifting_to(target):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return DiffLift(7, target=target, selection="sample")


class Molecules(InMemoryDataset):
    def __init__(self, root, graphs, **options):
        self.graphs = graphs
        super().__init__(root, **options)
        self.load(self.processed_paths[0])

    processed_file_names = ("data.pt",)

    def process(self):
        graphs = [graph if self.pre_transform is None else self.pre_transform(graph) for graph in self.graphs]
        self.save(graphs, self.processed_paths[0])


@pytest.mark.parametrize("target", ["hypergraph", "cell", "simplicial"])
def test_a_graph_carries_the_matrices_of_the_lifting(target, molecules):
    lifting = lifting_to(target)
    transform = LiftTransform(lifting)
    for graph in molecules:
        found, expected = transform(graph), lifting.eval()(graph)
        torch.testing.assert_close(found.incidence_1.to_dense(), expected.b1.to_dense())
        torch.testing.assert_close(found.incidence_2.to_dense(), expected.b2.to_dense())
        torch.testing.assert_close(found.p_1, expected.p_1)
        torch.testing.assert_close(found.p_2, expected.p_2)
        torch.testing.assert_close(found.k, expected.k)
        assert int((~found.learned_1).sum()) == expected.edges == graph.edge_index.shape[1] // 2
        assert torch.equal(found.x, graph.x)
        assert torch.equal(found.y, graph.y)
        assert "incidence_1_index" not in graph  # the caller's graph is left alone


def test_it_draws_nothing_passes_no_gradient_and_leaves_the_lifting_as_it_was(molecules):
    lifting = lifting_to("hypergraph").train()
    state = {name: tensor.clone() for name, tensor in lifting.state_dict().items()}
    transform = LiftTransform(lifting)
    first, again = (transform(molecules[0]) for _ in range(2))
    assert torch.equal(first.incidence_1.to_dense(), again.incidence_1.to_dense())
    assert not any(value.requires_grad for value in first.to_dict().values() if isinstance(value, torch.Tensor))
    assert lifting.training
    assert all(p.requires_grad for p in lifting.parameters())
    with torch.no_grad():
        for parameter in lifting.parameters():
            parameter.add_(1)
    assert torch.equal(transform(molecules[0]).p_1, first.p_1)  # later training has no influence
    assert all(torch.equal(transform.lifting.state_dict()[name], tensor) for name, tensor in state.items())


@pytest.mark.parametrize("target", ["hypergraph", "cell"])
def test_a_batch_is_block_diagonal(target, molecules):
    transform = LiftTransform(lifting_to(target))
    graphs = [transform(graph) for graph in molecules]
    (batch,) = DataLoader(graphs, batch_size=len(graphs), follow_batch=["p_1", "p_2"])
    for rank in (1, 2):
        blocks = [getattr(graph, f"incidence_{rank}").to_dense() for graph in graphs]
        assert torch.equal(getattr(batch, f"incidence_{rank}").to_dense(), torch.block_diag(*blocks))
    cells = torch.tensor([len(graph.p_1) for graph in graphs])
    assert torch.equal(batch.p_1_batch, torch.arange(len(graphs)).repeat_interleave(cells))
    assert torch.equal(batch.cells_1, cells)
    assert torch.equal(batch.to_data_list()[3].incidence_1.to_dense(), graphs[3].incidence_1.to_dense())


def test_it_works_before_and_after_a_data_set_is_stored(tmp_path, molecules):
    transform = LiftTransform(lifting_to("cell"))
    stored = Molecules(str(tmp_path / "pre"), molecules, pre_transform=transform)
    lazy = Molecules(str(tmp_path / "lazy"), molecules, transform=transform)
    for one, other, graph in zip(stored, lazy, molecules, strict=True):
        for found in (one, other):
            assert torch.equal(found.incidence_1.to_dense(), transform(graph).incidence_1.to_dense())
            assert torch.equal(found.incidence_2.to_dense(), transform(graph).incidence_2.to_dense())
    (batch,) = DataLoader(stored, batch_size=6)
    blocks = [transform(graph).incidence_2.to_dense() for graph in molecules]
    assert torch.equal(batch.incidence_2.to_dense(), torch.block_diag(*blocks))


def test_lifted_graphs_can_be_lifted_and_pickled_again(molecules):
    transform = LiftTransform(CycleLifting(7))
    once = transform(molecules[0])
    twice = pickle.loads(pickle.dumps(transform(once)))
    assert torch.equal(once.incidence_2.to_dense(), twice.incidence_2.to_dense())
    assert "k" not in once  # nothing is chosen
    assert len(Graphs.of(once).edges[0]) == len(once.p_1)


def test_of_another_lifting_nothing_is_left(molecules):
    learned = LiftTransform(lifting_to("cell"))(molecules[0])
    plain = LiftTransform(NoLifting(7))(learned)
    assert "k" not in plain
    assert plain.incidence_2.shape == (len(plain.p_1), 0)


def test_a_batch_is_refused(molecules):
    with pytest.raises(ValueError, match="one graph at a time, got a batch of 6"):
        LiftTransform(CycleLifting(7))(Batch.from_data_list(molecules))
