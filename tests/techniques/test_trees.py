"""Nested batches are flattened and rebuilt, including types that other libraries have registered with torch."""

from collections import OrderedDict

import torch
from torch import Tensor

from shoestring.techniques import trees


def test_nested_batch_is_flattened_and_rebuilt() -> None:
    batch = {"a": [torch.zeros(2), 3], "b": OrderedDict(c=(torch.ones(1), None))}
    leaves, form = trees.flatten(batch)
    assert len(leaves) == len(trees.leaves(batch)) == 4
    rebuilt = trees.unflatten([leaf * 2 if isinstance(leaf, Tensor) else leaf for leaf in leaves], form)
    assert type(rebuilt["b"]) is OrderedDict and float(rebuilt["b"]["c"][0]) == 2


def test_outputs_of_transformers_are_supported() -> None:
    from transformers.modeling_outputs import BaseModelOutput

    output = trees.mapped(lambda leaf: leaf + 1, BaseModelOutput(last_hidden_state=torch.zeros(2)))
    assert type(output) is BaseModelOutput and output.last_hidden_state.tolist() == [1, 1]
