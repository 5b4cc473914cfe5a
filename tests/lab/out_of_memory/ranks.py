"""Cases on two GPUs: memory runs out on one process or on both of them, which train together over NCCL.

`python -m tests.lab.out_of_memory.ranks FOLDER EVERY COUNTS NAME...`, on a target with two GPUs, forks two processes
for each case of the scenarios; COUNTS are separated by commas. What is right is what is right on one GPU. A process
that ends with the error alone ends the other one, as the agent of a run would: then the error is that of the run.
"""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from shoestring.hardware.targets import find
from shoestring.planning.simulator.build import libraries
from shoestring.planning.simulator.environment import simulated
from shoestring.planning.simulator.torch_builds import read_build
from shoestring.training.engine.parallel.joining import join
from shoestring.training.engine.parallel.ranks import PeerLostError, Ranks, RanksApartError

from . import recipes, sessions
from .campaign import CONTINUED, SAME, Ended, ended, is_documented
from .injection import ALWAYS, every_allocation_is_a_request, failing

SECONDS = 90
"""A case that takes longer hangs."""
WHERE: Mapping[str, tuple[int, ...]] = {"first": (0,), "second": (1,), "both": (0, 1)}
SCENARIOS: Mapping[str, tuple[type, Mapping[str, Any]]] = {
    "two GPUs, ddp fp32": (recipes.Small, {}),
    "two GPUs, zero1 fp16": (recipes.Scaled, {"sharding": "zero1", "precision": "fp16"}),
    "two GPUs, zero1 fp16, following": (recipes.Following, {"sharding": "zero1", "precision": "fp16"}),
}
_VALUES = {"micro_batch": 4, "save_every_updates": 1, "save_every_seconds": 0, "ema": 0.5}


def start(
    folder: Path,
    every: int,
    *,
    seconds: float,
    counts: Sequence[int] = (1, 2, ALWAYS),
    names: Sequence[str] = tuple(SCENARIOS),
) -> list[dict[str, Any]]:
    """Start all cases of these scenarios on two simulated GPUs and return them."""
    folder.mkdir(parents=True, exist_ok=True)
    records = folder / "records"
    records.mkdir()
    build = read_build(Path(torch.__file__).parent)
    assert build is not None
    compiled = libraries(build)
    environment = simulated(
        {**os.environ, "OMP_NUM_THREADS": "1"}, compiled, find("kaggle-t4x2"), records, values="all"
    )
    command = [sys.executable, "-m", __name__, str(folder), str(every), ",".join(map(str, counts)), *names]
    with (folder / "output").open("w") as output:
        status = subprocess.run(
            command, env=environment, stdout=output, stderr=subprocess.STDOUT, timeout=seconds, check=False
        ).returncode
    assert status == 0, (folder / "output").read_text()[-3000:]
    return [json.loads(line) for line in (folder / "cases.jsonl").read_text().splitlines()]


