"""What `shoestring estimate hf:FILE` answers for a folder of configurations, and the parameters of the model built.

    python benchmarks/architectures/answers.py FOLDER [FOLDER ...] [--on t4] [--json OUT]
    python benchmarks/architectures/answers.py --types [TYPE ...] [--on t4] [--json OUT]

With `--types` the configurations are the library's default ones of these types, or of those in `NEWEST`. What OUT has
already is not repeated.

Every file is estimated with its default settings. For an answer, the class that it names is built again with the
library itself on torch's meta device, and its parameters are counted: they must be equal. Otherwise the outcome is one
sentence, an error of Shoestring, or another exception. A trace ends at its own limit (`SHOESTRING_TRACE_SECONDS`).
"""

from __future__ import annotations

import argparse
import json
import re
import resource
import tempfile
import time
from collections.abc import Iterator, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
import transformers

from shoestring.api import estimate
from shoestring.base.errors import ShoestringError

RESULTS = Path(__file__).parents[1] / "results"

NEWEST = (
    *("qwen3", "qwen3_moe", "qwen3_next", "qwen3_5_text", "llama", "llama4_text", "ministral3", "mixtral", "gpt_oss"),
    *(
        "gemma3_text",
        "gemma3n_text",
        "gemma4_text",
        "glm4_moe",
        "deepseek_v3",
        "kimi_linear",
        "phi3",
        "phimoe",
        "olmo3",
    ),
    *("smollm3", "granitemoehybrid", "falcon_h1", "mamba", "mamba2", "falcon_mamba", "jamba", "rwkv", "zamba2"),
    *("nemotron_h", "lfm2", "minimax_m2", "cohere2", "bitnet", "gpt2", "starcoder2", "modernbert", "eurobert"),
    *("deberta-v2", "roberta", "nomic_bert", "bart", "mt5", "t5gemma", "vit", "dinov3_vit", "swinv2", "convnextv2"),
    *("siglip2", "clip", "segformer", "rt_detr_v2", "d_fine", "sam2", "whisper", "wav2vec2-bert"),
    *("audio-spectrogram-transformer", "moonshine", "qwen2_5_vl", "qwen3_vl", "gemma3", "internvl"),
)
"""Sixty types of models of transformers: the newest ones of each family."""

_CLASS = re.compile(r"the model is (?P<name>\w+)")


def main() -> None:
    """Print a row for each file and write all of them as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", nargs="*", type=Path)
    parser.add_argument("--types", nargs="*", help="default configurations of these types of models")
    parser.add_argument("--on", default="t4")
    parser.add_argument("--json", type=Path, default=RESULTS / "architectures.json")
    arguments = parser.parse_args()
    libraries = {name: metadata.version(name) for name in ("torch", "transformers")}
    content: dict[str, Any] = {"on": arguments.on, "environment": libraries, "rows": []}
    if arguments.types is not None and arguments.json.exists():
        content["rows"] = json.loads(arguments.json.read_text(encoding="utf-8"))["rows"]
    known = {row["file"] for row in content["rows"]}
    with tempfile.TemporaryDirectory() as created:
        paths = sorted(path for folder in arguments.folders for path in _files(folder))
        types = () if arguments.types is None else arguments.types or NEWEST
        for path in (*paths, *_defaults(types, Path(created), known)):
            content["rows"].append(_answer(path, arguments.on))
            print(_line(content["rows"][-1]), flush=True)
            arguments.json.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def _files(folder: Path) -> list[Path]:
    return [folder] if folder.is_file() else list(folder.glob("*.json"))


def _defaults(types: Sequence[str], folder: Path, known: set[str]) -> Iterator[Path]:
    """Yield the files of the library's default configurations, as it saves them."""
    for name in types:
        path = folder / f"{name}.json"
        if path.name not in known:
            transformers.CONFIG_MAPPING[name]().save_pretrained(folder)
            yield (folder / "config.json").rename(path)


def _answer(path: Path, target: str) -> dict[str, Any]:
    start, cpu = time.monotonic(), _cpu_seconds()
    try:
        answer = estimate(f"hf:{path}", on=target).json()
        outcome = {"outcome": "an answer", **_numbers(path, answer)}
    except ShoestringError as error:
        outcome = {"outcome": "a sentence", "text": error.lines()}
    except Exception as error:  # noqa: BLE001  (an outcome that must not be)
        outcome = {"outcome": "an exception", "text": [repr(error)]}
    seconds = {"seconds": round(time.monotonic() - start, 1), "cpu_seconds": round(_cpu_seconds() - cpu, 1)}
    return {"file": path.name, **seconds, **outcome}


def _cpu_seconds() -> float:
    """Return the seconds of this process and of its children that have ended, on any core."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def _numbers(path: Path, answer: dict[str, Any]) -> dict[str, Any]:
    notes = answer.get("notes") or []
    names = [match["name"] for note in notes if (match := _CLASS.search(note))]
    total = answer["parameters"]["total"]
    built = _count(path, names[0] if names else None)
    return {
        "class": names[0] if names else None,
        "parameters": total,
        "parameters_built": built,
        "equal": total == built,
        "peak_bytes": answer["peak_bytes"],
        "notes": notes,
    }


def _count(path: Path, name: str | None) -> int | None:
    """Return the number of parameters of the class as its library builds it, without Shoestring's code."""
    values = json.loads(path.read_text(encoding="utf-8"))
    if "_class_name" in values:
        import diffusers

        with torch.device("meta"):
            model = getattr(diffusers, values["_class_name"]).from_config(values)
        return sum(parameter.numel() for parameter in model.parameters())
    name = name or (values.get("architectures") or [None])[0]
    config = transformers.CONFIG_MAPPING[values.pop("model_type")].from_dict(_without_marks(values))
    model_class = getattr(transformers, name) if name else transformers.AutoModelForCausalLM
    with torch.device("meta"):
        create = getattr(model_class, "_from_config", None) or model_class.from_config
        model = create(config, attn_implementation="eager")
    return sum(parameter.numel() for parameter in model.parameters())


def _without_marks(value: Any) -> Any:
    """Return the value with `{"__float__": "Infinity"}`, as transformers 5 saves it, read as a number."""
    if isinstance(value, dict):
        if set(value) == {"__float__"}:
            return float(value["__float__"])
        return {name: _without_marks(item) for name, item in value.items()}
    return [_without_marks(item) for item in value] if isinstance(value, list) else value


def _line(row: dict[str, Any]) -> str:
    if row["outcome"] != "an answer":
        text = " | ".join(row.get("text", []))[:300]
        return f"{row['file']:44} {row['seconds']:6.1f} s  {row['outcome']}: {text}"
    equal = "=" if row["equal"] else f"!= {row['parameters_built']}"
    size = f"{row['peak_bytes'] / 2**30:7.2f} GiB"
    return f"{row['file']:44} {row['seconds']:6.1f} s  {row['parameters']:>15,} {equal}  {size}  {row['class'] or ''}"


if __name__ == "__main__":
    main()
