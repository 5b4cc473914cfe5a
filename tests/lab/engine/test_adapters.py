"""Adapters, 4-bit weights and 8-bit or paged optimizer states on a GPU have the CPU's values.

The simulator has no kernels of bitsandbytes. Its operators are computed here by those that it has for CPUs, on copies
in host memory, so what is shown is how they are called and with what. Everything else is as on a GPU: where tensors
are, their types and layouts, how they are saved and restored.
"""

import pytest
import torch
from torch import nn
from torch.utils import _pytree as pytree
from transformers import Trainer, TrainerCallback, TrainingArguments

from shoestring.integrations.trainer import surviving
from shoestring.training.engine.state import TrainingState
from tests.integrations.test_splitting import Killed
from tests.integrations.test_trainer import Sums
from tests.lab.commands.demand import Demand
from tests.lab.engine.networks import CLASSES, Classifier
from tests.lab.engine.trained import CPU, assert_same_bits, largest_difference, train

pytest.importorskip("bitsandbytes")
pytest.importorskip("peft")

OPERATORS = (
    "quantize_4bit", "dequantize_4bit", "dequantize_4bit.out", "gemm_4bit", "gemv_4bit", "gemv_4bit.out",
    "quantize_blockwise", "dequantize_blockwise", "dequantize_blockwise.out", "optimizer_update_32bit",
    "optimizer_update_8bit_blockwise",
)  # fmt: skip


def on_the_host(name):
    """Return a kernel that computes an operator on copies in host memory, and copies back what it has written."""
    base, _, overload = name.partition(".")
    operator = getattr(getattr(torch.ops.bitsandbytes, base), overload or "default")

    def kernel(*arguments, **options):
        tensors = [leaf for leaf in pytree.tree_leaves((arguments, options)) if isinstance(leaf, torch.Tensor)]
        device = next(tensor.device for tensor in tensors if tensor.is_cuda)
        copies = {id(tensor): tensor.cpu().clone() for tensor in tensors}
        host_arguments, host_options = pytree.tree_map_only(
            torch.Tensor, lambda tensor: copies[id(tensor)], (arguments, options)
        )
        result = operator(*host_arguments, **host_options)
        for tensor in tensors:
            if not torch.equal(tensor.cpu(), copies[id(tensor)]):
                tensor.copy_(copies[id(tensor)])
        return pytree.tree_map_only(torch.Tensor, lambda tensor: tensor.to(device), result)

    return kernel


@pytest.fixture(scope="module", autouse=True)
def values_of_bitsandbytes():
    import bitsandbytes  # noqa: F401  (registers its operators)

    library = torch.library.Library("bitsandbytes", "IMPL")
    for name in OPERATORS:
        library.impl(name, on_the_host(name), "CUDA", allow_override=True)
    yield
    library._destroy()


LARGE, STATES = 128 * 1024, ("state1", "state2")


class Wide(Classifier):
    """With a weight that is large enough for states in 8 bits, and one for paged states."""

    learning_rate = 1e-3

    def model(self):
        return nn.Sequential(nn.Linear(6, 1024), nn.Tanh(), nn.Linear(1024, 128), nn.Linear(128, CLASSES))


LORA = {"lora_r": 2, "lora_targets": "linear"}
NF4 = {**LORA, "quantization": "nf4"}
CASES = [
    ("attending", LORA, 5e-6),
    ("wide", NF4, 0),
    ("wide", {**NF4, "double_quantization": True}, 0),
    ("wide", {"optimizer_states": "8bit"}, 0),
]


def pages(optimizer):
    """Return whether the states of the large weight are on the GPU, and whether they are paged."""
    (weight,) = [parameter for parameter in optimizer.state if parameter.numel() == LARGE]
    values = [optimizer.state[weight][name] for name in STATES]
    return [(value.is_cuda, getattr(value, "is_paged", False)) for value in values]


