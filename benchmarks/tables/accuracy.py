"""Estimates of memory and time beside what others have measured."""

from collections.abc import Iterable, Mapping, Sequence
from statistics import median

from benchmarks.percentiles import percentile
from benchmarks.tables.markdown import Row, percent, read_result, table

from shoestring.base.units import MIB


def _errors(rows: Sequence[Row]) -> list[float]:
    return [abs(row["estimate"] / row["measured"] - 1) for row in rows]


def _error_columns(rows: Sequence[Row], digits: Sequence[int]) -> list[str]:
    errors = _errors(rows)
    return [
        str(len(rows)),
        *(
            percent(value, count)
            for value, count in zip((median(errors), percentile(errors, 0.9), max(errors)), digits, strict=True)
        ),
    ]


def _scored(name: str, quantity: str | None = None) -> list[Row]:
    """Return the rows that have an estimate, of a quantity beside the main one if it is named."""
    rows = [row for row in read_result(name)["rows"] if not row.get("skipped")]
    return [row[quantity] for row in rows if quantity in row] if quantity else rows


def memory() -> str:
    sets = (
        ("LoRA and QLoRA on T4s (allocated)", _scored("memory_lora"), (2, 2, 2)),
        ("full training on T4s (allocated)", _scored("memory_train"), (2, 1, 1)),
        ("LoRA and QLoRA on T4s (reserved)", _scored("memory_lora", "reserved"), (2, 1, 1)),
        ("LoRA and QLoRA on T4s (the whole process)", _scored("memory_lora", "process"), (2, 1, 1)),
        (
            "xMem's CNNs and transformers (reserved)",
            [row for row in _scored("memory_xmem") if row["fitted"]],
            (2, 1, 1),
        ),
    )
    head = (
        "set",
        "rows",
        "median error",
        "90th percentile",
        "worst",
        "under the high end",
        "high end above, at the median",
    )
    return table(head, ([title, *_error_columns(rows, digits), *_high_end(rows)] for title, rows, digits in sets))


def _high_end(rows: Sequence[Row]) -> list[str]:
    held = sum(row["measured"] <= row["high"] for row in rows) / len(rows)
    return [percent(held).replace("100.0", "100"), percent(median(row["high"] / row["measured"] - 1 for row in rows))]


def time() -> str:
    train = _scored("time_train")
    sets = (
        ("LoRA and QLoRA steps on T4s, fp16 and NF4", _scored("time_lora")),
        ("full training steps on T4s, fp32 and fp16", [row for row in train if row["group"].startswith("T4")]),
        ("full training steps on P100s, fp32", [row for row in train if row["group"].startswith("P100")]),
    )
    head = ("set", "rows", "median error", "90th percentile", "worst", "within the range", "under the high end")
    return table(head, ([title, *_error_columns(rows, (1, 1, 1)), *_held(rows)] for title, rows in sets))


def _held(rows: Sequence[Row]) -> list[str]:
    """Return the shares of rows within the range and under its high end."""
    inside = sum(row["low"] <= row["measured"] <= row["high"] for row in rows)
    below = sum(row["measured"] <= row["high"] for row in rows)
    return [percent(count / len(rows), 0) for count in (inside, below)]


def time_held_out() -> str:
    """Write how many rows of each source lie in the range that the other sources give."""
    rows = _scored("time_lora") + _scored("time_train")
    sources = dict.fromkeys(row["source"] for row in rows)
    lines = [
        [source, str(len(chosen)), *_held(chosen)]
        for source in sources
        if (chosen := [row for row in rows if row["source"] == source])
    ]
    head = ("source left out", "rows", "within the range", "under the high end")
    return table(head, [*lines, ["all", str(len(rows)), *_held(rows)]])


_ADAPTERS = {
    "nf4 eager": "NF4, eager attention",
    "nf4 sdpa": "NF4, SDPA",
    "none eager": "fp16, eager attention",
    "none sdpa": "fp16, SDPA",
}
"""The groups of LoRA and QLoRA rows with their titles."""


def memory_groups() -> str:
    rows = _scored("memory_lora")
    return table(
        ("rows", "number", "median error", "90th percentile", "worst"),
        ([title, *_error_columns(_of_group(rows, group), (2, 2, 2))] for group, title in _ADAPTERS.items()),
    )


