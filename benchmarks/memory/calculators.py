"""Compare measured training steps with what calculators of training memory say, which are formulas in Python packages.

    VENV/bin/python benchmarks/memory/calculators.py LORA.csv FULL.csv --configs DIR --json OUT

VENV has the packages of `PACKAGES`, and those of Shoestring's own environment. No calculator runs a model or asks the
network. Each gets the true number of parameters and the dimensions of the configuration, even if its command line would
guess them from the model's name.
"""

from __future__ import annotations

import argparse
import csv
import importlib
import json
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import date
from functools import cache
from importlib.metadata import distribution, version
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from statistics import median
from typing import Any

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks.memory.cases import Row, configuration
from benchmarks.percentiles import percentile

from shoestring.base.units import MIB

PACKAGES = ("accelerate", "ml-memguard", "peft-doctor", "soup-cli", "unsloth", "vramcalc")
_ADAPTED = ["q_proj", "k_proj", "v_proj", "o_proj"]


@dataclass(frozen=True, kw_only=True)
class Model:
    """What calculators ask about a model."""

    folder: Path
    """A folder with its `config.json`."""
    config: Any
    parameters: int


@cache
def model(name: str, configs: Path, folder: Path) -> Model:
    """Read a configuration and count the parameters of its model, without weights."""
    transformers = importlib.import_module("transformers")
    torch = importlib.import_module("torch")
    home = folder / name.replace("/", "--")
    home.mkdir()
    (home / "config.json").write_bytes(configuration(name, configs).read_bytes())
    config = transformers.AutoConfig.from_pretrained(home)
    with torch.device("meta"):
        try:
            built = transformers.AutoModelForCausalLM.from_config(config)
        except ValueError:  # an encoder-decoder
            built = transformers.AutoModelForSeq2SeqLM.from_config(config)
    return Model(folder=home, config=config, parameters=sum(weight.numel() for weight in built.parameters()))


def unsloth(row: Row, of: Model) -> float:
    """Return the estimate of Unsloth Studio, whose file is loaded alone: the package needs a GPU to be imported."""
    estimation = _unsloth_file()
    config = estimation.TrainingVramConfig(
        training_method="qlora" if row["quantization"] == "nf4" else "lora",
        load_in_4bit=row["quantization"] == "nf4",
        batch_size=int(row["micro_batch"]),
        max_seq_length=int(row["seq_len"]),
        lora_rank=int(row["lora_r"]),
        target_modules=_ADAPTED,
        gradient_checkpointing="true" if row["checkpointing"] == "1" else "none",
        optimizer="adamw_torch",
        attention_implementation=row["attention"],
    )
    return float(estimation.estimate_training_vram(estimation.extract_arch_config(of.config), config).total)


@cache
def _unsloth_file() -> Any:
    path = distribution("unsloth").locate_file("studio/backend/utils/hardware/vram_estimation.py")
    spec = spec_from_file_location("vram_estimation", str(path))
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[spec.name] = module  # its dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def soup(row: Row, of: Model) -> float:
    """Return the estimate with which `soup train` decides whether to start."""
    fit = importlib.import_module("soup_cli.utils.hardware_fit")
    request = fit.HardwareFitInput(
        params_b=of.parameters / 1e9,
        seq_len=int(row["seq_len"]),
        batch_size=int(row["micro_batch"]),
        optimizer="adamw_torch",
        quant="4bit" if row["quantization"] == "nf4" else "none",
        peft="qlora" if row["quantization"] == "nf4" else "lora",
        gradient_checkpointing=row["checkpointing"] == "1",
    )
    return float(fit.estimate_peak_vram_gb(request).total_gb * 1e9)


def peft_doctor(row: Row, of: Model) -> float:
    """Return the estimate of `peft-doctor estimate`."""
    report = importlib.import_module("peft_doctor.estimator").estimate_vram_gb(
        row["model"],
        seq_len=int(row["seq_len"]),
        batch_size=int(row["micro_batch"]),
        qlora=row["quantization"] == "nf4",
        gradient_checkpointing=row["checkpointing"] == "1",
        params_billion=of.parameters / 1e9,
        hidden_size=of.config.hidden_size,
        num_layers=of.config.num_hidden_layers,
    )
    return float(report.metadata["estimated_total_gb"] * 2**30)


