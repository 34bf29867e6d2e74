"""The LightningModule: losses, the best epoch and its weights, the rate, metrics, and data that does not fit."""

import math
from dataclasses import replace

import pytest
import torch
from difflift import DiffLift, Lifting, Network, NoLifting, UniGCNII
from difflift.app import DiffLiftCLI
from difflift.baselines import hypergraph
from difflift.data import GraphData
from difflift.datasets import Splits
from difflift.graphs import Graphs
from difflift.module import LiftingModule, build_metric
from lightning.pytorch import Trainer
from sklearn.metrics import roc_auc_score
from torch import nn
from torch_geometric.data import Batch, Data


class Same(Network):
    """Returns the features it is given."""

    ranks = 1

    def __init__(self, width):
        super().__init__(width, layers=1, dropout=0.0)

    def forward(self, x, complex):
        return (x,)


def path(values, y, **more):
    """A path whose vertices have one feature each."""
    vertex = torch.arange(len(values) - 1)
    edges = torch.stack([vertex, vertex + 1])
    x = torch.tensor(values, dtype=torch.float)[:, None]
    return Data(x=x, edge_index=torch.cat([edges, edges.flip(0)], 1), y=torch.tensor(y), **more)


def module(task="graph", classes=2, lifting=NoLifting, network=Same, **options):
    """A module whose logits are affine in the mean of a graph's features, 1 of them, if the lifting changes nothing."""
    made = LiftingModule(lifting, network, 1, classes, task, **{"width": 1, "dropout": 0.0, **options})
    with torch.no_grad():
        made.model.features[0].weight.fill_(1.0)
        made.model.features[0].bias.zero_()
        made.model.head.weight.copy_(torch.arange(1.0, classes + 1)[:, None])
        made.model.head.bias.zero_()
    made.log = lambda *args, **options: None
    return made


# The loss.


def cross_entropy(logits, y):
    return -logits[y] + math.log(sum(map(math.exp, logits)))


def test_the_loss_of_graphs_is_the_mean_cross_entropy_of_a_batch():
    batch = Batch.from_data_list([path([1, 3], [1]), path([1], [0]), path([0, 0, 3], [1])])
    means, targets = [2.0, 1.0, 1.0], [1, 0, 1]
    expected = sum(cross_entropy([m, 2 * m], y) for m, y in zip(means, targets, strict=True)) / 3
    assert module().training_step(batch, 0).item() == pytest.approx(expected)
    assert module("binary").training_step(batch, 0).item() == pytest.approx(expected)


def test_the_loss_of_vertices_is_the_mean_over_those_that_are_scored():
    graphs = [
        path([1.0, 2.0, 3.0], [0, 1, 1], scored=torch.tensor([True, False, True])),
        path([4.0], [0], scored=torch.tensor([True])),
    ]
    expected = (cross_entropy([1, 2], 0) + cross_entropy([3, 6], 1) + cross_entropy([4, 8], 0)) / 3
    assert module("node").training_step(Batch.from_data_list(graphs), 0).item() == pytest.approx(expected)
    for graph in graphs:
        del graph.scored
    expected = (3 * expected + cross_entropy([2, 4], 1)) / 4
    assert module("node").training_step(Batch.from_data_list(graphs), 0).item() == pytest.approx(expected)


def test_the_loss_of_a_regression_is_the_mean_absolute_error():
    batch = Batch.from_data_list([path([1, 3], [0.5]), path([1], [-1.0])])
    loss = module("regression", 1).training_step(batch, 0)
    assert loss.shape == ()
    assert loss.item() == pytest.approx((1.5 + 2.0) / 2)


class Offered(Lifting):
    """Hyperedges with probabilities that are parameters; all are left out, so that the loss without λ ignores them."""

    def __init__(self, features):
        super().__init__()
        self.p = nn.Parameter(torch.tensor([0.2, 0.6]))

    def forward(self, data):
        graphs = Graphs.of(data)
        none = graphs.edges.new_empty(0)
        lifted = hypergraph(graphs, none, none)
        return replace(lifted, p_1=torch.cat([lifted.p_1, self.p]), candidates=2)


