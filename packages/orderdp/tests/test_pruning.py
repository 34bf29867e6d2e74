"""The pruning in Lightning's own loop, with a user's datamodule and model that know nothing of it."""

import itertools
import re

import numpy as np
import pytest
import torch
from lightning.pytorch import Callback, LightningDataModule, LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from orderdp.baselines import POLICIES, Pruning
from orderdp.pruning import IndexedBatch, PruningMixin, ScoreUpdates, pruned_loader
from orderdp.sampler import Pruner
from torch import nn
from torch.utils.data import DataLoader, Dataset, SubsetRandomSampler, WeightedRandomSampler

N, BATCH = 30, 4


class Points(Dataset):
    """Points on a noisy line, as dictionaries."""

    def __init__(self, n=N):
        g = torch.Generator().manual_seed(0)
        self.x = torch.randn(n, 3, generator=g)
        self.y = self.x @ torch.tensor([1.0, -2.0, 0.5]) + 0.3 * torch.randn(n, generator=g)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        return {"point": {"x": self.x[index], "y": self.y[index]}, "id": f"p{index}"}


class PointsInBulk(Points):
    """Fetches a batch at once, as datasets with an expensive access do."""

    def __init__(self):
        super().__init__()
        self.asked = []

    def __getitem__(self, index):
        raise AssertionError("fetched one by one")

    def __getitems__(self, indices):
        self.asked.append(list(indices))
        return [super(PointsInBulk, self).__getitem__(index) for index in indices]


class PointData(LightningDataModule):
    def __init__(self, dataset=None, **loader):
        super().__init__()
        self.dataset, self.loader = Points() if dataset is None else dataset, {"batch_size": BATCH, **loader}

    def train_dataloader(self):
        return DataLoader(self.dataset, **self.loader)

    def state_dict(self):
        return {"version": 7}

    def load_state_dict(self, state_dict):
        self.loaded = state_dict


class PrunedPoints(PruningMixin, PointData):
    def __init__(self, pruning, *arguments, **options):
        super().__init__(*arguments, **options)
        self.pruning, self.seed = pruning, 3


class Line(LightningModule):
    """Linear regression that keeps what it was given."""

    def __init__(self, weighted=True, zero=False):
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(1)
            self.layer = nn.Linear(3, 1)
        self.weighted, self.zero, self.batches, self.last_loss = weighted, zero, [], {}

    def training_step(self, batch, batch_idx):
        assert batch.keys() == {"point", "id"}
        self.batches.append(batch["id"])
        losses = (self.layer(batch["point"]["x"])[:, 0] - batch["point"]["y"]) ** 2 * (not self.zero)
        self.last_loss |= dict(zip(batch["id"], losses.tolist(), strict=True))
        weights = self.trainer.datamodule.weights if self.weighted else None
        return {"loss": losses.mean() if weights is None else (weights * losses).mean(), "losses": losses}

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.05, momentum=0.9)


class PlainLoss(Line):
    def training_step(self, batch, batch_idx):
        return super().training_step(batch, batch_idx)["loss"]


def trainer(epochs=1, callbacks=(), **options):
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "logger": False, "accelerator": "cpu"}
    options = {"reload_dataloaders_every_n_epochs": 1, "use_distributed_sampler": False, **quiet, **options}
    checkpoints = any(isinstance(callback, ModelCheckpoint) for callback in callbacks)
    return Trainer(
        max_epochs=epochs, callbacks=[ScoreUpdates(), *callbacks], enable_checkpointing=checkpoints, **options
    )


def fit(model, data, epochs=1, ckpt_path=None, **options):
    trainer(epochs, **options).fit(model, data, ckpt_path=ckpt_path)
    return data.pruner


def numbers(ids):
    return [int(name[1:]) for name in ids]


def test_the_model_sees_its_own_batches_once_each_and_the_budget_is_exact():
    model, data = Line(), PrunedPoints(Pruning(keep=0.3, explore=0.6))
    pruner = fit(model, data, epochs=5)
    assert [len(ids) for ids in model.batches] == [4, 4, 1] * 5  # 9 of 30 samples, one forward pass each
    rounds = [sum(model.batches[3 * t : 3 * t + 3], []) for t in range(5)]
    assert all(len(set(ids)) == 9 for ids in rounds)
    assert len({frozenset(ids) for ids in rounds}) == 5
    assert pruner.seen == pruner.scores.visits.sum() == 45
    assert pruner.rounds_begun == 5
    assert pruner.scores.visits.tolist() == np.bincount(numbers(sum(rounds, [])), minlength=N).tolist()


