"""Lifting and network together: logits under batches, orders and limits; levels, pooling, and GIN by hand."""

from functools import partial

import pytest
import torch
from difflift.baselines import CycleLifting, KHopLifting, NoLifting
from difflift.cwn import CWN
from difflift.lifting import DiffLift
from difflift.models import GraphGIN, LiftedNetwork
from difflift.topotune import TopoTune
from difflift.tu import mutag
from difflift.unignn import UniGCNII, UniGIN
from torch import nn
from torch_geometric.data import Batch, Data
from torch_geometric.nn.models import GIN as PyGGIN

F, K = 3, 4
HYPERGRAPH = {"unigcnii": UniGCNII, "unigin": UniGIN, "gin": GraphGIN}
CELL = {
    "cwn": CWN,
    "cwn all": partial(CWN, update="all"),
    "gat": TopoTune,
    "topotune gin": partial(TopoTune, gnn="gin"),
}
PAIRS = [("hypergraph", net) for net in HYPERGRAPH] + [(t, net) for t in ("cell", "simplicial") for net in CELL]
each_pair = pytest.mark.parametrize(("target", "network"), PAIRS)


def data(n, edges, seed):
    rng = torch.Generator().manual_seed(seed)
    ends = torch.tensor(edges, dtype=torch.long).view(-1, 2).T
    return Data(
        x=torch.randn(n, F, generator=rng, dtype=torch.float64), edge_index=torch.cat([ends, ends.flip(0)], dim=1)
    )


RING = data(9, [(i, (i + 1) % 9) for i in range(9)] + [(0, 4)], 0)
GRAPHS = [RING, data(1, [], 1), data(2, [(0, 1)], 2), data(5, [], 3), data(4, [(0, 1), (1, 2), (2, 3)], 4)]


def spread(net):
    """Shift choices of sizes and scores so that they differ among the vertices and cells of `GRAPHS`."""

    def shift(part):
        seen = []
        with part.register_forward_hook(lambda module, inputs, output: seen.append(output.detach())):
            net(Batch.from_data_list(GRAPHS))
        part[-1].bias.data -= seen[0].mean(0)
        part[-1].weight.data *= 10
        part[-1].bias.data *= 10

    if net.size.learned:
        shift(net.size.logits)
    shift(net.branch.scorer)
    return net


def model(network, lifting, **options):
    torch.manual_seed(0)
    net = LiftedNetwork(F, K, lifting, HYPERGRAPH.get(network) or CELL[network], width=8, **options).double()
    for module in net.modules():
        if isinstance(module, nn.BatchNorm1d):
            module.running_mean.normal_()
            module.running_var.uniform_(0.5, 2)
    if isinstance(net.eval().lifting, DiffLift):
        spread(net.lifting)
    return net


def learned(target, **options):
    options = {"embedding": 16, "hidden": 8} | options
    if target == "cell":
        options |= {"cycles": "induced", "longest": 5}  # no basis is unique, so that none would follow the vertices
    return partial(DiffLift, target=target, **options)


def same_weights(a, b):
    """Give b what a has beside its lifting."""
    b.load_state_dict({k: v for k, v in a.state_dict().items() if not k.startswith("lifting")}, strict=False)
    return b


@each_pair
@pytest.mark.parametrize("pooling", ["mean", "sum"])
def test_logits_of_a_graph_do_not_depend_on_its_batch(target, network, pooling):
    net = model(network, learned(target), pooling=pooling)
    together, lifted = net(Batch.from_data_list(GRAPHS))
    assert lifted.added > 0
    torch.testing.assert_close(together, torch.cat([net(graph)[0] for graph in GRAPHS]), rtol=1e-9, atol=1e-9)


@each_pair
def test_logits_do_not_depend_on_the_order_of_the_vertices(target, network):
    net = model(network, learned(target))
    order = torch.randperm(9, generator=torch.Generator().manual_seed(1))
    moved = Data(x=RING.x[order], edge_index=order.argsort()[RING.edge_index])
    torch.testing.assert_close(net(moved)[0], net(RING)[0], rtol=1e-9, atol=1e-9)
    vertices = model(network, learned(target), level="node")
    torch.testing.assert_close(vertices(moved)[0], vertices(RING)[0][order], rtol=1e-9, atol=1e-9)


@each_pair
@pytest.mark.parametrize("training", [True, False])
def test_selecting_none_gives_the_logits_of_the_plain_graph(target, network, training):
    """While training excluded cells are still there, and change nothing."""
    net = model(network, learned(target, selection="none"))
    plain = same_weights(net, model(network, NoLifting))
    batch = Batch.from_data_list(GRAPHS)
    net.lifting.train(training)
    logits, lifted = net(batch)
    assert (lifted.b1.shape[1] > lifted.edges) == training
    torch.testing.assert_close(logits, plain(batch)[0], rtol=1e-9, atol=1e-9)


@each_pair
def test_excluded_cells_change_no_logit(target, network):
    net, batch = model(network, learned(target)), Batch.from_data_list(GRAPHS)
    pruned = net(batch)[0]
    net.lifting.training = True  # but not its parts: no draws, the same statistics
    logits, lifted = net(batch)
    assert lifted.b1.shape[1] + lifted.b2.shape[1] > lifted.edges + lifted.added
    torch.testing.assert_close(logits, pruned, rtol=1e-9, atol=1e-9)


