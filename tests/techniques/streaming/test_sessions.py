"""Sessions with streamed blocks end in the bits of resident ones, also if another number is streamed after a stop."""

import json
import os
import signal
import tempfile
from functools import partial

import pytest
import torch
from torch import nn

import shoestring
from shoestring.base.errors import UsageError
from shoestring.base.settings import Settings
from shoestring.techniques.streaming import placement, slots
from shoestring.techniques.streaming.slots import PlainSlot
from shoestring.training.monitor.events import read
from tests.ranks import run_ranks
from tests.sessions import CPU, ActingAtLoss, session
from tests.slow import slow_except
from tests.training.engine.test_techniques import Block, Blocks, training_result

pytest.importorskip("peft")


class Deep(Blocks):
    """Six blocks."""

    epochs = 1

    def model(self):
        return nn.Sequential(nn.Linear(4, 8), nn.Sequential(*(Block() for _ in range(6))), nn.Linear(8, 2))


LORA = {"micro_batch": 5, "lora_r": 2}
NF4 = {**LORA, "quantization": "nf4"}
BF16 = {"weights": "bf16", "precision": "bf16"}
CASES = {
    "adapters": {**LORA, "checkpointing": "full"},
    "adapters in bf16": {**LORA, **BF16, "checkpointing": "2"},
    "states in host memory": {**LORA, "offload": "optimizer"},
    "4 bits": NF4,
    "4 bits with scales in 8 bits": {**NF4, **BF16, "double_quantization": True, "checkpointing": "full"},
}


@pytest.mark.parametrize("values", slow_except(CASES, "4 bits"))
def test_same_bits_as_resident_blocks_also_after_a_stop(tmp_path, values):
    if "quantization" in values:
        pytest.importorskip("bitsandbytes")
    session(Deep(), tmp_path / "plain", values)
    assert session(Deep(), tmp_path / "run", {**values, "streamed_blocks": 4}, stop="limit", at=6).status == "paused"
    assert session(Deep(), tmp_path / "run", {**values, "streamed_blocks": 6}).status == "finished"
    assert training_result(tmp_path / "run") == training_result(tmp_path / "plain")


class KillingSlot(PlainSlot):
    """Its process is ended by SIGKILL when half of one of the copies is done."""

    copies = 0

    def fill(self, source):
        KillingSlot.copies -= 1
        if KillingSlot.copies == 0:
            half = source.numel() // 2
            self.buffer[:half].copy_(source[:half])
            os.kill(os.getpid(), signal.SIGKILL)
        super().fill(source)


class Repeatable(Deep):
    """Blocks without dropout, which every order of microbatches and blocks trains to the same bits."""

    def model(self):
        model = super().model()
        for block in model[1]:
            block.dropout = nn.Identity()
        return model


BLOCK_ORDER = {"stream_order": "block", "checkpointing": "full", "micro_batch": 2}


@pytest.mark.parametrize(
    "streaming",
    [{"stream_from": "host"}, {"stream_from": "disk"}, pytest.param(BLOCK_ORDER, marks=pytest.mark.slow)],
    ids=str,
)
def test_same_bits_after_kills_in_the_middle_of_copies(tmp_path, monkeypatch, streaming):
    """Each session streams another number of blocks. Of a copy to the disk nothing is left either."""
    values = {**LORA, "save_every_updates": 1, **streaming}
    recipe = Repeatable() if streaming is BLOCK_ORDER else Deep()
    resident = {name: value for name, value in values.items() if not name.startswith("stream_")}
    session(recipe, tmp_path / "plain", resident)
    (tmp_path / "disk").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "disk"))

    def act(streamed, copies):
        KillingSlot.copies = copies
        monkeypatch.setattr(slots, "PlainSlot", KillingSlot)
        session(recipe, tmp_path / "run", {**values, "streamed_blocks": streamed})

    # In the copies before the first update, in a forward and in a backward of later ones.
    for streamed, copies in ((4, 2), (4, 9), (6, 27), (3, 8)):
        assert run_ranks(1, lambda _, case=(streamed, copies): act(*case), tmp_path) == [-signal.SIGKILL]
    assert run_ranks(1, lambda _: act(5, -1), tmp_path) == [0]
    assert training_result(tmp_path / "run") == training_result(tmp_path / "plain")
    assert list((tmp_path / "disk").iterdir()) == []


@pytest.mark.slow
def test_trained_weights_are_used_with_streamed_blocks(tmp_path):
    """Answers to prompts during training, evaluation and predictions are those of resident blocks."""
    pytest.importorskip("transformers")
    data = tmp_path / "rows.jsonl"
    rows = [{"prompt": f"What is {number}?", "completion": f"It is {number}."} for number in range(4)]
    data.write_text("\n".join(map(json.dumps, rows)))
    values = {"max_updates": 3, "effective_batch": 4, "micro_batch": 2, "seq_len": 64, "answer_tokens": 4}
    values |= {"subset": 16, "precision": "fp32", "weights": "fp32", "on": "cpu", "prompts": data}
    answers = []
    for streamed in (0, 2):
        run = tmp_path / str(streamed)
        shoestring.train("finetune", run=run, streamed_blocks=streamed, **values)
        events = map(json.loads, (run / "events.jsonl").read_text().splitlines())
        answers.append([event["rows"] for event in events if event["event"] == "answers"])
    assert answers[0] and answers[0] == answers[1]
    used = []
    for streamed in ({}, {"streamed_blocks": 2}, {"streamed_blocks": 2, "stream_from": "disk"}):
        out = tmp_path / f"predictions-{len(used)}.jsonl"
        shoestring.predict(run, data=data, out=out, on="cpu", **streamed)
        used.append((shoestring.evaluate(run, on="cpu", **streamed).metrics, out.read_text()))
    assert used[0] == used[1] == used[2]


