"""Sessions with streamed blocks end in the bits of resident ones, also if another number is streamed after a stop."""

import pytest
import torch
from torch import nn

from shoestring.base.errors import UsageError
from shoestring.base.settings import Settings
from shoestring.techniques.streaming import placement
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


class RunsOutOfMemory(ActingAtLoss):
    """Several times in a row, so that microbatches become smaller and then all blocks are recomputed."""

    def loss(self, model, batch, **stage):
        value = super().loss(model, batch, **stage)
        if -3 <= self._count <= 0:
            value.register_hook(self._fail)
        return value

    def _fail(self, _):
        raise torch.OutOfMemoryError("CUDA out of memory")


@pytest.mark.slow
def test_same_bits_after_running_out_of_memory(tmp_path):
    def wrap(recipe):
        return RunsOutOfMemory(recipe, 4, lambda: None)

    session(Deep(), tmp_path / "plain", LORA, wrap=wrap)
    session(Deep(), tmp_path / "run", {**LORA, "streamed_blocks": 5}, wrap=wrap)
    assert "the activations of all 6 blocks are recomputed" in (tmp_path / "run" / "events.jsonl").read_text()
    assert training_result(tmp_path / "run") == training_result(tmp_path / "plain")


@pytest.mark.slow
def test_each_of_two_processes_streams_its_blocks(tmp_path):
    values = {**LORA, "logical_shards": 2}
    session(Deep(), tmp_path / "plain", values)

    def act(_):
        session(Deep(), tmp_path / "run", {**values, "streamed_blocks": 5})
        with pytest.raises(UsageError, match="streamed_blocks=5: with sharding=zero3") as raised:
            session(Deep(), tmp_path / "divided", {**values, "sharding": "zero3", "streamed_blocks": 5})
        assert "sharding=ddp" in str(raised.value)

    assert run_ranks(2, act, tmp_path) == [0, 0]
    assert training_result(tmp_path / "run") == training_result(tmp_path / "plain")