@pytest.mark.parametrize("sparsity", [0.0, 0.5])
def test_the_penalty_is_lambda_times_the_mean_probability_of_the_candidates(sparsity):
    batch = Batch.from_data_list([path([1, 3], [1])])
    made = module(lifting=Offered, sparsity=sparsity)
    loss = made.training_step(batch, 0)
    assert loss.item() == pytest.approx(cross_entropy([2, 4], 1) + sparsity * 0.4)
    loss.backward()
    assert made.model.lifting.p.grad.tolist() == pytest.approx([sparsity / 2] * 2)


def test_a_lifting_without_candidates_has_no_penalty():
    batch = Batch.from_data_list([path([1, 3], [1])])
    assert module(sparsity=10.0).training_step(batch, 0).item() == pytest.approx(cross_entropy([2, 4], 1))


# The metrics.


def test_accuracy_counts_all_items_alike():
    metric, made = build_metric("graph", 3), module("graph", 3)
    logits = torch.tensor([[2.0, 1.0, 0.0], [0.0, 1.0, 0.0], [3.0, 0.0, 0.0], [1.0, 0.0, 0.0], [1.0, 0.0, 0.0]])
    for part, y in ((logits[:2], [0, 1]), (logits[2:], [0, 0, 2])):
        made.update(metric, part, torch.tensor(y))
    assert metric.compute().item() == pytest.approx(4 / 5)  # the mean over classes would be 2/3


def test_the_area_under_the_curve_is_that_of_the_second_class_over_all_batches():
    rng = torch.Generator().manual_seed(0)
    logits, y = torch.randn(50, 2, generator=rng), torch.randint(2, (50,), generator=rng)
    logits[y == 1, 1] += 1
    metric, made = build_metric("binary", 2), module("binary")
    for part in (slice(0, 3), slice(3, 50)):
        made.update(metric, logits[part], y[part])
    expected = roc_auc_score(y.numpy(), (logits[:, 1] - logits[:, 0]).numpy())
    assert 0.6 < expected < 0.95
    assert metric.compute().item() == pytest.approx(expected, abs=1e-6)


def test_the_mean_absolute_error_is_over_all_items():
    metric, made = build_metric("regression", 1), module("regression", 1)
    made.update(metric, torch.tensor([[1.0], [2.0]]), torch.tensor([0.0, 4.0]))
    made.update(metric, torch.tensor([[-1.0]]), torch.tensor([-7.0]))
    assert metric.compute().item() == pytest.approx((1 + 2 + 6) / 3)


# Which epoch counts, the rate, and when to stop: a run with validation scores that we choose.


class Told(GraphData):
    """Two graphs to train on, one to validate on, one to test on."""

    def __init__(self, task="graph", **options):
        super().__init__(batch_size=2, **options)
        graphs = [path([1.0, 2.0], [i % 2 if task != "regression" else float(i)]) for i in range(4)]
        split = {"train": [0, 1], "val": [2], "test": [3]}
        self.__dict__["splits"] = Splits(graphs, split, task, 1 if task == "regression" else 2, 1)