def memory_reserved() -> str:
    errors = ("median error", "90th percentile", "under the high end")
    head = ("rows", "number", *(f"{quantity}: {name}" for quantity in ("reserved", "process") for name in errors))
    lines = []
    for group, title in _ADAPTERS.items():
        rows = [row for row in _of_group(_scored("memory_lora"), group) if "reserved" in row]
        line = [title, str(len(rows))]
        for quantity in ("reserved", "process"):
            scored = [row[quantity] for row in rows]
            line += [*_error_columns(scored, (1, 1, 1))[1:3], _high_end(scored)[0]]
        lines.append(line)
    return table(head, lines)


def memory_families() -> str:
    """Write the table of xMem's measurements, which includes how often the estimate is too low."""
    head = (
        "family",
        "rows",
        "median error",
        "90th percentile",
        "worst",
        "underestimated",
        "under the high end",
        "high end above, at the median",
    )
    fitted = [row for row in _scored("memory_xmem") if row["fitted"]]
    lines = []
    for group, title in (("cnn", "CNN"), ("transformer", "transformer")):
        rows = _of_group(fitted, group)
        below = sum(row["estimate"] < row["measured"] for row in rows) / len(rows)
        lines.append([title, *_error_columns(rows, (1, 1, 1)), percent(below, 0), *_high_end(rows)])
    return table(head, lines)


def memory_rivals() -> str:
    """Write the errors of all programs on xMem's measurements, and how many failed runs each predicted to fit."""
    titles = {"xmem": "xMem", "dnnmem": "DNNMem", "schedtune": "SchedTune", "llmem": "LLMem"}
    head = (
        "program",
        "rows",
        "median error",
        "90th percentile",
        "worst",
        "too low",
        "runs without enough memory that were predicted to fit",
    )
    rows = _scored("memory_xmem")
    return table(
        head, [_program("Shoestring", rows), *(_program(titles[name], _of_rival(rows, name)) for name in titles)]
    )


def _of_rival(rows: Sequence[Row], name: str) -> list[Row]:
    """Return the rows with the estimate of another program, which predicts that a run fits if the estimate does."""
    return [
        {**row, "estimate": row["rivals"][name], "fits": row["rivals"][name] <= row["capacity"]}
        for row in rows
        if name in row["rivals"]
    ]


def _program(title: str, rows: Sequence[Row]) -> list[str]:
    fitted = [row for row in rows if row["fitted"]]
    failed = [row for row in rows if not row["fitted"]]
    below = sum(row["estimate"] < row["measured"] for row in fitted) / len(fitted)
    wrong = f"{sum(row['fits'] for row in failed)} of {len(failed)}"
    return [title, *_error_columns(fitted, (1, 1, 1)), percent(below, 0), wrong]


def memory_loading() -> str:
    rows = read_result("memory_loading")["rows"]
    columns = {"peak of loading": "loading", "peak of training": "training", "left by loading": "left by loading"}
    head = ("model", *(f"{title}: {by}" for title in columns for by in ("engine", "transformers")))
    models: dict[str, dict[str, Row]] = {}
    for row in rows:
        models.setdefault(row["model"], {})[row["loaded by"]] = row
    return table(
        head,
        (
            [model, *(_size(ways[by][key]) for key in columns.values() for by in ("engine", "transformers"))]
            for model, ways in models.items()
        ),
    )


def _size(count: int) -> str:
    return f"{count / 2**30:.2f} GiB" if count >= 2**30 else f"{count / 2**20:.0f} MiB"


def memory_fitcheck() -> str:
    """Write the errors of both predictors on the same rows; the largest one has a sign."""
    groups = {row["id"]: row["group"] for row in _scored("memory_lora")}
    rows = read_result("memory_fitcheck")["rows"]
    sets = (
        ("tensors", "tensors", ""),
        ("process, NF4", "process", "nf4"),
        ("process, fp16", "process", "none"),
        ("process, all", "process", ""),
    )
    errors = ("median error", "90th percentile", "worst")
    head = ("quantity", "rows", *(f"{name}: {error}" for name in ("Shoestring", "FitCheck") for error in errors))
    lines = []
    for title, quantity, prefix in sets:
        chosen = [row for row in rows if groups[row["id"]].startswith(prefix)]
        line = [title, str(len(chosen))]
        for program in ("shoestring", "fitcheck"):
            signed = [row[program][quantity] / row[quantity] - 1 for row in chosen]
            sizes = [abs(error) for error in signed]
            line += [percent(median(sizes), 2), percent(percentile(sizes, 0.9), 2), f"{max(signed, key=abs):+.2%}"]
        lines.append(line)
    return table(head, lines)


