import os
import random

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from shared.seeding import EvalBatchSampler, TrainSampler, derive, generator

from shared import seeding

sizes = st.integers(1, 60)
worlds = st.integers(1, 5)


@pytest.fixture
def global_state():
    kept = random.getstate(), np.random.get_state(), torch.get_rng_state(), os.environ.get("PL_GLOBAL_SEED")
    yield
    random.setstate(kept[0])
    np.random.set_state(kept[1])
    torch.set_rng_state(kept[2])
    os.environ.pop("PL_GLOBAL_SEED", None)
    if kept[3] is not None:
        os.environ["PL_GLOBAL_SEED"] = kept[3]


def draws():
    return random.random(), float(np.random.rand()), float(torch.rand(()))


def test_one_seed_sets_python_numpy_and_torch(global_state):
    seeding.seed_everything(3)
    first = draws()
    assert draws() != first
    seeding.seed_everything(3)
    assert draws() == first
    assert os.environ["PL_GLOBAL_SEED"] == "3"


def test_steps_and_ranks_draw_different_numbers_that_do_not_depend_on_history(global_state):
    seeding.seed_step(0, step=5, rank=1)
    expected = draws()
    seeding.seed_step(0, step=4, rank=1)
    assert draws() != expected
    seeding.seed_step(0, step=5, rank=0)
    assert draws() != expected
    seeding.seed_step(0, step=5, rank=1)
    assert draws() == expected


def test_a_generator_depends_on_every_part_of_its_path_and_leaves_global_state_alone():
    before = torch.get_rng_state()
    values = [
        torch.rand(4, generator=generator(*path)).tolist()
        for path in [(0, "a", 1), (0, "a", 1), (1, "a", 1), (0, "b", 1), (0, "a", 2), (0, "a", 1, 0)]
    ]
    assert values[0] == values[1]
    assert len({tuple(v) for v in values}) == 5
    assert torch.equal(before, torch.get_rng_state())


def test_derived_seeds_are_the_published_hash():
    # int.from_bytes(sha256(b"7/order/3").digest()[:4], "big"): a change would alter every stored result
    assert derive(7, "order", 3) == int("0x" + __import__("hashlib").sha256(b"7/order/3").hexdigest()[:8], 16)


@pytest.mark.parametrize("seed", [-1, 2**32])
def test_a_seed_out_of_range_is_refused(seed):
    with pytest.raises(ValueError, match="seed must lie in"):
        seeding.seed_everything(seed)


def test_deterministic_algorithms_are_switched_on_only_on_request(global_state, monkeypatch):
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    seeding.seed_everything(0)
    assert not torch.are_deterministic_algorithms_enabled()
    try:
        seeding.seed_everything(0, deterministic=True)
        assert torch.are_deterministic_algorithms_enabled()
        assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
    finally:
        torch.use_deterministic_algorithms(False)


def test_workers_give_python_and_numpy_different_seeds(global_state):
    class Draws(torch.utils.data.Dataset):
        def __len__(self):
            return 4

        def __getitem__(self, index):
            return torch.tensor([random.random(), float(np.random.rand())], dtype=torch.float64)

    def epoch():
        loader = torch.utils.data.DataLoader(
            Draws(), num_workers=2, worker_init_fn=seeding.worker_init, generator=generator(0, "workers")
        )
        return torch.cat(list(loader)).flatten().tolist()

    values = epoch()
    assert len(set(values)) == 8
    assert epoch() == values


@given(size=sizes, world=worlds, epoch=st.integers(0, 3))
def test_training_shards_cover_everything_and_are_equally_long(size, world, epoch):
    shards = []
    for rank in range(world):
        sampler = TrainSampler(size, 0, rank=rank, world_size=world)
        sampler.set_epoch(epoch)
        shards.append(list(sampler))
        assert len(shards[-1]) == len(sampler)
    flat = sorted(sum(shards, []))
    assert len({len(shard) for shard in shards}) == 1
    assert set(flat) == set(range(size))
    assert len(flat) - size < world  # only what evens the shards is repeated


def test_dropping_the_remainder_repeats_nothing():
    shards = [list(TrainSampler(11, 0, rank=r, world_size=3, drop_last=True)) for r in range(3)]
    assert sorted(map(len, shards)) == [3, 3, 3]
    assert len(set(sum(shards, []))) == 9


def test_the_order_is_a_function_of_seed_and_epoch():
    def order(seed, epoch):
        sampler = TrainSampler(50, seed)
        sampler.set_epoch(epoch)
        return list(sampler)

    assert order(0, 2) == order(0, 2)
    assert order(0, 2) != order(0, 3)
    assert order(0, 2) != order(1, 2)
    assert list(TrainSampler(5, 0, shuffle=False)) == [0, 1, 2, 3, 4]


@given(size=sizes, batch=st.integers(1, 9), world=worlds)
def test_evaluation_sees_each_item_exactly_once_in_equally_many_batches(size, batch, world):
    if size < world:
        with pytest.raises(ValueError, match=f"cannot share {size} evaluation items among {world}"):
            EvalBatchSampler(size, batch, world_size=world)
        return
    ranks = [list(EvalBatchSampler(size, batch, rank=r, world_size=world)) for r in range(world)]
    assert sorted(i for batches in ranks for b in batches for i in b) == list(range(size))
    assert len({len(batches) for batches in ranks}) == 1
    assert all(b for batches in ranks for b in batches)


@given(size=sizes, batch=st.integers(1, 9))
def test_one_process_gets_batches_no_larger_than_asked(size, batch):
    sampler = EvalBatchSampler(size, batch)
    batches = list(sampler)
    assert max(map(len, batches)) <= batch
    assert len(batches) == len(sampler) == -(-size // batch)


def test_empty_data_and_impossible_ranks_are_refused():
    with pytest.raises(ValueError, match="the dataset is empty"):
        TrainSampler(0, 0)
    with pytest.raises(ValueError, match=r"rank must lie in \[0, 2\), got 2"):
        EvalBatchSampler(4, 2, rank=2, world_size=2)
    with pytest.raises(ValueError, match="batch_size must be at least 1, got 0"):
        EvalBatchSampler(4, 0)
