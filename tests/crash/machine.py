"""Runs of the real command line that are disturbed, session after session, until they are finished.

    python -m tests.crash.machine FOLDER --seeds 0:20 [--only TEXT]
    python -m tests.crash.machine FOLDER --sequence '{"seed": 3, ...}'

A seed stands for a sequence (`sequences.py`): a run, and the faults of each of its sessions, which are rows of the
table in `faults_of_sessions`. After each session the table in `invariants_of_runs` is checked; a finished run must have
the bits of an undisturbed one. Each failure is printed when it happens, with the smallest sequence that still fails,
and its files are in FOLDER/failures. `python -m benchmarks.faults` runs many seeds, and can be stopped and continued.
"""

import argparse
import os
import shutil
import sys
import time
from contextlib import suppress
from pathlib import Path

from tests.crash import counts_of_machine as counts
from tests.crash import faults_of_sessions as faults
from tests.crash import invariants_of_runs as invariants
from tests.crash import sequences
from tests.crash.foreign_files import outside_of_runs
from tests.crash.logging_recipe import UPDATES
from tests.crash.preloaded import Preloaded
from tests.crash.schedule import newest_checkpoint
from tests.crash.sessions_of_machine import (
    CONFIGURATIONS,
    HANG_SECONDS,
    Session,
    drive,
    end_processes,
    processes_with_files,
)
from tests.crash.small_disk import SmallDisk
from tests.crash.wall_clock import compiled, with_library

MODULES = {
    "engine": ["torch", "torch._dynamo", "shoestring.cli.commands", "shoestring.training.loop"],
    "trainer": ["torch._dynamo", "shoestring.cli.commands", "shoestring.training.loop",
                "shoestring.integrations.library", "transformers.trainer"],
}  # fmt: skip
OTHER_SEED = 7
MOST_USUAL_SECONDS = 5.0
"""The limits of sessions are multiples of what an undisturbed one takes, but not of what it takes on a busy machine."""
SHRINKING_ATTEMPTS, SHRINKING_SECONDS = 12, 90.0


def sequence_of(seed, only=""):
    """Return the sequence of a seed, of the faults whose names contain `only`."""
    areas = {area: [fault.name for fault in rows if only in fault.name] for area, rows in faults.AREAS.items()}
    return sequences.of_seed(seed, tuple(CONFIGURATIONS), {area: names for area, names in areas.items() if names})


