"""ddp and zero1: 1, 2 and 4 GPUs end in the same bits, over NCCL, and in the numbers of the CPU."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load

from shoestring.training.checkpoint.checksums import checksum, on_host
from tests.lab.ranks import training
from tests.sessions import final_bits, final_checkpoint

VALUES = {"logical_shards": 4, "micro_batch": 2, "save_every_updates": 3}
LORA = {"lora_r": 2, "lora_targets": "linear", "lora_dropout": 0.1}
CASES = {
    "buffers": ("Tokens", {"ema": 0.5}),
    "fp16": ("Overflowing", {"precision": "fp16", "checkpointing": "full"}),
    "weights on the host": ("Text", {"offload": "parameters"}),
}
"""The recipe and its values."""
SLOW_CASES = {
    "averages": ("Text", {"checkpointing": "1", "ema": 0.5}),
    "bf16": ("Text", {"precision": "bf16"}),
    "channels_last": ("Tokens", {"memory_format": "channels_last"}),
    "fused": ("Text", {"optimizer_kernel": "fused", "precision": "fp16"}),
    "LSTM": ("temporal", {"size": "tiny", "architecture": "lstm", "epochs": 2, "max_updates": 6}),
    "legal": ("legal", {"size": "tiny", "epochs": 1, "max_updates": 4}),
    "workers": ("Text", {"workers": 1}),
    "offload": ("Text", {"offload": "optimizer"}),
    "LoRA": ("Text", LORA | {"precision": "fp16"}),
}
SOME = {
    1: [(name, "ddp") for name in CASES],
    2: [("buffers", "zero1"), ("fp16", "ddp"), ("weights on the host", "zero1")],
    4: [("buffers", "ddp"), ("fp16", "zero1")],
}
ALL = {
    1: [(name, "ddp") for name in CASES | SLOW_CASES],
    2: [(name, "zero1") for name in CASES | SLOW_CASES],
    4: [(name, "ddp") for name in CASES | SLOW_CASES],
}
"""The names of cases with their shardings, by the number of GPUs."""


def run_of(name, sharding, folder):
    recipe, values = (CASES | SLOW_CASES)[name]
    return {
        "recipe": recipe,
        "run": str(folder / f"{name} {sharding}"),
        "values": VALUES | values | {"sharding": sharding},
    }


@pytest.mark.parametrize("pairs", [SOME, pytest.param(ALL, marks=pytest.mark.slow)], ids=["some", "all"])
def test_numbers_of_gpus_have_equal_bits(ranks_on, tmp_path, pairs):
    driver, overflows = ranks_on("kaggle-l4x4"), {}
    for size, cases in pairs.items():
        runs = [run_of(*case, tmp_path / str(size)) for case in cases]
        overflows[size] = driver.run(size, training.train_all, runs=runs, seconds=500)
    for size, cases in pairs.items():
        for name, sharding in cases:
            bits = final_checkpoint if name == "LoRA" else final_bits  # whose light weights are peft's
            expected, actual = bits(tmp_path / "1" / f"{name} ddp"), bits(tmp_path / str(size) / f"{name} {sharding}")
            assert actual == expected, (name, size, sharding)
    fp16 = [name for name, _ in pairs[4]].index("fp16")
    # On one GPU only, and all repeat the update with a smaller scale.
    assert sum(each[fp16] > 0 for each in overflows[4]) == 1


def test_teachers_are_equal_on_one_gpu_and_on_two(ranks_on, tmp_path):
    """The frozen weights that the recipe changes itself, also after skipped steps, and after a stop on two GPUs."""
    driver, fp16 = ranks_on("kaggle-l4x4"), {"precision": "fp16"}
    alone, *two = (
        {"recipe": "Teacher", "run": str(tmp_path / name), "values": VALUES | fp16 | {"sharding": sharding}}
        for name, sharding in (("alone", "ddp"), ("ddp", "ddp"), ("zero1", "zero1"))
    )
    assert driver.run(1, training.train_all, runs=[alone])[0][0] > 0
    driver.run(2, training.train_all, runs=[two[0], {**two[1], "last_stop": "SIGTERM", "last_at": 5}, two[1]])
    bits = final_bits(tmp_path / "alone")
    assert {"layers.0.q_proj.weight", "noise"} <= load(bits["model"]).keys()
    assert [name for name in ("ddp", "zero1") if final_bits(tmp_path / name) != bits] == []
    divided = {**alone, "run": str(tmp_path / "zero3"), "values": VALUES | {"sharding": "zero3"}}
    answers = driver.call(2, training.train_all, runs=[divided])
    assert answers.statuses == [1, 1] and "after_update() needs whole weights" in answers.output


EXCHANGED = [
    ("Overflowing", "ddp", "fp16"),
    ("Text", "zero1", "fp32"),
    ("Text", "ddp", "bf16"),
    ("Overflowing", "zero1", "fp16"),
]


@pytest.mark.parametrize("cases", [EXCHANGED[:2], pytest.param(EXCHANGED, marks=pytest.mark.slow)], ids=["some", "all"])
def test_exchange_during_backward_changes_no_bit(ranks_on, tmp_path, cases):
    """In a stream beside backward, in messages of several tensors and in pieces of one."""
    driver = ranks_on("kaggle-l4x4")
    runs = {
        size: [
            {
                "recipe": recipe,
                "run": str(tmp_path / f"{size} {recipe} {sharding}"),
                "values": VALUES | {"sharding": sharding, "precision": precision},
            }
            for recipe, sharding, precision in cases
        ]
        for size in (1, 2)
    }
    assert driver.run(1, training.train_in_small_messages, runs=runs[1]) == [[0, 0]]
    started = driver.run(2, training.train_in_small_messages, runs=runs[2])
    assert all(during > 40 for during, _ in started), started
    for alone, two in zip(runs[1], runs[2], strict=True):
        assert final_bits(Path(two["run"])) == final_bits(Path(alone["run"])), two["run"]


def test_gpus_learn_as_processes_on_the_cpu(ranks_on, tmp_path):
    """Over NCCL and over gloo, without random numbers, which are others on the CPU."""
    driver = ranks_on("kaggle-l4x4")
    values = VALUES | {"ema": 0.5}
    for device in ("cuda", "cpu"):
        runs = [
            {"recipe": recipe, "run": str(tmp_path / f"{recipe} {device}"), "values": values | {"sharding": sharding}}
            for recipe, sharding in (("Plain", "ddp"), ("PlainText", "zero1"))
        ]
        driver.run(2, training.train_all, runs=runs, device=device)
    for recipe in ("Plain", "PlainText"):
        gpu, cpu = (final_checkpoint(tmp_path / f"{recipe} {device}") for device in ("cuda", "cpu"))
        for section in ("model", "averaged", "optimizer"):
            expected, actual = load(cpu[section]), load(gpu[section])
            # Moving a model to a GPU makes two copies of a buffer that two modules share.
            assert set(actual) - set(expected) <= {"embedding.largest"} and set(expected) <= set(actual)
            for name, tensor in expected.items():
                torch.testing.assert_close(actual[name], tensor, rtol=1e-4, atol=1e-6)
        assert gpu["metrics"]["validation"]["loss"] == pytest.approx(cpu["metrics"]["validation"]["loss"], rel=1e-5)


@pytest.mark.slow
def test_processes_that_share_a_gpu_communicate_over_gloo(ranks_on, tmp_path):
    driver = ranks_on("kaggle-t4")
    for size, shardings in ((1, ["ddp"]), (2, ["ddp", "zero1"])):
        driver.run(size, training.train_all, runs=[run_of("buffers", each, tmp_path / str(size)) for each in shardings])
    bits = final_bits(tmp_path / "1" / "buffers ddp")
    assert all(final_bits(tmp_path / "2" / f"buffers {sharding}") == bits for sharding in ("ddp", "zero1"))


def test_comparison_of_replicas_needs_little_memory():
    tensor = torch.ones(2**24, device="cuda")
    before = torch.cuda.memory_allocated()
    assert int(checksum(tensor)) == int(checksum(tensor.cpu()))
    assert torch.cuda.max_memory_allocated() - before <= 2**20


def test_weights_in_both_memories_are_compared():
    scalars = [torch.tensor(2), torch.tensor(3, device="cuda")]  # as with offload=parameters
    assert on_host(scalars).tolist() == [2, 3] and on_host(scalars[:1]).tolist() == [2]


@pytest.mark.slow
def test_stopped_run_continues_on_other_numbers_of_gpus(ranks_on, tmp_path):
    driver = ranks_on("kaggle-l4x4")
    straight, moved = (run_of("buffers", "zero1", tmp_path / name) for name in ("straight", "moved"))
    driver.run(1, training.train_all, runs=[straight])
    for size, stop, at in ((2, "SIGTERM", 5), (1, "SIGTERM", 3), (4, "limit", 2), (2, "", 0)):
        driver.run(size, training.train_all, runs=[{**moved, "last_stop": stop, "last_at": at}])
    assert final_bits(tmp_path / "moved" / "buffers zero1") == final_bits(tmp_path / "straight" / "buffers zero1")
