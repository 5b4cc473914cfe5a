"""What users measured: the files in `measurements/`, each the measurement of one run."""

from collections.abc import Mapping
from typing import Any

from benchmarks.catalogue import ROOT
from benchmarks.tables.markdown import table

from shoestring.base.units import MIB
from shoestring.runs.measurement.file import read

FOLDER = ROOT / "measurements"
NONE = "No run of a user has been measured yet.\n"


def measurements() -> Mapping[str, dict[str, Any]]:
    """Return the contents of all files by name. Raises UsageError for one that is not credible."""
    return {file.stem: read(file) for file in sorted(FOLDER.glob("*.json"))}


def technique(content: Mapping[str, Any]) -> str:
    """Return the techniques of a run that decide its memory and time most, in a few words."""
    options, settings = content["recipe"]["options"], content["recipe"]["settings"]
    words = [str(settings.get("precision", ""))]
    if options.get("quantization", "none") != "none":
        words.append(options["quantization"])
    if options.get("lora_r"):
        words.append("LoRA")
    if settings.get("checkpointing") not in (None, "no"):
        words.append("checkpointing")
    if content["device"]["processes"] > 1:
        words.append(f"{content['device']['processes']} x {settings.get('sharding')}")
    if settings.get("offload", "no") != "no":
        words.append(f"offload={settings['offload']}")
    return " ".join(words)


def users() -> str:
    """Return a row for each measurement, the newest first."""
    contents = sorted(measurements().items(), key=lambda item: item[1]["date"], reverse=True)
    rows = [
        (
            name,
            f"{content['device']['name']}, {content['date']}, torch {content['versions']['torch']}",
            f"{content['recipe']['name']}, {technique(content)}",
            f"{content['measured']['memory_bytes'] / MIB:,.0f}",
            _error(content["predicted"]["memory"], content["measured"]["memory_bytes"]),
            f"{content['measured']['update']['value'] * 1e3:,.1f}",
            _error(content["predicted"]["update"], content["measured"]["update"]["value"]),
        )
        for name, content in contents
    ]
    head = ("file", "device", "run", "reserved (MiB)", "predicted", "update (ms)", "predicted")
    return table(head, rows) if rows else NONE


def _error(predicted: Mapping[str, float | None], measured: float) -> str:
    value, low, high = (predicted[name] for name in ("value", "low", "high"))
    if value is None or low is None or high is None:
        return "–"
    return f"{value / measured - 1:+.1%}" + ("" if low <= measured <= high else ", outside its range")
