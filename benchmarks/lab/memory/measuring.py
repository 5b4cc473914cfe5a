"""Measure the memory of configurations on simulated GPUs: a process that answers questions, one JSON on each line.

    python -m benchmarks.lab.memory.measuring < QUESTIONS > ANSWERS

A question contains `configuration`. An answer contains the peaks `loading`, `allocated` and `reserved` in bytes, and
`fits`; or `error`. With streamed blocks it also contains the bytes `host` that these have in host memory. Each question
is answered in processes of its own, one for each GPU, which are forked from this one before it uses CUDA: so nothing of
the configuration before remains, and transformers is imported once.
"""

import json
import os
import socket
import sys
import tempfile
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from benchmarks.lab.memory import host, requested
from benchmarks.lab.memory.configurations import Configuration
from benchmarks.lab.memory.serving import serve

from shoestring.base.settings import Settings
from shoestring.recipe.losses import clip_norm, losses_by_stage
from shoestring.recipe.options import LoadedRecipe
from shoestring.techniques import nested
from shoestring.training.data.batches import to_device
from shoestring.training.data.logical_shards import LogicalShards
from shoestring.training.engine.assembly import strategy
from shoestring.training.engine.building import build
from shoestring.training.engine.determinism import deterministic
from shoestring.training.engine.evaluation_mode import evaluation_mode
from shoestring.training.engine.memory import out_of_memory_message
from shoestring.training.engine.parallel import joining
from shoestring.training.engine.parallel.ranks import Ranks
from shoestring.training.engine.state import TrainingState
from shoestring.training.engine.update import mean_loss

UPDATES = 4
"""The first makes the optimizer's states, the second has its peak beside them, and two more confirm that peak."""

MICROBATCHES = 2
"""In each update: the second one adds to the gradients of the first. All further ones repeat it."""

_WRITERS = ("normal_", "uniform_", "erfinv_", "trunc_normal_", "kaiming_uniform_", "xavier_uniform_", "xavier_normal_")


def measure(configuration: Configuration, rank: int) -> dict[str, Any]:
    """Run a configuration on a GPU that nothing has used yet, as one of its ranks, and return its peaks in bytes."""
    ranked = (configuration.settings.gpus or 1) > 1
    if configuration.settings.allocator == "expandable":
        torch._C._accelerator_setAllocatorSettings("expandable_segments:True")
    with tempfile.TemporaryDirectory() as folder, deterministic():
        device = joining.join(torch.device("cuda", rank)) if ranked else torch.device("cuda", 0)
        ranks = Ranks.join()
        loaded = configuration.load(Path(folder))
        assert not torch.cuda.memory_reserved(device)
        if configuration.records:
            requested.record()
        shared_before = host.shared_bytes()
        peaks: dict[str, Any] = {"fits": True}
        try:
            with without_initial_values():
                state = build(loaded, configuration.settings, device, ranks=ranks)
            peaks["loading"] = torch.cuda.max_memory_reserved(device)
            if configuration.work == "updates":
                _make_updates(configuration, loaded, state, device, ranks)
            else:
                _evaluate(configuration, loaded, state, device)
            torch.cuda.synchronize(device)
            if configuration.settings.streamed_blocks:
                peaks["host"] = host.streamed_bytes(state.model, shared_before)
        except Exception as error:
            if out_of_memory_message(error) is None:
                raise
            peaks["fits"] = False
        statistics = torch.cuda.memory_stats(device)
        names = {"allocated": "allocated_bytes.all.peak", "reserved": "reserved_bytes.all.peak"}
        names |= {"requested": "requested_bytes.all.peak", "retries": "num_alloc_retries"}
        peaks |= {name: statistics.get(key, 0) for name, key in names.items()}
        return peaks | ({"requests": requested.recorded(device)} if configuration.records else {})


def _microbatches(
    configuration: Configuration, loaded: LoadedRecipe, device: torch.device, count: int, *, first_share: float = 1.0
) -> Iterator[tuple[Any, int]]:
    settings = configuration.settings
    assert settings.micro_batch
    make_batch = loaded.parts.data.packed_batch if settings.packing == "yes" else None
    for number in range(count):
        batch = (make_batch or loaded.recipe.batch)(settings.micro_batch)
        if number == 0 and first_share < 1:
            batch = nested.replaced(batch, partial(_shortened, share=first_share), lambda value: value)
        yield to_device(batch, device, settings.memory_format), settings.micro_batch


def _microbatches_of(
    lengths: Sequence[int], loaded: LoadedRecipe, device: torch.device, settings: Settings
) -> Iterator[tuple[Any, int]]:
    assert settings.micro_batch
    for length in lengths:
        batch = loaded.replace(seq_len=length).recipe.batch(settings.micro_batch)
        yield to_device(batch, device, settings.memory_format), settings.micro_batch