@each_pair
def test_evaluation_is_deterministic_and_training_follows_the_seed(target, network):
    net, batch = model(network, learned(target)), Batch.from_data_list(GRAPHS)
    assert torch.equal(net(batch)[0], net(batch)[0])
    net.train()
    first, again, other = (torch.manual_seed(seed) and net(batch)[0] for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


@pytest.mark.parametrize(("target", "network"), [pair for pair in PAIRS if pair[1] != "gin"])
def test_loss_has_a_gradient_in_every_part_of_the_lifting(target, network):
    net = model(network, learned(target)).train()
    torch.manual_seed(2)
    logits, _ = net(Batch.from_data_list(GRAPHS))
    nn.functional.cross_entropy(logits, torch.tensor([0, 1, 2, 3, 0])).backward()
    for part in (net.lifting.encoder, net.lifting.size, net.lifting.branch.scorer, net.features, net.head):
        assert sum(p.grad.abs().sum() for p in part.parameters() if p.grad is not None) > 0, part
    assert net.lifting.size.logits[2].weight.grad.abs().sum() > 0


@pytest.mark.parametrize(("target", "network"), [("hypergraph", "unigcnii"), ("cell", "cwn")])
def test_loss_has_no_gradient_in_the_choice_of_sizes_as_published(target, network):
    net = model(network, learned(target, k_gradient="none")).train()
    net(Batch.from_data_list(GRAPHS))[0].logsumexp(1).sum().backward()
    assert all(parameter.grad is None for parameter in net.lifting.size.parameters())


@pytest.mark.parametrize("pooling", ["mean", "sum"])
def test_graph_logits_are_a_linear_map_of_pooled_vertices(pooling):
    """The head is affine: of a mean of signals it is the mean of vertex logits, of a sum the sum less n - 1 biases."""
    batch = Batch.from_data_list(GRAPHS)
    for network, lifting in (("unigcnii", KHopLifting), ("cwn", CycleLifting)):
        vertices = model(network, lifting, level="node")(batch)[0]
        net = model(network, lifting, pooling=pooling)
        parts = vertices.split([len(graph.x) for graph in GRAPHS])
        rows = [p.mean(0) if pooling == "mean" else p.sum(0) - (len(p) - 1) * net.head.bias for p in parts]
        torch.testing.assert_close(net(batch)[0], torch.stack(rows))


def test_cells_are_heard_at_the_vertices_by_the_way_down():
    """And are not without it, where the network itself has to bring them there."""
    for propagate in (True, False):
        net = model("cwn all", CycleLifting, propagate_down=propagate)
        signals, lifted = net.network(net.features(RING.x), net.lifting(RING)), net.lifting(RING)
        vertices = net.down(signals, lifted) if propagate else signals[0]
        torch.testing.assert_close(net(RING)[0], net.head(vertices.mean(0, keepdim=True)))
    with pytest.raises(ValueError, match="propagate_down must be true with CWN, which leaves the vertices alone"):
        model("cwn", CycleLifting, propagate_down=False)


def test_integer_features_are_accepted():
    graph = Data(x=torch.eye(3, dtype=torch.long), edge_index=torch.tensor([[0, 1], [1, 0]]))
    net = model("unigcnii", NoLifting)
    as_floats = Data(x=torch.eye(3, dtype=torch.float64), edge_index=graph.edge_index)
    torch.testing.assert_close(net(graph)[0], net(as_floats)[0], rtol=1e-6, atol=1e-6)


def test_graph_gin_is_that_of_pyg():
    net = model("gin", NoLifting, level="node")
    peer = PyGGIN(8, 8, 2, 8, act=None, norm=None).double().eval()
    for conv, layer in zip(peer.convs, net.network.layers, strict=True):
        conv.nn = layer.nn
    expected = net.head(peer(net.features(RING.x), RING.edge_index))
    torch.testing.assert_close(net(RING)[0], expected)


@pytest.mark.parametrize("lifting", [KHopLifting, CycleLifting, learned("hypergraph"), learned("cell")])
def test_graph_gin_does_not_hear_added_cells(lifting):
    batch = Batch.from_data_list(GRAPHS)
    plain, net = model("gin", NoLifting), model("gin", lifting)
    same_weights(plain, net)
    for training in (False, True):
        net.lifting.training = training  # but not its parts
        logits, lifted = net(batch)
        assert lifted.b1.shape[1] + lifted.b2.shape[1] > lifted.edges
        assert torch.equal(logits, plain(batch)[0])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"features": 0}, "features must be at least 1, got 0"),
        ({"outputs": 0}, "outputs must be at least 1, got 0"),
        ({"width": 0}, "width must be at least 1, got 0"),
        ({"dropout": 1.0}, r"dropout must lie in \[0, 1\), got 1.0"),
    ],
)
def test_options_out_of_range_are_refused(options, message):
    arguments = {"features": F, "outputs": K, "lifting": NoLifting, "network": UniGCNII} | options
    with pytest.raises(ValueError, match=message):
        LiftedNetwork(**arguments)


@pytest.mark.parametrize(("target", "network"), [("hypergraph", UniGCNII), ("cell", CWN), ("cell", TopoTune)])
def test_gradients_are_the_same_each_time_on_several_threads(target, network):
    threads = torch.get_num_threads()
    batch = Batch.from_data_list(mutag()[:100])
    torch.manual_seed(0)
    net = LiftedNetwork(7, 2, partial(DiffLift, target=target, distance_gradient=1.0), network)

    def gradients():
        torch.manual_seed(1)
        net.zero_grad()
        nn.functional.cross_entropy(net(batch)[0], batch.y).backward()
        return torch.cat([p.grad.flatten() for p in net.parameters() if p.grad is not None])

    try:
        torch.set_num_threads(4)
        found = [gradients() for _ in range(5)]
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(found[0], other) for other in found[1:])
