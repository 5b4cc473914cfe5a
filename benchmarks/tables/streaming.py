"""Models that are larger than the GPU: their plans, how copies overlap with the computation, and memory."""

from benchmarks.lab.memory.streaming import ALLOWED, error
from benchmarks.tables.markdown import Row, percent, read_result, table

_GIB = 2**30
_ROWS = 16
"""The default number of rows in an update, which earlier results do not tell."""
_MACHINES = {
    "kaggle-t4": "one T4, Kaggle",
    "kaggle-t4x2": "two T4s, Kaggle",
    "colab-t4": "T4, Colab",
    "rtx3060": "RTX 3060, 16 GB",
    "rtx4090": "RTX 4090, 64 GB",
}


def plans() -> str:
    """A row for each model and machine."""
    head = ("model", "machine", "fits", "streamed", "microbatch", "per copy", "GPU memory", "host memory", "tokens/s")
    rows = [[row["model"], _machine(row), *_costs(row)] for row in _rows()]
    return table((*head, "hours", "waiting", "hidden from"), rows)


def _machine(row: Row) -> str:
    rows = row.get("rows_of_update", _ROWS)
    text = _MACHINES[row["target"]] + {"zero3": ", FSDP", "pipeline": ", divided"}.get(row["settings"]["sharding"], "")
    return text if rows == _ROWS else f"{text}, {rows} rows an update"


def _per_copy(row: Row) -> str:
    """Return how many microbatches use each copy of a streamed block."""
    settings = row["settings"]
    if not settings["streamed_blocks"]:
        return "-"
    if settings.get("stream_order") != "block":
        return "1"
    return str(settings.get("stream_group") or -(-row["rows_of_update"] // settings["micro_batch"]))


def _rows() -> list[Row]:
    return [row for row in read_result("streaming_plans")["rows"] if "error" not in row]


def _costs(row: Row) -> list[str]:
    settings = row["settings"]
    count, size = settings["streamed_blocks"], row["streamed_bytes"]
    streamed = "none"
    if count:
        copies = 1 if settings["sharding"] == "pipeline" else settings["gpus"]
        source = "disk" if settings["stream_from"] == "disk" else "host"
        streamed = f"{count} of {row['blocks']} blocks, {size / copies / _GIB:.1f} GiB, {source}"
    fits = row["verdict"] == "fits"
    reason = "yes" if fits else "no: " + ", ".join(row["exceeded"])
    if fits and row["target"].endswith("x2") and settings["gpus"] == 1:
        reason = "yes, on one GPU"
    times = ["-", "-", "-"]
    if fits:
        waiting = row["waiting_seconds"] / row["update_seconds"]
        times = [f"{row['tokens_per_second']:,.0f}", f"{row['hours']:.1f}", f"{waiting:.0%}"]
    memory = f"{row['peak_bytes'] / _GIB:.1f} of {row['capacity_bytes'] / _GIB:.1f} GiB"
    host = f"{row['host_bytes'] / _GIB:.1f} of {row['ram_bytes'] / _GIB:.1f} GiB"
    hidden = f"{row['hidden_tokens']:,} tokens" if row["hidden_tokens"] else "-"
    return [reason, streamed, str(settings["micro_batch"]), _per_copy(row), memory, host, *times, hidden]


def overlap() -> str:
    """A row for each ratio of the time of a copy to that of a forward."""
    head = ("time of a copy / of a forward", "streamed / resident", "predicted", "if copies do not run ahead")
    rows = (
        (
            f"{row['ratio']:.1f}",
            f"{row['streamed over resident']:.2f}",
            f"{row['predicted over resident']:.2f}",
            f"{row['one after the other over resident']:.2f}",
        )
        for row in read_result("streaming_overlap")["rows"]
    )
    return table(head, rows)


def orders() -> str:
    """A row for each number of microbatches and ratio of the time of a copy to that of a forward."""
    head = ("microbatches", "time of a copy / of a forward", "one after the other / resident", "by block / resident")
    rows = (
        (
            str(row["microbatches"]),
            f"{row['ratio']:.0f}",
            f"{row['microbatch over resident']:.2f}",
            f"{row['block over resident']:.2f}",
        )
        for row in read_result("streaming_overlap")["orders"]
    )
    return table(head, rows)


def memory() -> str:
    """Return a row for each model of the laboratory with streamed blocks: what was measured, and the errors."""
    head = ("model", "weights", "checkpointing", "streamed", "allocated", "error", "reserved", "error", "host", "error")
    rows = [[*_model(row), *(cell for name in ALLOWED for cell in _beside(row, name))] for row in _lab_rows()]
    return table(head, rows)


def _lab_rows() -> list[Row]:
    return [row for row in read_result("lab-streaming")["rows"] if "error" not in row]


def _model(row: Row) -> list[str]:
    return [row["model"], row["weights"], row["checkpointing"], f"{row['streamed']} of {row['blocks']} blocks"]


def _beside(row: Row, quantity: str) -> list[str]:
    difference = error(row, quantity)
    if difference is None:
        return ["–", "–"]
    return [f"{row['measured'][quantity] / _GIB:.2f} GiB", percent(abs(difference), 2)]
