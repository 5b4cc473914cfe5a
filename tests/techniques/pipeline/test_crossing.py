"""What code beyond the boundary computes on. The second device is torch's `meta`, to which tensors can be copied."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from shoestring.techniques.pipeline.crossing import Crossing

CPU, META = torch.device("cpu"), torch.device("meta")


@pytest.fixture
def crossing():
    return Crossing(CPU, META)


def cross(crossing):
    """Enter a module of the second part with a tensor, and return its input there."""
    inside = crossing.enter((torch.ones(2, 3),), is_second=True)[0]
    crossing.leave()
    return inside


def test_tensors_are_copied_where_they_meet_those_of_the_second_device(crossing):
    positions, batch = torch.zeros(2, 3), {"labels": torch.zeros(2, dtype=torch.long)}
    with crossing.passing(batch, trains=True):
        assert (positions + 1).device == CPU
        logits = cross(crossing)
        assert logits.device == META
        assert (logits + positions).device == META
        assert torch.cat([positions, logits]).device == META  # in a list
        assert functional.cross_entropy(logits, target=batch["labels"]).device == META
        assert batch["labels"].device == META and batch["labels"][:1].device == META  # copied at the boundary
        assert torch.ones(3).device == CPU and torch.ones(3).exp().device == CPU  # meets none
    assert (positions + 1).device == CPU and batch["labels"].device == CPU


def test_what_is_written_stays_where_it_is(crossing):
    average, batch = torch.zeros(2, 3), torch.zeros(2, 3)
    with crossing.passing(batch, trains=True):
        outputs = cross(crossing)
        with pytest.raises(NotImplementedError, match="meta"):  # a copy from there would be needed
            average.add_(outputs)
        batch.add_(1)  # the copy
        assert float(average.sum()) == 0
    assert float(batch.sum()) == 0


def test_copies_are_made_once_in_a_pass_and_of_frozen_weights_until_they_change(crossing):
    trained, frozen = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(3), requires_grad=False)
    with crossing.passing(trains=True):
        cross(crossing)
        of_pass, of_frozen = crossing.copy_beyond(trained), crossing.copy_beyond(frozen)
        assert crossing.copy_beyond(trained) is of_pass and of_pass.requires_grad
    with crossing.passing(trains=True):
        cross(crossing)
        assert crossing.copy_beyond(trained) is not of_pass
        assert crossing.copy_beyond(frozen) is of_frozen and not of_frozen.requires_grad
        frozen.add_(1)
        assert crossing.copy_beyond(frozen) is not of_frozen


def test_containers_of_other_types_stay_as_they_are(crossing):
    class Cache(dict):
        pass

    cache = Cache(keys=torch.ones(1))
    with crossing.passing(trains=True):
        inputs = crossing.enter(({"a": [torch.ones(1)]}, cache, None), is_second=True)
        assert inputs[0]["a"][0].device == META
        assert inputs[1] is cache and cache["keys"].device == CPU and inputs[2] is None


def test_deferred_backward_runs_at_the_boundary_of_a_pass_that_trains(crossing):
    weight = nn.Parameter(torch.ones(()))
    with crossing.deferring() as backward:
        backward(weight * 2)
        assert weight.grad is None
        with crossing.passing(trains=False):
            cross(crossing)
            assert weight.grad is None
        with crossing.passing(trains=True), torch.no_grad():
            cross(crossing)
            assert float(weight.grad) == 2
        backward(weight * 3)
    assert float(weight.grad) == 5


def test_nothing_runs_after_an_error(crossing):
    weight = nn.Parameter(torch.ones(()))

    def fail():
        with crossing.deferring() as backward:
            backward(weight * 2)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert weight.grad is None


def test_pass_within_another_one_leaves_it_beyond_the_boundary(crossing):
    """A reference model's forward comes after that of the trained model."""
    other = torch.ones(2, 3)
    with crossing.passing(trains=True):
        outputs = cross(crossing)
        with crossing.passing(trains=False):
            assert (other + 1).device == CPU
        assert (outputs + other).device == META


def test_backward_has_neither_autocast_nor_hooks_of_the_forward():
    seen = []

    class Watched(torch.autograd.Function):
        @staticmethod
        def forward(_, value):
            return value.clone()

        @staticmethod
        def backward(_, gradient):
            hooks = torch._C._autograd._top_saved_tensors_default_hooks(False)
            seen.append((torch.is_autocast_enabled("cpu"), hooks))
            return gradient

    crossing = Crossing(CPU, CPU)
    weight = nn.Parameter(torch.ones(()))
    with (
        crossing.deferring() as backward,
        torch.autocast("cpu", torch.bfloat16),
        torch.autograd.graph.save_on_cpu(),
    ):
        backward(Watched.apply(weight))
        with crossing.passing(trains=True):
            cross(crossing)
        assert torch._C._autograd._top_saved_tensors_default_hooks(False) is not None
        assert torch.is_autocast_enabled("cpu")
    assert seen == [(False, None)]
