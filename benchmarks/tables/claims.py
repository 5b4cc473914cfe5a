"""The plans and estimates of the five guides' trainings."""

import functools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from benchmarks.claims.cases import A100S, CASES, CHART_ROWS, LEGAL_ROWS, TWO
from benchmarks.tables.markdown import Result, read_result, table

from shoestring.base.units import seconds_text

_NOT_EXECUTED = "\n<!-- not executed: executed by benchmarks/claims/compute.py -->\n"
"""Behind an empty line, since the comments above a block change its execution."""

PLANS = (
    ("vqa", "the guide's", "vqa.guide"),
    ("vqa", "chosen", "vqa.chosen"),
    ("vqa", "chosen, best and last weights in fp32", "vqa.own_weights"),
    ("vqa", "chosen, 8-bit AdamW", "vqa.states_8bit"),
    ("legal", "the guide's: batch 16, fp32", "legal.fp32"),
    ("legal", "the guide's: batch 8, fp16", "legal.fp16"),
    ("legal", "chosen", "legal.chosen"),
    ("legal", "chosen, 128 tokens at most", "legal.short"),
    ("temporal", "LSTM, fp16", "temporal.lstm"),
    ("temporal", "Transformer, fp16", "temporal.transformer"),
    ("temporal", "MLP, fp16", "temporal.mlp"),
    ("cloud", "the guide's: batch 4, fp32, autotuned", "cloud.guide"),
    ("cloud", "chosen", "cloud.chosen"),
    ("chart", "the guide's, in fp16", "chart.guide"),
    ("chart", "chosen", "chart.chosen"),
)
"""Recipe, settings, and the plan for one T4; that for two has `_both` behind its name."""

COMPLETE = (
    ("legal", "the guide's: batch 8, fp16", "legal.complete_guide"),
    ("legal", "chosen", "legal.complete"),
    ("cloud", "chosen", "cloud.complete"),
)

_LEGAL_HOURS = {1_000: "2.5 h", 5_000: "12 h", 10_000: "36 h"}
_CHART_HOURS = {1_000: "4 to 6 h", 10_000: "40 to 50 h", 34_000: "7 to 10 days"}
_CHART_HOURS_A100 = {10_000: "21 h", 34_000: "3 days"}
QUESTIONS = (
    ("9,900 VQA samples, 100 epochs", "question.vqa", "58 h", "-"),
    *(
        (f"{files:,} legal files, 5 epochs", f"question.legal_{files}", _LEGAL_HOURS[files], "-")
        for files in LEGAL_ROWS
    ),
    ("1,000 cloud images, 10 epochs", "question.cloud", "8.5 h", "-"),
    *(
        (
            f"{charts:,} charts, 1 epoch",
            f"question.chart_{charts}",
            _CHART_HOURS[charts],
            _CHART_HOURS_A100.get(charts, "-"),
        )
        for charts in CHART_ROWS
    ),
)
"""The question, its plans, and the guide's hours on Kaggle and on an A100, of which it does not say which."""

MEMORY = (
    ("vqa", "batch 3, fp16, decoder checkpointed, three full forwards", "11-12 GB", "vqa_3"),
    ("vqa", "the same, batch 2", "-", "vqa_2"),
    ("vqa", "batch 3, image and question encoded once", "-", "vqa_shared"),
    ("legal", "batch 16, fp32, padded to 512", "14 GB", "legal_16"),
    ("legal", "batch 8, fp16, padded to 512", "7 GB", "legal_8"),
    ("legal", "batch 4, fp16, padded to 512", "4 GB", "legal_4"),
    ("legal", "batch 16, fp32, 128 tokens at most", "-", "legal_short"),
    ("temporal", "LSTM, batch 256, fp16", "8 GB", "lstm"),
    ("temporal", "Transformer, batch 256, fp16", "8 GB", "transformer"),
    ("temporal", "MLP, batch 512, fp16", "8 GB", "mlp"),
    ("cloud", "batch 4 on two GPUs, 2 on each, fp32", "6 GB", "cloud_2"),
    ("cloud", "batch 4 on one GPU, fp32", "-", "cloud_4"),
    (
        "chart",
        "two GPUs, 1 completion at a time on each, 4 in an update, ZeRO-3, fp16, checkpointed",
        "-",
        "chart_zero3",
    ),
    ("chart", "the same on one GPU without ZeRO", "-", "chart"),
    ("chart", "one GPU, not checkpointed", "-", "chart_not_checkpointed"),
)
"""Recipe, settings, the guide's number and the estimate."""
_STATES = ("weights", "gradients", "optimizer_states", "gathered_weights")
_ACTIVATIONS = ("activations", "reserve_space", "KV_cache")


