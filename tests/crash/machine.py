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
import signal
import statistics
import sys
import time
from contextlib import suppress
from pathlib import Path

from tests.crash import invariants_of_runs as invariants
from tests.crash.faults_of_sessions import FAULTS, REACHED_IN_LOG, state_of
from tests.crash.logging_recipe import UPDATES
from tests.crash.preloaded import Preloaded
from tests.crash.schedule import newest_checkpoint
from tests.crash.sessions_of_machine import (
    CONFIGURATIONS,
    HANG_SECONDS,
    Session,
    SmallDisk,
    end_processes,
    processes_with_files,
)

MAX_FAILURES_WITH_FILES = 20
MODULES = {
    "engine": ["torch", "torch._dynamo", "shoestring.cli", "shoestring.train.loop"],
    "trainer": ["transformers", "transformers.trainer", "accelerate", "shoestring.integrations.trainer"],
}


class Machine:
    """The machine in one folder."""

    def __init__(self, folder, seed, kind):
        self.folder = folder.resolve()
        self.sessions = self.folder / "sessions"
        self._file = self.folder / "machine.json"
        self.disk = SmallDisk(self.folder / "disk")
        kinds = ["engine", "trainer"] if kind == "both" else [kind]
        self.configurations = [c for c in CONFIGURATIONS if c.kind in kinds]
        if self._file.exists():
            self.state = json.loads(self._file.read_text())
            if (self.state["seed"], self.state["kind"]) != (seed, kind):
                raise SystemExit(f"{self._file} is of seed {self.state['seed']} and kind {self.state['kind']}")
            # A machine that was killed may have left the processes of its session.
            end_processes(processes_with_files(self.sessions))
        else:
            self.state = {
                "seed": seed, "kind": kind, "step": 0, "runs": 0, "run": None, "seconds": 0.0, "applied": {},
                "reached": {}, "checks": {}, "sessions": {}, "statuses": {}, "finished": {}, "comparisons": 0,
                "different": 0, "lateness": [], "tracebacks": 0, "lost": {}, "inconsistent": 0, "temporary": 0,
                "dropped": 0, "failures": [],
            }  # fmt: skip
        (self.sessions / "temporary").mkdir(parents=True, exist_ok=True)
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        self.server = Preloaded([module for name in kinds for module in MODULES[name]], environment)
        self._results = {}

    def close(self):
        self.server.close()
        self.disk.close()

    def count(self, counter, name, number=1):
        self.state[counter][name] = self.state[counter].get(name, 0) + number

    def generator(self, *names):
        return random.Random("/".join(map(str, (self.state["seed"], *names))))

    # Steps

    def step(self):
        """Start a run if there is none, make one session of it, check it, and compare the run if it is finished."""
        started_at = time.monotonic()
        self.disk.restore()
        run = self.state["run"]
        if run and not Path(run["path"]).parent.exists():
            self.state["dropped"] += 1
            run = None
        self.state["run"] = run = run or self._new_run()
        session = self._prepare_session(run)
        before = invariants.facts_before(session.run, run["damaged"])
        expected, order = self._undisturbed(session.configuration)
        self._drive(session)
        self.disk.restore()
        run["path"] = str(session.run)
        run["suspended"] = sorted({*run["suspended"], *session.suspended})
        run["faults"].append(session.names)
        problems = self._check(session, before, order)
        if state_of(session).get("status") == "finished" and session.process.returncode == 0 and not problems:
            self.count("finished", session.configuration.name)
            self.state["comparisons"] += 1
            if different := invariants.differences(expected, session.run, run["suspended"]):
                self.state["different"] += 1
                problems.append(("bits", f"{', '.join(different)} differ from those of an undisturbed run"))
            run = None
        elif not session.names and not problems:
            problems.append(("end", "an undisturbed session did not finish the run"))
        if problems:
            self._fail(session, problems)
            run = None
        if run is None:
            shutil.rmtree(session.run.parent)
        self.state["run"] = run
        shutil.rmtree(session.folder)
        self.state["step"] += 1
        self.state["seconds"] += time.monotonic() - started_at
        self._write()

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
        disturbed = self.generator("run", number).randint(1, 5)
        return {
            "configuration": configuration.name, "path": str(parent / "run"), "disturbed": disturbed, "faults": [],
            "suspended": [], "damaged": [],
        }  # fmt: skip

    def _prepare_session(self, run):
        step = self.state["step"]
        generator = self.generator("step", step)
        folder = self.sessions / str(step)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        path = Path(run["path"])
        (configuration,) = (c for c in CONFIGURATIONS if c.name == run["configuration"])
        session = Session(
            folder=folder, disk=self.disk, configuration=configuration, run=path,
            remaining=UPDATES - newest_checkpoint(path)[0],
        )  # fmt: skip
        self._generator, self._actions = generator, []
        if len(run["faults"]) >= run["disturbed"]:
            return session
        session.fresh = generator.random() < 0.2
        session.pace = generator.choice([0.0, 0.01, 0.03])
        for fault in self._choose_faults(session, generator):
            session.names.append(fault.name)
            self.count("applied", fault.name)
            session.statuses.update(fault.statuses)
            session.suspended.update(fault.suspends)
            if fault.prepare:
                fault.prepare(session, generator)
            if fault.act:
                self._actions.append((self._moment(session, fault, generator), fault.act(session, generator)))
        if damaged := getattr(session, "damaged_checkpoint", None):
            run["damaged"].append(damaged)
        return session

    def _choose_faults(self, session, generator):
        """Return the next fault of a shuffled table, so that all are used equally often, and sometimes another one."""
        cycle, place = divmod(self.state["step"], len(FAULTS))
        deck = list(FAULTS)
        self.generator("deck", cycle).shuffle(deck)
        main = next(f for f in deck[place:] + deck[:place] if f.applies(session))
        chosen = [main]
        if generator.random() < 0.5:
            # The other one is of the other kind: an action in the session, or a preparation.
            others = [f for f in FAULTS if not (f.prepare and main.prepare) and not (f.act and main.act)]
            chosen += generator.sample([f for f in others if f.applies(session)], k=bool(others))
        return sorted(chosen, key=lambda fault: fault.act is not None)

    def _moment(self, session, fault, generator):
        """Return the number of updates of this session and the seconds after which an action begins."""
        if fault.prepare:  # it ends what the preparation began
            return 0, 0.0
        if not fault.only_training and generator.random() < 0.25:
            return 0, generator.uniform(0, 3 if session.fresh else 1)
        return generator.randint(1, max(1, session.remaining)), generator.uniform(0, 0.03)

    def _drive(self, session):
        """Run the session to its end, with its actions at their moments."""
        session.start(self.server)
        waiting = [(updates, seconds, None, action) for (updates, seconds), action in self._actions]
        while session.alive():
            session.read_pipe()
            started_updates, now = session.started_updates(), time.monotonic()
            for number, (updates, seconds, due, action) in enumerate(waiting):
                if due is None and started_updates >= updates:
                    due = (session.started if updates == 0 else now) + seconds
                while due is not None and now >= due:
                    pause = next(action, None)
                    due = None if pause is None else now + pause
                    if pause is None:
                        waiting[number] = None
                if waiting[number]:
                    waiting[number] = (updates, seconds, due, action)
            waiting = [entry for entry in waiting if entry]
            if now - session.started > HANG_SECONDS:
                session.send(signal.SIGKILL, target="all")
                session.names.append("ended by the machine")
            time.sleep(0.003)
        session.seconds = time.monotonic() - session.started
        for *_, due, action in waiting:
            if due is not None:
                for _ in action:  # it ends what it began
                    pass
        while any(process.poll() is None for _, _, process, _ in session.others):
            time.sleep(0.01)
        if session.stderr == "pipe":
            session.close_pipe()
        session.reached.update(name for name, test in REACHED_IN_LOG.items() if name in session.names and test(session))

    def _check(self, session, before, order):
        after = invariants.facts_after(session, before, order)
        problems = []
        for invariant in invariants.INVARIANTS:
            self.count("checks", invariant.__name__)
            problems += [(invariant.__name__, problem) for problem in invariant(session, before, after)]
        if "ended by the machine" in session.names:
            problems.append(("hang", f"the session did not end within {HANG_SECONDS:g} s"))
        self.state["tracebacks"] += sum(name == "no_traceback" for name, _ in problems)
        self.state["inconsistent"] += sum(name == "consistent_state" for name, _ in problems)
        self.count("sessions", session.configuration.name)
        self.count("statuses", str(session.process.returncode))
        for name in session.reached:
            self.count("reached", name)
        if session.limit and "on time" not in session.suspended:
            self.state["lateness"].append(round(session.seconds - session.limit, 3))
        if "interval" not in session.suspended:
            self.count("lost", str(after["started"] - after["newest"]))
        left = list((self.sessions / "temporary").iterdir())
        self.state["temporary"] += len(left)
        for path in left:
            with suppress(OSError):
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        end_processes(after["processes"]())
        return problems

    def _undisturbed(self, configuration):
        """Return the result of an undisturbed run and the order of its samples."""
        if configuration.name not in self._results:
            path = self.disk.path / f"undisturbed-{configuration.name}"
            folder = self.sessions / f"undisturbed-{configuration.name}"
            for old in (path, folder):
                shutil.rmtree(old, ignore_errors=True)
            session = Session(
                folder=folder, disk=self.disk, configuration=configuration, run=path / "run", remaining=UPDATES
            )
            path.mkdir()
            self._actions = []
            self._drive(session)
            if session.process.returncode:
                raise SystemExit(f"an undisturbed run failed: {session.errors.read_text()[-2000:]}")
            order = invariants.order_of_updates(session.entries())
            self._results[configuration.name] = invariants.result(session.run), order
            for old in (path, folder):
                shutil.rmtree(old)
        return self._results[configuration.name]

    def _fail(self, session, problems):
        """Print everything about a failure, and keep the files."""
        step = self.state["step"]
        files = self.folder / "failures" / f"step-{step}"
        failure = {
            "seed": self.state["seed"], "step": step, "faults": session.names, "reached": sorted(session.reached),
            "earlier": self.state["run"]["faults"][:-1], "command": session.command, "problems": problems,
            "status": session.process.returncode, "seconds": round(session.seconds, 2), "fresh": session.fresh,
            "stderr": session.errors.read_text(errors="replace")[-2500:] if session.stderr == "file" else "",
            "others": {name: path.read_text(errors="replace")[-1500:] for name, _, _, path in session.others},
            "state.json": state_of(session), "files": str(files),
        }  # fmt: skip
        self.state["failures"].append({name: failure[name] for name in ("step", "faults", "problems", "status")})
        if len(self.state["failures"]) <= MAX_FAILURES_WITH_FILES:
            shutil.copytree(session.run, files / "run", dirs_exist_ok=True)
            shutil.copytree(session.folder, files / "session", ignore=_pipes, dirs_exist_ok=True)
        texts = [f"{name}: {json.dumps(value)}" for name, value in failure.items() if name not in ("stderr", "others")]
        texts += [f"{name}:\n{text}" for name, text in {"stderr": failure["stderr"], **failure["others"]}.items() if text]
        sys.stderr.write("FAILURE " + "\n  ".join(texts) + "\n")

    def report(self):
        """Return the counts of all parts so far."""
        lateness = self.state["lateness"]
        names = ("seed", "kind", "step", "runs", "checks", "sessions", "statuses", "finished", "comparisons", "different")
        return {
            **{name: self.state[name] for name in names},
            "minutes": round(self.state["seconds"] / 60, 2),
            "events": {
                fault.name: [self.state["applied"].get(fault.name, 0), self.state["reached"].get(fault.name, 0)]
                for fault in FAULTS
            },
            "lateness": {
                "sessions": len(lateness),
                "worst": max(lateness, default=None),
                "median": statistics.median(lateness) if lateness else None,
            },
            "tracebacks": self.state["tracebacks"],
            "most updates lost": max(map(int, self.state["lost"]), default=0),
            "inconsistent states": self.state["inconsistent"],
            "temporary files outside of the run": self.state["temporary"],
            "runs dropped": self.state["dropped"],
            "failures": self.state["failures"],
        }


def _pipes(folder, names):
    return [name for name in names if (Path(folder) / name).is_fifo()]


def run_machine(folder, *, seed, minutes, kind, runs=0):
    """Run the machine for `minutes`, and longer until each configuration's kind has `runs` finished runs."""
    folder.mkdir(parents=True, exist_ok=True)
    machine = Machine(folder, seed, kind)
    deadline = time.monotonic() + 60 * minutes
    try:
        while time.monotonic() < deadline or sum(machine.state["finished"].values()) < runs:
            machine.step()
        return machine.report()
    finally:
        machine.close()


def as_text(report):
    """Return the report as JSON with a line for each entry."""
    lines = [f"{json.dumps(name)}: {json.dumps(value)}" for name, value in report.items()]
    return "{" + ",\n ".join(lines) + "}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=20)
    parser.add_argument("--kind", choices=["engine", "trainer", "both"], default="both")
    options = parser.parse_args()
    sys.stderr.write(f"seed {options.seed}\n")
    report = run_machine(options.folder, seed=options.seed, minutes=options.minutes, kind=options.kind)
    sys.stdout.write(f"{as_text(report)}\n")
    return 1 if report["failures"] else 0


if __name__ == "__main__":
    sys.exit(main())
