"""What loading allocates and frees: by hand, and compared with recordings of bitsandbytes, transformers and peft."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from importlib.metadata import version
from typing import Any

import pytest

KIB = 1024

Record = list[int]
"""The bytes of storages that loading allocates, and with a minus sign frees, in order."""


@pytest.fixture(scope="module")
def records() -> dict[str, Record]:
    process = subprocess.run([sys.executable, "-W", "ignore", __file__], stdout=subprocess.PIPE, check=True, text=True)
    answer: dict[str, Record] = json.loads(process.stdout.splitlines()[-1])
    return answer


def test_a_layer_packs_its_weight_on_the_device(records: dict[str, Record]) -> None:
    # Two layers of 256 x 128 in fp16: the weight; half a byte for each value; a bias; a table of 16 numbers; a
    # scale for every 64 values. The first has adapters of rank 4 in fp32. The last layer, of 2 x 2, is not packed.
    weight, packed, table, scales, bias = 64 * KIB, 16 * KIB, 64, 2 * KIB, 512
    assert records["linear, engine"] == [
        *(weight, packed, table, scales, -weight),
        *(2 * KIB, 4 * KIB),
        *(weight, packed, bias, table, scales, -weight),
        16,
    ]


def test_a_cpu_has_all_unpacked_weights_from_the_start(records: dict[str, Record]) -> None:
    weight = 64 * KIB
    record = records["linear, engine on a CPU"]
    assert record[:2] == [weight, weight]
    assert [size for size in record if abs(size) == weight] == [weight, weight, -weight, -weight]


@pytest.mark.parametrize("way", ["engine", "engine on a CPU"])
def test_a_weight_that_files_have_in_4_bits_is_never_unpacked(records: dict[str, Record], way: str) -> None:
    weight = 64 * KIB
    packed_here = [size for size in records[f"linear, {way}"] if abs(size) != weight]
    assert records[f"packed in files, {way}"] == packed_here


def test_transformers_loads_16_bits_and_peft_casts_them_last(records: dict[str, Record]) -> None:
    # An embedding and a head of 1024 x 64, a layer of 64 x 64 without bias and with adapters of rank 4, a norm of 64.
    table, weight, packed, layer_table, scales = 128 * KIB, 8 * KIB, 2 * KIB, 64, 256
    norm = 2 * 64
    all_at_once = 2 * table + packed + 2 * norm
    assert records["untied, transformers"] == [
        *(all_at_once, -all_at_once),
        table,  # "embedding"
        table,  # "head"
        *(weight, packed, layer_table, scales, -weight),
        *(norm, norm),
        *(2 * table, -table),
        *(2 * norm, -norm, 2 * norm, -norm),
        *(2 * table, -table),
        *(KIB // 2, KIB // 2, KIB, -KIB // 2, KIB, -KIB // 2),  # adapters
    ]


def test_a_tied_weight_is_loaded_once(records: dict[str, Record]) -> None:
    table = 128 * KIB
    record = [size for size in records["tied, transformers"][2:] if abs(size) >= table]
    assert record == [table, 2 * table, -table]


def test_packing_is_that_of_bitsandbytes(records: dict[str, Record]) -> None:
    recorded = records["llama, engine, recorded"]
    simulated = records["llama, engine, simulated"]
    # For each layer: packed weight, scales, and the unpacked weight that is freed. Nothing else is copied on a CPU.
    packing = [simulated[end - 2 : end + 1] for end, size in enumerate(simulated) if size == -4 * simulated[end - 2]]
    assert len(packing) == 2 * 7
    assert recorded == [size for layer in packing for size in layer]


def test_loading_is_that_of_transformers_and_peft(records: dict[str, Record]) -> None:
    if version("transformers").startswith("4."):
        pytest.skip("transformers 4 loads in another way, with more allocations; transformers 5 is simulated")
    recorded, simulated = records["llama, transformers, recorded"], records["llama, transformers, simulated"]
    assert len(recorded) > 80
    if not has_order_of_names():
        # Other versions allocate and free the same, in another order.
        recorded, simulated = sorted(recorded), sorted(simulated)
    assert recorded == simulated


def has_order_of_names() -> bool:
    """Return whether transformers loads one weight after the other, in the order of their names, as 5.15 does.

    5.0 packs all 4-bit weights before the others (`core_model_loading.py`, one set of names after another).
    """
    return tuple(map(int, version("transformers").split(".")[:2])) >= (5, 15)


# The rest runs in a process of its own, because the simulated device cannot be unregistered.

NEGLIGIBLE = 64
"""Bytes of a layer's table, which bitsandbytes scales with temporaries of the same size."""


