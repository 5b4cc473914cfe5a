"""sharding=pipeline: two GPUs of one process end in the bits of one GPU."""

from dataclasses import replace

import pytest

from shoestring.hardware.targets import find
from shoestring.planning.candidates import memory_of, trace_settings
from shoestring.planning.trace import Tracer
from shoestring.recipe.finding import choose
from tests.lab.ranks import pipelined
from tests.sessions import final_checkpoint

PIPELINE = {"sharding": "pipeline", "gpus": 2}
VALUES = {"micro_batch": 3, "save_every_updates": 3}
LORA = {"lora_r": 2, "lora_targets": "linear", "lora_dropout": 0.1}
CASES = {
    "tied weights": ("Blocks", {"ema": 0.5}),
    "fp16": ("Overflowing", {"precision": "fp16", "checkpointing": "full"}),
    "streamed": ("Text", LORA | {"precision": "fp16", "streamed_blocks": 2, "checkpointing": "1"}),
}
"""The recipe and its values."""
SLOW_CASES = {
    "plain": ("Text", {}),
    "recomputed": ("Text", {"checkpointing": "full"}),
    "LoRA": ("Text", LORA | {"precision": "fp16"}),
    "offload": ("Text", {"offload": "optimizer"}),
    "workers": ("Text", {"workers": 1}),
    "fused": ("Text", {"optimizer_kernel": "fused", "precision": "fp16"}),
    "teacher": ("Teacher", {"precision": "fp16"}),
}


def run_of(name, folder, **values):
    recipe, own = (CASES | SLOW_CASES)[name]
    return {"recipe": recipe, "run": str(folder / name), "values": VALUES | own | values}


@pytest.mark.parametrize(
    "names", [CASES, pytest.param(CASES | SLOW_CASES, marks=pytest.mark.slow)], ids=["some", "all"]
)
def test_two_gpus_have_the_bits_of_one_also_after_a_stop(ranks_on, tmp_path, names):
    driver = ranks_on("kaggle-t4x2")
    one, two, moved = (tmp_path / name for name in ("one", "two", "moved"))
    runs = [
        *(run_of(name, one) for name in names),
        *(run_of(name, two, **PIPELINE) for name in names),
        *({**run_of(name, moved, **PIPELINE), "last_stop": "SIGTERM", "last_at": 9} for name in names),
        *(run_of(name, moved) for name in names),
    ]
    (peaks,) = driver.run(1, pipelined.devices_of, runs=runs, seconds=500)
    for name, (first, second) in zip(names, peaks[len(names) :], strict=False):
        expected = final_checkpoint(one / name)
        assert final_checkpoint(two / name) == expected, name
        assert final_checkpoint(moved / name) == expected, name
        assert first and second
    assert all(second == 0 for _, second in peaks[: len(names)])


@pytest.mark.parametrize("streamed", [0, pytest.param(4, marks=pytest.mark.slow)])
def test_weights_in_4_bits_are_divided_too(ranks_on, tmp_path, streamed):
    pytest.importorskip("bitsandbytes")
    values = {"micro_batch": 3, "lora_r": 2, "quantization": "nf4", "double_quantization": True}
    runs = [
        {"run": str(tmp_path / "one"), "values": values},
        {"run": str(tmp_path / "two"), "values": {**values, **PIPELINE, "streamed_blocks": streamed}},
    ]
    ((_, (first, second)),) = ranks_on("kaggle-t4x2").run(1, pipelined.train_in_4_bits, runs=runs, seconds=300)
    assert first and second
    assert final_checkpoint(tmp_path / "two") == final_checkpoint(tmp_path / "one")


@pytest.mark.parametrize(
    "values",
    [
        pytest.param({"precision": "fp16", "micro_batch": 4}, marks=pytest.mark.slow),
        pytest.param({"precision": "fp32", "micro_batch": 4, "checkpointing": "full"}, marks=pytest.mark.slow),
        {"precision": "fp16", "micro_batch": 8, "checkpointing": "3", **LORA, "streamed_blocks": 4},
    ],
    ids=str,
)
def test_peaks_of_both_gpus_are_those_of_the_estimate(ranks_on, tmp_path, values):
    target, values = find("kaggle-t4x2"), values | PIPELINE
    driver = ranks_on("kaggle-t4x2")
    (peaks,) = driver.run(1, pipelined.peak_of_wide, run=tmp_path / "run", values=values, seconds=300)
    loaded, settings = choose(pipelined.Wide(), values)
    with Tracer(loaded) as tracer:
        trace = trace_settings(tracer, loaded, target, settings)
    first = memory_of(replace(trace, second=None), loaded, target, settings)
    second = memory_of(trace.second, loaded, target, settings)
    assert peaks == [pytest.approx(part.allocated.value, rel=0.02) for part in (first, second)]


def test_passes_within_a_pass_and_frozen_weights_cross_the_boundary(run_simulated):
    """Random numbers go on behind the boundary, and a frozen weight is copied again once it has changed."""
    code = """
    from collections import namedtuple
    import torch
    from torch import nn
    from shoestring.techniques.pipeline.crossing import Crossing
    first, second = torch.device("cuda", 0), torch.device("cuda", 1)
    crossing = Crossing(first, second)
    Pair = namedtuple("Pair", "left right")
    weight = nn.Parameter(torch.ones(3, device=first), requires_grad=False)
    torch.manual_seed(1)
    expected = [torch.rand(3, device=first) for _ in range(2)][1].cpu()
    torch.manual_seed(1)
    torch.rand(3, device=first)
    with crossing.passing(trains=True):
        pair = crossing.enter(Pair(weight, 7), is_second=True)
        assert isinstance(pair, Pair) and pair.left.device == second and pair.right == 7
        assert crossing.copy_beyond(weight) is pair.left
        weight.add_(1)
        assert crossing.copy_beyond(weight).tolist() == [2.0] * 3
        with crossing.passing(trains=False):
            assert not crossing.trains
        assert crossing.trains
        print(torch.equal(torch.rand(3, device=second).cpu(), expected))
    """
    assert run_simulated(code, on="kaggle-t4x2").lines == ["True"]
