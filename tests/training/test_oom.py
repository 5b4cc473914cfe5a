"""Out-of-memory that smaller microbatches do not solve: activations are recomputed, then the error lists the memory."""

import json
import re
import resource
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from shoestring.base.errors import RunError
from shoestring.base.settings import Settings
from shoestring.recipe.finding import find
from shoestring.techniques.fallbacks import next_step
from shoestring.techniques.pipeline.blocks import bring_outputs_home
from shoestring.techniques.pipeline.crossing import Crossing
from shoestring.techniques.streaming.stream import streams_of
from shoestring.training import oom, saving
from shoestring.training.engine import cuda_graphs
from shoestring.training.engine.building import build
from shoestring.training.engine.cuda_graphs import CudaGraphs
from shoestring.training.monitor.events import read
from shoestring.training.monitor.host_memory import HostMemory
from shoestring.training.run_directory.stored import StoredPlan
from tests.sessions import light_bits, session

CPU = torch.device("cpu")


class Stacked:
    """A model of three blocks that runs out of memory unless `fits(model, samples)`."""

    epochs = 2
    effective_batch = 8

    def __init__(self, fits=lambda model, samples: True, optimizer=torch.optim.SGD):
        self.fits, self.optimizer_class = fits, optimizer

    def model(self):
        blocks = [nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Dropout(0.3)) for _ in range(3)]
        return nn.Sequential(nn.Linear(3, 4), *blocks)

    def optimizer(self, model):
        return self.optimizer_class(model.parameters(), lr=0.1)

    def batch(self, size):
        return (torch.zeros(size, 3),)

    def loss(self, model, batch):
        if not self.fits(model, len(batch[0])):
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return model(batch[0]).square().mean()

    def data(self):
        return TensorDataset(torch.randn(24, 3, generator=torch.Generator().manual_seed(0)))


class Even(Stacked):
    """Refuses odd batches, as timm's Mixup does."""

    effective_batch = 12

    def loss(self, model, batch):
        value = super().loss(model, batch)
        assert len(batch[0]) % 2 == 0 or not model.training, "Batch size should be even when using this"
        return value


def test_sizes_that_the_recipe_refuses_are_passed_over(tmp_path):
    session(Even(lambda model, samples: samples <= 5 or not model.training), tmp_path / "even", {})
    actions = [event["done"] for event in events(tmp_path / "even", "oom")]
    assert actions == ["microbatch 6", "microbatch 3", "microbatch 2, because the recipe fails with 3"]
    session(Even(), tmp_path / "small", {"micro_batch": 2})
    assert light_bits(tmp_path / "even" / "light")[1] == light_bits(tmp_path / "small" / "light")[1]

    class Never(Even):
        def loss(self, model, batch):
            if model.training and len(batch[0]) < 12:
                raise ValueError("twelve samples")
            return super().loss(model, batch)

    with pytest.raises(RunError, match=r"the recipe fails with each smaller microbatch .* of 1: ValueError: twelve"):
        session(Never(lambda model, samples: samples < 12 or not model.training), tmp_path / "never", {})


def recomputed_blocks(model):
    return ["forward" in vars(block) for block in model]


def events(run, kind):
    return [event for event in read(run / "events.jsonl") if event["event"] == kind]


@pytest.mark.parametrize("setting", ["no", "2"])
def test_activations_are_recomputed_also_after_resuming(tmp_path, setting):
    recipe = Stacked(lambda model, samples: all(recomputed_blocks(model)[1:]))
    values = {"micro_batch": 2, "checkpointing": setting}
    session(recipe, tmp_path / "run", values, stop="limit", at=20)
    session(recipe, tmp_path / "run", values)
    assert [event["done"] for event in events(tmp_path / "run", "oom")] == [
        "microbatch 1",
        "the activations of all 3 blocks are recomputed in backward",
    ]
    session(Stacked(), tmp_path / "undisturbed", {"micro_batch": 1})
    assert light_bits(tmp_path / "run" / "light")[1] == light_bits(tmp_path / "undisturbed" / "light")[1]


