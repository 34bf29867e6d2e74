"""Keys and values with room to grow: a new token is written behind the old ones, which are not copied."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor
from transformers import PreTrainedConfig
from transformers.cache_utils import Cache, DynamicCache, DynamicLayer, DynamicSlidingWindowLayer

Past = Sequence[tuple[Tensor, Tensor]]  # of each layer, keys and values (B, heads, L, head size)


class RoomyLayer(DynamicLayer):  # type: ignore[no-untyped-call]
    """A layer whose `keys` and `values` are the beginning of larger tensors.

    Args:
        room: tokens that it holds in the end.
        keys: of the tokens that are there already, (B, heads, L, head size); copied.
        values: likewise.
    """

    def __init__(self, room: int, keys: Tensor | None = None, values: Tensor | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.room = room
        if keys is not None and values is not None:
            self.update(keys, values)

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Write keys and values (B, heads, new, head size) behind those that are there, and return all."""
        old = self.get_seq_length()
        new = old + key_states.shape[2]
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
            shape = (*key_states.shape[:2], max(self.room, new), key_states.shape[3])
            self.all_keys, self.all_values = key_states.new_empty(shape), value_states.new_empty(shape)
        self.all_keys[:, :, old:new], self.all_values[:, :, old:new] = key_states, value_states
        self.keys, self.values = self.all_keys[:, :, :new], self.all_values[:, :, :new]
        return self.keys, self.values

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep some sequences of the batch."""
        length = self.get_seq_length()
        if length > 0:
            self.all_keys, self.all_values = self.all_keys[indices], self.all_values[indices]
            self.keys, self.values = self.all_keys[:, :, :length], self.all_values[:, :, :length]

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Put sequences in another order; one may be there several times."""
        self.batch_select_indices(beam_idx)

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeat each sequence of the batch."""
        if self.get_seq_length() > 0:
            batch = torch.arange(self.all_keys.shape[0], device=self.all_keys.device)
            self.batch_select_indices(batch.repeat_interleave(repeats))


def layers_of(config: PreTrainedConfig, model: str) -> tuple[int, bool]:
    """Return how many layers of a model keep keys and values, and whether some of them have a sliding window.

    Args:
        config: of the model.
        model: its name, for the error.

    Raises:
        ValueError: if a layer keeps something else, such as the state of a linear attention.
    """
    kinds = [type(layer) for layer in cast("Any", DynamicCache(config=config)).layers]
    other = sorted({kind.__name__ for kind in kinds} - {DynamicLayer.__name__, DynamicSlidingWindowLayer.__name__})
    if other:
        raise ValueError(f"{model}: expected a model of attention layers alone, got layers that keep a {other[0]}")
    return len(kinds), DynamicSlidingWindowLayer in kinds


def roomy_cache(past: Past, room: int, layers: int, batch: int) -> Cache:
    """Return a cache that begins with a copy of keys and values.

    Args:
        past: of a batch of one, for every layer; empty if there are none.
        room: tokens that it must hold.
        layers: how many the model has.
        batch: sequences; each begins with the same past.
    """
    if not past:
        return Cache(layers=[RoomyLayer(room) for _ in range(layers)])
    many = (batch, -1, -1, -1)
    with torch.inference_mode():
        return Cache(layers=[RoomyLayer(room, keys.expand(many), values.expand(many)) for keys, values in past])