@pytest.mark.parametrize(
    ("values", "message", "hint"),
    [
        ({"streamed_blocks": 2}, "have no frozen weights", "lora_r=8"),
        ({**LORA, "streamed_blocks": 7}, "has 6 blocks with frozen weights", "streamed_blocks=6"),
        ({**LORA, "streamed_blocks": 2, "offload": "parameters"}, "set one of the two", ""),
        ({**LORA, "streamed_blocks": 2, "compile": "yes"}, "set compile=no", ""),
        ({**LORA, "streamed_blocks": 2, "compile": "graphs"}, "set compile=no", ""),
        ({**LORA, "streamed_blocks": -1}, "streamed_blocks=-1", ""),
    ],
    ids=str,
)
def test_what_cannot_be_streamed(tmp_path, values, message, hint):
    with pytest.raises(UsageError) as raised:
        session(Deep(), tmp_path / "run", values)
    assert message in str(raised.value) and hint in str(raised.value)


def test_a_model_without_blocks_cannot_be_streamed():
    with pytest.raises(UsageError, match="Linear has no blocks") as raised:
        placement.move(nn.Linear(2, 2).requires_grad_(False), object(), Settings(streamed_blocks=1), CPU)
    assert "define blocks(model)" in str(raised.value)


def test_8_bit_weights_of_bitsandbytes_are_refused():
    """Their layers keep a second reference to the values, which would be those of another block."""
    bitsandbytes = pytest.importorskip("bitsandbytes")
    blocks = (nn.Sequential(bitsandbytes.nn.Linear8bitLt(8, 8, has_fp16_weights=False)) for _ in range(3))
    model = nn.Sequential(*blocks).requires_grad_(False)
    with pytest.raises(UsageError, match="'weight' of a Linear8bitLt is a Int8Params") as raised:
        placement.move(model, object(), Settings(streamed_blocks=2), CPU)
    assert "streamed_blocks=0" in str(raised.value)


def test_full_fine_tuning_and_8_bit_states(tmp_path):
    """States in 8 bits are those of what is trained, which stays on the device; all weights trained leave nothing."""
    pytest.importorskip("bitsandbytes")
    values = {**LORA, "optimizer_states": "8bit"}
    session(Deep(), tmp_path / "plain", values)
    session(Deep(), tmp_path / "run", {**values, "streamed_blocks": 5})
    assert training_result(tmp_path / "run") == training_result(tmp_path / "plain")
    with pytest.raises(UsageError, match="have no frozen weights") as raised:
        session(Deep(), tmp_path / "full", {"micro_batch": 5, "optimizer_states": "8bit", "streamed_blocks": 5})
    assert "train adapters: --set lora_r=8" in str(raised.value)


class RunsOutOfMemory(ActingAtLoss):
    """So many times in a row."""

    def __init__(self, *arguments, failures):
        super().__init__(*arguments)
        self.failures = failures

    def loss(self, model, batch, **stage):
        value = super().loss(model, batch, **stage)
        if -self.failures < self._count <= 0:
            value.register_hook(self._fail)
        return value

    def _fail(self, _):
        raise torch.OutOfMemoryError("CUDA out of memory")


@pytest.mark.slow
def test_same_bits_after_running_out_of_memory(tmp_path):
    def wrap(failures, recipe):
        return RunsOutOfMemory(recipe, 4, lambda: None, failures=failures)

    session(Deep(), tmp_path / "plain", LORA, wrap=partial(wrap, 4))
    session(Deep(), tmp_path / "run", {**LORA, "streamed_blocks": 5}, wrap=partial(wrap, 5))
    assert "the activations of all 6 blocks are recomputed" in (tmp_path / "run" / "events.jsonl").read_text()
    assert training_result(tmp_path / "run") == training_result(tmp_path / "plain")


@pytest.mark.slow
def test_each_of_two_processes_streams_its_blocks(tmp_path):
    values = {**LORA, "logical_shards": 2}
    session(Deep(), tmp_path / "plain", values)

    def act(rank):
        # One of them runs out of memory, and both stream a block more.
        def wrap(recipe):
            return RunsOutOfMemory(recipe, 4, lambda: None, failures=rank)

        session(Deep(), tmp_path / "run", {**values, "streamed_blocks": 4}, wrap=wrap)
        with pytest.raises(UsageError, match="streamed_blocks=5: with sharding=zero3") as raised:
            session(Deep(), tmp_path / "divided", {**values, "sharding": "zero3", "streamed_blocks": 5})
        assert "sharding=ddp" in str(raised.value)

    assert run_ranks(2, act, tmp_path) == [0, 0]
    (event,) = (event for event in read(tmp_path / "run" / "events.jsonl") if event["event"] == "oom")
    assert event["done"] == "5 of 6 blocks streamed"
    assert training_result(tmp_path / "run") == training_result(tmp_path / "plain")