class WideRegression(nn.Module):
    """The same layers for a library's trainer."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 1024), nn.Tanh(), nn.Linear(1024, 128), nn.Linear(128, 1))

    def forward(self, x, y):
        return {"loss": (self.layers(x).squeeze(-1) - y).square().mean()}


class Places(TrainerCallback):
    def __init__(self):
        self.places = []

    def on_step_end(self, args, state, control, optimizer, **_):
        self.places.append(pages(optimizer))


def train_with_library(run, demand, callback):
    """Train 12 updates with paged states in 8 bits, each saved; return the weights."""
    arguments = TrainingArguments(
        output_dir=str(run.parent / "own"), per_device_train_batch_size=4, num_train_epochs=1, report_to=[], seed=5,
        optim="paged_adamw_8bit", max_steps=12, save_strategy="steps", save_steps=1,
    )  # fmt: skip
    with surviving(run) as survive:
        torch.manual_seed(3)
        model = demand.limit(WideRegression())
        trainer = survive(Trainer)(model=model, args=arguments, train_dataset=Sums(), callbacks=[callback])
        trainer.train()
        return trainer.model.state_dict()


def recipe(name):
    return Wide(network="dense") if name == "wide" else Classifier(network=name)


@pytest.mark.parametrize(("name", "values", "tolerance"), CASES, ids=str)
def test_fp32_has_the_values_of_the_cpu_also_after_a_stop(tmp_path, name, values, tolerance):
    gpu = train(tmp_path / "gpu", recipe(name), values)
    cpu = train(tmp_path / "cpu", recipe(name), values, device=CPU)
    assert gpu.losses == pytest.approx(cpu.losses, rel=0, abs=min(tolerance, 5e-7))
    assert largest_difference(gpu, cpu) <= tolerance
    train(tmp_path / "stopped", recipe(name), values, stop="limit", at=7, status="paused")
    assert_same_bits(train(tmp_path / "stopped", recipe(name), values), gpu)


@pytest.mark.parametrize("values", [LORA, NF4], ids=str)
def test_fp16_weights_under_adapters_differ_by_their_rounding(tmp_path, values):
    gpu = train(tmp_path / "gpu", recipe("wide"), {**values, "weights": "fp16", "precision": "fp16"})
    cpu = train(tmp_path / "cpu", recipe("wide"), values, device=CPU)
    assert gpu.losses == pytest.approx(cpu.losses, rel=0, abs=1e-2)
    dtypes = {tensor.dtype for name, tensor in gpu.tensors.items() if "lora_" in name}
    assert dtypes == {torch.float32}


@pytest.mark.parametrize(("paged", "same"), [("paged", "own"), ("paged_8bit", "8bit")])
def test_paged_states_have_the_same_values_and_stay_in_pages_after_a_stop(tmp_path, monkeypatch, paged, same):
    """A page is memory of the host for torch, so its state takes nothing of the GPU's."""
    places, finish = [], TrainingState.finish_update

    def record(state):
        finish(state)
        places.append(pages(state.optimizer))

    plain = train(tmp_path / "plain", recipe("wide"), {"optimizer_states": same})
    monkeypatch.setattr(TrainingState, "finish_update", record)
    straight = train(tmp_path / "straight", recipe("wide"), {"optimizer_states": paged})
    assert straight.losses == pytest.approx(plain.losses, rel=0 if paged == "paged_8bit" else 1e-5)
    train(tmp_path / "stopped", recipe("wide"), {"optimizer_states": paged}, stop="limit", at=7, status="paused")
    assert_same_bits(train(tmp_path / "stopped", recipe("wide"), {"optimizer_states": paged}), straight)
    assert len(places) == 12 and all(place == [(False, True)] * 2 for place in places)


def test_paged_states_of_a_librarys_trainer_stay_in_pages_after_a_kill(tmp_path):
    callback = Places()
    expected = train_with_library(tmp_path / "straight", Demand(), callback)
    with pytest.raises(Killed):
        train_with_library(tmp_path / "killed", Demand(kill_at=7), callback)
    weights = train_with_library(tmp_path / "killed", Demand(), callback)
    assert all(torch.equal(value, weights[name]) for name, value in expected.items())
    assert len(callback.places) == 24 and all(place == [(False, True)] * 2 for place in callback.places)
