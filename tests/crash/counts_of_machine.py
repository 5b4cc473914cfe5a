"""What is kept of sequences: facts of each session, counts of many sequences, and what is printed of a failure."""

import json
import os
import shutil
import statistics
import sys
from collections import Counter
from pathlib import Path

from tests.crash.faults_of_sessions import FAULTS, state_of

MAX_FAILURES_WITH_FILES = 20
OUTCOMES = ("same bits", "same bits after an error", "failed")


def facts_of_session(session):
    """Return what is kept of a session, as JSON."""
    late = session.limit and "on time" not in session.suspended
    return {
        "faults": session.names,
        "reached": sorted(session.reached),
        "status": session.process.returncode,
        "refused": session.is_refused,
        "seconds": round(session.seconds, 2),
        "fresh": session.fresh,
        "lost": session.lost_updates,
        **({"seconds late": round(session.seconds_late(), 3)} if late else {}),
    }


def print_failure(sequence, session, problems, folder):
    """Print everything about a failure, and keep its files."""
    files = folder / f"{sequence.seed}-{len(list(folder.glob(f'{sequence.seed}-*')))}"
    facts = {
        "sequence": json.loads(sequence.json()), "faults": session.names,
        "reached": sorted(session.reached), "command": session.command, "variables": session.variables,
        "problems": problems, "status": session.process.returncode, "seconds": round(session.seconds, 2),
        "fresh": session.fresh, "load": os.getloadavg()[0], "damage": session.damage, "state.json": state_of(session),
        "files": str(files),
    }  # fmt: skip
    outputs = {"stderr": session.errors, **{f"stderr of {name}": path for name, _, _, path in session.others}}
    lines = ["FAILURE", *(f"  {name}: {json.dumps(value)}" for name, value in facts.items())]
    for name, path in outputs.items():
        if path.is_file():
            lines += [f"  {name}:", *path.read_text(errors="replace").splitlines()[-30:]]
    sys.stderr.write("\n".join(lines).encode(errors="backslashreplace").decode() + "\n")
    if len(list(folder.glob("*"))) < MAX_FAILURES_WITH_FILES:
        shutil.copytree(session.run.parent, files / "run", symlinks=True)
        shutil.copytree(session.folder, files / "session", ignore=_pipes)


def _pipes(folder, names):
    return [name for name in names if (Path(folder) / name).is_fifo()]


def summary(results):
    """Return the counts of the sequences whose results these are."""
    sessions = [session for result in results for session in result["sessions"]]
    applied = Counter(name for session in sessions for name in session["faults"])
    reached = Counter(name for session in sessions for name in session["reached"])
    outcomes = Counter(result["outcome"] for result in results)
    late = [session["seconds late"] for session in sessions if "seconds late" in session]
    return {
        "sequences": len(results),
        "outcomes": {name: outcomes[name] for name in OUTCOMES},
        "seconds": round(sum(result["seconds"] for result in results), 1),
        "sessions": len(sessions),
        "statuses": dict(sorted(Counter(str(session["status"]) for session in sessions).items())),
        "configurations": dict(sorted(Counter(result["configuration"] for result in results).items())),
        "faults": {name: [applied[name], reached[name]] for name in FAULTS},
        "lateness": {
            "sessions": len(late),
            "worst": max(late, default=None),
            "median": statistics.median(late) if late else None,
        },
        "most updates lost": max((session["lost"] for session in sessions), default=0),
        "failures": [
            {name: result.get(name) for name in ("seed", "problems", "sequence", "smallest")}
            for result in results
            if result["outcome"] == "failed"
        ],
    }


def as_text(report):
    """Return the report as JSON with a line for each entry."""
    lines = [f"{json.dumps(name)}: {json.dumps(value)}" for name, value in report.items()]
    return "{" + ",\n ".join(lines) + "}\n"
