"""Keys and values of many requests in one padded block, so that one forward steps them all.

Each request has a slot: a row of the block, filled from the left. A step writes one new position per
slot, wherever that slot's end is, and attends to the block as wide as the longest of them; a mask
hides what lies beyond each slot's own end. The block grows by doubling and never shrinks.

`SlotCache.step` gives what a model of transformers takes for `past_key_values` together with the mask;
the model's own code does the rest.
"""

from collections.abc import Sequence
from typing import Any, Final

import torch

__all__ = ["SlotCache", "SlotStep"]

_CAPACITY: Final = 256
"""Positions that the block has to begin with."""


class SlotCache:
    """Keys and values of at most `slots` requests."""

    def __init__(self, *, slots: int) -> None:
        self._idle = list(range(slots))
        self._slots = slots
        self._lengths = [0] * slots
        self._keys: list[Any] = []
        self._values: list[Any] = []

    @property
    def occupied(self) -> int:
        """Slots that requests have."""
        return self._slots - len(self._idle)

    def occupy(self, prefilled: Any) -> int:
        """Takes over what one request's prefill left.

        Args:
            prefilled: A `DynamicCache` of one row.

        Returns:
            The slot.
        """
        slot = self._idle.pop()
        length = prefilled.get_seq_length()
        self._make_room(prefilled, length)
        for layer, keys, values in zip(prefilled.layers, self._keys, self._values, strict=True):
            keys[slot, :, :length] = layer.keys[0]
            values[slot, :, :length] = layer.values[0]
        self._lengths[slot] = length
        return slot

    def vacate(self, slot: int) -> None:
        """Gives a slot back; what is in it is overwritten by the next request or hidden."""
        self._lengths[slot] = 0
        self._idle.append(slot)

    def step(self, slots: Sequence[int]) -> "SlotStep":
        """Makes room for one more position in each of these slots."""
        ends = [self._lengths[slot] for slot in slots]
        longest = max(ends) + 1
        self._widen(longest)
        for slot in slots:
            self._lengths[slot] += 1
        return SlotStep(self._keys, self._values, slots=slots, ends=ends)

    def _make_room(self, prefilled: Any, length: int) -> None:
        if not self._keys:
            capacity = max(_CAPACITY, length)
            for layer in prefilled.layers:
                _, heads, _, width = layer.keys.shape
                shape = (self._slots, heads, capacity, width)
                # Zeros, as hidden positions take part with weight 0, and 0 times NaN is NaN.
                self._keys.append(layer.keys.new_zeros(shape))
                self._values.append(layer.values.new_zeros(shape))
        self._widen(length)

    def _widen(self, length: int) -> None:
        capacity = self._keys[0].shape[2]
        if length <= capacity:
            return
        extra = max(capacity, length - capacity)
        for block in (self._keys, self._values):
            for index, old in enumerate(block):
                block[index] = torch.nn.functional.pad(old, (0, 0, 0, extra))


class SlotStep:
    """The block during one step, as a model sees its cache."""

    def __init__(
        self,
        keys: Sequence[Any],
        values: Sequence[Any],
        *,
        slots: Sequence[int],
        ends: Sequence[int],
    ) -> None:
        device = keys[0].device
        self._keys = keys
        self._values = values
        self._rows = torch.tensor(slots, device=device)
        self._ends = torch.tensor(ends, device=device)
        self._width = max(ends) + 1

    @property
    def mask(self) -> Any:
        """What each row may attend to, bool [rows, 1, 1, width]."""
        places = torch.arange(self._width, device=self._ends.device)
        return (places <= self._ends[:, None])[:, None, None]

    def update(self, keys: Any, values: Any, layer: int, *_: Any, **__: Any) -> tuple[Any, Any]:
        """Writes one position per row; returns the block as far as any row reaches.

        Args:
            keys: [rows, heads, 1, width of a head].
            values: The same.
            layer: Which layer's.
        """
        return self._put(self._keys[layer], keys), self._put(self._values[layer], values)

    def _put(self, block: Any, new: Any) -> Any:
        block[self._rows, :, self._ends] = new[:, :, 0]
        return block[self._rows, :, : self._width]