def test_scores_are_the_last_losses_of_the_trained_samples_and_of_no_others():
    model, data = Line(), PrunedPoints(Pruning(keep=0.3, explore=0.6, initial_score=3.0))
    values = fit(model, data, epochs=3).scores.values
    trained = numbers(model.last_loss)
    assert 9 < len(trained) < N
    np.testing.assert_array_equal(values[trained], np.array(list(model.last_loss.values()), np.float32))
    assert (np.delete(values, trained) == 3.0).all()


def test_indices_of_the_datamodule_are_those_of_the_batch_in_the_model():
    pairs = []

    class Compare(Callback):
        def on_train_batch_start(self, trainer, module, batch, batch_idx):
            pairs.append((trainer.datamodule.indices.tolist(), numbers(batch["id"])))

    fit(Line(), PrunedPoints(Pruning(keep=0.3)), callbacks=[Compare()])
    assert len(pairs) == 3
    assert all(indices == ids for indices, ids in pairs)


def test_training_equals_a_loop_written_out():
    model, data = Line(), PrunedPoints(Pruning(keep=0.5, explore=0.8))
    pruner = fit(model, data, epochs=3)
    points, plain, own = Points(), Line(), Pruner(N, BATCH, Pruning(keep=0.5, explore=0.8), seed=3)
    optimizer = plain.configure_optimizers()
    for _ in range(3):
        for batch in own:
            losses = (plain.layer(points.x[batch])[:, 0] - points.y[batch]) ** 2
            optimizer.zero_grad()
            losses.mean().backward()
            optimizer.step()
            own.update(batch, losses)
    assert torch.equal(model.layer.weight, plain.layer.weight)
    assert pruner.scores.values.tolist() == own.scores.values.tolist()


def test_a_round_per_step_selects_by_the_scores_of_the_batch_before():
    # Trained samples score 0 and half of each pool is untrained: a stale selection would soon repeat one.
    for seed in range(8):
        model = Line(zero=True)
        data = PrunedPoints(Pruning(keep=0.25, explore=1.0, round="step", initial_score=1.0), Points(16), batch_size=2)
        data.seed = seed
        fit(model, data)
        assert [len(ids) for ids in model.batches] == [2, 2]
        assert len({*sum(model.batches, [])}) == 4


@pytest.mark.parametrize("policy", ["infobatch", "static"])
def test_rounds_of_varying_length_train_on_every_batch(policy):
    model, data = Line(), PrunedPoints(Pruning(policy, keep=0.3, prune=0.8))
    pruner = fit(model, data, epochs=4)
    seen = numbers(sum(model.batches, []))
    assert len(seen) == pruner.seen
    assert sorted(seen[:N]) == list(range(N))
    assert pruner.seen == N + 3 * 9 if policy == "static" else 2 * N < pruner.seen < 3 * N


def test_validation_sees_every_sample_in_batches_as_the_user_made_them():
    class WithValidation(PrunedPoints):
        def val_dataloader(self):
            return DataLoader(self.dataset, batch_size=8)

    validated = []

    class Validated(Line):
        def validation_step(self, batch, batch_idx):
            validated.append(batch["id"])

    pruner = fit(Validated(), WithValidation(Pruning(keep=0.3)), num_sanity_val_steps=2)
    assert numbers(sum(validated, [])) == [*range(16), *range(N)]
    assert pruner.seen == 9


def test_losses_must_be_returned():
    message = 'training_step must return {"loss": ..., "losses": ...} with the loss of each sample'
    with pytest.raises(ValueError, match=re.escape(message)):
        fit(PlainLoss(), PrunedPoints(Pruning()))


def test_weights_of_infobatch_must_be_in_the_loss():
    fit(Line(weighted=True), PrunedPoints(Pruning("infobatch")), epochs=3)
    for options in ({}, {"accumulate_grad_batches": 2}):
        with pytest.raises(ValueError, match=r"have weights .* the loss must be \(weights \* losses\)\.mean\(\)"):
            fit(Line(weighted=False), PrunedPoints(Pruning("infobatch")), epochs=3, **options)
    fit(Line(weighted=False), PrunedPoints(Pruning("orderdp")), epochs=3)


@pytest.mark.parametrize("sampler", [SubsetRandomSampler(range(10)), WeightedRandomSampler(torch.ones(N), N)])
def test_a_sampler_that_does_not_cover_the_dataset_evenly_is_refused(sampler):
    with pytest.raises(ValueError, match=f"a {type(sampler).__name__} that does not cover the dataset evenly"):
        fit(Line(), PrunedPoints(Pruning(), sampler=sampler))


