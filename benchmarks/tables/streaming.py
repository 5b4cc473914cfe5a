"""Streamed blocks: how copies overlap with the computation."""

from benchmarks.tables.markdown import read_result, table


def overlap() -> str:
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
