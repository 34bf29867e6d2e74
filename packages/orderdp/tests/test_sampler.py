"""The batch sampler: rounds, processes, checkpoints, and any map-style dataset behind it."""

import inspect
import math
import subprocess
import sys
from collections import Counter

import numpy as np
import pytest
import torch
from orderdp import sampler
from orderdp.baselines import POLICIES, Pruning
from orderdp.sampler import Indexed, Pruner
from orderdp.surrogate import order_weights
from scipy.stats import chisquare
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

# A process of two; the source of `train` is put before it.
PROCESS = """
import sys
import numpy as np
import torch
import torch.distributed as dist
from orderdp.baselines import Pruning
from orderdp.sampler import Pruner, gather

rank, folder = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
result = {}
for name in ("epoch", "step"):
    pruner = Pruner(36, 4, Pruning(keep=0.5, explore=0.8, round=name), seed=3, rank=rank, world_size=2)
    result[name] = train(pruner, 3)
big = 2**24 + 1 + 2 * np.arange(2 + 3 * rank)  # another number of them on each process; no float32 is odd here
result["gathered"] = [(i.tolist(), l.tolist()) for i, l in gather(big, np.full(len(big), 0.5 + rank, np.float32))]
result["nothing"] = [i.tolist() for i, _ in gather(np.arange(rank), np.zeros(rank, np.float32))]
torch.save(result, f"{folder}/{rank}.pt")
dist.destroy_process_group()
"""


class Squares(Dataset):
    """Items in a user's own structure."""

    def __init__(self, n):
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, index):
        return {"x": torch.tensor([float(index), index**2]), "name": f"s{index}"}


def losses_of(indices, t):
    return [2 + math.sin(1.7 * i + t) for i in indices]


def run(pruner, rounds):
    """The batches of some rounds, each told its losses."""
    seen = []
    for _ in range(rounds):
        seen.append([])
        for batch in pruner:
            pruner.update(batch, losses_of(batch, pruner.rounds_begun))
            seen[-1].append(batch)
    return seen


def train(pruner, rounds):
    """Train on losses that are a function of sample and round."""
    for t in range(rounds):
        for batch in pruner:
            pruner.update(batch, [2 + math.sin(1.7 * i + t) for i in batch])
    pruner.synchronise()
    return pruner.state_dict()


@pytest.fixture
def no_exchange(monkeypatch):
    """Lets the pruners of several ranks live in this process; there are no losses to exchange."""
    monkeypatch.setattr(sampler, "gather", lambda indices, losses: [(indices, losses)])


def ranks(world_size, n, batch_size, pruning=None, **options):
    return [Pruner(n, batch_size, pruning, rank=r, world_size=world_size, **options) for r in range(world_size)]


def test_batches_divide_a_round_among_them():
    pruner = Pruner(100, 8, Pruning(keep=0.3))
    batches = list(pruner)
    assert [len(batch) for batch in batches] == [8, 8, 8, 6]
    assert len(pruner) == 4
    assert len({index for batch in batches for index in batch}) == 30
    assert len(Pruner(100, 10, Pruning(keep=0.3))) == 3


def test_each_iteration_is_a_new_round_and_a_seed_repeats_it():
    first, again, other = (run(Pruner(50, 5, seed=seed), 3) for seed in (0, 0, 1))
    assert first == again
    sets = [frozenset(i for batch in r for i in batch) for r in [*first, *other]]
    assert len(set(sets)) == 6


def test_unseen_samples_come_first_so_that_topq_visits_all_in_turn():
    pruner = Pruner(10, 5, Pruning("topq", keep=0.5))
    (first,), (second,) = run(pruner, 2)
    assert sorted(first + second) == list(range(10))


def test_an_update_decides_the_next_round():
    pruner = Pruner(10, 3, Pruning("topq", keep=0.3, initial_score=0.0))
    list(pruner)
    pruner.update([7, 2, 9], [5.0, 6.0, 7.0])
    assert sorted(*pruner) == [2, 7, 9]


