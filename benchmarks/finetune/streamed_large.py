"""The host memory of LoRA and of the merged export of a large model that is streamed from the disk.

    python -m benchmarks.finetune.streamed_large TOKENIZER [--layers 24] [--json OUT]

The model has the shape of SmolLM2-1.7B and random weights in bf16, which are written to TMPDIR, a layer in each file.
TOKENIZER is a folder with its tokenizer, such as that of SmolLM2-135M-Instruct. It is trained for one update with all
blocks streamed from the disk, and exported merged, in a process each. Memory is that of the whole process with Python
and its libraries (`streamed.Peak`): what cannot be taken back, and pages of mapped files, which can. Disk: 4 times the
model's bytes.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.finetune.streamed import RESULTS, in_process

SHAPE: dict[str, Any] = {
    "vocab_size": 49152,
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": True,
}
"""Of SmolLM2-1.7B, but for its layers, of which there are 24."""

_TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")


def write_model(folder: Path, layers: int, tokenizer: Path) -> int:
    """Write a random model, a layer at a time, and return the bytes of its weights."""
    import torch
    from safetensors.torch import save_file
    from transformers import LlamaConfig

    config = LlamaConfig(**SHAPE, num_hidden_layers=layers, dtype="bfloat16", architectures=["LlamaForCausalLM"])
    config.save_pretrained(folder)
    for name in _TOKENIZER:
        shutil.copy(tokenizer / name, folder / name)
    generator = torch.Generator().manual_seed(0)
    files: dict[str, str] = {}
    size = 0
    for number, shapes in enumerate(_shapes_by_file(layers)):
        tensors = {
            name: torch.ones(shape, dtype=torch.bfloat16)
            if len(shape) == 1
            else torch.empty(shape, dtype=torch.bfloat16).normal_(0, 0.02, generator=generator)
            for name, shape in shapes.items()
        }
        file = f"model-{number + 1:05}-of-{layers + 1:05}.safetensors"
        save_file(tensors, folder / file, metadata={"format": "pt"})
        files |= dict.fromkeys(tensors, file)
        size += sum(tensor.nbytes for tensor in tensors.values())
    index = {"metadata": {"total_size": size}, "weight_map": files}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return size


def _shapes_by_file(layers: int) -> Iterator[dict[str, tuple[int, ...]]]:
    hidden, intermediate = SHAPE["hidden_size"], SHAPE["intermediate_size"]
    yield {"model.embed_tokens.weight": (SHAPE["vocab_size"], hidden), "model.norm.weight": (hidden,)}
    for layer in range(layers):
        shapes: dict[str, tuple[int, ...]] = {f"self_attn.{name}_proj": (hidden, hidden) for name in "qkvo"}
        shapes |= {f"mlp.{name}_proj": (intermediate, hidden) for name in ("gate", "up")}
        shapes |= {"mlp.down_proj": (hidden, intermediate)}
        shapes |= dict.fromkeys(("input_layernorm", "post_attention_layernorm"), (hidden,))
        yield {f"model.layers.{layer}.{name}.weight": shape for name, shape in shapes.items()}


def measure(tokenizer: Path, layers: int, folder: Path) -> dict[str, Any]:
    """Return the bytes of the model and the peaks of training and export."""
    from benchmarks.finetune.conversations import write

    data, model, out = folder / "conversations.jsonl", folder / "model", folder / "merged"
    write(data, 60, seed=0)
    model.mkdir()
    size = write_model(model, layers, tokenizer)
    values = {"model": str(model), "data": str(data), "lora_r": 8, "weights": "bf16", "precision": "fp32"}
    values |= {"seq_len": 96, "effective_batch": 2, "micro_batch": 1, "subset": 2, "epochs": 1, "answer_tokens": 1}
    values |= {"streamed_blocks": layers, "stream_from": "disk"}
    task = {"run": str(folder / "run"), "values": values}
    result: dict[str, Any] = {"model bytes": size, "layers": layers}
    for kind, name in (("train", "training"), ("export", "export")):
        answer = in_process(kind=kind, **task, **({"out": str(out)} if kind == "export" else {}))
        names = ("updates", "largest difference of a logit", "peak bytes of the process")
        result[name] = {key: answer[key] for key in names if key in answer}
        peak = result[name]["peak bytes of the process"]["cannot be taken back"]
        print(f"{name}: {peak / 2**20:,.0f} MiB of a model of {size / 2**20:,.0f} MiB", flush=True)
    result["exported bytes"] = sum(file.stat().st_size for file in out.glob("*.safetensors"))
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("tokenizer", type=Path)
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--json", type=Path, default=RESULTS / "streaming_large.json")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        content = measure(arguments.tokenizer, arguments.layers, Path(folder))
    arguments.json.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
