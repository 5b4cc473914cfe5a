"""The host's work for a completion besides the model, measured for planning."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

from shoestring_recipes.chart.data import Charts
from shoestring_recipes.chart.processing import encode_prompts
from shoestring_recipes.chart.rewards import Reward

_ROWS = 4
_REPETITIONS = 5
_ENCODINGS = 2
"""TRL encodes the prompts of an update twice: to generate completions and for the loss (`trl/trainer/grpo_trainer.py`:
`_tokenize_prompts` and `_generate_and_score_completions`)."""
_CHARACTERS_PER_TOKEN = 4


def measure(
    charts: Charts, conversation: Callable[[Any], Any], processor: Any, rewards: Mapping[str, Reward], length: int
) -> dict[str, float]:
    """Return the median seconds of encoding the prompts, and of the rewards of a completion of `length` tokens."""
    rows = [charts[number % len(charts)] for number in range(_ROWS)]
    table = "a|b|" * (length * _CHARACTERS_PER_TOKEN // 4)
    completion = f"<think>\n<type>line</type>\n<table>{table}</table>\nstep\n</think>\n<answer>1</answer>"
    return {
        "prompts": _ENCODINGS * _seconds(lambda: encode_prompts(processor, [conversation(row) for row in rows])),
        "rewards": _seconds(lambda: [reward(completion, row) for row in rows for reward in rewards.values()]),
    }


def _seconds(work: Callable[[], object]) -> float:
    """Return the median seconds of a row; the first call, which may import, is not counted."""
    work()
    durations = []
    for _ in range(_REPETITIONS):
        start = time.perf_counter()
        work()
        durations.append(time.perf_counter() - start)
    return statistics.median(durations) / _ROWS