def fit(scores, task="graph", **options):
    """Train for as many epochs as there are scores; the module, and the head's weights and the rate of each epoch."""
    made = LiftingModule(NoLifting, Same, 1, 1 if task == "regression" else 2, task, width=1, dropout=0.0, **options)
    seen, rates = [], []

    def told():
        seen.append({name: tensor.clone() for name, tensor in made.model.state_dict().items()})
        rates.append(made.optimizers().param_groups[0]["lr"])
        return torch.tensor(scores[len(seen) - 1])

    made.val_metric.compute = told
    trainer = Trainer(
        max_epochs=len(scores), accelerator="cpu", logger=False, enable_checkpointing=False, num_sanity_val_steps=0,
        enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    torch.manual_seed(0)
    trainer.fit(made, Told(task))
    return made, trainer, seen, rates


def same(first, second):
    return all(torch.equal(value, second[name]) for name, value in first.items())


@pytest.mark.parametrize(
    ("task", "scores", "best"),
    [
        ("graph", [0.3, 0.6, 0.5, 0.6], 1),  # the first of equals
        ("binary", [0.3, 0.4, 0.5], 2),
        ("regression", [2.0, 0.5, 0.7], 1),  # an error: the lowest
        ("graph", [0.0, 0.0], 0),
    ],
)
def test_the_weights_of_the_best_epoch_are_tested_and_the_last_ones_are_not(task, scores, best):
    made, trainer, seen, _rates = fit(scores, task, lr=0.1)
    assert len(seen) == len(scores) and not same(seen[0], seen[-1])
    assert made.best["epoch"] == best
    assert made.best["score"] == pytest.approx(-scores[best] if task == "regression" else scores[best])
    assert same(made.best["weights"], seen[best])
    assert same(made.model.state_dict(), seen[-1])
    trainer.test(made, Told(task), verbose=False)
    assert same(made.model.state_dict(), seen[best])
    assert trainer.callback_metrics["test/n"] == 1


def test_training_stops_after_as_many_epochs_without_a_better_score_as_patience_allows():
    made, _trainer, seen, _rates = fit([0.1, 0.5, 0.5, 0.4, 0.3, 0.9], patience=3)
    assert len(seen) == 5  # epochs 2, 3 and 4 were no better than 1
    assert made.best["epoch"] == 1
    made, _trainer, seen, _rates = fit([0.1, 0.5, 0.5, 0.4, 0.6, 0.3, 0.3], patience=3)
    assert len(seen) == 7 and made.best["epoch"] == 4
    assert len(fit([0.5] * 6, patience=None)[2]) == 6
    assert len(fit([0.5] * 6, patience=1)[2]) == 2


def test_the_rate_is_halved_after_more_epochs_without_a_better_score_than_its_patience():
    _made, _trainer, _seen, rates = fit([0.5, 0.4, 0.4, 0.4, 0.6, 0.1], lr=0.08, lr_patience=1, patience=None)
    # Seen at the end of each epoch, before that epoch's score has had an effect.
    assert rates == [0.08, 0.08, 0.08, 0.04, 0.04, 0.04]
    _made, _trainer, _seen, rates = fit([3.0, 2.0, 2.0, 1.0, 1.0], "regression", lr=0.08, lr_patience=0)
    assert rates == [0.08, 0.08, 0.08, 0.04, 0.04]  # an error that falls is progress, one that stays is not
    _made, _trainer, _seen, rates = fit([0.5] * 5, lr=3e-6, lr_patience=0)
    assert rates == [3e-6, 3e-6, 1.5e-6, 1e-6, 1e-6]  # never below 1e-6


def test_a_checkpoint_carries_the_best_epoch_to_another_module():
    made, _trainer, seen, _rates = fit([0.3, 0.6, 0.5], lr=0.1)
    checkpoint = {}
    made.on_save_checkpoint(checkpoint)
    other = module()
    other.on_load_checkpoint(checkpoint)
    assert (other.best["epoch"], other.best["score"]) == (1, pytest.approx(0.6))
    other.restore_best()
    assert same(other.model.state_dict(), seen[1])


def test_a_checkpoint_from_before_the_first_validation_leaves_the_weights_alone():
    made = module()
    before = {name: tensor.clone() for name, tensor in made.model.state_dict().items()}
    made.on_load_checkpoint({})
    made.restore_best()
    assert made.best == {}
    assert same(made.model.state_dict(), before)


def test_the_best_weights_are_a_copy_that_training_does_not_change():
    made, _trainer, seen, _rates = fit([0.9, 0.1, 0.1, 0.1], lr=0.1)
    assert same(made.best["weights"], seen[0]) and not same(seen[0], seen[3])


def test_adam_has_the_rate_the_decay_and_every_parameter():
    made = LiftingModule(lambda f: DiffLift(f), UniGCNII, 3, 2, lr=0.01, weight_decay=0.1)
    adam = made.configure_optimizers()
    (group,) = adam.param_groups
    assert type(adam) is torch.optim.Adam
    assert (group["lr"], group["weight_decay"]) == (0.01, 0.1)
    assert {id(p) for p in group["params"]} == {id(p) for p in made.parameters()}


# What does not fit.


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (lambda: LiftingModule(NoLifting, Same, 3, 2), "model.features is 3, but the data asks for"),
        (lambda: LiftingModule(NoLifting, Same, 1, 4), "model.classes is 4, but the data asks for"),
        (lambda: LiftingModule(NoLifting, Same, 1, 2, "node"), "model.task is node, but the data asks for"),
    ],
)
def test_data_that_the_network_was_not_made_for_is_refused_with_what_to_set(made, message):
    trainer = Trainer(accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False)
    with pytest.raises(ValueError, match=message) as refused:
        trainer.fit(made(), Told())
    assert str(refused.value).endswith("--model.features=1 --model.classes=2 --model.task=graph")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lr": 0.0}, "lr must be a finite number > 0, got 0.0"),
        ({"lr": math.inf}, "lr must be a finite number > 0, got inf"),
        ({"weight_decay": -1.0}, "weight_decay must be a finite number >= 0, got -1.0"),
        ({"sparsity": math.nan}, "sparsity must be a finite number >= 0, got nan"),
        ({"patience": 0}, "patience must be at least 1 and lr_patience at least 0, got 0 and 10"),
        ({"lr_patience": -1}, "patience must be at least 1 and lr_patience at least 0, got 15 and -1"),
        ({"classes": 1}, "classes must be 1 for a regression and at least 2 otherwise, got 1 for graph"),
        ({"task": "regression"}, "classes must be 1 for a regression and at least 2 otherwise, got 2 for regression"),
        ({"task": "binary", "classes": 3}, "classes must be 2 for the task binary, got 3"),
    ],
    ids=str,
)
def test_an_option_out_of_range_is_named(options, message):
    with pytest.raises(ValueError, match=message):
        LiftingModule(**{"lifting": NoLifting, "network": Same, "features": 1, "classes": 2, **options})


