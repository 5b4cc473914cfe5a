"""Fine-tuning of language models, and code of other people in recipes."""

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.tables.markdown import Row, percent, read_result, table

_GIB = 2**30
_MIB = 2**20
_CODE_DIGITS = 7
"""The decimals of a loss that is not printed by the original script, which prints four."""


def foreign_code() -> str:
    head = ("code", "lines of the recipe", "first loss, original", "first loss, recipe", "final state after two kills")
    return table(head, (_code_row(row) for row in read_result("foreign_code").values()))


def _code_row(row: Row) -> list[object]:
    original = row["original_first_loss"]
    digits = min(_CODE_DIGITS, len(str(original).partition(".")[2]))
    return [
        row["code"],
        row["lines"],
        f"{original:.{digits}f}",
        f"{row['first_loss']:.{digits}f}",
        "equal" if row["equal_bits"] else "different",
    ]


def behaviour() -> str:
    result = read_result("finetune_behaviour")
    titles = {"lora": "LoRA", "nf4": "LoRA on NF4 weights", "all weights": "all weights"}
    rows = [["nothing", 0, *_answers(result["before"]), ""]]
    for row in result["after"]:
        rows.append([titles[row["case"]], row["updates"], *_answers(row), f"{row['train_seconds'] / 60:.1f} min"])
    head = (
        "trained",
        "updates",
        "validation loss",
        "perplexity",
        "answers in the format",
        "answers that end by themselves",
        "time on one CPU thread",
    )
    return table(head, rows)


def _answers(row: Row) -> list[object]:
    shares = [percent(row[name], 0) for name in ("in_format", "stopped")]
    return [f"{row['loss']:.3f}", f"{row['perplexity']:.2f}", *shares]


def unquantized() -> str:
    """The losses of pairs of runs that differ in what 4-bit weights leave unpacked."""
    result = read_result("finetune_unquantized")
    runs = {(row["type"], row["seed"], row["unquantized"]): row for row in result["runs"]}
    others = {key: runs.get((*key[:2], "own")) for key in runs if key[2] == "fp32"}
    pairs = [(runs[key], other) for key, other in others.items() if other]  # a measurement may have been interrupted
    head = ("type", "seed", "updates", "`unquantized`", "loss of the first, middle and last updates", "held-out loss")
    rows = []
    for row in (row for pair in pairs for row in pair):
        losses = row["losses"]
        curve = ", ".join(f"{losses[place]:.3f}" for place in (0, len(losses) // 2, -1))
        rows.append([row["type"], row["seed"], row["updates"], row["unquantized"], curve, f"{row['held_out']:.4f}"])
    return table(head, rows)


def unquantized_memory() -> str:
    head = ("model", "`unquantized`", "allocated", "weights", "activations", "temporaries", "high end")
    rows = []
    for row in read_result("finetune_unquantized")["memory"]:
        parts = (row["parts"].get(name, 0) for name in ("weights", "activations", "temporaries"))
        sizes = (row["allocated_bytes"], *parts, row["high_bytes"])
        model = row["model"].partition("--")[2]
        rows.append([model, row["unquantized"], *(f"{size / _GIB:.2f} GiB" for size in sizes)])
    return table(head, rows)


def comparison() -> str:
    head = (
        "trainer",
        "learned tokens per second",
        "speed, relative to TRL's fastest",
        "peak memory",
        "memory, relative to TRL's fastest",
        "validation loss",
    )
    sft = {
        "TRL, defaults": "SFTTrainer with its own defaults",
        "TRL, padding-free": "SFTTrainer, padding-free",
        "Shoestring, packed": "`finetune`, packed",
        "Shoestring, by length": "`finetune`, sorted by length",
    }
    dpo = {
        "TRL, defaults": "DPOTrainer with its own defaults",
        "TRL, by length": "DPOTrainer, grouped by length",
        "Shoestring, by length": "`finetune`, `method=dpo`",
    }
    return table(head, [*_compared("finetune_sft", sft), *_compared("finetune_dpo", dpo)])


def _compared(name: str, titles: Mapping[str, str]) -> list[list[object]]:
    result = read_result(name)
    rows = {row["contender"]: row for row in result["rows"]}
    if (best := result["best of TRL"]) not in titles:
        raise ValueError(f"{name}: the fastest of TRL is {best}, which has no title")
    marks = {best: " (TRL's fastest)"}
    return [[title + marks.get(contender, ""), *_contender(rows[contender])] for contender, title in titles.items()]


def _contender(row: Row) -> list[object]:
    low, high = row["validation_loss_range"]
    return [
        f"{row['learnt_tokens_per_second']:.1f}",
        _with_range(row["faster"], row["faster_range"]),
        f"{row['resident_peak_bytes'] / _MIB:,.0f} MiB",
        f"{row['memory']:.2f}",
        f"{row['validation_loss']:.4f} ({low:.4f} to {high:.4f})",
    ]


def _with_range(value: float, bounds: Sequence[float], digits: int = 2) -> str:
    low, high = bounds
    return f"{value:.{digits}f}" if low == high else f"{value:.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"


def plans() -> str:
    rows = [row for row in read_result("finetune_plans")["rows"] if row["variant"] == "default"]
    head = (
        "model",
        "platform",
        "verdict",
        "microbatch",
        "checkpointing",
        "sharding",
        "streamed blocks",
        "memory, high end",
        "one update",
        "all updates",
        "time to plan",
    )
    return table(head, (_planned(row) for row in rows))


def _planned(row: Row) -> list[object]:
    settings = row["settings"]
    low, high = row["hours_range"]
    return [
        row["model"],
        f"`{row['target']}`",
        row["verdict"] + _first_change(row["changes"]),
        settings["micro_batch"],
        _checkpointing(settings["checkpointing"]),
        settings["sharding"] if settings["gpus"] > 1 else "-",
        settings.get("streamed_blocks") or "-",
        f"{row['high_bytes'] / _GIB:.1f} GiB",
        f"{row['update_seconds']:.1f} s",
        f"{row['hours']:.1f} h ({low:.1f} to {high:.1f})",
        f"{row['plan_seconds']:.0f} s",
    ]


def _first_change(changes: Sequence[str]) -> str:
    """Return the first option that a plan proposes, of `GPU memory: --set OPTION would be enough (...)`."""
    options = [change.partition("--set ")[2].partition(" ")[0] for change in changes if "--set " in change]
    return f": `{options[0]}`" if options else ""


def _checkpointing(value: Any) -> str:
    return {"no": "none", "full": "all blocks"}.get(value, f"{value} blocks")


def unsloth() -> str:
    """Plans beside the logs of Unsloth's notebooks, which are published with the notebooks."""
    result = read_result("finetune_plans")
    rows = []
    for row in result["rows"]:
        if row["variant"] == "unsloth":
            log = result["unsloth"][row["model"]]
            rows.append(
                [
                    row["model"],
                    f"{row['peak_bytes'] / _GIB:.1f} GiB",
                    f"{log['peak_bytes'] / _GIB:.1f} GiB",
                    f"{row['update_seconds']:.1f} s",
                    f"{log['update_seconds']:.1f} s",
                ]
            )
    head = ("model", "peak memory, planned", "peak memory, Unsloth", "one update, planned", "one update, Unsloth")
    return table(head, rows)
