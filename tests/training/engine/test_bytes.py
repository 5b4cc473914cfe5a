"""The bytes that an update allocates on a CPU, compared with the estimate of the same settings: within 2%."""

import contextlib
import dataclasses

import pytest
import torch
from torch import nn

from shoestring.base.settings import Settings
from shoestring.hardware.targets import find
from shoestring.planning.estimate.memory import PROCESS, memory
from shoestring.planning.trace import Tracer
from shoestring.planning.trace.record import Alloc, Free
from shoestring.planning.trace.recorder import Recorder, real
from shoestring.recipe.finding import load
from shoestring.training.engine.building import build
from shoestring.training.engine.update import update
from tests.integrations.huggingface import tiny

CPU = torch.device("cpu")


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.q_proj, self.out_proj = nn.Linear(128, 512), nn.Linear(512, 128)

    def forward(self, values):
        return values + self.out_proj(torch.tanh(self.q_proj(values)))


class Blocks:
    effective_batch = 512

    def model(self):
        return nn.Sequential(nn.Linear(64, 128), nn.Sequential(*(Block() for _ in range(4))), nn.Linear(128, 8))

    def batch(self, size):
        return torch.zeros(size, 64)

    def loss(self, model, batch):
        return model(batch).square().mean()


def measured(loaded, settings: Settings) -> int:
    """Return the peak of live bytes during two updates of the engine, with two microbatches each."""
    recorder = Recorder(watched=real)
    with recorder, contextlib.ExitStack() as stack:
        stack.enter_context(torch.autograd.set_multithreading_enabled(False))
        recorder.log.mark("model", 0)
        state = build(loaded, settings, CPU)
        for number in range(2):
            recorder.log.mark("forward", number)

            def microbatches():
                for _ in range(2):
                    yield loaded.recipe.batch(settings.micro_batch), settings.micro_batch

            update(
                state.model,
                state.optimizer,
                loaded.recipe.loss,
                microbatches(),
                samples=loaded.effective_batch,
                mixed_precision=state.mixed_precision,
            )
        recorder.log.mark("end", 1)
        storages, events = recorder.log.record()
    live = peak = 0
    for event in events:
        if isinstance(event, Alloc | Free):
            live += storages[event.storage].bytes * (1 if isinstance(event, Alloc) else -1)
            peak = max(peak, live)
    return peak


def estimated(loaded, settings: Settings) -> int:
    device = find("cpu").device
    # The trace runs in a fork of this process, which has imported all modules.
    with Tracer(dataclasses.replace(loaded, is_live=True)) as tracer:
        breakdown = memory(tracer.trace(settings, accumulate=2, device=device), device)
    return sum(part.bytes for part in breakdown.parts if part.name != PROCESS)


CASES = {
    # Few samples, so that the peak is in the optimizer's step.
    "AdamW for-loop": ({}, {"optimizer_kernel": "for-loop", "micro_batch": 8}),
    "AdamW foreach": ({}, {"optimizer_kernel": "foreach", "micro_batch": 8}),
    "checkpointing": ({}, {"checkpointing": "full"}),
    "LoRA": ({"lora_r": 4}, {}),
    "bf16 weights": ({"weights": "bf16"}, {"precision": "bf16"}),
}


@pytest.mark.parametrize("name", CASES)
def test_allocated_bytes_of_a_stack_of_blocks(name):
    options, settings = CASES[name]
    if "lora_r" in options:
        pytest.importorskip("peft")
    loaded = load(Blocks(), options)
    run_settings = Settings(**{"micro_batch": 256, "precision": "fp32", **settings})
    assert measured(loaded, run_settings) == pytest.approx(estimated(loaded, run_settings), rel=0.02)


@pytest.mark.parametrize("chunk", [None, 64])
def test_allocated_bytes_of_a_chunked_loss(tmp_path, chunk):
    pytest.importorskip("transformers")
    path = tiny.write(tmp_path, tiny.LLAMA, vocab_size=4096)
    loaded = load(f"hf:{path}", {"seq_len": 128, "effective_batch": 8, "loss_chunk": chunk})
    run_settings = Settings(micro_batch=4, precision="fp32")
    assert measured(loaded, run_settings) == pytest.approx(estimated(loaded, run_settings), rel=0.02)


class Selecting(Blocks):
    """Selects samples and values by masks that are all true, which takes most of its memory."""

    def model(self):
        return nn.Linear(64, 512)

    def loss(self, model, batch):
        outputs = model(batch)
        chosen = outputs[batch[:, 0] == 0].exp()
        rows, columns = torch.where(chosen > -1)
        return chosen.masked_select(chosen > -1).square().mean() + torch.tanh(chosen[rows, columns]).mean()


def test_a_mask_is_estimated_as_if_all_were_selected():
    loaded, run_settings = load(Selecting(), {}), Settings(micro_batch=256, precision="fp32")
    assert measured(loaded, run_settings) == pytest.approx(estimated(loaded, run_settings), rel=0.02)