def test_a_round_can_be_iterated_over_again_and_knows_its_length():
    settings = Pruning("infobatch", prune=0.9)
    plain, ahead = Pruner(40, 4, settings, rounds=10), Pruner(40, 4, settings, rounds=10)
    assert len(plain) == 10
    lengths = []
    for batches in run(plain, 3):
        own = ahead.next_round()
        assert list(own) == list(own) == batches
        assert len(own) == len(ahead) == len(batches)
        for batch in batches:
            ahead.update(batch, losses_of(batch, ahead.rounds_begun))
        lengths.append(len(own))
    assert lengths[0] == 10 > lengths[1]
    assert len(plain) == lengths[2]
    assert plain.rounds_begun == ahead.rounds_begun == 3


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_pass_of_a_loader_is_one_round(num_workers):
    pruner = Pruner(20, 4, Pruning(keep=0.5), seed=1)
    loader = DataLoader(Indexed(Squares(20)), batch_sampler=pruner, num_workers=num_workers)
    passes = [[indices.tolist() for indices, _ in loader] for _ in range(2)]
    other = Pruner(20, 4, Pruning(keep=0.5), seed=1)
    assert passes == [list(other), list(other)]
    assert pruner.rounds_begun == 2


def test_samples_seen_are_counted_exactly():
    pruner = Pruner(50, 7, Pruning(keep=0.3))
    run(pruner, 4)
    assert pruner.seen == pruner.scores.visits.sum() == 4 * 15


@pytest.mark.parametrize("policy", ["orderdp", "static"])
@pytest.mark.parametrize(
    ("indices", "losses", "message"),
    [
        ([0, 1], [0.5], "got 2 indices and 1 losses"),
        ([0, 1], [0.5, math.nan], "the loss of sample 1 is nan"),
        ([-1], [0.5], r"indices must lie in \[0, 10\)"),
    ],
)
def test_an_update_that_is_refused_counts_nothing(policy, indices, losses, message):
    pruner = Pruner(10, 4, Pruning(policy, keep=0.4))
    for _ in range(3):
        for batch in pruner:
            pruner.update(batch, [1.0] * len(batch))
    before = pruner.state_dict()
    with pytest.raises(ValueError, match=message):
        pruner.update(indices, losses)
    after = pruner.state_dict()
    assert after["seen"] == before["seen"]
    assert torch.equal(after["visits"], before["visits"])


def test_static_keeps_the_losses_of_its_first_round():
    pruner = Pruner(10, 5, Pruning("static", keep=0.3))
    rounds = run(pruner, 3)
    assert [sum(map(len, r)) for r in rounds] == [10, 3, 3]
    np.testing.assert_allclose(pruner.scores.values, losses_of(range(10), 1), rtol=1e-6)
    top = set(np.argsort(losses_of(range(10), 1))[-3:].tolist())
    assert {i for batch in rounds[1] for i in batch} == {i for batch in rounds[2] for i in batch} == top
    assert pruner.scores.visits.tolist() == [3 if i in top else 1 for i in range(10)]
    assert pruner.seen == 16


@pytest.mark.parametrize("world_size", [2, 3])
@pytest.mark.parametrize("n", [60, 59, 58, 57, 56, 55, 5])
def test_processes_train_on_disjoint_parts_of_the_batches_of_one(world_size, n, no_exchange):
    pruning = Pruning(keep=0.7, explore=0.9)
    alone = list(Pruner(n, 4 * world_size, pruning, seed=2))
    apart = [list(pruner) for pruner in ranks(world_size, n, 4, pruning, seed=2)]
    assert len({len(batches) for batches in apart}) == 1  # none waits for another
    if len(alone[-1]) < world_size and len(alone) > 1:  # too few for all: they join the batch before
        alone[-2:] = [alone[-2] + alone[-1]]
    assert len(apart[0]) == len(alone)
    for whole, *parts in zip(alone, *apart, strict=True):
        assert all(parts)
        assert sorted(sum(parts, [])) == sorted(whole)
        assert max(map(len, parts)) - min(map(len, parts)) <= 1


@pytest.mark.parametrize("policy", ["orderdp", "infobatch"])
@pytest.mark.parametrize(("world_size", "n"), [(2, 31), (3, 31), (3, 35), (3, 38), (4, 39)])
def test_averaging_over_processes_gives_the_mean_of_the_whole_batch(policy, world_size, n, no_exchange):
    pruning, losses = Pruning(policy, keep=1.0, explore=1.0), np.array(losses_of(range(n), 0), np.float32)
    pruners, alone = ranks(world_size, n, 4, pruning, rounds=10), Pruner(n, 4 * world_size, pruning, rounds=10)
    for pruner in [*pruners, alone]:
        pruner.scores.update(range(n), losses)

    def weights_of(pruner, batch):
        weights = pruner.weights(batch)
        return np.ones(len(batch)) if weights is None else weights.numpy()

    weight = np.zeros(n)
    for batch in alone:
        weight[batch] = weights_of(alone, batch)
    unequal = 0
    for parts in zip(*pruners, strict=True):
        whole = np.concatenate(parts)
        unequal += len(whole) % world_size > 0
        means = [(weights_of(p, part) * losses[part]).mean() for p, part in zip(pruners, parts, strict=True)]
        assert np.mean(means) == pytest.approx((weight[whole] * losses[whole]).mean(), rel=1e-6)
    assert unequal == 1 or policy == "infobatch"