def test_the_epoch_chosen_on_validation_data_is_monitored_by_the_command():
    assert (DiffLiftCLI.monitor, DiffLiftCLI.monitor_mode) == ("val/score", "max")


def test_sparsity_needs_the_probabilities_of_what_is_excluded():
    with pytest.raises(ValueError, match=r"sparsity needs keep_excluded, .*; got 0\.1 without"):
        LiftingModule(lambda f: DiffLift(f, keep_excluded=False), UniGCNII, 3, 2, sparsity=0.1)


def test_a_loss_that_is_no_number_ends_the_training_with_a_sentence():
    class Broken(Same):
        def forward(self, x, complex):
            return (x * math.nan,)

    broken = LiftingModule(NoLifting, Broken, 1, 2, width=4)
    trainer = Trainer(
        max_epochs=2, accelerator="cpu", logger=False, enable_checkpointing=False, num_sanity_val_steps=0,
        enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    with pytest.raises(ValueError, match="the loss of epoch 0 is nan: lower lr"):
        trainer.fit(broken, Told())


@pytest.mark.parametrize(
    "options", [{"k_gradient": "none"}, {"selection": "all"}, {"selection": "random", "learn_k": False}]
)
def test_every_parameter_that_can_be_trained_gets_a_gradient(options):
    torch.manual_seed(0)
    module = LiftingModule(lambda f: DiffLift(f, **options), UniGCNII, 1, 2)
    batch = Batch.from_data_list([path([1.0, 2.0, -1.0, 0.5, 3.0], 0), path([0.0, 1.0, 4.0], 1)])
    logits, y, _ = module.train().scored(batch)
    nn.functional.cross_entropy(logits, y).backward()
    without = [name for name, p in module.named_parameters() if p.requires_grad and p.grad is None]
    assert not without  # processes that train together would wait for them


@pytest.mark.parametrize(
    ("returned", "message"),
    [(lambda x: x, "must return 1 signals"), (lambda x: (x[1:],), "must return 1 signals")],
)
def test_a_network_that_returns_something_else_is_refused_by_its_name(returned, message):
    class Own(Same):
        def forward(self, x, complex):
            return returned(x)

    module = LiftingModule(NoLifting, Own, 1, 2)
    with pytest.raises(ValueError, match=f"Own {message}"):
        module(path([1.0, 2.0], 0))


def test_a_network_without_ranks_is_refused():
    class Own(Network):
        def forward(self, x, complex):
            return (x,)

    with pytest.raises(ValueError, match="Own must have a class attribute `ranks` of 1 or 3"):
        Own(4, 1, 0.0)


def test_features_of_another_precision_train_static_and_learned_liftings():
    graph = path([1.0, 2.0, 3.0], 0)
    graph.x = graph.x.double()
    for lifting in (NoLifting, DiffLift):
        logits, _ = LiftingModule(lifting, UniGCNII, 1, 2).eval()(graph)
        assert logits.dtype == torch.float32
    assert graph.x.dtype == torch.float64