class _Pair:
    """Two processes for each case of a scenario."""

    def __init__(self, name: str, folder: Path) -> None:
        self._recipe, values = SCENARIOS[name]
        self._values = {**_VALUES, **values}
        self._folder = folder
        folder.mkdir()
        self._references: dict[sessions.SizesByUpdate, Any] = {}
        self._number = 0

    def case(self, where: Sequence[int], first: int, count: int) -> dict[str, Any]:
        """Run one case and return its outcome, and where it failed."""
        self._number += 1
        run = self._folder / f"run{self._number}"
        results = self._processes(run, where, first, count)
        case: dict[str, Any] = {"places": [place for result in results for place in result["places"]], "error": ""}
        errors = {_message(result) for result in results if result["error"] and result["error"] != "peer lost"}
        if first and not case["places"]:
            outcome = "not reached"
        elif any(result["traceback"] for result in results):
            outcome = f"a traceback, or a hang: {[result['traceback'][-1500:] for result in results]}"
        elif len(errors) > 1 or (not errors and any(result["error"] for result in results)):
            outcome = f"the processes end differently: {results}"
        elif errors and not any(map(_is_documented, results)):
            outcome = f"another error: {results}"
        else:
            case["error"] = next(iter(errors), "")
            outcome = self._check(run, results, case["error"])
        shutil.rmtree(run, ignore_errors=True)
        return case | {"outcome": outcome}

    def _check(self, run: Path, results: list[dict[str, Any]], error: str) -> str:
        if problems := sessions.damaged(run):
            return f"after the error: {problems}"
        if error:
            again = self._processes(run)
            if any(result["error"] or result["traceback"] for result in again):
                return f"the same command again: {again}"
            for result, earlier in zip(again, results, strict=True):
                result["sizes"] = earlier["sizes"] | result["sizes"]
            results = again
        first, second = ({int(update): tuple(size) for update, size in result["sizes"].items()} for result in results)
        if first != second:
            return f"the processes have other sizes: {first}, {second}"
        if others := sessions.other_batches(*(_observed(result) for result in results)):
            return f"another effective batch: {others}"
        sizes = tuple(first[update] for update in sorted(first))
        if sizes not in self._references:
            reference = self._folder / f"reference{len(self._references)}"
            ended_well = self._processes(reference, sizes=sizes)
            if any(result["error"] or result["traceback"] for result in ended_well):
                return f"the reference: {ended_well}"
            self._references[sizes] = sessions.bits(reference)
        expected, present = self._references[sizes], sessions.bits(run)
        different = [part for part in expected if expected[part] != present[part]]
        if different:
            return f"other bits than with {sizes}: {different}"
        return CONTINUED if error else SAME

    def _processes(
        self, run: Path, where: Sequence[int] = (), first: int = 0, count: int = 0, sizes: Any = None
    ) -> list[dict[str, Any]]:
        """Fork both processes, in which requests fail in those at `where`, and return what they report."""
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        reports = [self._folder / f"report{rank}.json" for rank in range(2)]
        pids = []
        for rank, report in enumerate(reports):
            report.unlink(missing_ok=True)
            pid = os.fork()
            if pid == 0:
                try:
                    os.environ |= {
                        "RANK": str(rank),
                        "LOCAL_RANK": str(rank),
                        "WORLD_SIZE": "2",
                        "LOCAL_WORLD_SIZE": "2",
                    }
                    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
                    failures = (first, count) if rank in where else (0, 0)
                    report.write_text(json.dumps(self._train(run, failures, sizes)))
                finally:
                    os._exit(0)
            pids.append(pid)
        _wait(pids)
        missing = {"traceback": "no report", "error": "", "places": [], "sizes": {}}
        return [json.loads(report.read_text()) if report.exists() else missing for report in reports]

    def _train(self, run: Path, failures: tuple[int, int], sizes: Any) -> dict[str, Any]:
        """Train in this process and return what became of it."""
        torch.set_num_threads(1)
        join(torch.device("cuda"))
        ranks, observed = Ranks.join(), sessions.Observed()

        def train() -> None:
            sessions.train(self._recipe(), run, self._values, observed=observed, sizes=sizes, ranks=ranks)

        with every_allocation_is_a_request(), failing(*failures, each=True) as requests:
            try:
                result = ended(train)
            except RanksApartError as error:
                result = Ended(error=str(error), status=error.status)
            except PeerLostError:
                result = Ended(error="peer lost")
        return {**asdict(result), "places": requests.places, **asdict(observed)}


def _wait(pids: Sequence[int]) -> None:
    """Wait until all processes have ended; those that hang are killed."""
    remaining, give_up_at = set(pids), time.monotonic() + SECONDS
    while remaining:
        ended_pids = {pid for pid in remaining if os.waitpid(pid, os.WNOHANG)[0]}
        remaining -= ended_pids
        if remaining and time.monotonic() > give_up_at:
            for pid in remaining:
                os.kill(pid, signal.SIGKILL)
            give_up_at += SECONDS
        time.sleep(0.01)


def _message(result: Mapping[str, Any]) -> str:
    """Return the first line of an error, without the GPU that it names on the other ones."""
    line: str = result["error"].splitlines()[0]
    return line.partition(": ")[2] if line.startswith("GPU ") else line


def _is_documented(result: dict[str, Any]) -> bool:
    """Return whether a process ended with the documented error, or so that the launcher starts all of them again."""
    return is_documented(_ended(result)) or result["status"] == RanksApartError.status


def _ended(result: Mapping[str, Any]) -> Ended:
    return Ended(**{name: result[name] for name in ("error", "hint", "status", "traceback")})


def _observed(result: Mapping[str, Any]) -> sessions.Observed:
    return sessions.Observed(
        expected={int(update): samples for update, samples in result["expected"].items()},
        samples={int(update): samples for update, samples in result["samples"].items()},
    )


def cases(name: str, folder: Path, every: int, counts: Sequence[int]) -> Iterator[dict[str, Any]]:
    """Run the cases of a scenario: every `every`th request fails, on one process or on both, `counts` times."""
    pair = _Pair(name, folder)
    case = pair.case((), 0, 0)
    assert case["outcome"] == SAME, case
    for index, (where, ranks) in enumerate(WHERE.items()):
        for count in counts:
            first = 1 + index * every // len(WHERE)
            while (case := pair.case(ranks, first, count))["outcome"] != "not reached":
                yield {"scenario": name, "where": where, "first": first, "count": count, **case}
                first += every


def main(arguments: Sequence[str]) -> None:
    folder, every, counts, *names = arguments
    with Path(folder, "cases.jsonl").open("w") as file:
        for name in names:
            own = Path(folder, name.replace(" ", "-"))
            for case in cases(name, own, int(every), [int(count) for count in counts.split(",")]):
                file.write(json.dumps(case) + "\n")
                file.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
