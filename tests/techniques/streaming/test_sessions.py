"""Sessions with streamed blocks end in the bits of resident ones, also if another number is streamed after a stop."""

import pytest
from torch import nn

from shoestring.base.errors import UsageError
from shoestring.base.settings import Settings
from shoestring.techniques.streaming import placement
from tests.sessions import CPU, session
from tests.training.engine.test_techniques import Block, Blocks, training_result

pytest.importorskip("peft")


class Deep(Blocks):
    """Six blocks."""

    epochs = 1

    def model(self):
        return nn.Sequential(nn.Linear(4, 8), nn.Sequential(*(Block() for _ in range(6))), nn.Linear(8, 2))


LORA = {"micro_batch": 5, "lora_r": 2}
NF4 = {**LORA, "quantization": "nf4"}
CASES = [
    (LORA, {"checkpointing": "full"}),
    ({**LORA, "weights": "bf16", "precision": "bf16"}, {"checkpointing": "2"}),
    ({**LORA, "offload": "optimizer"}, {}),
    (NF4, {}),
    ({**NF4, "double_quantization": True, "weights": "bf16", "precision": "bf16"}, {"checkpointing": "full"}),
]


@pytest.mark.parametrize(("values", "settings"), CASES, ids=str)
def test_same_bits_as_resident_blocks_also_after_a_stop(tmp_path, values, settings):
    if "quantization" in values:
        pytest.importorskip("bitsandbytes")
    values = {**values, **settings}
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
