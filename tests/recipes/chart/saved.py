"""Charts as Hugging Face's datasets saves them, with the columns of `sanchit97/chart-rvr-grpo-train`."""

from pathlib import Path
from typing import Any

import datasets
from PIL import Image

TABLE = {"columns": ["Year", "Value"], "rows": [["2020", "50"], ["2021", "60"]]}


def make_row(number: int, **changes: Any) -> dict[str, Any]:
    return {
        "image": Image.new("RGB", (30 + number, 20), (number, 0, 0)),
        "query": f"What is the difference, number {number}?",
        "label": str(number),
        "prompt": "a prompt that the guide's code replaces",
        "reasoning": "<step-1>: read\n<step-2>: subtract",
        "chart_type": "bar",
        "table": TABLE,
        **changes,
    }


def make_dataset(rows: list[dict[str, Any]]) -> datasets.Dataset:
    return datasets.Dataset.from_list(rows).cast_column("image", datasets.Image())


def save_dataset(folder: Path, rows: list[dict[str, Any]], *, shards: int = 1) -> Path:
    """Save a dataset with one split, as the guide's code does after its download."""
    dataset = datasets.DatasetDict({"train": make_dataset(rows)})
    dataset.save_to_disk(folder, num_shards={"train": shards})
    return folder
