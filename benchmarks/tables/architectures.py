"""What is answered for configurations of transformers."""

from statistics import median

from benchmarks.tables.markdown import read_result, table

_SLOW_SECONDS = 30


def newest() -> str:
    """Return a row on the newest types of models of each family."""
    rows = read_result("architectures_newest")["rows"]
    answered = [row for row in rows if row["outcome"] == "an answer"]
    slow = [f"{row['file'].partition('.')[0]} {row['cpu_seconds']:.0f} s" for row in answered]
    slow = [text for text, row in zip(slow, answered, strict=True) if row["cpu_seconds"] > _SLOW_SECONDS]
    refused = [row["file"].partition(".")[0] for row in rows if row["outcome"] != "an answer"]
    head = ("types", "answered", "with transformers' number of parameters", "median", "slower than 30 s", "refused")
    seconds = f"{median(row['cpu_seconds'] for row in answered):.1f} s of a CPU"
    equal = sum(row["equal"] for row in answered)
    return table(head, [[len(rows), len(answered), equal, seconds, ", ".join(slow), ", ".join(refused)]])
