"""Runs on a loopback Kaggle with faults, runs whose machine was lost, and runs with random sequences of faults."""

from statistics import median

from benchmarks.tables.markdown import read_result, table


def kaggle() -> str:
    results = [
        (title, read_result(name))
        for title, name in (("without torch", "kaggle-chains"), ("training temporal", "kaggle-training"))
    ]
    lines = (
        ("runs", "chains"),
        ("sessions", "sessions"),
        ("sessions without progress (lost, killed, damaged)", "sessions_wasted"),
        ("kills of the command", "kills"),
        ("pushes that were doubled", "doubled"),
        ("runs beyond the quota", "quota_exceeded"),
        ("kernels left running", "left_running"),
        ("places where the token was found", "token_found"),
    )
    rows: list[list[object]] = [[title, *(result[key] for _, result in results)] for title, key in lines]
    outcomes = [result["outcomes"] for _, result in results]
    rows[1:1] = [
        ["finished in the bits of an unbroken run", *(count.get("finished", 0) for count in outcomes)],
        ["ended in one clear error", *(count.get("error", 0) for count in outcomes)],
        [
            "anything else",
            *(sum(count.values()) - count.get("finished", 0) - count.get("error", 0) for count in outcomes),
        ],
    ]
    return table(["counted", *(title for title, _ in results)], rows)


def backup_losses() -> str:
    result = read_result("backup-losses")
    places = {"folder": "folder", "s3": "`s3://`", "hf": "`hf://`", "kaggle": "`kaggle://` (processing takes 0.5 s)"}
    rows = []
    for place, title in places.items():
        lost = [row["lost_updates"] for row in result["rows"] if row["place"] == place]
        rows.append([title, len(lost), f"{median(lost):g}", max(lost)])
    return table(("place", "machines lost", "updates lost, median", "most"), rows)


def faults() -> str:
    result = read_result("faults")
    outcomes, lateness = result["outcomes"], result["lateness"]
    rows: list[list[object]] = [
        ["sequences, each a run of its own", result["sequences"]],
        ["sessions", result["sessions"]],
        ["faults", sum(applied for applied, _ in result["faults"].values())],
        ["kinds of faults", sum(applied > 0 for applied, _ in result["faults"].values())],
        ["runs that ended in the bits of an undisturbed run", outcomes["same bits"]],
        ["runs that did so after one clear error", outcomes["same bits after an error"]],
        ["runs that failed", outcomes["failed"]],
        ["updates that one session lost, most", result["most updates lost"]],
        ["sessions with a limit", lateness["sessions"]],
    ]
    if lateness["sessions"]:
        rows.append(["time left before the limit, shortest", f"{-lateness['worst']:.1f} s"])
    return table(("counted", "value"), rows)
