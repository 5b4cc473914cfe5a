"""A state machine that disturbs runs of the real command line, session after session, until they are finished.

    python -m tests.crash.machine FOLDER --seed N --minutes M --kind engine|trainer|both

Every session of a run has faults of the table in `faults_of_sessions`, chosen by the seed and the number of the step;
after each, the table in `invariants_of_runs` is checked; a finished run must have the bits of an undisturbed one.
FOLDER/machine.json has the state of the machine, so a later part with the same FOLDER goes on with the same seed. The
report is printed as JSON; each failure is printed when it happens, and its files are in FOLDER/failures.
"""

import argparse
import json
import os
import random
import shutil
import sys
import time
from contextlib import suppress
from pathlib import Path

from tests.crash import counts_of_machine as counts
from tests.crash import faults_of_sessions as faults
from tests.crash import invariants_of_runs as invariants
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

MODULES = {
    "engine": ["torch", "torch._dynamo", "shoestring.cli.commands", "shoestring.training.loop"],
    "trainer": ["torch._dynamo", "shoestring.cli.commands", "shoestring.training.loop",
                "shoestring.integrations.library", "transformers.trainer"],
}  # fmt: skip


class Machine:
    """The machine in one folder."""

    def __init__(self, folder, seed, kind, only=""):
        self.folder = folder.resolve()
        self.sessions = self.folder / "sessions"
        self._file = self.folder / "machine.json"
        self.disk = SmallDisk(self.folder / "disk")
        kinds = ["engine", "trainer"] if kind == "both" else [kind]
        self._faults = [fault for fault in faults.FAULTS if only in fault.name]
        self.configurations = [c for c in CONFIGURATIONS if c.kind in kinds]
        if self._file.exists():
            self.state = json.loads(self._file.read_text())
            if (self.state["seed"], self.state["kind"]) != (seed, kind):
                raise SystemExit(f"{self._file} is of seed {self.state['seed']} and kind {self.state['kind']}")
            # A machine that was killed may have left the processes of its session.
            end_processes(processes_with_files(self.sessions))
        else:
            self.state = {"seed": seed, "kind": kind, "step": 0, "runs": 0, "run": None, **counts.new_counts()}
        (self.sessions / "temporary").mkdir(parents=True, exist_ok=True)
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        # Several servers import at the same time, and the runs that need the first one begin meanwhile.
        self.servers = {name: Preloaded(MODULES[name], environment) for name in kinds}
        self._results = {}

    def close(self):
        for server in self.servers.values():
            server.close()
        self.disk.close()

    def step(self):
        """Start a run if there is none, make one session of it, check it, and compare the run if it is finished."""
        started_at = time.monotonic()
        self.disk.restore()
        run = self.state["run"]
        if run and not Path(run["path"]).parent.exists():
            self.state["dropped"] += 1
            run = None
        self.state["run"] = run = run or self._new_run()
        session, actions = self._prepare_session(run)
        self._write()  # a machine that is killed from here on knows what it has damaged
        expected, order, _ = self._undisturbed(session.configuration)
        before = invariants.facts_before(session.run, run["damaged"])
        drive(session, self.servers[session.configuration.kind], actions)
        self.disk.restore()
        session.reached.update(name for name, test in faults.REACHED.items() if name in session.names and test(session))
        after = invariants.facts_after(session, before, order)
        problems = self._check(session, after, before)
        counts.count_session(self.state, session, after, problems)
        self.state["temporary"] += self._remove_temporary_files()
        run["faults"].append(session.names)
        run["damaged"] = [name for name in run["damaged"] if name in after["damaged names"]]
        is_finished = session.process.returncode == 0 and faults.state_of(session).get("status") == "finished"
        if is_finished and not problems:
            different = invariants.differences(expected, session.run, run["suspended"])
            counts.count_finished(self.state, session.configuration.name, different)
            if different:
                problems.append(("bits", f"{', '.join(different)} differ from those of an undisturbed run"))
        elif not session.names and not problems:
            problems.append(("end", "an undisturbed session did not finish the run"))
        if problems:
            counts.fail(self.state, session, problems, self.folder / "failures")
        if problems or is_finished:
            shutil.rmtree(session.run.parent)
            self.state["run"] = None
        shutil.rmtree(session.folder)
        self.state["step"] += 1
        self.state["seconds"] += time.monotonic() - started_at
        self._write()

    def _generator(self, *names):
        """Return the generator of the choices that these names stand for; it does not depend on earlier choices."""
        return random.Random("/".join(map(str, (self.state["seed"], *names))))

    def _write(self):
        temporary = self._file.with_suffix(".new")
        temporary.write_text(json.dumps(self.state, indent=1))
        temporary.replace(self._file)

    def _new_run(self):
        number = self.state["runs"]
        self.state["runs"] += 1
        parent = self.disk.path / f"run-{number}"
        shutil.rmtree(parent, ignore_errors=True)
        parent.mkdir()
        (parent / "canary").write_text(invariants.CANARY)
        configuration = self.configurations[number % len(self.configurations)]
        disturbed = self._generator("run", number).randint(1, 5)
        return {
            "configuration": configuration.name, "path": str(parent / "run"), "disturbed": disturbed, "faults": [],
            "suspended": [], "damaged": [],
        }  # fmt: skip

    def _prepare_session(self, run):
        step, path = self.state["step"], Path(run["path"])
        generator = self._generator("step", step)
        folder = self.sessions / str(step)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        (configuration,) = (c for c in CONFIGURATIONS if c.name == run["configuration"])
        session = Session(
            folder=folder, disk=self.disk, configuration=configuration, run=path,
            remaining=UPDATES - newest_checkpoint(path)[0], usual_seconds=self._undisturbed(configuration)[2],
        )  # fmt: skip
        if len(run["faults"]) >= run["disturbed"]:
            return session, []
        session.fresh = generator.random() < 0.2
        session.pace = generator.choice([0.0, 0.01, 0.03])
        waiting = []
        for fault in faults.choose(session, generator, self._deck()):
            session.names.append(fault.name)
            session.statuses.update(fault.statuses)
            session.suspended.update(fault.suspends)
            if fault.prepare:
                fault.prepare(session, generator)
            if fault.act:
                waiting.append((faults.moment(fault, session, generator), fault.act(session, generator)))
        run["path"] = str(session.run)
        run["suspended"] = sorted({*run["suspended"], *session.suspended})
        run["damaged"] += [session.damaged_checkpoint] if session.damaged_checkpoint else []
        return session, waiting

    def _deck(self):
        """Return the table shuffled, from the step's place on, so that all faults are used equally often."""
        cycle, place = divmod(self.state["step"], len(self._faults))
        deck = list(self._faults)
        self._generator("deck", cycle).shuffle(deck)
        return deck[place:] + deck[:place]

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

    def _remove_temporary_files(self):
        """Remove what a killed session has left outside of its run; return the number of such files."""
        leftover_files = list((self.sessions / "temporary").iterdir())
        for path in leftover_files:
            with suppress(OSError):
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        return len(leftover_files)

    def _undisturbed(self, configuration):
        """Return the result of an undisturbed run, the order of its samples and its seconds."""
        name = configuration.name
        if name not in self._results:
            path, folder = self.disk.path / f"undisturbed-{name}", self.sessions / f"undisturbed-{name}"
            for old in (path, folder):
                shutil.rmtree(old, ignore_errors=True)
            path.mkdir()
            session = Session(
                folder=folder, disk=self.disk, configuration=configuration, run=path / "run", remaining=UPDATES
            )
            drive(session, self.servers[configuration.kind], [])
            if session.process.returncode:
                raise SystemExit(f"an undisturbed run failed: {session.errors.read_text()[-2000:]}")
            order = invariants.order_of_updates(session.entries())
            self._results[name] = invariants.result(session.run), order, session.seconds
            for old in (path, folder):
                shutil.rmtree(old)
        return self._results[name]


def run_machine(folder, *, seed, minutes, kind, runs=0, only=""):
    """Run the machine for `minutes`, and longer until `runs` runs are finished, unless something has failed.

    Only faults are used whose names contain `only`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    machine = Machine(folder, seed, kind, only)
    deadline = time.monotonic() + 60 * minutes
    try:
        while time.monotonic() < deadline or (
            sum(machine.state["finished"].values()) < runs and not machine.state["failures"]
        ):
            machine.step()
        return counts.report(machine.state)
    finally:
        machine.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=20)
    parser.add_argument("--kind", choices=["engine", "trainer", "both"], default="both")
    parser.add_argument("--only", default="", metavar="TEXT", help="use only faults whose names contain this")
    options = parser.parse_args()
    sys.stderr.write(f"seed {options.seed}\n")
    report = run_machine(
        options.folder, seed=options.seed, minutes=options.minutes, kind=options.kind, only=options.only
    )
    sys.stdout.write(f"{counts.as_text(report)}\n")
    return 1 if report["failures"] else 0


if __name__ == "__main__":
    sys.exit(main())
