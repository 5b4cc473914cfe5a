"""Checkpoints of a GPU's state that are written in the background have the bits of the update that they name."""

import threading
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file

from shoestring.training.checkpoint import snapshot
from shoestring.training.checkpoint.snapshot import HostCopy
from shoestring.training.checkpoint.store import Store
from shoestring.training.meter import Meter
from tests.lab.engine.networks import Classifier
from tests.lab.engine.trained import CUDA, train


class Watched(Classifier):
    """Records the weights before each update, by the number of the update."""

    def __init__(self):
        super().__init__(network="dense", share=0.3)
        self.weights = []

    def loss(self, model, batch):
        if torch.is_grad_enabled():
            weights = {name: parameter.detach().cpu() for name, parameter in model.named_parameters()}
            if not self.weights or any(not torch.equal(weights[name], self.weights[-1][name]) for name in weights):
                self.weights.append(weights)
        return super().loss(model, batch)


@pytest.mark.parametrize("values", [{}, {"precision": "fp16", "optimizer_kernel": "fused"}], ids=str)
def test_a_checkpoint_has_the_update_that_it_names_although_training_goes_on(tmp_path, monkeypatch, values):
    """Most are not written before the next update has changed the weights."""
    recipe, updated, overtaken, write, add = Watched(), threading.Event(), set(), Store.write, Meter.add

    def write_later(store, update, copy, **options):
        updated.clear()
        if updated.wait(1):
            overtaken.add(update)
        return write(store, update, copy, **options)

    def add_update(meter, result, **facts):
        add(meter, result, **facts)
        updated.set()

    monkeypatch.setattr(Store, "write", write_later)
    monkeypatch.setattr(Meter, "add", add_update)
    train(tmp_path, recipe, {**values, "save_every_updates": 4, "keep_checkpoints": 20})
    assert len(recipe.weights) == 6
    for update in overtaken:
        folder = tmp_path / "checkpoints" / f"update-{update:08}"
        saved = load_file(folder / "model.safetensors")
        assert all(torch.equal(saved[name], tensor) for name, tensor in recipe.weights[update].items())
    assert len(overtaken) >= 2


def state(device=CUDA):
    random = torch.Generator().manual_seed(0)
    large = torch.randn(700, 300, generator=random).to(device)
    return {
        "model": {"large": large, "transposed": large.T, "half": large[:50].half(), "empty": large.new_empty(0, 3)},
        "optimizer": {"step": torch.tensor(3.0), "on the device": torch.tensor(4.0, device=device), "tied": large},
    }


def bits(sections):
    return {
        (name, key): tensor.cpu().clone()
        for name, section in sections.items()
        for key, tensor in section.tensors.items()
    }


def test_a_copy_in_locked_memory_is_not_changed_by_what_follows():
    """The copies of several states are made in the same memory, which is locked once."""
    values, copy = state(), HostCopy()
    copy.prepare(snapshot.snapshot(values))
    locked = copy._memory.data_ptr()
    assert copy._locked and copy._memory.is_pinned()
    for number in range(3):
        expected = bits(snapshot.snapshot(values).sections)
        taken = copy.take(values)
        values["model"]["large"].fill_(number)
        values["optimizer"]["on the device"].add_(1)
        taken.wait()
        assert len(taken.copy_events) == 1
        actual = bits(taken.sections)
        assert all(torch.equal(actual[name], tensor) for name, tensor in expected.items())
    assert copy._memory.data_ptr() == locked
    copy.close()
    assert not copy._locked and not copy._memory.numel()
    on_host = copy.take(state(torch.device("cpu")))
    assert not copy._locked and not on_host.copy_events


def test_memory_that_cannot_be_locked_is_used_unlocked(monkeypatch):
    """The error of CUDA is not reported by a later kernel."""
    runtime, other = torch.cuda.cudart(), torch.empty(2**16, dtype=torch.uint8)
    assert int(runtime.cudaHostRegister(other.data_ptr(), other.nbytes, 0)) == 0
    # Memory that is registered already is refused.
    failing = SimpleNamespace(cudaHostRegister=lambda *_: runtime.cudaHostRegister(other.data_ptr(), other.nbytes, 0))
    values, copy = state(), HostCopy()
    monkeypatch.setattr(torch.cuda, "cudart", lambda: failing)
    taken = copy.take(values)
    assert not copy._locked and not copy._memory.is_pinned()
    torch.zeros(1, device=CUDA)
    taken.wait()
    assert torch.equal(taken.sections["model"].tensors["large"], values["model"]["large"].cpu())
    copy.close()
    runtime.cudaHostUnregister(other.data_ptr())