def test_another_trainer_begins_with_new_scores_and_the_same_one_goes_on():
    data, runner = PrunedPoints(Pruning(keep=0.3, explore=0.6)), trainer(2)
    runner.fit(Line(), data)
    first = data.pruner
    assert first.rounds_begun == 2
    runner.fit_loop.max_epochs = 3
    runner.fit(Line(), data)
    assert data.pruner is first
    assert (data.pruner.rounds_begun, data.rounds) == (3, 3)
    assert fit(Line(), data) is not first
    assert data.pruner.rounds_begun == 1


def test_a_training_that_tells_no_losses_is_warned_of():
    quiet = {"enable_progress_bar": False, "logger": False, "accelerator": "cpu", "enable_checkpointing": False}
    silent = Trainer(max_epochs=2, reload_dataloaders_every_n_epochs=1, use_distributed_sampler=False, **quiet)
    with pytest.warns(UserWarning, match="the last round told no losses: call update"):
        silent.fit(Line(), PrunedPoints(Pruning()))


@pytest.mark.parametrize("policy", ["orderdp", "infobatch", "static"])
@pytest.mark.parametrize("every", [0, 2])
def test_an_epoch_without_a_round_of_its_own_is_refused(policy, every):
    with pytest.raises(ValueError, match=f"reload_dataloaders_every_n_epochs must be 1, because .*; got {every}"):
        fit(Line(), PrunedPoints(Pruning(policy)), reload_dataloaders_every_n_epochs=every)


def test_a_datamodule_without_the_mixin_is_refused():
    for arguments in ({"datamodule": PointData()}, {"train_dataloaders": PointData().train_dataloader()}):
        with pytest.raises(ValueError, match="ScoreUpdates needs a datamodule with PruningMixin"):
            trainer().fit(Line(weighted=False), **arguments)


def test_loaders_that_cannot_be_pruned_are_refused():
    with pytest.raises(ValueError, match="the training loader has no batch_size"):
        PrunedPoints(Pruning(), batch_size=None).train_dataloader()
    data = PrunedPoints(Pruning())
    data.dataset = []
    with pytest.raises(ValueError, match="the dataset is empty"):
        data.train_dataloader()

    class Lists(LightningDataModule):
        def train_dataloader(self):
            return [1, 2]

    class PrunedLists(PruningMixin, Lists):
        pass

    with pytest.raises(ValueError, match="pruning needs one training DataLoader, got list"):
        PrunedLists().train_dataloader()


@pytest.mark.parametrize("policy", POLICIES)
def test_a_resumed_training_is_the_unbroken_one_bit_for_bit(policy, tmp_path):
    def new():
        return Line(), PrunedPoints(Pruning(policy, keep=0.4, explore=0.7))

    whole, data = new()
    saves = ModelCheckpoint(tmp_path, "{epoch}", save_top_k=-1)
    expected = fit(whole, data, epochs=4, callbacks=[saves])
    resumed, data = new()
    pruner = fit(resumed, data, epochs=4, ckpt_path=tmp_path / "epoch=1.ckpt")
    assert data.loaded == {"version": 7}  # the user's own state
    assert 0 < len(resumed.batches) < len(whole.batches)
    assert resumed.batches == whole.batches[-len(resumed.batches) :]
    assert torch.equal(resumed.layer.weight, whole.layer.weight)
    assert torch.equal(resumed.layer.bias, whole.layer.bias)
    ours, theirs = pruner.state_dict(), expected.state_dict()
    for key in ("scores", "visits"):
        assert torch.equal(ours.pop(key), theirs.pop(key))
    assert ours == theirs


def test_a_dataset_that_fetches_in_bulk_is_asked_once_a_batch():
    dataset, model = PointsInBulk(), Line()
    fit(model, PrunedPoints(Pruning(keep=0.3), dataset))
    assert dataset.asked == [numbers(ids) for ids in model.batches]
    assert len(dataset.asked) == 3


def test_workers_give_the_batches_of_the_main_process():
    def batches(num_workers):
        loader = DataLoader(Points(), batch_size=BATCH, num_workers=num_workers)
        pruned = pruned_loader(loader, Pruner(N, BATCH, Pruning(keep=0.5), seed=4))
        return [batch for _ in range(2) for batch in pruned]

    alone, shared = batches(0), batches(2)
    assert len(alone) == 8
    for one, other in itertools.zip_longest(alone, shared):
        assert isinstance(other, IndexedBatch)
        assert one.indices.tolist() == other.indices.tolist() == numbers(other.items["id"])
        assert torch.equal(one.items["point"]["x"], other.items["point"]["x"])


def test_the_collate_function_of_the_user_makes_the_batch():
    loader = DataLoader(Points(), batch_size=BATCH, collate_fn=lambda items: sorted(item["id"] for item in items))
    for batch in pruned_loader(loader, Pruner(N, BATCH)):
        assert batch.items == sorted(f"p{i}" for i in batch.indices.tolist())