def _shortened(tensor: torch.Tensor, *, share: float) -> torch.Tensor:
    """Return a share of the positions of a tensor of (samples, positions); others as they are."""
    return tensor[:, : round(tensor.shape[1] * share)] if tensor.ndim == 2 else tensor


def _make_updates(
    configuration: Configuration, loaded: LoadedRecipe, state: TrainingState, device: torch.device, ranks: Ranks
) -> None:
    """Make the updates as `training/steps.py` does."""
    settings = configuration.settings
    (loss,) = losses_by_stage(loaded.recipe)
    shards = LogicalShards.of_rank(settings.logical_shards or ranks.size, ranks.rank, ranks.size)
    updates = strategy(state, shards, ranks, device, seed=loaded.seed)
    arguments: dict[str, Any] = {
        "samples": MICROBATCHES * (settings.micro_batch or 1) * shards.count,
        "mixed_precision": state.mixed_precision,
        "clip_norm": clip_norm(loaded.parts, loss),
        "run": state.cuda_graphs,
    }
    if configuration.lengths:
        for number, lengths in enumerate(configuration.lengths):
            samples = len(lengths) * (settings.micro_batch or 1)
            batches = _microbatches_of(lengths, loaded, device, settings)
            result = updates.update(loss, number, [(shards.own[0], batches)], **{**arguments, "samples": samples})
            if not getattr(result, "stepped", False):
                raise RuntimeError(f"update {number} made no step: {result}")
        return
    for number in range(UPDATES):
        share = 1.0 if number else configuration.first_share
        batches = _microbatches(configuration, loaded, device, MICROBATCHES * len(shards.own), first_share=share)
        by_shard = ((shard, islice(batches, MICROBATCHES)) for shard in shards.own)
        result = updates.update(loss, number, by_shard, **arguments)
        if not getattr(result, "stepped", False):
            raise RuntimeError(f"update {number} made no step: {result}")
        if state.averages:
            state.averages.add()


def _evaluate(configuration: Configuration, loaded: LoadedRecipe, state: TrainingState, device: torch.device) -> None:
    """Compute the loss of batches as `training/evaluation.py` does; the optimizer has no states yet."""
    (loss,) = losses_by_stage(loaded.recipe)
    with evaluation_mode(state.model), torch.no_grad(), state.mixed_precision.autocast():
        mean_loss(loss, state.model, _microbatches(configuration, loaded, device, MICROBATCHES))


@contextmanager
def without_initial_values() -> Iterator[None]:
    """Let functions that draw a model's initial weights do nothing, since no value is used and drawing takes long."""

    def leave(tensor: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
        return tensor

    owners = [(owner, name) for owner in (torch.Tensor, torch.nn.init) for name in _WRITERS if hasattr(owner, name)]
    before = [(owner, name, vars(owner).get(name)) for owner, name in owners]
    for owner, name in owners:
        setattr(owner, name, leave)
    try:
        yield
    finally:
        for owner, name, function in before:
            if function is None:
                delattr(owner, name)  # the method of a base class is in effect again
            else:
                setattr(owner, name, function)


def answer(question: Mapping[str, Any]) -> dict[str, Any]:
    """Fork a process for each GPU of the question and return the first one's answer, or an error of any of them."""
    configuration = Configuration.from_json(question["configuration"])
    gpus = configuration.settings.gpus or 1
    launcher = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port())}
    launcher |= {"WORLD_SIZE": str(gpus), "LOCAL_WORLD_SIZE": str(gpus)}
    children = []
    for rank in range(gpus):
        reader, writer = os.pipe()
        if not (child := os.fork()):
            os.close(reader)
            if gpus > 1:
                os.environ.update(launcher, RANK=str(rank), LOCAL_RANK=str(rank))
            _answer_in_child(configuration, rank, writer)
        os.close(writer)
        children.append((child, reader))
    answers = []
    for child, reader in children:
        with os.fdopen(reader, encoding="utf-8") as stream:
            text = stream.read()
        _, status = os.waitpid(child, 0)
        answers.append(json.loads(text) if text else {"error": f"the process ended with status {status}"})
    return next((item for item in answers if "error" in item), answers[0])


def _answer_in_child(configuration: Configuration, rank: int, writer: int) -> None:
    try:
        result = measure(configuration, rank)
    except BaseException as error:  # noqa: BLE001 - a configuration that fails is a row
        traceback.print_exc(file=sys.stderr)
        result = {"error": f"{type(error).__name__}: {str(error)[:500]}"}
    with suppress(BrokenPipeError), os.fdopen(writer, "w", encoding="utf-8") as stream:
        json.dump(result, stream)
    sys.stderr.flush()
    os._exit(0)


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


if __name__ == "__main__":
    raise SystemExit(serve(answer))
