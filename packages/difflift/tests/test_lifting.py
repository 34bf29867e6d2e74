"""`DiffLift`: batches, orders of vertices, seeds, limits of the selection, degenerate graphs, bad options."""

import pytest
import torch
from difflift.baselines import FeatureKNNLifting, NoLifting
from difflift.graphs import Graphs
from difflift.lifting import DiffLift
from torch import nn
from torch_geometric.data import Batch, Data

F = 3
TARGETS = ("hypergraph", "cell", "simplicial")
each_target = pytest.mark.parametrize("target", TARGETS)


def data(n, edges, seed):
    rng = torch.Generator().manual_seed(seed)
    ends = torch.tensor(edges, dtype=torch.long).view(-1, 2).T
    return Data(
        x=torch.randn(n, F, generator=rng, dtype=torch.float64), edge_index=torch.cat([ends, ends.flip(0)], dim=1)
    )


RING = data(9, [(i, (i + 1) % 9) for i in range(9)] + [(0, 4)], 0)
# A ring, a lone vertex, a pair, a graph without edges and a path; the first k_max exceeds most of them.
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


def lifting(target, training=False, seed=0, **options):
    """With statistics of the batch norms, choices of sizes and scores that differ among the vertices."""
    torch.manual_seed(seed)
    net = DiffLift(F, target, embedding=16, hidden=8, **options).double()
    for module in net.modules():
        if isinstance(module, nn.BatchNorm1d):
            module.running_mean.normal_()
            module.running_var.uniform_(0.5, 2)
    return spread(net.eval()).train(training)


def columns(b):
    """Rows of the entries of each column that are not 0, as sets."""
    return [frozenset(column.nonzero().squeeze(1).tolist()) for column in b.to_dense().T]


def equal(a, b):
    return all(torch.equal(x.to_dense(), y.to_dense()) for x, y in ((a.b1, b.b1), (a.b2, b.b2)))