_CALCULATORS = {
    "shoestring": "Shoestring",
    "xmem": "xMem",
    "fitcheck": "FitCheck",
    "vramcalc": "vramcalc",
    "ml-memguard": "memory-guard",
    "unsloth": "Unsloth Studio",
    "peft-doctor": "PEFT Doctor",
    "soup-cli": "Soup",
    "accelerate": "Accelerate",
}


def _calculators(rows: Iterable[Row], versions: Mapping[str, str]) -> str:
    """Write the signed errors of each program, from rows with a measured value and a prediction of each program."""
    errors: dict[str, list[float]] = {}
    for row in rows:
        for name, predicted in row["predictions"].items():
            errors.setdefault(name, []).append(predicted / row["measured"] - 1)
    return table(
        ("program", "rows", "median error", "90th percentile", "worst", "too low"),
        (
            [
                f"{_CALCULATORS[name]} {versions.get(name, '')}".strip(),
                str(len(errors[name])),
                percent(median(sizes)),
                percent(percentile(sizes, 0.9)),
                f"{max(errors[name], key=abs):+.1%}",
                percent(sum(error < 0 for error in errors[name]) / len(errors[name]), 0),
            ]
            for name in _CALCULATORS
            if name in errors and (sizes := [abs(error) for error in errors[name]])
        ),
    )


def memory_calculators() -> str:
    """Write the errors of calculators for LoRA steps on T4s, beside those of both predictors of `memory_fitcheck`."""
    result = read_result("memory_calculators")
    by_id = {row["id"]: row for row in read_result("memory_fitcheck")["rows"]}
    rows = [
        {
            "measured": row["measured"],
            "predictions": {name: by_id[row["id"]][name]["process"] for name in ("shoestring", "fitcheck")}
            | row["calculators"],
        }
        for row in result["lora"]
    ]
    return _calculators(rows, {**result["versions"], "fitcheck": "0.3.1"})


def memory_full() -> str:
    """Write the errors of Accelerate for full training with Adam, beside those of Shoestring and xMem."""
    result = read_result("memory_calculators")
    by_id = {row["id"]: row for row in _scored("memory_xmem")}
    rows = [
        {
            "measured": row["measured"],
            "predictions": {
                "shoestring": by_id[row["id"]]["estimate"],
                "xmem": by_id[row["id"]]["rivals"]["xmem"],
                **row["calculators"],
            },
        }
        for row in result["full"]
        if row["id"] in by_id
    ]
    return _calculators(rows, result["versions"])


def time_groups() -> str:
    titles = {group: f"LoRA, {title}" for group, title in _ADAPTERS.items()} | {
        "T4 bert-base-uncased fp16": "BERT-base, fp16 autocast, T4",
        "T4 bert-base-uncased fp32": "BERT-base, fp32, one to four T4s",
        "T4 resnet18-cifar fp32": "ResNet-18, fp32, one to four T4s",
        "T4 resnet50 fp16": "ResNet-50, fp16, channels first, one and two T4s",
        "T4 gpt-86m fp32": "GPT of 86 million parameters, fp32, one and two T4s",
        "P100 resnet18-cifar fp32": "ResNet-18, fp32, P100",
        "P100 lstm-lm fp32": "word LSTM, fp32, P100",
    }
    rows = _scored("time_lora") + _scored("time_train")
    return table(
        ("rows", "number", "median error", "90th percentile", "worst"),
        ([title, *_error_columns(_of_group(rows, group), (1, 1, 1))] for group, title in titles.items()),
    )