def test_recomputing_disables_cuda_graphs_also_after_resuming():
    settings = Settings(micro_batch=1, precision="fp32", checkpointing="no")
    state = build(find(Stacked()), settings, CPU)
    state.cuda_graphs = CudaGraphs(state.model, new_capture=lambda: lambda work: (work(), lambda: None))
    state.resize(state.sizes)
    assert state.cuda_graphs
    state.resize(next_step("update", state.sizes, state.limits()).sizes)
    assert state.cuda_graphs is None
    resumed = build(find(Stacked()), settings, CPU)
    resumed.cuda_graphs = CudaGraphs(state.model, new_capture=lambda: lambda work: (work(), lambda: None))
    resumed.restore(state.pack())
    assert resumed.cuda_graphs is None and recomputed_blocks(resumed.model)[1:] == [True] * 3


def test_graphs_are_released_when_the_step_does_not_fit(tmp_path, monkeypatch):
    class FailingFifthStep(torch.optim.SGD):
        steps = 0

        def step(self, closure=None):
            FailingFifthStep.steps += 1
            if FailingFifthStep.steps == 5:
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
            return super().step(closure)

    class FakeGraphs:
        releases = 0

        def __call__(self, work, batch, expected, key):
            return work(batch, expected)

        def release(self):
            self.releases += 1

    graphs = FakeGraphs()
    monkeypatch.setattr(cuda_graphs, "build_cuda_graphs", lambda model, settings, device: graphs)
    session(Stacked(optimizer=FailingFifthStep), tmp_path, {"micro_batch": 2})
    assert [event["during"] for event in events(tmp_path, "oom")] == ["optimizer step"]
    assert graphs.releases == 1


def test_block_is_not_wrapped_twice():
    state = build(find(Stacked()), Settings(micro_batch=1, precision="fp32", checkpointing="2"), CPU)
    wrapped = [block.forward for block in state.model][1:3]
    state.resize(next_step("update", state.sizes, state.limits()).sizes)
    assert [block.forward for block in state.model][1:3] == wrapped
    assert recomputed_blocks(state.model) == [False, True, True, True]
    assert next_step("update", state.sizes, state.limits()) is None


def test_error_lists_the_memory_when_no_fallback_is_left(tmp_path):
    with pytest.raises(RunError) as error:
        session(Stacked(lambda model, samples: False, torch.optim.AdamW), tmp_path, {"micro_batch": 8})
    assert error.value.message == (
        "out of memory with the smallest microbatch and activations recomputed: "
        "CUDA out of memory. Tried to allocate 2.00 GiB"
    )
    assert error.value.problems[:2] == (
        "weights: 304 B, independent of the microbatch",
        "gradients: 304 B, independent of the microbatch",
    )
    assert "LoRA" in error.value.hint
    assert len(events(tmp_path, "oom")) == 4
    assert json.loads((tmp_path / "state.json").read_text())["status"] == "failed"


def test_error_lists_the_largest_parts_of_the_plan():
    state = build(find(Stacked()), Settings(micro_batch=1, precision="fp32"), CPU)
    parts = [{"name": name, "bytes": size} for name, size in (("a", 1), ("activations", 2**20), ("b", 2), ("c", 3))]
    plan = StoredPlan(recipe="stacked", plan={"memory": {"settings": {"micro_batch": 8}, "parts": parts}})
    error = oom.does_not_fit(state, "no", plan, CPU)
    assert [problem.partition(": ")[2] for problem in error.problems[-3:]] == ["activations 1.00 MiB", "c 3 B", "b 2 B"]