@each_target
@pytest.mark.parametrize("encoder", ["gin", "gps", "none"])
@pytest.mark.parametrize("selection", [None, "random"])
def test_lift_of_a_graph_does_not_depend_on_its_batch(target, encoder, selection):
    net = lifting(target, encoder=encoder, selection=selection)
    together = net(Batch.from_data_list(GRAPHS))
    assert together.added > 0
    assert len(together.k.unique()) > 2
    for g, graph in enumerate(GRAPHS):
        alone = net(graph)
        of_0, of_1, of_2 = (batch == g for batch in (together.batch_0, together.batch_1, together.batch_2))
        assert torch.equal(alone.b1.to_dense(), together.b1.to_dense()[of_0][:, of_1])
        assert torch.equal(alone.b2.to_dense(), together.b2.to_dense()[of_1][:, of_2])
        assert torch.equal(alone.k, together.k[of_0])
        torch.testing.assert_close(alone.p_1, together.p_1[of_1], rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(alone.p_2, together.p_2[of_2], rtol=1e-9, atol=1e-9)
        assert alone.edges == int((together.batch_1[: together.edges] == g).sum())
    between = together.batch_0[together.b1.row] != together.batch_1[together.b1.col]
    assert not between.any()


@each_target
@pytest.mark.parametrize("encoder", ["gin", "gps"])
def test_vertices_in_another_order_permute_rows_and_columns(target, encoder):
    options = {"cycles": "induced", "longest": 5} if target == "cell" else {}  # no basis is unique
    net = lifting(target, encoder=encoder, **options)
    order = torch.randperm(9, generator=torch.Generator().manual_seed(1))
    place = order.argsort()
    moved = net(Data(x=RING.x[order], edge_index=place[RING.edge_index]))
    lifted = net(RING)
    assert lifted.added > 0
    edge = {frozenset(place[list(members)].tolist()): c for c, members in enumerate(columns(lifted.b1))}
    to_1 = [edge[members] for members in columns(moved.b1)]
    assert sorted(to_1) == list(range(len(edge)))
    assert torch.equal(moved.b1.to_dense(), lifted.b1.to_dense()[order][:, to_1])
    cells = {frozenset(members) for members in columns(lifted.b2)}
    assert {frozenset(to_1[e] for e in members) for members in columns(moved.b2)} == cells
    assert moved.b2.shape[1] == lifted.b2.shape[1] == len(cells)
    assert torch.equal(moved.k, lifted.k[order])


@each_target
def test_evaluation_is_deterministic_and_training_follows_the_seed(target):
    net, batch = lifting(target, selection="sample"), Batch.from_data_list(GRAPHS)
    assert equal(net(batch), net(batch))

    def drawn(seed):
        torch.manual_seed(seed)
        lifted = net.train()(batch)
        return lifted.k.tolist(), lifted.b1.value.tolist(), lifted.b2.value.tolist()

    assert drawn(0) == drawn(0)
    assert drawn(0) != drawn(1)


@each_target
@pytest.mark.parametrize("cells_of", [2, 3, 5])
def test_accepting_every_candidate_of_raw_features_is_the_static_lifting_by_nearest_vertices(target, cells_of):
    net = lifting(target, encoder="none", k_max=cells_of, learn_k=False, selection="all")
    cycles = {"cycles": "triangles"} if target == "simplicial" else {}
    static = FeatureKNNLifting(F, cells_of, cells=target != "hypergraph", **cycles)
    batch = Batch.from_data_list(GRAPHS)
    assert equal(net(batch), static(batch))
    assert net(batch).added == static(batch).added > 0


@each_target
def test_certain_scores_accept_or_refuse_every_candidate(target):
    """p = 1 is the selection `all`, p = 0 the plain graph, whether drawn or not."""
    batch = Batch.from_data_list(GRAPHS)
    everything, nothing = lifting(target, selection="all", learn_k=False)(batch), NoLifting(F)(batch)
    for sure, expected in ((1, everything), (-1, nothing)):
        net = lifting(target, selection="sample", learn_k=False)
        last = net.branch.scorer[-1]
        last.weight.data.zero_()
        last.bias.data.copy_(torch.tensor([-1e3 * sure, 1e3 * sure][-len(last.bias) :]))
        assert equal(net(batch), expected)
        net.branch.train()  # with the encoder's statistics as before
        assert equal(net(batch), expected)


@each_target
def test_selecting_none_is_the_plain_graph(target):
    batch = Batch.from_data_list(GRAPHS)
    lifted = lifting(target, selection="none")(batch)
    assert equal(lifted, NoLifting(F)(batch))
    assert lifted.added == 0


@each_target
def test_excluded_cells_stay_while_training_only(target):
    torch.manual_seed(0)
    batch = Batch.from_data_list(GRAPHS)
    kept = lifting(target, True)(batch)
    excluded = int((kept.b1.weight == 0).sum() + (kept.b2.weight == 0).sum())
    assert excluded > 0
    assert kept.b1.shape[1] + kept.b2.shape[1] == kept.edges + kept.candidates
    for dropping in (lifting(target, True, keep_excluded=False), lifting(target)):
        lifted = dropping(batch)
        assert (lifted.b1.value != 0).all() and (lifted.b2.value != 0).all()
        assert lifted.b1.shape[1] + lifted.b2.shape[1] == lifted.edges + lifted.added


@each_target
def test_gradient_reaches_encoder_scorer_and_choice_of_sizes(target):
    net = lifting(target, True)
    lifted = net(Batch.from_data_list(GRAPHS))
    weight = torch.randn(21, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    (lifted.b1.degrees * weight).sum().backward()
    for name, parameter in net.named_parameters():
        dead = name.endswith("nn.2.bias") or name.endswith("nn.0.bias")  # ahead of ReLUs that may all be off
        assert dead or parameter.grad.abs().sum() > 0, name


@each_target
def test_choice_of_sizes_gets_no_gradient_as_published(target):
    net = lifting(target, True, k_gradient="none")
    net(Batch.from_data_list(GRAPHS)).b1.value.sum().backward()
    assert all(parameter.grad is None for parameter in net.size.parameters())
    assert all(parameter.grad.abs().sum() > 0 for parameter in net.branch.scorer.parameters())


@each_target
@pytest.mark.parametrize("graph", [GRAPHS[1], GRAPHS[2], GRAPHS[3]], ids=["one vertex", "one edge", "no edges"])
def test_degenerate_graphs_have_what_little_there_is(target, graph):
    lifted = lifting(target, k_max=10, learn_k=False, selection="all")(graph)
    n = len(graph.x)
    edges = {"one vertex": 0, "hypergraph": int(n > 1)}.get(target, n * (n - 1) // 2)
    assert lifted.k.tolist() == [n] * n
    assert lifted.b1.shape == (n, edges)
    assert lifted.b2.shape[1] == (0 if target == "hypergraph" or n < 3 else 10 if target == "simplicial" else 6)


def test_two_equal_vertices_come_in_the_order_of_their_indices():
    """0 0 1 on a line: the two nearest of the first are itself and the second, of the third itself and the first."""
    graph = Data(x=torch.tensor([[0.0], [0.0], [1.0]]), edge_index=torch.empty(2, 0, dtype=torch.long))
    net = DiffLift(1, encoder="none", k_max=2, learn_k=False, selection="all").eval()
    assert columns(net(graph).b1) == [{0, 1}, {0, 2}]


@each_target
def test_directed_edges_and_loops_lift_as_the_plain_graph_with_a_warning(target):
    net = lifting(target)
    one_way = RING.edge_index[:, RING.edge_index[0] < RING.edge_index[1]]
    loops = torch.arange(9).repeat(2, 1)
    with pytest.warns(UserWarning, match="one direction only"):
        lifted = net(Data(x=RING.x, edge_index=torch.cat([one_way, loops, one_way], dim=1)))
    assert equal(lifted, net(RING))


@each_target
def test_input_that_is_not_a_number_is_refused_by_the_name_of_its_graph(target):
    broken = RING.clone()
    broken.x[2, 1] = torch.nan
    with pytest.raises(ValueError, match="graph 1 is not finite at vertex 6"):
        lifting(target)(Batch.from_data_list([GRAPHS[4], broken]))


def test_data_are_left_as_they_were():
    graph = RING.clone()
    for target in TARGETS:
        lifting(target, True)(graph)
    assert torch.equal(graph.x, RING.x)
    assert torch.equal(graph.edge_index, RING.edge_index)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"k_max": 1}, "k_max must be at least 2, got 1"),
        ({"scorer_dropout": 1.0}, r"scorer_dropout must lie in \[0, 1\), got 1.0"),
        ({"hidden": 0}, "hidden must be at least 1, got 0"),
        ({"sharpening": 0.0}, "sharpening must be a finite number > 0, got 0.0"),
        ({"tau": -1.0}, "tau must be a finite number > 0, got -1.0"),
        ({"shortest": 2}, "shortest must be at least 3"),
        ({"cycles": "induced"}, "longest must be given with induced cycles"),
        ({"embedding": 0}, "embedding and encoder_layers must be at least 1"),
        ({"encoder": "gps", "embedding": 10}, "embedding must be a multiple of 4"),
    ],
)
def test_options_out_of_range_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        DiffLift(F, "cell", **options)


