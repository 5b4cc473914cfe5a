"""The error for a batch with an index that an embedding does not have, which names the sample."""

from contextlib import suppress
from typing import Any

import torch
from torch.utils import _pytree

from shoestring.base.embedding_index import find_embedding_index
from shoestring.base.errors import RunError
from shoestring.base.failures import user_frame_texts
from shoestring.training.training_session import TrainingSession


def embedding_error(error: IndexError, session: TrainingSession, number: int) -> RunError | None:
    """Return the error for update `number` (from 0); None if the exception has another reason."""
    index = find_embedding_index(error)
    if index is None:
        return None
    problems = [f"in its batch the index is at {list(index.place)}"]
    sample = _find_sample(session, number, index.value)
    if sample is not None:
        problems.insert(0, f"sample {sample} of the training data has it")
    return index.error([*problems, *user_frame_texts(error)], subject=f"update {number + 1}: ")


def _find_sample(session: TrainingSession, number: int, value: int) -> int | None:
    """Return the first sample of the update that has the value among its integers; None if none has."""
    assert session.updates is not None
    with suppress(Exception):  # the recipe's code reads the samples, and another error is being reported
        dataset = session.data["train"]
        for index in session.updates.order.indices(number):
            if any(_has(leaf, value) for leaf in _pytree.tree_leaves(dataset[index])):
                return int(index)
    return None


def _has(leaf: Any, value: int) -> bool:
    if isinstance(leaf, int):
        return leaf == value
    values = torch.as_tensor(leaf)
    return not values.is_floating_point() and bool((values == value).any())