def time_cards() -> str:
    """Write the errors of steps on GPUs whose kernels were not timed, and of a V100's, by card and source."""
    sources = {"LAM": "ResNet-50 and BERT", "TIMM": "CNNs and vision transformers"}
    groups: dict[str, list[Row]] = {}
    for row in _scored("time_cards"):
        card, source, precision = row["group"].rsplit(" ", 2)
        groups.setdefault(f"{card}, {sources[source]}, {precision}", []).append(row)
    head = ("rows", "number", "median error", "90th percentile", "worst", "within the range", "under the high end")
    all_rows = [row for rows in groups.values() for row in rows]
    return table(
        head,
        (
            [title, *_error_columns(rows, (1, 1, 1)), *_held(rows)]
            for title, rows in (*groups.items(), ("all", all_rows))
        ),
    )


def time_two_gpus() -> str:
    """Write published steps on two GPUs beside the predictions, and those with a hidden exchange."""
    head = ("step", "measured", "predicted", "range", "error", "if the exchange were hidden")
    return table(
        head,
        (
            [
                row["id"],
                f"{row['measured']:.2f} s",
                f"{row['estimate']:.2f} s",
                f"{row['low']:.2f} to {row['high']:.2f} s",
                f"{row['estimate'] / row['measured'] - 1:+.0%}",
                f"{row['hidden']:.2f} s",
            ]
            for row in read_result("time_two_gpus")["rows"]
        ),
    )


def time_cpu() -> str:
    """Write the measured updates of a CPU beside the predictions from a file of rates and from two rates."""
    titles = {
        "resnet-18": "ResNet-18, 2 x 8 images of 64 x 64",
        "bert-small": "BERT, 4 layers of width 256, 2 x 8 x 128 tokens",
        "gpt2-small": "GPT-2, 6 layers of width 384, 2 x 4 x 256 tokens",
        "temporal": "`temporal`, 2 x 64",
        "cloud": "`cloud`, `size=tiny`, 2 x 1",
    }
    result = read_result("time_measured")
    head = (
        f"update on {result['environment']['cores']} cores of an {result['environment']['cpu']}",
        "measured",
        "from the file",
        "from two rates",
    )
    return table(
        head,
        (
            [
                titles[row["id"].split()[0]],
                f"{row['measured'] * 1000:,.0f} ms",
                *(
                    f"{sum(row[way]['parts'].values()) / row['measured'] - 1:+.0%}".replace("-0%", "0%")
                    for way in ("from_file", "catalogue")
                ),
            ]
            for row in result["rows"]
        ),
    )


def whole_run() -> str:
    """Write the time and the memory of whole runs beside their plans."""
    return whole_run_table(read_result("whole_run")["rows"])


def whole_run_table(rows: Iterable[Row]) -> str:
    """Write whole runs: their seconds, and what the plan said with the probe and without it, with ranges."""
    head = ("run", "updates", "seconds", "planned with the probe", "without", "memory (MiB)", "planned with the probe")
    return table(
        head,
        (
            [
                row["run"],
                f"{row['updates']['trained']}" + _other_than(row["updates"]),
                f"{row['seconds']:.1f}",
                _planned(row["seconds"], row["with_probe"], 1),
                _planned(row["seconds"] - (row["probe_seconds"] or 0.0), row["without_probe"], 1),
                f"{row['bytes'] / MIB:.0f}",
                _planned(row["bytes"] / MIB, [value / MIB for value in row["planned_bytes"]], 0),
            ]
            for row in rows
        ),
    )


def _other_than(updates: Mapping[str, int]) -> str:
    return "" if updates["planned"] == updates["trained"] else f" of {updates['planned']} planned"


def _planned(measured: float, planned: Sequence[float], digits: int) -> str:
    """Write (low, planned, high) with its relative error; in bold if the range does not have what was measured."""
    low, value, high = planned
    text = f"{value:,.{digits}f} ({low:,.{digits}f} to {high:,.{digits}f}), {value / measured - 1:+.0%}"
    return text if low <= measured <= high else f"**{text}**"


def estimate_speed() -> str:
    head = ("recipe", "seconds", "of which imports", "other", "goal", "memory")
    return table(
        head,
        (
            [
                row["name"],
                *(f"{row[key]:.1f}" for key in ("seconds", "imports", "beyond")),
                f"{row['goal_seconds']:.0f}" if row["goal_seconds"] else "-",
                f"{row['peak_bytes'] / 2**20:.0f} MiB",
            ]
            for row in read_result("estimate_speed")["rows"]
        ),
    )


def _of_group(rows: Sequence[Row], group: str) -> list[Row]:
    return [row for row in rows if row["group"] == group]
