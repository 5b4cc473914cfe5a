"""Compare packed rows with single samples: logits, loss and gradients, for shrunk models of many families.

    python -m benchmarks.finetune.packing SHARED_DATA [--only FAMILY ...] [--json OUT]

SHARED_DATA has the configurations in `architectures`; each model keeps its kind of layers in two small ones, with
random weights. It is built by the recipe's functions, and so are the batches and the loss. Differences are relative to
the largest value. `leak` is the difference of the logits if the samples of a row are not separated: it must be large,
or the comparison would not notice a wrong mask. It takes a minute.
"""

from __future__ import annotations

import argparse
import json
import platform
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy
import torch
from torch import Tensor, nn

from shoestring_recipes.finetune.batches import Batch, collate
from shoestring_recipes.finetune.building import build_random, separates_samples
from shoestring_recipes.finetune.losses import token_loss
from shoestring_recipes.finetune.samples import Sample

RESULTS = Path(__file__).parents[1] / "results"
FAMILIES = (
    "llama-3.2-1b",
    "llama-2-7b",
    "qwen3-0.6b",
    "gemma-3-1b",
    "mistral-7b",
    "phi-4",
    "smollm3-3b",
    "gpt-oss-20b",
    "mixtral-8x7b",
    "qwen3-30b-a3b",
    "deepseek-v2-lite",
)
SIZES = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "moe_intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 256,
    "sliding_window": 6,
    "num_local_experts": 4,
    "num_experts": 4,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16,
    "v_head_dim": 16,
    "pad_token_id": None,
    "bos_token_id": None,
    "eos_token_id": None,
}
"""The values of a shrunk model, for the fields that its configuration has."""
LENGTHS, ROWS = (11, 5, 9, 14, 3), ((0, 1), (2, 4), (3,))
"""Of the samples, and the samples of each packed row."""
GOALS = {torch.float64: 1e-10, torch.float32: 1e-5}
IN_FP32 = {
    "gemma-3-1b": "(its norms compute in fp32 whatever the type of the weights)",
    "deepseek-v2-lite": "(it rotates queries and keys in fp32 whatever the type of the weights)",
}
"""Families that cannot reach the goal of float64."""


def shrunk(file: Path) -> Any:
    """Return the configuration of a small model with the same kinds of layers."""
    from transformers import AutoConfig

    values: dict[str, Any] = json.loads(file.read_text())
    original = AutoConfig.for_model(**values)
    changes = {name: value for name, value in SIZES.items() if getattr(original, name, None) is not None}
    if getattr(original, "num_key_value_heads", None) == original.num_attention_heads:
        changes["num_key_value_heads"] = SIZES["num_attention_heads"]
    if kinds := values.get("layer_types"):
        # Two different kinds, if there are two
        changes["layer_types"] = [kinds[0], next((kind for kind in kinds if kind != kinds[0]), kinds[0])]
    config = AutoConfig.for_model(**{**values, **changes, "dtype": "float32"})
    config._experts_implementation = "eager"  # the products of groups of experts have no float64
    return config


def samples() -> list[Sample]:
    """Return samples of random tokens, most of which are learnt."""
    draw = numpy.random.default_rng(0)
    return [
        Sample(
            tokens=draw.integers(1, SIZES["vocab_size"], length).astype(numpy.int32),  # type: ignore[call-overload]
            loss_mask=draw.random(length) < 0.6,
            full_length=length,
        )
        for length in LENGTHS
    ]


def logits(model: Any, batch: Batch, lengths: Sequence[Sequence[int]]) -> Tensor:
    """Return the logits (tokens, vocabulary) of all samples, without padding, in the order of the rows."""
    inputs = {name: batch[name] for name in ("input_ids", "position_ids") if name in batch}
    with torch.no_grad():
        rows = model(**inputs, use_cache=False).logits
    return torch.cat([row[: sum(of_row)] for row, of_row in zip(rows, lengths, strict=True)])


def loss_and_gradients(model: nn.Module, batches: Sequence[Batch]) -> tuple[float, dict[str, Tensor]]:
    """Return the summed loss of the batches, and its gradients."""
    model.zero_grad()
    total = 0.0
    for batch in batches:
        loss, _ = token_loss(model, batch, 4)
        loss.backward()
        total += float(loss.detach())
    gradients = {
        name: parameter.grad.clone() for name, parameter in model.named_parameters() if parameter.grad is not None
    }
    return total, gradients


def differences(model: nn.Module) -> dict[str, float]:
    """Return the relative differences between packed rows and single samples, and that of rows without separation."""
    made = samples()
    ordered = [made[index] for row in ROWS for index in row]
    single = [collate([sample]) for sample in ordered]
    packed = collate([[made[index] for index in row] for row in ROWS])
    leaking = {name: values for name, values in packed.items() if name != "position_ids"}
    lengths = [[LENGTHS[index] for index in row] for row in ROWS]
    alone = torch.cat(
        [logits(model, batch, [[len(sample)]]) for batch, sample in zip(single, ordered, strict=True)]
    )  # fmt: skip
    loss, expected = loss_and_gradients(model, single)
    packed_loss, actual = loss_and_gradients(model, [packed])
    assert expected.keys() == actual.keys()
    largest = max(float(gradient.abs().max()) for gradient in expected.values())
    return {
        "logits": _relative(logits(model, packed, lengths), alone),
        "loss": abs(packed_loss - loss) / abs(loss),
        "gradients": max(float((actual[name] - expected[name]).abs().max()) for name in expected) / largest,
        "leak": _relative(logits(model, leaking, lengths), alone),
    }


def _relative(actual: Tensor, expected: Tensor) -> float:
    return float((actual - expected).abs().max() / expected.abs().max())


def measure(family: str, folder: Path) -> dict[str, Any]:
    """Return the differences of a family in both types, and whether they reach the goals."""
    config = shrunk(folder / f"{family}.json")
    row: dict[str, Any] = {
        "family": family,
        "packed": separates_samples(config),
        "note": IN_FP32.get(family, "") if separates_samples(config) else "(the recipe does not pack it)",
    }
    for dtype, goal in GOALS.items():
        torch.manual_seed(0)
        result = differences(build_random(config).to(dtype).eval())
        reached = max(result["logits"], result["gradients"], result["loss"]) <= goal < result["leak"] / 100
        row[str(dtype).removeprefix("torch.")] = {**result, "reached": reached}
    return row


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Format a Markdown table."""
    lines = ["| family | type | logits | loss | gradients | a leak would be | |", "|---|---|---|---|---|---|---|"]
    for row in rows:
        for dtype in ("float64", "float32"):
            result = row[dtype]
            numbers = (f"{result[name]:.1e}" for name in ("logits", "loss", "gradients", "leak"))
            verdict = "reached" if result["reached"] else f"NOT REACHED {row['note']}"
            lines.append(f"| {' | '.join([row['family'], dtype, *numbers, verdict])} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, metavar="SHARED_DATA")
    parser.add_argument("--only", nargs="+", choices=FAMILIES, default=list(FAMILIES), metavar="FAMILY")
    parser.add_argument("--json", type=Path, default=RESULTS / "finetune_packing.json")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for family in arguments.only:
        rows.append(measure(family, arguments.data / "architectures"))
        print("\n".join(table(rows[-1:]).splitlines()[2:]), flush=True)
    content = {
        "environment": {
            "python": platform.python_version(),
            **{package: metadata.version(package) for package in ("torch", "transformers")},
        },
        "goals": {str(dtype).removeprefix("torch."): goal for dtype, goal in GOALS.items()},
        "rows": rows,
    }
    arguments.json.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
