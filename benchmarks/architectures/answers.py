"""What `shoestring estimate hf:FILE` answers for a folder of configurations, and the parameters of the model built.

    python benchmarks/architectures/answers.py FOLDER [FOLDER ...] [--source OTHER/src] [--seconds 400] [--json OUT]

Every file is one command, with its default settings and a time limit. For an answer, the class that it names is built
again with the library itself on torch's meta device, and its parameters are counted: they must be equal. Other outcomes
are one sentence (`error:` and `hint:`), a traceback or silence until the time limit.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import time
from importlib import metadata
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parents[1] / "results"
SOURCE = Path(__file__).parents[2] / "src"

_CLASS = re.compile(r"the model is (?P<name>\w+)")


def main() -> None:
    """Print a row for each file and write all of them as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--source", type=Path, default=SOURCE)
    parser.add_argument("--on", default="t4")
    parser.add_argument("--seconds", type=float, default=400.0)
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--json", type=Path, default=RESULTS / "architectures.json")
    arguments = parser.parse_args()
    rows = []
    for path in sorted(path for folder in arguments.folders for path in _files(folder)):
        rows.append(_answer(path, arguments))
        print(_line(rows[-1]), flush=True)
    libraries = {name: metadata.version(name) for name in ("torch", "transformers")}
    content = {"on": arguments.on, "set": arguments.set, "environment": libraries, "rows": rows}
    arguments.json.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def _files(folder: Path) -> list[Path]:
    return [folder] if folder.is_file() else list(folder.glob("*.json"))


def _answer(path: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    options = [text for setting in arguments.set for text in ("--set", setting)]
    command = [sys.executable, "-m", "shoestring", "estimate", f"hf:{path}", "--on", arguments.on, *options, "--json"]
    paths = os.pathsep.join(filter(None, (str(arguments.source), os.environ.get("PYTHONPATH"))))
    start = time.monotonic()
    try:
        result = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=arguments.seconds,
            env={**os.environ, "PYTHONPATH": paths},
            check=False,
        )
    except subprocess.TimeoutExpired:
        return {"file": path.name, "outcome": "silent until the limit", "seconds": arguments.seconds}
    row = {"file": path.name, "seconds": round(time.monotonic() - start, 1)}
    if result.returncode:
        message = result.stderr.partition("error: ")[2].strip().splitlines()
        outcome = "a sentence" if message and "Traceback" not in result.stderr else "a traceback"
        return {**row, "outcome": outcome, "status": result.returncode, "text": message[:6]}
    return {**row, "outcome": "an answer", **_numbers(path, json.loads(result.stdout))}


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
    import torch
    import transformers

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
