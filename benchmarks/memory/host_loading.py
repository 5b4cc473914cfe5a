"""The host memory of loading a model with adapters, beside what a plan predicts for it.

    python -m benchmarks.memory.host_loading [--json OUT]

A random model of the shape `SHAPE` is written to TMPDIR in files of 50 MB, in each of the types, and loaded in
processes of its own. Memory is what the operating system cannot take back (`RssAnon` and `RssShmem` of
/proc/PID/status, every millisecond), less what the process had before it read the model. There is no GPU: where a
weight would move to it, or be packed on it, it is replaced by a tensor of the same shape without memory, so that the
host has what it would have beside a GPU.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parents[1] / "results"
SHAPE: dict[str, Any] = {
    "vocab_size": 32000,
    "hidden_size": 1024,
    "intermediate_size": 2816,
    "num_hidden_layers": 16,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
}
CASES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("float16", {"weights": "fp16"}),
    ("bfloat16", {"weights": "fp16"}),
    ("bfloat16", {"weights": "fp32"}),
    ("float32", {"weights": "fp16", "quantization": "nf4"}),
    ("float32", {"weights": "fp16", "quantization": "nf4", "unquantized": "own"}),
)
"""The type of the files, and the options of the recipe `finetune`."""
STREAMED = (0, SHAPE["num_hidden_layers"])
OPTIONS = {"lora_r": 16, "lora_targets": "linear", "seq_len": 64, "effective_batch": 1}


def write_model(folder: Path, dtype: str) -> int:
    """Write the model and a tokenizer, and return the bytes of the weights."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    from shoestring_recipes.finetune.tiny import train_tokenizer

    torch.manual_seed(0)
    model = Qwen2ForCausalLM(Qwen2Config(**SHAPE)).to(getattr(torch, dtype))
    model.save_pretrained(folder, max_shard_size="50MB")
    train_tokenizer(["What is a text?"]).save_pretrained(folder)
    return sum(weight.nbytes for weight in model.parameters())


class Peak(threading.Thread):
    """The peak of memory of this process that cannot be taken back, in bytes above that at the start."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self._first, self.bytes = resident_bytes(), 0
        self.start()

    def run(self) -> None:
        """Sample until the process ends."""
        while True:
            self.bytes = max(self.bytes, resident_bytes() - self._first)
            time.sleep(0.001)


def resident_bytes() -> int:
    """Return the bytes of anonymous and shared memory of this process."""
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return sum(int(fields[name].split()[0]) * 1024 for name in ("RssAnon", "RssShmem"))


def load(task: dict[str, Any]) -> dict[str, int]:
    """Load a model in this process, and return its peak of memory."""
    import torch

    from shoestring.recipe.finding import choose
    from shoestring.techniques import adapt
    from shoestring.training.engine.assembly import DevicePlace

    loaded, settings = choose("finetune", {**OPTIONS, **task["options"], "model": task["model"]})
    with torch.device("meta"):  # a plan counts modules and libraries as a part of the process
        planned = adapt.planned_model(loaded)
    peak = Peak()
    del planned
    place = DevicePlace(device=torch.device("cpu"))
    model = place.model(loaded, settings)
    replace_moves()
    place.move(model, loaded, settings)
    time.sleep(0.01)
    return {"measured": peak.bytes}


def replace_moves() -> None:
    """Let tensors that are moved to a device, or packed there, have no memory from now on."""
    import torch
    from bitsandbytes.functional import QuantState
    from bitsandbytes.nn import Params4bit

    tensor_class: Any = torch.Tensor
    plain_to = tensor_class.to

    def without_memory(shape: Any, dtype: torch.dtype) -> torch.Tensor:
        return torch.zeros((), dtype=dtype).expand(shape)

    def moved(self: Any, *arguments: Any, **options: Any) -> Any:
        if arguments and isinstance(arguments[0], torch.device):
            return without_memory(self.shape, self.dtype)
        return plain_to(self, *arguments, **options)

    def packed(self: Any, _device: torch.device) -> Any:
        shape, dtype, count = self.shape, self.dtype, self.numel()
        scales, table = without_memory((count // self.blocksize,), torch.float32), torch.zeros(16)
        self.data = without_memory((count // 2, 1), torch.uint8)
        self.quant_state = QuantState(scales, shape, table, self.blocksize, "nf4", dtype)
        self.module.quant_state, self.bnb_quantized = self.quant_state, True
        return self

    tensor_class.to = moved
    Params4bit._quantize = packed


def predict(model: Path, options: dict[str, Any]) -> dict[str, int]:
    """Return what a plan for a T4 predicts."""
    from shoestring.hardware.catalog import DEVICES
    from shoestring.planning.estimate.streaming import host_bytes
    from shoestring.planning.trace.tracer import Tracer
    from shoestring.recipe.finding import choose

    loaded, settings = choose("finetune", {**OPTIONS, **options, "model": str(model)})
    settings = settings.replace(micro_batch=1, precision="fp32")
    with Tracer(loaded) as tracer:
        trace = tracer.trace(settings, accumulate=1, device=DEVICES["t4"])
    return {"loading": trace.loading_host_bytes, "streamed": host_bytes(trace, settings.streamed_blocks)}


def in_process(task: dict[str, Any]) -> dict[str, int]:
    """Return what `load` returns in a new process."""
    command = [sys.executable, "-m", "benchmarks.memory.host_loading", "--task", json.dumps(task)]
    answer = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    result: dict[str, int] = json.loads(answer.splitlines()[-1])
    return result


def measure(folder: Path) -> list[dict[str, Any]]:
    """Return a row for each case."""
    rows = []
    sizes = {dtype: write_model(folder / dtype, dtype) for dtype in dict.fromkeys(dtype for dtype, _ in CASES)}
    for dtype, options in CASES:
        for streamed in STREAMED:
            values = {**options, "streamed_blocks": streamed}
            row = {"stored": dtype, "stored bytes": sizes[dtype], **values}
            row |= in_process({"model": str(folder / dtype), "options": values}) | predict(folder / dtype, values)
            rows.append(row)
            predicted = (row["loading"] + row["streamed"]) / 2**20
            print(f"{dtype} {values}: {row['measured'] / 2**20:.1f} MiB, predicted {predicted:.1f}", flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", type=Path, default=RESULTS / "host_loading.json")
    parser.add_argument("--task", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.task:
        print(json.dumps(load(json.loads(arguments.task))))
        return
    with tempfile.TemporaryDirectory() as folder:
        rows = measure(Path(folder))
    arguments.json.write_text(json.dumps({"shape": SHAPE, "options": OPTIONS, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