class Machine:
    """A folder in which sequences are run."""

    def __init__(self, folder):
        self.folder = folder.resolve()
        self.sessions = self.folder / "sessions"
        self.disk = SmallDisk(self.folder / "disk")
        # A machine that was killed may have left the processes of its session.
        end_processes(processes_with_files(self.sessions))
        shutil.rmtree(self.sessions, ignore_errors=True)
        (self.sessions / "temporary").mkdir(parents=True)
        self._outside = outside_of_runs(self.sessions)
        self._library = compiled(self.sessions)
        self._servers = {}
        self._undisturbed_results = {}
        self._other_runs = {}

    def close(self):
        end_processes(processes_with_files(self.sessions) | processes_with_files(self.disk.path))
        for server in self._servers.values():
            server.close()
        self.disk.close()

    def run(self, sequence, *, is_shown=True):
        """Run a sequence until its run is finished or has failed; return what happened, as JSON.

        A failure is printed and its files are stored, if it `is_shown`.
        """
        started_at = time.monotonic()
        self.disk.restore()
        configuration = CONFIGURATIONS[sequence.configuration]
        self._undisturbed(configuration)
        parent = self.disk.path / f"run-{sequence.seed}"
        shutil.rmtree(parent, ignore_errors=True)
        parent.mkdir()
        (parent / "canary").write_text(invariants.CANARY)
        run = {"path": parent / "run", "suspended": set(), "damaged": [], "planted": {}, "sessions": []}
        has_place = configuration.recipe is not None and sequence.generator("place").random() < 0.4
        run["place"] = parent / "copies" if has_place else None
        problems = []
        for part in (*sequence.sessions, sequences.Faults(number=len(sequence.sessions) + 100, names=())):
            session, problems = self._session(sequence, configuration, run, part)
            run["sessions"].append(counts.facts_of_session(session))
            if problems and is_shown:
                counts.print_failure(sequence, session, problems, self.folder / "failures")
            if problems:
                break
            if session.process.returncode == 0 and faults.state_of(session).get("status") == "finished":
                break
            shutil.rmtree(session.folder)
        refused = any(session["refused"] for session in run["sessions"])
        outcome = "failed" if problems else "same bits after an error" if refused else "same bits"
        shutil.rmtree(parent)
        shutil.rmtree(session.folder, ignore_errors=True)
        self._remove_temporary_files()
        return {
            "seed": sequence.seed, "configuration": configuration.name, "outcome": outcome,
            "seconds": round(time.monotonic() - started_at, 1), "sessions": run["sessions"],
            **({"problems": problems, "sequence": sequence.json()} if problems else {}),
        }  # fmt: skip

    def run_and_shrink(self, sequence):
        """Run a sequence; of one that fails, also return the smallest one that does."""
        result = self.run(sequence)
        if result["outcome"] != "failed":
            return result
        broken = {name for name, _ in result["problems"]}
        end = time.monotonic() + SHRINKING_SECONDS

        def fails(candidate):
            if time.monotonic() > end:
                return False
            again = self.run(candidate, is_shown=False)
            return bool(broken & {name for name, _ in again.get("problems", ())})

        smallest = sequences.shrink(sequence, fails, attempts=SHRINKING_ATTEMPTS)
        sys.stderr.write(f"  smallest sequence that fails: --sequence '{smallest.json()}'\n")
        return {**result, "smallest": smallest.json()}

    def _session(self, sequence, configuration, run, part):
        """Make one session of the run with its faults; return it and the problems."""
        expected, order, _ = self._undisturbed(configuration)
        session, actions = self._prepare(sequence, configuration, run, part)
        before = invariants.facts_before(session, run["damaged"])
        drive(session, self._server(configuration), actions)
        self.disk.restore()
        session.restore_replaced()
        session.reached.update(name for name, test in faults.REACHED.items() if name in session.names and test(session))
        after = invariants.facts_after(session, before, order)
        problems = self._check(session, after, before)
        run["damaged"] = [name for name in run["damaged"] if name in after["damaged names"]]
        run["path"], run["planted"] = session.run, session.planted
        is_finished = session.process.returncode == 0 and faults.state_of(session).get("status") == "finished"
        if is_finished and not problems:
            if different := invariants.differences(expected, session.run, run["suspended"]):
                problems.append(("bits", f"{', '.join(different)} differ from those of an undisturbed run"))
        elif not part.names and not problems:
            problems.append(("end", "an undisturbed session did not finish the run"))
        return session, problems

    def _prepare(self, sequence, configuration, run, part):
        path = run["path"]
        folder = self.sessions / f"{sequence.seed}-{part.number}"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        session = Session(
            folder=folder, disk=self.disk, configuration=configuration, run=path, library=self._library,
            remaining=UPDATES - newest_checkpoint(path)[0],
            usual_seconds=min(MOST_USUAL_SECONDS, self._undisturbed(configuration)[2]),
            place=run["place"], planted=dict(run["planted"]), outside=self._outside,
        )  # fmt: skip
        session.state_before = faults.state_of(session).get("status", "")
        if not part.names:
            return session, []
        if configuration.recipe is not None:
            session.other_run = lambda: self._other_run(configuration)
        generator = sequence.generator(part.number)
        session.fresh = generator.random() < 0.04
        session.pace = generator.choice([0.003, 0.01, 0.02])
        if generator.random() < 0.05:
            session.variables["SHOESTRING_PROBE"] = "1"
        waiting = []
        for name in sorted(part.names, key=list(faults.FAULTS).index):
            fault, generator = faults.FAULTS[name], sequence.generator(part.number, name)
            if not faults.applies(fault, session):
                continue
            session.names.append(fault.name)
            session.statuses.update(fault.statuses)
            session.refusals.update(fault.refusals)
            session.suspended.update(fault.suspends)
            if fault.prepare:
                fault.prepare(session, generator)
            if fault.act:
                waiting.append((faults.moment(fault, session, generator), fault.act(session, generator)))
        if not any(faults.AREA_OF[name] == "process" for name in session.names):
            # Otherwise the run would be finished before the faults of later sessions.
            later = len(sequence.sessions) - sequence.sessions.index(part)
            waiting.append(((max(1, session.remaining // (later + 1)), 0.0), faults.PAUSE.act(session, generator)))
            session.names.append(faults.PAUSE.name)
            session.statuses.update(faults.PAUSE.statuses)
        run["suspended"] |= session.suspended
        run["damaged"] += [session.damaged_checkpoint] if session.damaged_checkpoint else []
        return session, waiting

    def _check(self, session, after, before):
        problems = [
            (invariant.__name__, problem)
            for invariant in invariants.INVARIANTS
            for problem in invariant(session, before, after)
        ]
        end_processes(after["processes"]())
        if session.is_hanging:
            problems.append(("hang", f"the session did not end within {HANG_SECONDS:g} s"))
        return problems

    def _server(self, configuration):
        """Return the server of commands of this kind; it is started when it is needed."""
        kind = configuration.kind
        if kind not in self._servers:
            environment = with_library({**os.environ, "OMP_NUM_THREADS": "1"}, self._library)
            self._servers[kind] = Preloaded(MODULES[kind], environment)
            self._servers[kind].wait()
        return self._servers[kind]

    def _remove_temporary_files(self):
        """Remove what killed sessions have left outside of their run."""
        for path in (self.sessions / "temporary").iterdir():
            with suppress(OSError):
                shutil.rmtree(path) if path.is_dir() else path.unlink()

    def _undisturbed(self, configuration):
        """Return the result of an undisturbed run, the order of its samples and its seconds."""
        if configuration.name not in self._undisturbed_results:
            session = self._whole_run(configuration, self.disk.path / f"undisturbed-{configuration.name}" / "run")
            order = invariants.order_of_updates(session.entries())
            self._undisturbed_results[configuration.name] = invariants.result(session.run), order, session.seconds
            shutil.rmtree(session.run.parent)
            shutil.rmtree(session.folder)
        return self._undisturbed_results[configuration.name]

    def _other_run(self, configuration):
        """Return the directory of a finished run with another seed and all its checkpoints."""
        if configuration.name not in self._other_runs:
            path = self.sessions / f"other-{configuration.name}" / "run"
            session = self._whole_run(configuration, path, seed=OTHER_SEED, keep_checkpoints=100)
            shutil.rmtree(session.folder)
            self._other_runs[configuration.name] = path
        return self._other_runs[configuration.name]

    def _whole_run(self, configuration, path, **values):
        folder = self.sessions / f"session-{path.parent.name}"
        for old in (path.parent, folder):
            shutil.rmtree(old, ignore_errors=True)
        path.parent.mkdir()
        session = Session(
            folder=folder, disk=self.disk, configuration=configuration, run=path, remaining=UPDATES, values=values
        )
        drive(session, self._server(configuration), [])
        if session.process.returncode:
            raise SystemExit(f"an undisturbed run failed: {session.errors.read_text()[-2000:]}")
        return session


def seeds_of(text):
    """Parse `3`, `0:300` or `0:300:2`, as slices are written."""
    numbers = [int(number) for number in text.split(":")]
    return range(*numbers) if len(numbers) > 1 else range(numbers[0], numbers[0] + 1)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seeds", type=seeds_of, default=range(1))
    parser.add_argument("--sequence", type=sequences.parse, action="append", help="run this sequence instead")
    parser.add_argument("--only", default="", metavar="TEXT", help="use only faults whose names contain this")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    machine = Machine(options.folder)
    results = []
    try:
        for sequence in options.sequence or [sequence_of(seed, options.only) for seed in options.seeds]:
            results.append((machine.run if options.sequence else machine.run_and_shrink)(sequence))
            sys.stderr.write(f"seed {sequence.seed}: {results[-1]['outcome']}, {results[-1]['seconds']} s\n")
    finally:
        machine.close()
    sys.stdout.write(counts.as_text(counts.summary(results)))
    return 1 if any(result["outcome"] == "failed" for result in results) else 0


if __name__ == "__main__":
    sys.exit(main())