def test_weights_are_none_unless_a_policy_or_an_unequal_rest_needs_them(no_exchange):
    pruner = Pruner(20, 4)
    for batch in pruner:
        assert pruner.weights(batch) is None
    first, second = ranks(2, 7, 2, Pruning("full"))
    parts = list(zip(first, second, strict=True))
    assert [(len(a), len(b)) for a, b in parts] == [(2, 2), (2, 1)]
    assert first.weights(parts[1][0]).tolist() == pytest.approx([2 * 2 / 3] * 2)
    assert second.weights(parts[1][1]).tolist() == pytest.approx([1 * 2 / 3])


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("done", [1, 2, 3])
def test_a_resumed_training_selects_as_an_unbroken_one(policy, done, tmp_path):
    def new():
        return Pruner(40, 6, Pruning(policy, keep=0.4, explore=0.7), seed=5, rounds=6)

    unbroken = new()
    expected = run(unbroken, 6)
    broken, resumed = new(), new()
    run(broken, done)
    torch.save(broken.state_dict(), tmp_path / "state.pt")
    resumed.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    assert run(resumed, 6 - done) == expected[done:]
    ours, theirs = resumed.state_dict(), unbroken.state_dict()
    assert torch.equal(ours.pop("scores"), theirs.pop("scores"))
    assert torch.equal(ours.pop("visits"), theirs.pop("visits"))
    assert ours == theirs


def test_a_state_is_a_copy():
    pruner = Pruner(10, 5, Pruning(keep=0.5))
    run(pruner, 1)
    state = pruner.state_dict()
    other = Pruner(10, 5, Pruning(keep=0.5))
    other.load_state_dict(state)
    before = state["scores"].clone()
    run(pruner, 2)
    run(other, 2)
    assert torch.equal(state["scores"], before)


def test_a_state_of_another_dataset_or_policy_is_refused_and_changes_nothing():
    pruner = Pruner(10, 5)
    for state in (Pruner(11, 5).state_dict(), Pruner(10, 5, Pruning("ucb")).state_dict()):
        message = rf"the saved scores are those of {state['policy']} on {len(state['scores'])} samples, "
        with pytest.raises(ValueError, match=message + "expected orderdp on 10"):
            pruner.load_state_dict(state)
    assert pruner.scores.values.tolist() == [math.inf] * 10


def test_indexed_items_keep_their_structure_through_the_default_collate():
    pruner = Pruner(12, 4, Pruning(keep=0.5))
    loader = DataLoader(Indexed(Squares(12)), batch_sampler=pruner)
    count = 0
    for indices, batch in loader:
        assert batch.keys() == {"x", "name"}
        assert batch["name"] == [f"s{i}" for i in indices.tolist()]
        assert torch.equal(batch["x"], torch.stack([indices, indices**2], 1).float())
        pruner.update(indices, batch["x"][:, 0])
        count += len(indices)
    assert count == 6
    known = np.flatnonzero(np.isfinite(pruner.scores.values))
    assert pruner.scores.values[known].tolist() == known.tolist()


