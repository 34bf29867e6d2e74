import pytest
import torch
from ace.kv_cache import RoomyLayer, layers_of, roomy_cache
from transformers import Gemma3TextConfig, MambaConfig
from transformers.cache_utils import DynamicLayer

from .tiny_lm import llama

BATCH, HEADS, SIZE = 3, 2, 4


def states(seed, length, batch=BATCH):
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(2, batch, HEADS, length, SIZE, generator=draw).unbind()


def both(room, *lengths):
    """A layer with room and transformers' own, after the same updates."""
    ours, theirs = RoomyLayer(room), DynamicLayer()
    for seed, length in enumerate(lengths):
        for found, expected in zip(
            ours.update(*states(seed, length)), theirs.update(*states(seed, length)), strict=True
        ):
            assert torch.equal(found, expected)
    return ours, theirs


def agree(ours, theirs):
    return (
        torch.equal(ours.keys, theirs.keys)
        and torch.equal(ours.values, theirs.values)
        and ours.get_seq_length() == theirs.get_seq_length()
        and ours.get_mask_sizes(2) == theirs.get_mask_sizes(2)
    )


CHANGES = {
    "selection": lambda layer: layer.batch_select_indices(torch.tensor([2, 0])),
    "order": lambda layer: layer.reorder_cache(torch.tensor([1, 1, 0])),
    "repetition": lambda layer: layer.batch_repeat_interleave(2),
    "crop": lambda layer: layer.crop(-3),
    "reset": lambda layer: layer.reset(),
}


@pytest.mark.parametrize("lengths", [(7,), (1, 1, 1), (4, 1, 5), (10,)])
def test_layer_holds_what_that_of_transformers_holds(lengths):
    assert agree(*both(10, *lengths))


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_layer_grows_like_that_of_transformers_after_a_change(change):
    ours, theirs = both(12, 4, 1)
    for layer in (ours, theirs):
        change(layer)
    batch = theirs.keys.shape[0] if theirs.keys is not None else BATCH
    new = states(9, 2, batch)
    ours.update(*new)
    theirs.update(*new)
    assert agree(ours, theirs)


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_changes_to_an_empty_layer_change_nothing(change):
    layer = RoomyLayer(5)
    change(layer)
    assert layer.get_seq_length() == 0


def test_growing_copies_nothing():
    layer = RoomyLayer(8)
    places = {layer.update(*states(seed, 2))[0].data_ptr() for seed in range(4)}
    assert len(places) == 1


@torch.inference_mode()
def test_cache_begins_with_a_copy_of_the_past_for_each_sequence():
    past = [states(layer, 5, 1) for layer in range(2)]
    cache = roomy_cache(past, 7, 2, BATCH)
    kept = [keys.clone() for keys, _ in past]
    for layer, (keys, values) in enumerate(past):
        found = cache.update(*states(8, 2), layer)
        assert torch.equal(found[0][:, :, :5], keys.expand(BATCH, -1, -1, -1))
        assert torch.equal(found[1][:, :, :5], values.expand(BATCH, -1, -1, -1))
        assert torch.equal(found[0][:, :, 5:], states(8, 2)[0])
        found[0].zero_()
    assert all(torch.equal(keys, old) for (keys, _), old in zip(past, kept, strict=True))


def test_cache_without_a_past_is_empty():
    cache = roomy_cache([], 4, 3, BATCH)
    assert (len(cache.layers), cache.get_seq_length()) == (3, 0)


def test_layers_of_a_model_and_whether_they_slide():
    assert layers_of(llama(), "a") == (2, False)
    gemma = Gemma3TextConfig(num_hidden_layers=6, layer_types=["sliding_attention"] * 5 + ["full_attention"])
    assert layers_of(gemma, "b") == (6, True)


def test_layers_without_keys_are_named():
    with pytest.raises(ValueError, match="folder/mamba: expected a model of attention layers alone"):
        layers_of(MambaConfig(num_hidden_layers=2), "folder/mamba")
