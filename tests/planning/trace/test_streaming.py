"""Streamed blocks on the simulated GPU: the device has two slots in place of their frozen weights."""

import pytest
from torch import nn

from shoestring.hardware import targets
from shoestring.planning.estimation import make_estimate
from shoestring.recipe.finding import choose
from tests.training.engine.test_techniques import Block, Blocks

pytest.importorskip("peft")

BLOCKS, WIDTH = 6, 512


class WideBlock(Block):
    def __init__(self):
        super().__init__()
        self.q_proj, self.out_proj = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)


class Wide(Blocks):
    """Six blocks of about 2 MiB."""

    def model(self):
        return nn.Sequential(nn.Linear(4, WIDTH), nn.Sequential(*(WideBlock() for _ in range(BLOCKS))))


def parts(values):
    loaded, settings = choose(Wide(), {"micro_batch": 5, "lora_r": 2, "lora_targets": "q_proj,out_proj", **values})
    estimate = make_estimate(loaded, targets.find("t4"), settings)
    return {part.name: part.bytes for part in estimate.memory.parts}, estimate


@pytest.mark.parametrize("values", [{}, {"quantization": "nf4", "checkpointing": "full"}], ids=str)
def test_weights_are_those_of_the_resident_part_and_the_slots(values):
    resident, _ = parts(values)
    streamed, _ = parts({**values, "streamed_blocks": 4})
    count = WIDTH * WIDTH
    layer = (count // 2 + 4 * count // 64 if values else 4 * count) + 4 * WIDTH
    assert resident["weights"] - streamed["weights"] == pytest.approx(2 * 2 * layer, abs=4096)