@pytest.mark.parametrize("option", ["target", "encoder", "k_gradient", "selection", "boundary"])
def test_a_choice_that_there_is_not_is_refused(option):
    with pytest.raises(ValueError, match=f"{option} must be one of .*, got 'sideways'"):
        DiffLift(F, **{option: "sideways"})


@each_target
def test_features_of_another_precision_are_taken_as_the_networks(target):
    net = lifting(target)
    expected = net.float()(Data(x=RING.x.float(), edge_index=RING.edge_index))
    assert torch.equal(net(RING).b1.to_dense(), expected.b1.to_dense())
    assert RING.x.dtype == torch.float64


def test_another_number_of_features_is_refused():
    with pytest.raises(ValueError, match=r"data\.x must have 3 features, as the lifting does, got 5"):
        lifting("cell")(Data(x=torch.randn(4, 5), edge_index=torch.empty(2, 0, dtype=torch.long)))


@pytest.mark.parametrize("dtype", [torch.int32, torch.float32])
def test_no_edges_may_have_any_type_and_edges_a_whole_one(dtype):
    none = Data(x=RING.x, edge_index=torch.empty(2, 0, dtype=dtype))
    assert lifting("cell")(none).edges == 0
    ring = Data(x=RING.x, edge_index=RING.edge_index.to(dtype))
    if dtype == torch.int32:
        assert lifting("cell")(ring).edges == 10
    else:
        with pytest.raises(ValueError, match=r"edge_index must be whole numbers, got torch\.float32"):
            lifting("cell")(ring)


def test_a_lone_vertex_is_trained_on_with_the_running_statistics():
    net = lifting("hypergraph", training=True)
    before = {name: value.clone() for name, value in net.state_dict().items()}
    trained = net.encoder(Graphs.of(GRAPHS[1]))
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    assert torch.equal(trained, net.encoder.eval()(Graphs.of(GRAPHS[1])))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"target": "simplicial", "shortest": 4}, "shortest must be 3 for target simplicial"),
        ({"target": "cell", "cycles": "triangles"}, "triangles are those of target simplicial"),
        ({"distance_gradient": float("inf")}, "distance_gradient must be a finite number >= 0, got inf"),
    ],
)
def test_options_that_could_not_matter_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        DiffLift(F, **options)


@each_target
def test_sixteen_bits_find_neighbours_as_more_do(target):
    assert lifting(target).bfloat16().eval()(RING).b1.value.dtype == torch.bfloat16


@each_target
def test_mixed_precision_works_with_attention_too(target):
    net = lifting(target, encoder="gps").float()
    with torch.autocast("cpu", torch.bfloat16):
        assert net(RING).edges == 10
