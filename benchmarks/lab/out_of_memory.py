"""Let each request for device memory fail in updates, evaluations, saves, loading and generation.

    python -m benchmarks.rehearse.simulated --stack kaggle -- -m benchmarks.lab.out_of_memory [--json FILE]
        [--scenario NAME ...] [--every N] [--add]

A case lets the n-th request fail, or it and the next one, or all from there on. What is right: the work ends with the
bits of one that had the smaller sizes from the start, or with the documented error, after which the same command
continues. `tests/lab/out_of_memory` has the scenarios. The exit status is 1 if an outcome is another one.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from tests.lab.out_of_memory import ranks
from tests.lab.out_of_memory.campaign import COUNTS, RIGHT, Campaign, Case, Scenario
from tests.lab.out_of_memory.scenarios import SCENARIOS

from shoestring.base.units import seconds_text
from shoestring.version import __version__

RESULTS = Path(__file__).parents[1] / "results"
EVERY_FURTHER = 5
"""Two failures in succession, and all from there on, begin at every so many requests: their places are those of one
failure."""
EVERY_OF_RANKS = 32
"""A case on two GPUs starts two processes."""
PROGRESS_SECONDS = 20
LIMIT_SECONDS = 3600
"""Of all cases on two GPUs."""


class Results:
    """The cases so far, in the form of the file."""

    def __init__(self) -> None:
        self._rows: list[dict[str, Any]] = []
        self._places: Counter[str] = Counter()
        self._outcomes: Counter[str] = Counter()
        self.defects: list[dict[str, Any]] = []
        self._started_at = time.monotonic()

    def begin(self, name: str, requests: int | None, every: int) -> None:
        """Begin a scenario that makes so many requests without failures, if they are counted."""
        row = {"scenario": name, "every": every, "requests": requests, "cases": 0}
        self._rows.append({**row, "outcomes": Counter(), "places": set()})

    @property
    def scenario(self) -> str:
        """The present scenario."""
        return str(self._rows[-1]["scenario"]) if self._rows else ""

    def add(self, first: int, count: int, outcome: str, places: Iterable[str], error: str) -> None:
        row, kind = self._rows[-1], outcome if outcome in RIGHT else "defect"
        row["cases"] += 1
        row["outcomes"][kind] += 1
        self._outcomes[kind] += 1
        for place in places:
            row["places"].add(place)
            self._places[place] += 1
        if kind == "defect":
            self.defects.append(
                {"scenario": row["scenario"], "first": first, "count": count, "places": [*places][:3], "error": error}
                | {"outcome": outcome}
            )

    def add_earlier(self, content: Mapping[str, Any]) -> None:
        """Begin with the results of other scenarios, as they are in a file."""
        self._rows = [*content["scenarios"]]
        self._places, self._outcomes = Counter(content["failures_by_place"]), Counter(content["outcomes"])
        self.defects = [*content["defects"]]
        self._started_at -= 60 * content["minutes"]

    def content(self) -> dict[str, Any]:
        rows = [
            {**row, "outcomes": dict(row["outcomes"]), "places": _number(row["places"])}
            for row in self._rows
            if row["cases"]
        ]
        return {
            "versions": {"shoestring": __version__, "torch": torch.__version__},
            "minutes": (time.monotonic() - self._started_at) / 60,
            "cases": sum(self._outcomes.values()),
            "outcomes": dict(self._outcomes),
            "failures_by_place": dict(sorted(self._places.items())),
            "scenarios": rows,
            "defects": self.defects,
        }


def _number(places: set[str] | int) -> int:
    """Return the number of places; a file has nothing but that number."""
    return places if isinstance(places, int) else len(places)


class Progress:
    """Reports how far a scenario is, on standard output, and estimates the time that the others need."""

    def __init__(self, scenarios: int) -> None:
        self._left, self._started_at, self._reported_at = scenarios, time.monotonic(), 0.0
        self._complete = 0

    def report(self, name: str, done: float, *, is_over: bool = False) -> None:
        now = time.monotonic()
        if not is_over and now - self._reported_at < PROGRESS_SECONDS:
            return
        self._reported_at = now
        progress = self._complete + min(1.0, done)
        left = (now - self._started_at) / progress * (self._left - progress) if progress else 0.0
        print(f"{name}: {100 * min(1.0, done):.0f}%, about {seconds_text(left)} left", flush=True)
        self._complete += is_over


def _cases(campaign: Campaign, every: int, offset: int) -> Iterator[tuple[float, Case]]:
    """Yield the cases of a scenario, each with the share that is complete."""
    shares = {count: every if count == 1 else every * EVERY_FURTHER for count in COUNTS}
    total = sum(campaign.requests / share for share in shares.values())
    complete = 0
    for count, share in shares.items():
        for case in campaign.cases(share, offset=offset, counts=[count]):
            complete += 1
            yield complete / max(1.0, total), case


def run(
    scenarios: Sequence[Scenario], *, of_ranks: Sequence[str], every: int, file: Path, earlier: Mapping[str, Any] | None
) -> Results:
    """Run the cases, and write the results after each scenario, after those of an `earlier` content of the file."""
    results, progress = Results(), Progress(len(scenarios) + bool(of_ranks))
    if earlier:
        results.add_earlier(earlier)
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as folder:
        for offset, scenario in enumerate(scenarios):
            with _quiet(Path(folder, "output")), Campaign(scenario, Path(folder, scenario.name)) as campaign:
                results.begin(scenario.name, campaign.requests, every)
                for share, case in _cases(campaign, every, offset):
                    results.add(case.first, case.count, case.outcome, case.places, case.error)
                    progress.report(scenario.name, share)
            progress.report(scenario.name, 1.0, is_over=True)
            _write(file, results.content())
        if of_ranks:
            print(f"{', '.join(of_ranks)}: in processes of their own", flush=True)
            cases = ranks.start(Path(folder, "ranks"), EVERY_OF_RANKS * every, seconds=LIMIT_SECONDS, names=of_ranks)
            for row in cases:
                if results.scenario != row["scenario"]:
                    results.begin(row["scenario"], None, EVERY_OF_RANKS * every)
                results.add(row["first"], row["count"], row["outcome"], row["places"], row["error"])
            progress.report("two GPUs", 1.0, is_over=True)
            _write(file, results.content())
    return results


def _write(file: Path, content: dict[str, Any]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(content, indent=1) + "\n")


@contextmanager
def _quiet(output: Path) -> Iterator[None]:
    """Write what sessions print to standard error into a file."""
    sys.stderr.flush()
    before = os.dup(2)
    with output.open("w") as file:
        os.dup2(file.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(before, 2)
            os.close(before)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", type=Path, default=RESULTS / "lab-out-of-memory.json", help="output file")
    names = [*(scenario.name for scenario in SCENARIOS), *ranks.SCENARIOS]
    parser.add_argument("--scenario", nargs="+", choices=names, default=names, metavar="NAME", help=", ".join(names))
    parser.add_argument("--every", type=int, default=1, help="only every N-th request fails; default: each")
    parser.add_argument("--add", action="store_true", help="add to the file, which has none of these scenarios yet")
    options = parser.parse_args(arguments)
    scenarios = [scenario for scenario in SCENARIOS if scenario.name in options.scenario]
    of_ranks = [name for name in ranks.SCENARIOS if name in options.scenario]
    earlier = json.loads(options.json.read_text()) if options.add else None
    if earlier and (known := {row["scenario"] for row in earlier["scenarios"]} & {*options.scenario}):
        parser.error(f"{options.json} has results of {', '.join(sorted(known))}")
    results = run(scenarios, of_ranks=of_ranks, every=options.every, file=options.json, earlier=earlier)
    content = results.content()
    print(f"{content['cases']} cases in {content['minutes']:.1f} minutes: {content['outcomes']}")
    for defect in results.defects:
        print(json.dumps(defect)[:2000])
    return 1 if results.defects else 0


if __name__ == "__main__":
    raise SystemExit(main())
