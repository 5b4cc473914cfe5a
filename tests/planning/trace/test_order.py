"""The allocations of an update in fp16 in the order that PyTorch 2.10 makes them in on a simulated T4.

The order is the one that `benchmarks/rehearse/allocations.py` compares, and follows from the sources that the functions
name.
"""

import pytest
import torch
from torch.nn import functional

from shoestring.base.settings import Settings
from shoestring.hardware.catalog import DEVICES
from shoestring.planning.estimate.requests import accumulate_in_place
from shoestring.planning.trace import Tracer
from shoestring.planning.trace.record import Alloc, Free, Op, Phase
from shoestring.recipe.finding import find

SAMPLES, WIDTH, CLASSES, TOKENS, HEADS = 32, 64, 48, 24, 2


class Network(torch.nn.Module):
    """Attention with a boolean mask, dropout, and one linear layer for classes."""

    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(WIDTH, WIDTH)
        self.classes = torch.nn.Linear(WIDTH, CLASSES)

    def forward(self, values, mask):
        query = self.inner(values).unflatten(-1, (HEADS, WIDTH // HEADS)).transpose(1, 2)
        mixed = functional.scaled_dot_product_attention(query, query, query, attn_mask=mask)
        return self.classes(functional.dropout(mixed.transpose(1, 2).flatten(2).mean(1), 0.5))


class Classifier:
    effective_batch = 2 * SAMPLES

    def model(self):
        return Network()

    def batch(self, size):
        mask = torch.ones(size, 1, 1, TOKENS, dtype=torch.bool)
        return {
            "values": torch.zeros(size, TOKENS, WIDTH),
            "mask": mask,
            "labels": torch.zeros(size, dtype=torch.int64),
        }

    def loss(self, model, batch):
        return functional.cross_entropy(model(batch["values"], batch["mask"]), batch["labels"])


class Branches(Classifier):
    """A value that a product of three dimensions and a sum use: the gradient of the former is a view."""

    def model(self):
        return torch.nn.ModuleList([torch.nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(3)])

    def batch(self, size):
        return torch.zeros(size, TOKENS, WIDTH)

    def loss(self, model, batch):
        values = batch * model[0].weight[0]
        return (model[1](values) + model[2](values)).sum()


def traced(recipe, precision, **settings):
    with Tracer(find(recipe)) as tracer:
        settings = Settings(micro_batch=SAMPLES, precision=precision, **settings)
        return tracer.trace(settings, accumulate=2, device=DEVICES["t4"])


@pytest.fixture(scope="module")
def trace():
    return traced(Classifier(), "fp16")


def results(trace, name, phase="forward"):
    """Return the bytes of what each call of an operator allocates in a phase of the second update."""
    sizes, current, operators = [], None, []
    for event in trace.events:
        match event:
            case Phase():
                current, sizes = (event.name, event.update), []
            case Alloc(storage):
                sizes.append(trace.storages[storage].bytes)
            case Free(storage):
                size = trace.storages[storage].bytes
                if sizes and sizes[-1] == size:
                    sizes.pop()
            case Op():
                if event.name == name and current == (phase, 1):
                    operators.append(sizes)
                sizes = []
    return operators


def test_arguments_are_cast_from_the_last_to_the_first(trace):
    weights = WIDTH * WIDTH * 2, WIDTH * 2
    values = SAMPLES * TOKENS * WIDTH * 2
    # Bias, weight and values of `linear`.
    assert [sizes[-1] for sizes in results(trace, "aten::_to_copy")[:3]] == [weights[1], weights[0], values]


def test_gradients_are_cast_in_the_opposite_order(trace):
    copies = [sizes[0] for sizes in results(trace, "aten::_to_copy", "backward")]
    inner = WIDTH * WIDTH * 4, WIDTH * 4
    assert copies.index(inner[0]) < copies.index(inner[1])


def test_mask_of_dropout_is_allocated_before_the_result(trace):
    elements = SAMPLES * WIDTH
    assert results(trace, "aten::native_dropout")[0][-2:] in ([elements, elements * 2], [elements, elements * 4])


def test_cross_entropy_in_fp16_is_copied_to_fp32(trace):
    half = SAMPLES * CLASSES * 2
    assert results(trace, "aten::_log_softmax")[0] == [half]
    assert [2 * half] in results(trace, "aten::_to_copy")
    assert [half] in results(trace, "aten::_to_copy", "backward")


def test_boolean_mask_becomes_a_term_with_two_scalars(trace):
    assert results(trace, "aten::scalar_tensor")[:2] == [[2], [2]]
    assert results(trace, "aten::where.self")[0] == [SAMPLES * TOKENS * 2]
    assert not results(trace, "aten::masked_fill_.Scalar")


def test_seed_of_attention_is_in_host_memory(trace):
    (sizes,) = set(map(tuple, results(trace, "aten::_scaled_dot_product_efficient_attention")))
    assert len(sizes) == 2 and 8 not in sizes


def test_batch_is_there_until_the_next_one_is_on_the_device(trace):
    first, second = [
        place
        for place, event in enumerate(trace.events)
        if isinstance(event, Phase) and (event.name, event.update) == ("forward", 1)
    ]
    batches = {
        event.storage
        for event in trace.events[first:second]
        if isinstance(event, Alloc) and trace.storages[event.storage].part == "batch"
    }
    events = trace.events[second:]
    last_new = max(
        place
        for place, event in enumerate(events)
        if isinstance(event, Alloc) and trace.storages[event.storage].part == "batch"
    )
    frees = [place for place, event in enumerate(events) if isinstance(event, Free) and event.storage in batches]
    assert len(frees) == len(batches) == 3 and min(frees) > last_new


def test_gradient_that_is_a_view_is_not_added_in_place():
    trace = traced(Branches(), "fp32")
    sums = [event for event in trace.events if isinstance(event, Op) and event.name == "aten::add.Tensor"]
    gradients = [event for event in sums if event.bytes == 3 * SAMPLES * TOKENS * WIDTH * 4]
    assert gradients and not any(event.in_place for event in gradients)
    assert accumulate_in_place(trace).events == trace.events


class TransposedNetwork(Network):
    """A linear layer whose input is not contiguous, so that torch adds the bias after the product."""

    def forward(self, values, mask):
        return self.classes(self.inner(values.transpose(0, 1)).mean(0))


class Transposed(Classifier):
    def model(self):
        return TransposedNetwork()


def test_bias_of_a_linear_layer_is_added_in_place():
    trace = traced(Transposed(), "fp32")
    sums = [event for event in trace.events if isinstance(event, Op) and event.name == "aten::add.Tensor"]
    biases = [event for event in sums if event.bytes > 2 * SAMPLES * TOKENS * WIDTH * 4]
    assert len(biases) == 4 and all(event.in_place for event in biases)


class Sum(torch.nn.Module):
    """A layer and the sum of two values that nothing else needs, as in rotary embeddings."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, values):
        return self.layer(values * 2.0 + values * 3.0)


class Sums(Branches):
    def model(self):
        return torch.nn.Sequential(Sum(), Sum())

    def loss(self, model, batch):
        return model(batch).sum()


def test_sums_that_are_recomputed_in_backward_are_not_added_in_place():
    counts = {}
    for checkpointing in ("no", "full"):
        events = traced(Sums(), "fp32", checkpointing=checkpointing).events
        counts[checkpointing] = sum(isinstance(event, Op) and event.in_place for event in events)
    # Those of the gradients of what the second block multiplies twice, in each microbatch.
    assert counts["full"] == counts["no"] == 4