def test_datasets_without_index_length_or_items_are_refused_by_type():
    class Stream(IterableDataset):
        def __iter__(self):
            return iter(range(3))

        def __len__(self):
            return 3

    class NoLength(Dataset):
        def __getitem__(self, index):
            return index

    for dataset in (Stream(), NoLength()):
        message = f"must be map-style, with __getitem__ and __len__, got {type(dataset).__name__}"
        with pytest.raises(ValueError, match=message):
            Indexed(dataset)
    with pytest.raises(ValueError, match="the dataset is empty"):
        Indexed(TensorDataset(torch.empty(0, 2)))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n": 0}, "the dataset is empty"),
        ({"batch_size": 0}, "batch_size must be at least 1, got 0"),
        ({"seed": -1}, "seed must be at least 0, got -1"),
        ({"rank": 2, "world_size": 2}, r"rank must lie in \[0, 2\), got 2"),
        ({"rank": -1}, r"rank must lie in \[0, 1\), got -1"),
        ({"world_size": 4}, "a round keeps 3 samples, too few for 4 processes"),
        ({"world_size": 4, "pruning": Pruning("static")}, "a round keeps 3 samples, too few for 4 processes"),
        ({"pruning": Pruning("infobatch")}, "infobatch needs the number of rounds of the whole training, got None"),
    ],
)
def test_options_out_of_range_are_refused_by_name(options, message):
    with pytest.raises(ValueError, match=message):
        Pruner(**{"n": 10, "batch_size": 4, **options})


def test_a_round_per_step_selects_every_batch_by_the_scores_of_that_moment():
    # Half of each pool of 8 is untrained at least; trained samples have the lower score.
    for seed in range(30):
        pruning = Pruning(keep=0.25, explore=1.0, round="step", initial_score=1.0)
        pruner = Pruner(16, 2, pruning, seed=seed)
        seen = []
        for batch in pruner:
            pruner.update(batch, [0.0] * len(batch))
            seen += batch
        assert len(set(seen)) == len(seen) == 4  # chosen at once, 24% of the epochs would repeat a sample


def test_a_round_per_step_keeps_the_budget_and_scales_the_pool_to_the_batch():
    pruner = Pruner(20, 4, Pruning(keep=0.3, explore=0.6, round="step"))  # q = 6 of s = 12: 4 of 8, then 2 of 4
    pruner.scores.update(range(20), range(20, 0, -1))
    counts = [Counter(), Counter()]
    rounds = 4000
    for _ in range(rounds):
        batches = list(pruner)
        assert [len(set(batch)) for batch in batches] == [4, 2]
        for count, batch in zip(counts, batches, strict=True):
            count[batch[0]] += 1  # a draw from γ/q
    assert pruner.rounds_begun == rounds
    assert len(pruner) == 2
    for count, (s, q) in zip(counts, [(8, 4), (4, 2)], strict=True):
        expected = rounds * order_weights(20, s, q) / q
        observed = np.array([count[i] for i in range(20)])
        rare = expected < 20
        observed, expected = ([*x[~rare], x[rare].sum()] for x in (observed, expected))
        assert chisquare(observed, expected).pvalue > 1e-3


def test_a_round_per_step_draws_a_new_pool_for_every_batch():
    pruner = Pruner(40, 4, Pruning(keep=0.2, explore=0.5, round="step"))
    pruner.scores.update(range(40), range(40))
    sets = [frozenset(batch) for _ in range(10) for batch in pruner]
    assert len(sets) == 20
    assert len(set(sets)) > 15  # the scores stay, so that only the pools differ


def test_a_round_per_step_resumes_too():
    unbroken, broken, resumed = (Pruner(30, 4, Pruning(round="step"), seed=1) for _ in range(3))
    expected = run(unbroken, 4)
    run(broken, 2)
    resumed.load_state_dict(broken.state_dict())
    assert run(resumed, 2) == expected[2:]


@pytest.mark.slow
def test_two_processes_store_what_one_stores_with_the_same_global_batch(tmp_path):
    words = [sys.executable, "-c", "import math\n" + inspect.getsource(train) + PROCESS]
    processes = [subprocess.Popen([*words, str(rank), str(tmp_path)], stderr=subprocess.PIPE) for rank in (0, 1)]
    for process in processes:
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors.decode()
    results = [torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in (0, 1)]
    for name in ("epoch", "step"):
        pruning = Pruning(keep=0.5, explore=0.8, round=name)
        alone = train(Pruner(36, 8, pruning, seed=3), 3)
        assert alone["seen"] == 3 * 18
        for result in results:
            assert torch.equal(result[name].pop("scores"), alone["scores"])
            assert torch.equal(result[name].pop("visits"), alone["visits"])
            assert result[name] == {k: v for k, v in alone.items() if k not in ("scores", "visits")}
    odd = [2**24 + 1 + 2 * k for k in range(5)]
    for result in results:
        assert result["gathered"] == [(odd[:2], [0.5] * 2), (odd, [1.5] * 5)]
        assert result["nothing"] == [[], [0]]
