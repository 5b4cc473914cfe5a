"""The counts of the state machine, its report, and what it prints and keeps of a failure."""

import json
import os
import shutil
import statistics
import sys
from pathlib import Path

from tests.crash.faults_of_sessions import FAULTS, state_of
from tests.crash.invariants_of_runs import INVARIANTS

MAX_FAILURES_WITH_FILES = 20


def new_counts():
    """Return the part of the machine's state that is counted, as JSON."""
    counters = ("applied", "reached", "checks", "sessions", "statuses", "finished", "lost")
    numbers = ("comparisons", "different", "tracebacks", "inconsistent", "temporary", "dropped")
    return {
        **{name: {} for name in counters}, **dict.fromkeys(numbers, 0), "lateness": [], "failures": [], "seconds": 0.0,
    }  # fmt: skip


def _count(state, counter, name):
    state[counter][name] = state[counter].get(name, 0) + 1


def count_session(state, session, after, problems):
    for invariant in INVARIANTS:
        _count(state, "checks", invariant.__name__)
    for name in session.names:
        _count(state, "applied", name)
    for name in session.reached:
        _count(state, "reached", name)
    _count(state, "sessions", session.configuration.name)
    _count(state, "statuses", str(session.process.returncode))
    if session.limit and "on time" not in session.suspended:
        state["lateness"].append(round(session.seconds_late(), 3))
    if "interval" not in session.suspended:
        _count(state, "lost", str(after["started"] - after["newest"]))
    state["tracebacks"] += sum(name == "no_traceback" for name, _ in problems)
    state["inconsistent"] += sum(name == "consistent_state" for name, _ in problems)


def count_finished(state, configuration, different):
    _count(state, "finished", configuration)
    state["comparisons"] += 1
    state["different"] += bool(different)


def fail(state, session, problems, folder):
    """Count a failure, print everything about it, and keep its files."""
    step = state["step"]
    files = folder / f"step-{step}"
    facts = {
        "seed": state["seed"], "step": step, "faults": session.names, "reached": sorted(session.reached),
        "earlier": state["run"]["faults"][:-1], "command": session.command, "problems": problems,
        "status": session.process.returncode, "seconds": round(session.seconds, 2), "fresh": session.fresh,
        "load": os.getloadavg()[0], "damage": session.damage, "state.json": state_of(session), "files": str(files),
    }  # fmt: skip
    outputs = {"stderr": session.errors, **{f"stderr of {name}": path for name, _, _, path in session.others}}
    state["failures"].append({name: facts[name] for name in ("step", "faults", "problems", "status")})
    lines = ["FAILURE", *(f"  {name}: {json.dumps(value)}" for name, value in facts.items())]
    for name, path in outputs.items():
        if path.is_file():
            lines += [f"  {name}:", *path.read_text(errors="replace").splitlines()[-30:]]
    sys.stderr.write("\n".join(lines) + "\n")
    if len(state["failures"]) <= MAX_FAILURES_WITH_FILES:
        shutil.copytree(session.run.parent, files / "run", dirs_exist_ok=True)
        shutil.copytree(session.folder, files / "session", ignore=_pipes, dirs_exist_ok=True)


def _pipes(folder, names):
    return [name for name in names if (Path(folder) / name).is_fifo()]


def report(state):
    """Return the counts of all parts so far."""
    lateness = state["lateness"]
    names = ("seed", "kind", "step", "runs", "checks", "sessions", "statuses", "finished", "comparisons", "different")
    return {
        **{name: state[name] for name in names},
        "minutes": round(state["seconds"] / 60, 2),
        "events": {fault.name: [state[c].get(fault.name, 0) for c in ("applied", "reached")] for fault in FAULTS},
        "lateness": {
            "sessions": len(lateness),
            "worst": max(lateness, default=None),
            "median": statistics.median(lateness) if lateness else None,
        },
        "tracebacks": state["tracebacks"],
        "most updates lost": max(map(int, state["lost"]), default=0),
        "inconsistent states": state["inconsistent"],
        "temporary files outside of the run": state["temporary"],
        "runs dropped": state["dropped"],
        "failures": state["failures"],
    }


def as_text(report):
    """Return the report as JSON with a line for each entry."""
    lines = [f"{json.dumps(name)}: {json.dumps(value)}" for name, value in report.items()]
    return "{" + ",\n ".join(lines) + "}"