def test_error_names_the_fuller_of_two_gpus(monkeypatch):
    state = build(find(Stacked()), Settings(micro_batch=1, precision="fp32"), CPU)
    monkeypatch.setattr(oom, "persistent_bytes", lambda _: {})
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(total_memory=16 << 30))
    monkeypatch.setattr(torch.cuda, "max_memory_reserved", lambda device: (8 + 4 * device.index) << 30)
    whole = oom.does_not_fit(state, "no", None, torch.device("cuda", 0))
    assert whole.problems == ("the GPU has 16.00 GiB, of which torch reserved 8.00 GiB",)
    bring_outputs_home(state.model, Crossing(torch.device("cuda", 0), torch.device("cuda", 1)))
    divided = oom.does_not_fit(state, "no", None, torch.device("cuda", 0))
    assert divided.problems == (
        "GPU 1 has 16.00 GiB, of which torch reserved 12.00 GiB",
        "GPU 0 has 16.00 GiB, of which torch reserved 8.00 GiB",
    )


def test_model_without_blocks_has_no_fallback():
    class Plain(Stacked):
        def model(self):
            return nn.Linear(3, 4)

    state = build(find(Plain()), Settings(micro_batch=1, precision="fp32"), CPU)
    assert next_step("update", state.sizes, state.limits()) is None


def failing_optimizer(failures):
    """A class of optimizer whose steps run out of memory where `failures` is true, and succeed afterwards."""
    remaining = iter(failures)

    class Step(torch.optim.SGD):
        def __init__(self, parameters, lr):
            super().__init__(parameters, lr=lr, foreach=True)

        def step(self, closure=None):
            if next(remaining, False):
                raise MemoryError("no memory")
            return super().step(closure)

    return Step


def test_step_fallback_changes_the_kernel_first(tmp_path):
    optimizer = failing_optimizer([True, True, False])
    session(Stacked(optimizer=optimizer), tmp_path, {"micro_batch": 4}, stop="limit", at=6)
    assert [event["done"] for event in events(tmp_path, "oom")] == [
        "the optimizer updates one tensor at a time",
        "microbatch 2",
    ]
    foreach_values = []

    class RecordingStep(optimizer):
        def step(self, closure=None):
            foreach_values.append(self.param_groups[0]["foreach"])
            return super().step(closure)

    session(Stacked(optimizer=RecordingStep), tmp_path, {"micro_batch": 4})
    assert set(foreach_values) == {False}


def test_failed_copy_continues_and_last_save_is_retried(tmp_path, monkeypatch):
    def fail_to_copy(*_):
        raise MemoryError("no 8.00 GiB")

    monkeypatch.setattr(saving.HostCopy, "take", fail_to_copy)
    failing = iter([False, True, False])
    save = saving.Store.save

    def save_at_second_try(*arguments, **options):
        if next(failing, False):
            raise RuntimeError("[enforce fail at alloc_cpu.cpp:127] . DefaultCPUAllocator: can't allocate memory")
        return save(*arguments, **options)

    monkeypatch.setattr(saving.Store, "save", save_at_second_try)
    assert session(Stacked(), tmp_path, {"save_every_updates": 3}).status == "finished"
    (unsaved,) = events(tmp_path, "unsaved")
    assert (unsaved["update"], unsaved["why"]) == (2, "out of memory while copying the state: no 8.00 GiB")
    assert [event["update"] for event in events(tmp_path, "save") if event["kind"] == "full"] == [0, 6]


def test_error_outside_of_updates_says_what_was_being_done(tmp_path):
    """The limit is that of the address space; the errors are those of torch's allocator, in the recipe's own code."""

    class Large(Stacked):
        part = ""

        def fail(self, part):
            if part == self.part:
                torch.ones(2**40)

        def model(self):
            self.fail("model")
            return super().model()

        def optimizer(self, model):
            self.fail("optimizer")
            return super().optimizer(model)

        def data(self):
            self.fail("data")
            return {"train": super().data(), "validation": super().data()}

        def measured(self, model, data, polled):
            self.fail("evaluation")
            return {"loss": 0.0}

    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (2**41, hard))
    try:
        for part, message in {
            "data": "loading the data, data()",
            "model": "building the model, model()",
            "optimizer": "building the optimizer",
            "evaluation": "even with microbatches of 1",
        }.items():
            recipe = Large()
            recipe.part = part
            with pytest.raises(RunError, match=f"^out of memory (while )?{re.escape(message)}: .*llocat") as error:
                session(recipe, tmp_path / part, {"micro_batch": 4})
            assert any("address space is 2048 GiB" in problem for problem in error.value.problems)
            state = json.loads((tmp_path / part / "state.json").read_text())
            assert state["status"] == "failed" and state["reason"] == error.value.message
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def test_batch_norm_keeps_the_microbatch_at_two(tmp_path):
    class Normed(Stacked):
        def model(self):
            blocks = [nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)) for _ in range(3)]
            return nn.Sequential(nn.Linear(3, 4), *blocks)

    optimizer = failing_optimizer([True, False])
    recipe = Normed(lambda model, samples: all(recomputed_blocks(model)[1:]), optimizer)
    assert session(recipe, tmp_path, {"micro_batch": 4}).status == "finished"
    assert [event["done"] for event in events(tmp_path, "oom")] == [
        "microbatch 2",
        "the activations of all 3 blocks are recomputed in backward",
        "the optimizer updates one tensor at a time",
    ]


