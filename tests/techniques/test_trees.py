"""Kinds of batches that others have registered with torch are looked into, and come back as their own kind."""

from collections import OrderedDict

import torch
from torch import Tensor

from shoestring.techniques import trees


def test_what_lies_in_a_batch_is_found_and_put_back() -> None:
    batch = {"a": [torch.zeros(2), 3], "b": OrderedDict(c=(torch.ones(1), None))}
    leaves, form = trees.flatten(batch)
    assert len(leaves) == len(trees.leaves(batch)) == 4
    again = trees.unflatten([x * 2 if isinstance(x, Tensor) else x for x in leaves], form)
    assert type(again["b"]) is OrderedDict and float(again["b"]["c"][0]) == 2


def test_another_librarys_kind_of_output_is_known() -> None:
    from transformers.modeling_outputs import BaseModelOutput

    moved = trees.mapped(lambda leaf: leaf + 1, BaseModelOutput(last_hidden_state=torch.zeros(2)))
    assert type(moved) is BaseModelOutput and moved.last_hidden_state.tolist() == [1, 1]
