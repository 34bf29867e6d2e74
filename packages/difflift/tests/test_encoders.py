"""Encoders: GIN by loops, GPS layer by layer from PyG's parts, return probabilities in closed form."""

import pytest
import torch
from difflift.encoders import GIN, GPS, build_encoder, return_probabilities
from difflift.graphs import Graphs
from torch import nn
from torch_geometric.data import Batch, Data
from torch_geometric.nn import GPSConv

F = 3


def data(n, *edges, seed=0):
    ends = torch.tensor(edges, dtype=torch.long).view(-1, 2).T
    x = torch.randn(n, F, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return Data(x=x, edge_index=torch.cat([ends, ends.flip(0)], dim=1))


KITE = data(5, (0, 1), (1, 2), (0, 2), (2, 3))  # vertex 4 is alone
BATCH = [KITE, data(1, seed=1), data(7, (0, 1), (1, 2), (2, 3), (3, 4), (4, 0), (5, 6), seed=2), data(2, seed=3)]


def encoder(kind, dim=16, layers=2):
    """In evaluation mode, with statistics of the batch norms that are not those of the start."""
    torch.manual_seed(0)
    net = build_encoder(kind, F, dim, layers)[0].double()
    for norm in (m for m in net.modules() if isinstance(m, nn.BatchNorm1d)):
        norm.running_mean.normal_()
        norm.running_var.uniform_(0.5, 2)
    return net.eval()


def test_gin_is_the_perceptron_of_a_vertex_and_its_neighbours():
    """h_v' = BatchNorm(ReLU(W_2 ReLU(W_1 (h_v + Σ_u h_u)))), twice (Sec. 3.1)."""
    net, graphs = encoder("gin"), Graphs.of(KITE)
    neighbours = [[1, 2], [0, 2], [0, 1, 3], [2], []]
    h = graphs.x
    for layer in net.layers:
        first, _, second, _, norm = layer.nn
        rows = []
        for v, around in enumerate(neighbours):
            z = h[v] + sum((h[u] for u in around), torch.zeros_like(h[v]))
            y = (second.weight @ (first.weight @ z + first.bias).relu() + second.bias).relu()
            rows.append((y - norm.running_mean) / (norm.running_var + norm.eps).sqrt() * norm.weight + norm.bias)
        h = torch.stack(rows)
    torch.testing.assert_close(net(graphs), h)


def test_sizes_of_gin_are_those_of_the_paper():
    layers = GIN(F, 32, layers=3).layers
    shapes = [[(p.in_features, p.out_features) for p in layer.nn if isinstance(p, nn.Linear)] for layer in layers]
    assert shapes == [[(F, 32), (32, 32)], [(32, 32), (32, 32)], [(32, 32), (32, 32)]]
    assert all(isinstance(layer.nn[4], nn.BatchNorm1d) for layer in layers)
    assert all(layer.eps.item() == 0 and not layer.eps.requires_grad for layer in layers)


def test_sizes_of_gps_are_those_of_the_paper():
    """Linear(F, d - 8) beside Linear(20, 8) after BatchNorm(20); GIN and four heads of attention inside."""
    net = GPS(F, 32, layers=2)
    assert (net.features.in_features, net.features.out_features) == (F, 24)
    assert (net.position.in_features, net.position.out_features) == (20, 8)
    assert net.norm.num_features == 20
    assert len(net.layers) == 2
    for layer in net.layers:
        assert isinstance(layer, GPSConv)
        assert (layer.heads, layer.attn.num_heads, layer.attn.embed_dim) == (4, 4, 32)
        assert layer.conv.nn[0].in_features == layer.conv.nn[2].out_features == 32


def test_gps_is_its_layers_on_features_beside_positions():
    net, graphs = encoder("gps", layers=1), Graphs.of(KITE)
    walks, norm = return_probabilities(graphs, 20), net.norm
    walks = (walks - norm.running_mean) / (norm.running_var + norm.eps).sqrt()
    h = torch.cat([graphs.x @ net.features.weight.T + net.features.bias, walks @ net.position.weight.T], 1)
    h[:, 8:] += net.position.bias
    layer = net.layers[0]
    local = layer.norm1(layer.conv(h, graphs.directed) + h)
    attention = layer.norm2(layer.attn(h[None], h[None], h[None])[0][0] + h)  # one graph: no padding, no mask
    both = local + attention
    torch.testing.assert_close(net(graphs), layer.norm3(both + layer.mlp(both)))


@pytest.mark.parametrize("kind", ["gin", "gps", "none"])
def test_embedding_of_a_graph_does_not_depend_on_its_batch(kind):
    net = encoder(kind)
    together = net(Graphs.of(Batch.from_data_list(BATCH)))
    alone = torch.cat([net(Graphs.of(graph)) for graph in BATCH])
    torch.testing.assert_close(together, alone, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("kind", ["gin", "gps", "none"])
def test_vertices_in_another_order_have_the_same_embeddings(kind):
    net, graph = encoder(kind), BATCH[2]
    order = torch.randperm(7, generator=torch.Generator().manual_seed(0))
    place = order.argsort()  # where each vertex went
    moved = Data(x=graph.x[order], edge_index=place[graph.edge_index])
    torch.testing.assert_close(net(Graphs.of(moved)), net(Graphs.of(graph))[order], rtol=1e-10, atol=1e-10)


def test_no_encoder_gives_the_features():
    net, dim = build_encoder("none", F, 16, 2)
    assert dim == F
    assert net(Graphs.of(KITE)) is KITE.x


def test_return_probabilities_are_the_diagonals_of_matrix_powers():
    graphs = Graphs.of(Batch.from_data_list(BATCH))
    adjacency = torch.zeros(15, 15, dtype=torch.float64)
    adjacency[graphs.directed[0], graphs.directed[1]] = 1
    step = adjacency / adjacency.sum(1, keepdim=True).clamp(min=1)
    expected = torch.stack([torch.linalg.matrix_power(step, i).diag() for i in range(1, 21)], dim=1)
    torch.testing.assert_close(return_probabilities(graphs, 20), expected)


def test_return_probabilities_of_a_pair_a_triangle_and_a_lone_vertex():
    """0, 1, 0, ... on an edge; (1 + 2 (-1/2)^i) / 3 on a triangle, whose walk has eigenvalues 1, -1/2, -1/2."""
    pair, triangle = data(3, (0, 1)), data(3, (0, 1), (1, 2), (0, 2))
    assert return_probabilities(Graphs.of(pair), 4).tolist() == [[0, 1, 0, 1], [0, 1, 0, 1], [0, 0, 0, 0]]
    i = torch.arange(1, 8)
    expected = (1 + 2 * (-0.5) ** i.double()) / 3
    torch.testing.assert_close(return_probabilities(Graphs.of(triangle), 7), expected.expand(3, 7))


def test_walks_have_no_gradient():
    graph = data(3, (0, 1), (1, 2))
    graph.x.requires_grad_()
    assert not return_probabilities(Graphs.of(graph), 3).requires_grad


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("gps", F, 8, 2), "embedding must be a multiple of 4 above 8 with the encoder gps, got 8"),
        (("gps", F, 18, 2), "embedding must be a multiple of 4 above 8 with the encoder gps, got 18"),
        (("gin", F, 0, 2), "embedding and encoder_layers must be at least 1, got 0 and 2"),
        (("gin", F, 32, 0), "embedding and encoder_layers must be at least 1, got 32 and 0"),
    ],
)
def test_options_out_of_range_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        build_encoder(*arguments)