@pytest.mark.parametrize("memory", [[1], {"parts": 3}, {"settings": [], "parts": [1, {}, {"name": [], "bytes": "x"}]}])
def test_error_ignores_a_plan_of_another_shape(memory):
    state = build(find(Stacked()), Settings(micro_batch=1, precision="fp32"), CPU)
    error = oom.does_not_fit(state, "no", StoredPlan(recipe="stacked", plan={"memory": memory}), CPU)
    assert not any("planned" in problem for problem in error.problems)


class StackedAdapters(Stacked):
    """Eight frozen blocks, of which a part is streamed, with trained scales."""

    def model(self):
        return nn.Sequential(nn.Linear(3, 4), *(FrozenBlock() for _ in range(8)))


class FrozenBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.frozen, self.scale = nn.Linear(4, 4).requires_grad_(False), nn.Parameter(torch.ones(4))
        self.dropout = nn.Dropout(0.3)

    def forward(self, values):
        return values + self.dropout(self.frozen(values)).tanh() * self.scale


def streamed(model):
    return sum(len(stream.weights) for stream in streams_of(model))


PIPELINE = {"sharding": "pipeline", "gpus": 2}


@pytest.mark.parametrize(
    ("checkpointing", "layout"), [("no", {}), ("full", {}), ("full", PIPELINE)], ids=["no", "full", "divided"]
)
def test_more_blocks_are_streamed_before_samples_are_fewer_also_after_resuming(tmp_path, checkpointing, layout):
    values = {"micro_batch": 2, "streamed_blocks": 2, "checkpointing": checkpointing, **layout}
    recipe = StackedAdapters(lambda model, samples: streamed(model) >= 4)
    session(recipe, tmp_path / "run", values, stop="limit", at=20)
    session(recipe, tmp_path / "run", values)
    assert [event["done"] for event in events(tmp_path / "run", "oom")] == [
        "3 of 8 blocks streamed",
        "4 of 8 blocks streamed",
    ]
    assert [event["session"] for event in events(tmp_path / "run", "oom")] == [1, 1]
    session(StackedAdapters(), tmp_path / "resident", {"micro_batch": 2, "checkpointing": checkpointing})
    assert light_bits(tmp_path / "run" / "light")[1] == light_bits(tmp_path / "resident" / "light")[1]


def test_blocks_are_streamed_as_long_as_the_host_has_memory(tmp_path, monkeypatch):
    values = {"micro_batch": 2, "streamed_blocks": 1, "checkpointing": "no"}
    recipe = StackedAdapters(lambda model, samples: samples == 1 and streamed(model) == 8)
    session(recipe, tmp_path / "run", values)
    actions = [event["done"] for event in events(tmp_path / "run", "oom")]
    assert actions == [*(f"{count} of 8 blocks streamed" for count in range(2, 9)), "microbatch 1"]
    # A host without memory for another block.
    monkeypatch.setattr(HostMemory, "free_bytes", 0)
    with pytest.raises(RunError, match="with the smallest microbatch and activations recomputed"):
        session(recipe, tmp_path / "small host", values)