def vramcalc(row: Row, of: Model) -> float | None:
    """Return the estimate of `vramcalc --train --lora`; None for 4-bit weights, which it does not know."""
    if row["quantization"] == "nf4":
        return None
    estimate = importlib.import_module("vramcalc").estimate(
        str(of.folder),
        mode="train",
        dtype="fp16",
        precision="pure",
        batch=int(row["micro_batch"]),
        seq_len=int(row["seq_len"]),
        lora_rank=int(row["lora_r"]),
        grad_checkpoint=row["checkpointing"] == "1",
        attn_impl=row["attention"],
    )
    return float(estimate.total + estimate.overhead)


def memguard(row: Row, of: Model) -> float:
    """Return the estimate of memory-guard."""
    guard = importlib.import_module("memory_guard.estimator")
    config = of.config
    spec = guard.ModelSpec(
        params=of.parameters,
        hidden_dim=config.hidden_size,
        num_heads=config.num_attention_heads,
        num_kv_heads=config.num_key_value_heads,
        num_layers=config.num_hidden_layers,
        intermediate_dim=config.intermediate_size,
        bits=4 if row["quantization"] == "nf4" else 16,
    )
    train = guard.TrainSpec(
        method=guard.FinetuneMethod.QLORA if row["quantization"] == "nf4" else guard.FinetuneMethod.LORA,
        batch_size=int(row["micro_batch"]),
        seq_length=int(row["seq_len"]),
        lora_rank=int(row["lora_r"]),
        lora_layers=config.num_hidden_layers,
        lora_targets=len(_ADAPTED),
        optimizer="adamw",
        grad_checkpoint=row["checkpointing"] == "1",
        mixed_precision=False,
        flash_attention=row["attention"] == "sdpa",
    )
    return float(guard.estimate_training_memory(spec, train).total_mb * MIB)


def accelerate(_: Row, of: Model) -> float:
    """Return what `accelerate estimate-memory` says of training in fp32 with Adam: it asks for nothing but the model.

    The command itself needs the Hub, even for a folder, so its function is called.
    """
    usage = importlib.import_module("accelerate.commands.estimate").estimate_training_usage
    return float(max(usage(4 * of.parameters, "float32").values()))


LORA: dict[str, Callable[[Row, Model], float | None]] = {
    "unsloth": unsloth,
    "soup-cli": soup,
    "peft-doctor": peft_doctor,
    "vramcalc": vramcalc,
    "ml-memguard": memguard,
}


def _scored(
    rows: Iterable[Row], column: str, calculators: dict[str, Callable[[Row, Model], float | None]], configs: Path
) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        return [
            {
                "id": row["id"],
                "measured": int(row[column]),
                "calculators": {
                    name: estimate
                    for name, calculator in calculators.items()
                    if (estimate := calculator(row, model(row["model"], configs, Path(folder)))) is not None
                },
            }
            for row in rows
        ]


def _read(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("lora", type=Path, help="LoRA steps whose process was measured")
    parser.add_argument("full", type=Path, help="full training in fp32")
    parser.add_argument("--configs", type=Path, required=True)
    parser.add_argument("--json", type=Path, required=True)
    options = parser.parse_args(arguments)
    lora = [row for row in _read(options.lora) if row["process_bytes"]]
    full = [
        row
        for row in _read(options.full)
        if row["family"] == "transformer" and row["optimizer"] in ("Adam", "AdamW") and row["oom"] == "0"
    ]
    result: dict[str, Any] = {
        "date": date.today().isoformat(),
        "versions": {name: version(name) for name in PACKAGES},
        "lora": _scored(lora, "process_bytes", LORA, options.configs),
        "full": _scored(full, "measured_bytes", {"accelerate": accelerate}, options.configs),
    }
    for rows in (result["lora"], result["full"]):
        for name in {name: None for row in rows for name in row["calculators"]}:
            errors = [row["calculators"][name] / row["measured"] - 1 for row in rows if name in row["calculators"]]
            sizes = [abs(error) for error in errors]
            worst = max(errors, key=abs)
            print(f"{name:<12}{len(errors):>4}{median(sizes):>9.1%}{percentile(sizes, 0.9):>9.1%}{worst:>+9.1%}")
    options.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