@functools.cache
def values() -> Mapping[str, float]:
    """Return the numbers of all commands by the names of the command and of the value: `vqa.guide.update`."""
    return {
        f"{name}.{value_name}": value
        for name, case in read_result("claims")["cases"].items()
        for unit in ("bytes", "seconds", "count")
        for value_name, value in case.get(unit, {}).items()
    }


def plans() -> str:
    return _plans(PLANS)


def complete() -> str:
    return _plans(COMPLETE)


def questions() -> str:
    cases = read_result("claims")["cases"]
    return table(
        ("question", "on", "the guide", "the plan", "sessions", "weeks", "command"),
        (
            [question, f"`{target}`", hours_a100 if target in A100S else hours, *_question_cells(case)]
            for question, name, hours, hours_a100 in QUESTIONS
            for target in (TWO, *A100S)
            for case in [cases[f"{name}_{target.replace('-', '_')}"]]
        ),
    )


def claim_commands() -> str:
    return _commands(CASES)


def workloads() -> str:
    cases = read_result("claims")["cases"]
    return table(
        ("recipe", "setting", "guide", "estimate", "range", "states", "activations", "rest", "fits a T4"),
        ([recipe, setting, guide, *_memory_cells(cases[f"memory.{name}"])] for recipe, setting, guide, name in MEMORY),
    )


def workload_commands() -> str:
    return _commands(f"memory.{name}" for *_, name in MEMORY)


def _plans(rows: tuple[tuple[str, str, str], ...]) -> str:
    cases = read_result("claims")["cases"]
    return table(
        (
            *("recipe", "settings", "on", "micro_batch, precision, checkpointing", "memory at most"),
            *("seconds an update", "epoch", "whole run", "sessions", "weeks", "disk", "verdict"),
        ),
        (
            [recipe, setting, place, *_plan_cells(recipe, case)]
            for recipe, setting, name in rows
            for place, case in _places(cases, name)
        ),
    )


def _places(cases: Result, name: str) -> Iterator[tuple[str, Any]]:
    yield "one T4", cases[name]
    both = cases[f"{name}_both"]
    if both["count"]["gpus"] == 1:
        yield "one of two T4s", both
    else:
        sharding = both["text"]["sharding"]
        yield "both T4s" if sharding == "ddp" else f"both T4s, {sharding}", both


def _plan_cells(recipe: str, case: Any) -> list[str]:
    seconds, count, text, size = (case[unit] for unit in ("seconds", "count", "text", "bytes"))
    run = ["-"] * 4
    if recipe != "temporal":  # the guide's number of bars is unknown
        run = [seconds_text(seconds["epoch"]), _hours(seconds), str(count["sessions"]), str(count["weeks"])]
    return [
        f"{count['micro_batch']}, {text['precision']}, {text['checkpointing']}",
        f"{_gigabytes(size['memory_high'])} GB",
        f"{seconds['update']:.3g} ({seconds['update_low']:.3g} to {seconds['update_high']:.3g})",
        *run,
        f"{size['disk'] / 1e9:.1f} GB",
        text["verdict"],
    ]


def _question_cells(case: Any) -> list[str]:
    count = case["count"]
    weeks = str(count["weeks"]) if count["weeks"] else "-"
    return [_hours(case["seconds"]), str(count["sessions"]), weeks, f"`{case['command']}`"]


def _hours(seconds: Any) -> str:
    value, low, high = (seconds[name] / 3600 for name in ("job", "job_low", "job_high"))
    return f"{value:.3g} h ({low:.3g} to {high:.3g})"


def _memory_cells(case: Any) -> list[str]:
    size = case["bytes"]
    states, activations = (sum(size.get(name, 0) for name in group) for group in (_STATES, _ACTIVATIONS))
    return [
        f"{_gigabytes(size['memory'])} GB",
        f"{_gigabytes(size['memory_low'])}-{_gigabytes(size['memory_high'])}",
        *map(_gigabytes, (states, activations, size["memory"] - states - activations)),
        case["text"]["fits"],
    ]


def _gigabytes(size: float) -> str:
    return f"{size / 1e9:.2f}"


def _commands(names: Iterable[str]) -> str:
    """Return a block of commands, each with its names behind it."""
    by_command: dict[str, list[str]] = {}
    for name in names:
        by_command.setdefault(CASES[name].command, []).append(name)
    lines = [f"{command}  # {', '.join(same)}\n" for command, same in by_command.items()]
    return "".join([_NOT_EXECUTED, "```sh\n", *lines, "```\n"])
