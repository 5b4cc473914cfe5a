"""What copies cost training: one run with and without `--backup`, in turn, each checkpoint copied.

    python -m benchmarks.backup.overhead --times 3 --json benchmarks/results/backup-overhead.json

The answer has the seconds from the start of each session to its end, and the ratio of the medians.
"""

import argparse
import json
import shutil
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.backup.losses import finish, train

from shoestring.training.monitor import events


def seconds(run: Path) -> float:
    """Return the seconds from the start of the session to its recorded end."""
    times = [event["time"] for event in events.read(run / "events.jsonl") if event["event"] in ("session", "stop")]
    return float(times[-1] - times[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    rows: dict[str, list[float]] = {"without": [], "with": []}
    copies: list[int] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        finish(train(folder / "first"))
        for number in range(arguments.times):
            for kind, options in (("without", []), ("with", ["--backup", str(folder / f"copies-{number}")])):
                run = folder / f"{kind}-{number}"
                run.mkdir()
                shutil.copy(folder / "first" / "plan.json", run)
                finish(train(run, *options))
                rows[kind].append(seconds(run))
                if options:
                    copies.append(sum(event["event"] == "backup" for event in events.read(run / "events.jsonl")))
            print(f"{number + 1} of {arguments.times}", file=sys.stderr)
    medians = {kind: statistics.median(values) for kind, values in rows.items()}
    result: dict[str, Any] = {"seconds": rows, "copies": copies, "ratio": medians["with"] / medians["without"]}
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result))


if __name__ == "__main__":
    main()
