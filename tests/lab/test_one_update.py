"""The engine's update on a GPU and its trace request the same blocks from the allocator, in the same order.

Each technique and each way to use several processes is tried with a small model; those that change kernels alone are
tried by `make lab` only.
"""

import re
from contextlib import ExitStack

import pytest
from benchmarks.lab.memory.configurations import Configuration
from benchmarks.lab.memory.predictions import MEMORY_BYTES
from benchmarks.lab.memory.processes import started

from shoestring.base.settings import Settings
from tests.slow import slow_except

SIDES = ("measuring", "estimating")
TEXTS = {"model": "gpt2-tiny", "options": {"seq_len": 32}}
IMAGES = {"model": "resnet-tiny", "options": {}}
TWO = {"gpus": 2, "logical_shards": 2}


def texts(**options):
    return {**TEXTS, "options": {**TEXTS["options"], **options}}


CASES = {
    "fp32": (TEXTS, {}),
    "fp16": (TEXTS, {"precision": "fp16"}),
    "checkpointing": (TEXTS, {"precision": "fp16", "checkpointing": "full"}),
    "checkpointing of two blocks": (TEXTS, {"checkpointing": "2"}),
    "offload of the optimizer": (TEXTS, {"precision": "fp16", "offload": "optimizer"}),
    "offload of parameters": (TEXTS, {"offload": "parameters"}),
    "offload of parameters, checkpointing": (TEXTS, {"offload": "parameters", "checkpointing": "full"}),
    "averaged weights": (texts(ema=0.9), {}),
    "adapters": (texts(lora_r=4), {"precision": "fp16"}),
    "streamed blocks": (texts(lora_r=4), {"precision": "fp16", "streamed_blocks": 2}),
    "streamed blocks, checkpointing": (texts(lora_r=4), {"streamed_blocks": 2, "checkpointing": "full"}),
    "loss in chunks": (texts(loss_chunk=16), {}),
    "one parameter at a time": (TEXTS, {"optimizer_kernel": "for-loop"}),
    "one kernel for all parameters": (TEXTS, {"precision": "fp16", "optimizer_kernel": "fused"}),
    "Adafactor": (texts(optimizer="adafactor"), {}),
    "SGD": (texts(optimizer="sgd"), {}),
    "logical shards": (TEXTS, {"precision": "fp16", "logical_shards": 4}),
    "replicas": (TEXTS, {**TWO, "precision": "fp16"}),
    "replicas of several shards": (TEXTS, {**TWO, "logical_shards": 4}),
    "zero1": (TEXTS, {**TWO, "sharding": "zero1"}),
    "replicas, offload of parameters": (TEXTS, {**TWO, "offload": "parameters"}),
    "zero1, offload of the optimizer": (TEXTS, {**TWO, "sharding": "zero1", "offload": "optimizer"}),
    "zero2": (TEXTS, {**TWO, "sharding": "zero2"}),
    "zero2, offload of the optimizer": (TEXTS, {**TWO, "sharding": "zero2", "offload": "optimizer"}),
    "zero3, offload of parameters": (TEXTS, {**TWO, "sharding": "zero3", "offload": "parameters"}),
    "zero3, checkpointing": (TEXTS, {**TWO, "sharding": "zero3", "precision": "fp16", "checkpointing": "full"}),
    "TF32": (TEXTS, {"tf32": True}),
    "BatchNorm": (IMAGES, {}),
    "BatchNorm, channels last": (IMAGES, {"memory_format": "channels_last", "precision": "fp16"}),
    "BatchNorm in logical shards": (IMAGES, {"logical_shards": 2}),
    "BatchNorm in replicas": (IMAGES, TWO),
}
IN_CI = ("checkpointing", "offload of parameters", "zero1", "zero3, checkpointing", "BatchNorm in logical shards")

UNTRACED = r"transformers/masking_utils|training/checkpoint/checksums"
"""transformers reads the values of a mask, to leave out one that masks nothing; a trace has no values. Checksums of
frozen weights are computed before the first update and for each save; a trace has no saves."""

SCALARS_OF_SCATTERING = 8
"""The bytes of the scalars of deterministic `scatter_add_`, in the loss in chunks, which a trace does not have."""

LISTS_OF_FSDP = 2048
"""The bytes of the lists of sizes that FSDP2's kernels copy to the GPU. Its hooks are not traced:
`planning/trace/fsdp.py` has their order of events."""


@pytest.fixture(scope="module")
def ask(tmp_path_factory):
    """A function that returns the requests of a configuration, on a GPU and in its trace."""
    folder = tmp_path_factory.mktemp("logs")
    with ExitStack() as stack:
        processes = [
            stack.enter_context(started(side, on="kaggle-t4x2", memory_bytes=MEMORY_BYTES, log=folder / side))
            for side in SIDES
        ]

        def answers(configuration):
            both = [process.ask(configuration) for process in processes]
            assert not [answer["error"] for answer in both if "error" in answer]
            return [answer["requests"] for answer in both]

        yield answers


@pytest.mark.parametrize("case", slow_except(CASES, *IN_CI))
def test_the_trace_of_an_update_requests_what_the_engine_does(case, ask):
    model, settings = case
    configuration = Configuration(
        kind="",
        **model,
        settings=Settings(**{"micro_batch": 2, "precision": "fp32", "checkpointing": "no", **settings}),
        records=True,
    )
    is_divided = settings.get("sharding") in ("zero2", "zero3")
    is_scattering = "loss_chunk" in model["options"]
    least = LISTS_OF_FSDP if is_divided else SCALARS_OF_SCATTERING if is_scattering else 0
    on_gpu, traced = (
        [(size, origin) for size, origin in requests if size > least and not re.search(UNTRACED, origin)]
        for requests in ask(configuration)
    )
    assert len(traced) > 300
    if is_divided:  # the gradients of the weights outside of blocks are scaled before or after those of the last block
        on_gpu, traced = sorted(on_gpu), sorted(traced)
    first = next((index for index, (a, b) in enumerate(zip(on_gpu, traced, strict=False)) if a[0] != b[0]), None)
    assert first is None, f"{first}: {on_gpu[first - 2 : first + 3]} on the GPU, {traced[first - 2 : first + 3]} traced"
    assert len(on_gpu) == len(traced)
