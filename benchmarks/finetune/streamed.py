"""LoRA of a real language model with all blocks streamed from the disk, beside resident ones: results and host memory.

    python -m benchmarks.finetune.streamed MODEL [--weights fp32 | bf16] [--json OUT]

Each way trains, answers the same prompts, and is exported merged, in processes of its own. MODEL is a folder with
safetensors that `finetune` reads, such as SmolLM2-135M-Instruct. Memory that cannot be taken back is anonymous and
shared memory (`RssAnon` and `RssShmem` of /proc/PID/status, every 2 ms), less what the process had before it read the
model; pages of mapped files are not counted, because the operating system can take them back. All of it is on a CPU,
so what a GPU would have in its own memory, such as resident blocks and activations, is a part of it.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parents[1] / "results"
BLOCKS = 30
"""Of SmolLM2-135M."""
WAYS: dict[str, dict[str, Any]] = {
    "resident": {"streamed_blocks": 0},
    "streamed from the disk": {"streamed_blocks": BLOCKS, "stream_from": "disk"},
    "streamed from host memory": {"streamed_blocks": BLOCKS},
}
SAME = "is that of resident blocks"
TRAINED = ("resident", "streamed from the disk")
"""The others are only loaded."""
EPOCHS = {"fp32": 2, "bf16": 2}
"""By the type of the weights in training: one to which they are cast, and that of the files."""


class Peak(threading.Thread):
    """The peaks of kinds of memory of this process, in bytes above those at the start."""

    KINDS = ("RssAnon", "RssShmem", "RssFile")

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self._first = self._read()
        self.bytes = {"cannot be taken back": 0, "mapped files": 0}
        self.whole = dict.fromkeys(self.bytes, 0)
        """The same of the whole process, with what it had at the start."""
        self.start()

    def run(self) -> None:
        """Sample until the process ends."""
        while True:
            whole = self._read()
            above = {name: value - self._first[name] for name, value in whole.items()}
            for peaks, now in ((self.bytes, above), (self.whole, whole)):
                values = now["RssAnon"] + now["RssShmem"], now["RssFile"]
                for name, value in zip(peaks, values, strict=True):
                    peaks[name] = max(peaks[name], value)
            time.sleep(0.002)

    def _read(self) -> dict[str, int]:
        lines = Path("/proc/self/status").read_text().splitlines()
        fields = dict(line.split(":", 1) for line in lines)
        return {name: int(fields[name].split()[0]) * 1024 for name in self.KINDS}


def work(task: dict[str, Any]) -> dict[str, Any]:
    """Train or export in this process; return its result and its peak of memory."""
    import peft  # noqa: F401  (before memory is measured)
    import transformers.models.llama.modeling_llama  # noqa: F401

    import shoestring

    peak = Peak()
    run = Path(task["run"])
    if task["kind"] == "load":
        import torch

        from shoestring.recipe.finding import choose
        from shoestring.training.engine.building import build

        loaded, settings = choose("finetune", task["values"])
        build(loaded, settings.replace(micro_batch=1, precision="fp32"), torch.device("cpu"))
        result: dict[str, Any] = {}
    elif task["kind"] == "train":
        shoestring.train("finetune", run=run, on="cpu", probe=False, **task["values"])
        events = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
        result = {
            "updates": max(event["update"] for event in events if "update" in event),
            "validation losses": [event["metrics"]["loss"] for event in events if event["event"] == "evaluation"],
            "answers": [event["rows"] for event in events if event["event"] == "answers"],
            "adapter": digest(max((run / "checkpoints").glob("update-*")) / "model.safetensors"),
        }
    else:
        exported = shoestring.export(run, to="merged", out=task["out"])
        result = {
            "files": {path.name: digest(path) for path in sorted(Path(task["out"]).glob("*.safetensors"))},
            "largest difference of a logit": exported.max_difference,
        }
    return {**result, "peak bytes": dict(peak.bytes), "peak bytes of the process": dict(peak.whole)}


def digest(file: Path) -> str:
    """Return the SHA-256 of a file."""
    with file.open("rb") as stream:  # block by block: this process's memory is measured
        return hashlib.file_digest(stream, "sha256").hexdigest()


def in_process(**task: Any) -> dict[str, Any]:
    """Return what `work` does in a new process."""
    command = [sys.executable, "-m", "benchmarks.finetune.streamed", "--task", json.dumps(task)]
    answer = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    result: dict[str, Any] = json.loads(answer.splitlines()[-1])
    return result


def measure(model: Path, weights: str, folder: Path) -> dict[str, Any]:
    """Return the results of all ways for weights of a type."""
    from benchmarks.finetune.conversations import write

    data, prompts = folder / "conversations.jsonl", folder / "prompts.jsonl"
    write(data, 60, seed=0)
    write(prompts, 2, seed=1)
    values = {"model": str(model), "data": str(data), "prompts": str(prompts), "answer_tokens": 8, "lora_r": 8}
    values |= {"weights": weights, "precision": "fp32", "seq_len": 96, "effective_batch": 2, "micro_batch": 1}
    values |= {"epochs": EPOCHS[weights], "subset": 4}
    results = {}
    for way, settings in WAYS.items():
        run = folder / f"{weights}-{way.replace(' ', '-')}"
        arguments = {"run": str(run), "values": {**values, **settings}}
        results[way] = {"loading": in_process(kind="load", **arguments)["peak bytes"]}
        if way in TRAINED:
            results[way]["training"] = in_process(kind="train", **arguments)
            out = folder / f"{run.name}-merged"
            results[way]["export"] = in_process(kind="export", **arguments, out=str(out))
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("model", type=Path, nargs="?")
    parser.add_argument("--json", type=Path, default=RESULTS / "streaming_real.json")
    parser.add_argument("--weights", choices=EPOCHS, help="only this type; OUT keeps the results of the other one")
    parser.add_argument("--task", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.task:
        print(json.dumps(work(json.loads(arguments.task))))
        return
    size = sum(file.stat().st_size for file in arguments.model.glob("*.safetensors"))
    content: dict[str, Any] = {"model bytes": size, "epochs": EPOCHS, "weights": {}}
    if arguments.weights and arguments.json.exists():
        content["weights"] = json.loads(arguments.json.read_text())["weights"]
    for weights in [arguments.weights] if arguments.weights else EPOCHS:
        with tempfile.TemporaryDirectory() as folder:
            ways = measure(arguments.model, weights, Path(folder))
        resident = ways["resident"]
        for way, result in ways.items():
            for part in ("training", "export") if way in TRAINED else ():
                result[part][SAME] = all(
                    value == resident[part][name] for name, value in result[part].items() if "peak bytes" not in name
                )
            print(f"{weights}, {way}: loading {result['loading']['cannot be taken back'] / 2**20:.0f} MiB", end="")
            if way in TRAINED:
                for part in ("training", "export"):
                    peak = result[part]["peak bytes"]["cannot be taken back"] / 2**20
                    print(f", {part} {peak:.0f} MiB, same {result[part][SAME]}", end="")
            print()
        content["weights"][weights] = ways
        arguments.json.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
