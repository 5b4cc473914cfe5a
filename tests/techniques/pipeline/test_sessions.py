"""Sessions whose model is divided between two devices end in the bits of one device. Here both are the CPU: what is
tested is the order of forward and backward."""

import pytest
import torch
from torch import nn

from shoestring.base.errors import UsageError
from tests.sessions import session
from tests.training.engine.test_techniques import Blocks, training_result


class Block(nn.Module):
    """With random numbers, and statistics of each microbatch."""

    def __init__(self):
        super().__init__()
        self.q_proj, self.out_proj = nn.Linear(8, 8), nn.Linear(8, 8)
        self.inner = nn.Sequential(nn.BatchNorm1d(8), nn.Dropout(0.3), nn.Tanh())

    def forward(self, values):
        return values + self.out_proj(self.inner(self.q_proj(values)))


class Deep(Blocks):
    """Six blocks."""

    epochs = 1

    def model(self):
        return nn.Sequential(nn.Linear(4, 8), nn.Sequential(*(Block() for _ in range(6))), nn.Linear(8, 2))


PIPELINE = {"sharding": "pipeline", "gpus": 2}
LORA = {"lora_r": 2}
CASES = {
    "all weights": {},
    "recomputed": {"checkpointing": "full"},
    "some recomputed in bf16": {"checkpointing": "4", "precision": "bf16"},
    "adapters in bf16": {**LORA, "checkpointing": "full", "precision": "bf16"},
    "streamed": {**LORA, "streamed_blocks": 4},
    "streamed and recomputed": {**LORA, "streamed_blocks": 5, "checkpointing": "full"},
    "states in host memory": {"offload": "optimizer", "ema": 0.5},
}


@pytest.mark.parametrize("values", CASES.values(), ids=CASES)
def test_same_bits_as_on_one_device_also_after_a_stop(tmp_path, values):
    if "lora_r" in values:
        pytest.importorskip("peft")
    values = {"micro_batch": 3, **values}
    session(Deep(), tmp_path / "plain", values)
    session(Deep(), tmp_path / "divided", values | PIPELINE)
    assert session(Deep(), tmp_path / "moved", values | PIPELINE, stop="limit", at=6).status == "paused"
    assert session(Deep(), tmp_path / "moved", values).status == "finished"
    expected = training_result(tmp_path / "plain")
    assert training_result(tmp_path / "divided") == expected
    assert training_result(tmp_path / "moved") == expected


def test_backward_runs_when_the_next_forward_has_reached_the_boundary(tmp_path):
    order = []

    class Recording(Deep):
        def model(self):
            model = super().model()
            for index, block in enumerate(model[1]):
                block.register_forward_pre_hook(lambda *_, index=index: order.append(f"F{index}"))
                block.register_full_backward_hook(lambda *_, index=index: order.append(f"B{index}"))
            return model

        def loss(self, model, batch):
            if torch.is_grad_enabled():
                order.append("loss")
            return super().loss(model, batch)

    session(Recording(), tmp_path / "run", {"micro_batch": 4, "max_updates": 1, **PIPELINE})

    forward = ["F3", "F4", "F5"]
    backward = ["B5", "B4", "B3", "B2", "B1", "B0"]
    begins = ["loss", "F0", "F1", "F2"]
    expected = [*begins, *forward, *begins, *backward, *forward, *begins, *backward, *forward, *backward]
    start = order.index("loss")
    assert order[start : start + len(expected)] == expected


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"gpus": 4}, "gpus=4: sharding=pipeline divides"),
        ({"compile": "graphs"}, "compile=graphs: with sharding=pipeline"),
        ({"offload": "parameters"}, "offload=parameters: with sharding=pipeline"),
        ({"logical_shards": 2}, "logical_shards=2: with sharding=pipeline"),
    ],
    ids=str,
)
def test_settings_that_do_not_go_together(tmp_path, values, message):
    with pytest.raises(UsageError) as error:
        session(Deep(), tmp_path / "run", {"micro_batch": 4, **PIPELINE, **values})
    assert message in error.value.problems[0]


def test_model_without_blocks_is_refused(tmp_path):
    class Flat(Deep):
        def model(self):
            return nn.Linear(4, 2)

    with pytest.raises(UsageError, match="Linear has no blocks") as error:
        session(Flat(), tmp_path / "run", {"micro_batch": 4, **PIPELINE})
    assert "blocks(model)" in error.value.hint


def test_update_is_repeated_after_out_of_memory_as_on_one_device(tmp_path):
    class Failing(Deep):
        """Runs out of memory in the second microbatch, while the backward of the first is deferred."""

        count = 0

        def loss(self, model, batch):
            value = super().loss(model, batch)
            if torch.is_grad_enabled():
                self.count += 1
                if self.count == 2:
                    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
            return value

    session(Failing(), tmp_path / "plain", {"micro_batch": 4})
    session(Failing(), tmp_path / "divided", {"micro_batch": 4, **PIPELINE})
    assert training_result(tmp_path / "divided") == training_result(tmp_path / "plain")