def _records() -> Iterator[tuple[str, Record]]:
    import torch
    from torch import nn

    from shoestring.planning.trace import loading, simulated_device
    from shoestring.planning.trace.event_log import EventLog
    from shoestring.planning.trace.recorder import Recorder
    from shoestring.recipe.adaptation import Adaptation
    from shoestring.techniques import adapt, nf4

    simulated_device.set_up()
    packing = Adaptation(quantization="nf4", weights="fp16", lora_r=4, lora_targets="layer")

    def simulated(
        build: Callable[[], nn.Module], adaptation: Adaptation, load: Callable[[EventLog, nn.Module], None]
    ) -> Record:
        with torch.device("meta"):
            model = adapt.model(build(), adaptation)
        with simulated_device.fake_mode(), Recorder() as recorder:
            load(recorder.log, model)
            return _record(recorder)

    def move_on_cpu(log: EventLog, model: nn.Module) -> None:
        loading.move_model(log, model, from_host=False)

    def linear() -> nn.Module:
        names = ("layer", "biased", "last")
        layers = (nn.Linear(128, 256, bias=False), nn.Linear(128, 256), nn.Linear(2, 2, bias=False))
        return nn.ModuleDict(dict(zip(names, layers, strict=True)))

    def with_head(*, tied: bool) -> nn.Module:
        model = nn.ModuleDict(
            {
                "embedding": nn.Embedding(1024, 64),
                "layer": nn.Linear(64, 64, bias=False),
                "norm": nn.LayerNorm(64),
                "head": nn.Linear(64, 1024, bias=False),
            }
        )
        if tied:
            model["head"].weight = model["embedding"].weight
        return model

    yield "linear, engine", simulated(linear, packing, loading.move_model)
    yield "linear, engine on a CPU", simulated(linear, packing, move_on_cpu)

    def packed_in_files() -> nn.Module:
        model: Any = linear()
        model.packed_in_files = nf4.PackedInFiles(layers=frozenset({"layer", "biased"}), double=False)
        packed: nn.Module = model
        return packed

    yield "packed in files, engine", simulated(packed_in_files, packing, loading.move_model)
    yield "packed in files, engine on a CPU", simulated(packed_in_files, packing, move_on_cpu)
    for name, tied in (("untied", False), ("tied", True)):
        record = simulated(lambda tied=tied: with_head(tied=tied), packing, loading.load_with_transformers)
        yield f"{name}, transformers", record
    adaptation = Adaptation(quantization="nf4", weights="fp16", lora_r=4, lora_targets="q_proj,v_proj")
    yield "llama, engine, simulated", _large(simulated(_llama, adaptation, loading.move_model))
    yield "llama, engine, recorded", _recorded_engine(adaptation)
    # There is no warm-up of the allocator on a CPU: the first allocation and its release.
    yield "llama, transformers, simulated", _large(simulated(_llama, adaptation, loading.load_with_transformers)[2:])
    yield "llama, transformers, recorded", _recorded_transformers()


def _llama() -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "vocab_size": 512}
    return LlamaForCausalLM(LlamaConfig(num_attention_heads=4, num_key_value_heads=2, **sizes))


def _recorded_engine(adaptation: Any) -> Record:
    """Return the record of the engine's moving a model to a CPU, where its unpacked weights are already."""
    import torch

    from shoestring.base.settings import Settings
    from shoestring.planning.trace.recorder import Recorder, real
    from shoestring.techniques import adapt, deferred_casts

    with Recorder(watched=real) as recorder:
        model = deferred_casts.convert_all(adapt.trained_model(_llama(), adaptation, Settings()))
        start = len(_record(recorder))
        model.to(torch.device("cpu"))
        return _large(_record(recorder)[start:])


def _recorded_transformers() -> Record:
    """Return the record of the libraries' loading on a CPU.

    It is without fp32 tensors that are cast to 16 bits: those of the files, and adapters as peft makes them. They are
    in host memory when the model is on a GPU.
    """
    import torch
    from peft import LoraConfig, get_peft_model, prepare_model_for_kbit_training
    from transformers import AutoModelForCausalLM, BitsAndBytesConfig

    from shoestring.planning.trace.recorder import Recorder, real

    quantization: Any = BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.float16
    )
    with tempfile.TemporaryDirectory() as folder:
        _llama().save_pretrained(folder)
        with Recorder(watched=real) as recorder:
            model = AutoModelForCausalLM.from_pretrained(
                folder, dtype=torch.float16, quantization_config=quantization, device_map={"": "cpu"}
            )
            model = prepare_model_for_kbit_training(model, use_gradient_checkpointing=False)
            get_peft_model(model, LoraConfig(r=4, target_modules=["q_proj", "v_proj"]))
            return _large(_record(recorder, without_fp32=True))


def _record(recorder: Any, *, without_fp32: bool = False) -> Record:
    from shoestring.planning.trace.record import Alloc, Free

    storages, all_events = recorder.log.record()
    sizes = [storage.bytes for storage in storages]
    events = [event for event in all_events if isinstance(event, Alloc | Free)]
    dropped = {
        event.storage
        for previous, event in itertools.pairwise(events)
        if isinstance(previous, Alloc) and isinstance(event, Free)
        if sizes[event.storage] == 2 * sizes[previous.storage]
    }
    return [
        sizes[event.storage] * (1 if isinstance(event, Alloc) else -1)
        for event in events
        if not (without_fp32 and event.storage in dropped)
    ]


def _large(record: Record) -> Record:
    return [size for size in record if abs(size) > NEGLIGIBLE]


if __name__ == "__main__":
    print(json.dumps(dict(_records())))  # noqa: T201
