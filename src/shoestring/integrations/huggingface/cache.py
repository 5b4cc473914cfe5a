"""A cache of keys and values as planning simulates it."""

from typing import Any

from torch import Tensor


def grow_cache(cache: Any, length: int) -> None:
    """Grow the keys and values to `length` positions, layer by layer; their values are zeros."""
    for layer in cache.layers:
        if layer.keys.shape[2] < length:
            layer.keys = layer.keys.new_zeros(*layer.keys.shape[:2], length, layer.keys.shape[3])
            layer.values = layer.values.new_zeros(*layer.values.shape[:2], length, layer.values.shape[3])


def cache_tensors(cache: Any) -> list[Tensor]:
    """Return the keys and values of all layers, which persist from one step to the next."""
    return [tensor for layer in cache.layers for tensor in (layer.keys, layer.values)]
