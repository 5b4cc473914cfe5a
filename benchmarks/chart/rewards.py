"""The seven rewards of `rewards=guide` beside those of the guide's own code, on the same 200 completions.

    git clone https://github.com/potate4/chartrl REPOSITORY
    python -m benchmarks.chart.rewards REPOSITORY [--json OUT]

`grpo_utils.py` is read from the repository (a checkout or a bare one) at `COMMIT` and executed. It imports `datasets`,
`sentence_transformers` and `matplotlib`; in place of them it gets empty modules, and in place of the encoder MiniLM
vectors of word counts, which ours compares as well. It has no licence, so it is not part of this project.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import hashlib
import io
import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import MagicMock, patch

import torch
from benchmarks.chart.texts import make_texts

from shoestring_recipes.chart.guide_rewards import REWARDS

COMMIT, FILE = "4948fe6", "grpo_utils.py"
FUNCTIONS = {
    "form": "format_reward",
    "tags": "num_token_reward",
    "accuracy": "accuracy_reward",
    "length": "length_think_reward",
    "chart_type": "chart_type_reward",
    "table": "table_style_reward",
    "process": "process_style_reward",
}
"""The functions of the guide by the names of ours."""
TOLERANCE = 1e-9
"""Of `process` alone, whose two cosines are rounded differently."""

GuideReward = Callable[..., list[float]]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("repository", type=Path)
    parser.add_argument("--commit", default=COMMIT)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    result = {"repository": "potate4/chartrl", "commit": options.commit}
    result |= compare(load_functions(options.repository, options.commit), make_texts())
    text = json.dumps(result, indent=1)
    if options.json:
        options.json.write_text(text + "\n")
    print(text)
    if result["differences"]:
        sys.exit(1)


def load_functions(repository: Path, commit: str) -> dict[str, GuideReward]:
    """Execute the guide's file, and return its reward functions by the names of ours."""
    source = subprocess.run(
        ["git", "-C", str(repository), "show", f"{commit}:{FILE}"], capture_output=True, text=True, check=True
    ).stdout
    stubs = {name: MagicMock() for name in ("datasets", "sentence_transformers", "matplotlib", "matplotlib.pyplot")}
    module = ModuleType("grpo_utils")
    with patch.dict(sys.modules, stubs):
        exec(compile(source, FILE, "exec"), vars(module))
    module.text_reward_model = WordCounts()  # type: ignore[attr-defined]
    return {name: getattr(module, function) for name, function in FUNCTIONS.items()}


class WordCounts:
    """Stands in for the sentence encoder: a text's vector has the count of each word."""

    def __init__(self) -> None:
        self._positions: dict[str, int] = {}

    def encode(self, text: str, **_: Any) -> torch.Tensor:
        vector = torch.zeros(4096, dtype=torch.float64)
        for word, count in Counter(re.findall(r"\w+", text.casefold())).items():
            vector[self._positions.setdefault(word, len(self._positions))] = count
        return vector


def compare(functions: Mapping[str, GuideReward], texts: Sequence[tuple[str, dict[str, Any]]]) -> dict[str, Any]:
    """Return how many rewards are equal, and every difference.

    The guide's functions get one completion at a time, and all in one batch, where one completion's table may earn the
    reward of the one before it.
    """
    rewards, differences = {}, []
    for name, function in functions.items():
        actual = [REWARDS[name](text, copy.deepcopy(annotations)) for text, annotations in texts]
        expected = [_call(function, [row])[0] for row in texts]
        tolerance = TOLERANCE if name == "process" else 0.0
        unequal = [i for i, (a, b) in enumerate(zip(actual, expected, strict=True)) if abs((a or 0.0) - b) > tolerance]
        differences += [
            {
                "reward": name,
                "text": texts[i][0],
                "label": texts[i][1]["label"],
                "guide": expected[i],
                "ours": actual[i],
            }
            for i in unequal
        ]
        batch = _call(function, texts)
        rewards[name] = {
            "equal": len(texts) - len(unequal),
            "values": len({round(value, 9) for value in expected}),
            "above_least": sum(value > min(expected) for value in expected),
            "least": min(expected),
            "largest": max(expected),
            "changed_by_its_batch": sum(a != b for a, b in zip(batch, expected, strict=True)),
        }
    return {"texts": len(texts), "texts_sha256": digest(texts), "rewards": rewards, "differences": differences}


def digest(texts: Sequence[tuple[str, dict[str, Any]]]) -> str:
    return hashlib.sha256(json.dumps(texts, sort_keys=True).encode()).hexdigest()


def _call(function: GuideReward, rows: Sequence[tuple[str, dict[str, Any]]]) -> list[float]:
    """Return the guide's rewards of a batch. It prints each of them, and changes the tables that it gets."""
    texts, annotations = zip(*copy.deepcopy(list(rows)), strict=True)
    columns = {name: [row[name] for row in annotations] for name in annotations[0]}
    with contextlib.redirect_stdout(io.StringIO()):
        return [float(value) for value in function(list(texts), **columns)]


if __name__ == "__main__":
    main()
