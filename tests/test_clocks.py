"""Every use of a clock that may be set (by NTP, by a second system, by a person), with the reason why it may be read.

Durations and limits within a process are those of `time.monotonic()`. A new use of the wall clock or of a file's time
needs a row here.
"""

import ast
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src"

NAMES = {"time_ns", "now", "utcnow", "today", "create_time", "getmtime", "getctime", "getatime", "ctime", "asctime"}
FILE_TIMES = {f"st_{kind}time{unit}" for kind in "mca" for unit in ("", "_ns")}

EQUAL = "compared for equality: a file whose time differs, also one of the future, is read again"
SHOWN = "shown to a person, or stored to be shown"
USES = {
    "shoestring/answers/watch/watcher.py": EQUAL,
    "shoestring/base/processes.py": "without /proc, the only way to know the age of a process; not negative",
    "shoestring/cli/commands/planning.py": "a date that a person gives with --by",
    "shoestring/integrations/private_parts.py": "transformers computes the speeds of its summary from time.time()",
    "shoestring/planning/simulator/build.py": EQUAL,
    "shoestring/recipe/installed.py": EQUAL,
    "shoestring/remote/backup/commits.py": SHOWN,
    "shoestring/remote/kaggle/active_chain.py": SHOWN,
    "shoestring/remote/kaggle/following.py": SHOWN,
    "shoestring/remote/kaggle/polling.py": "a session is too old only if the server's clock says so as well",
    "shoestring/remote/kaggle/pushing.py": "whether a push was tried; its time is shown",
    "shoestring/remote/notebook/session.py": "a name that no other folder has",
    "shoestring/runs/check/disk.py": "the answer of `check`: whether the disk's clock is that of the machine",
    "shoestring/runs/check/host.py": "the answer of `check`: whether the clock of the machine is right",
    "shoestring/runs/check/rates/measure.py": SHOWN,
    "shoestring/runs/check/run_lock.py": "the lock of an earlier version, without the process's identity",
    "shoestring/runs/measurement/problems.py": "a file of somebody that is dated in the future is not credible",
    "shoestring/runs/predict/digests.py": EQUAL,
    "shoestring/training/data/staging.py": EQUAL,
    "shoestring/training/monitor/events.py": SHOWN,
    "shoestring/training/run_directory/lock.py": "shown, and the lock of an earlier version",
    "shoestring_recipes/temporal/dataset.py": EQUAL,
}


def uses_of(tree):
    """Yield the nodes that read a clock which may be set, or a file's time."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr in FILE_TIMES:
            yield node
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            is_time = (
                node.func.attr == "time" and isinstance(node.func.value, ast.Name) and node.func.value.id == "time"
            )
            if is_time or node.func.attr in NAMES:
                yield node


def test_wall_clock_is_read_for_a_reason():
    paths = {
        path.relative_to(SOURCE).as_posix()
        for path in SOURCE.rglob("*.py")
        if any(uses_of(ast.parse(path.read_text())))
    }
    assert paths == USES.keys()


def test_uses_are_recognized():
    read = (
        "import time\nf = lambda path: (time.time(), path.stat().st_mtime_ns, datetime.now(UTC), process.create_time())"
    )
    assert len(list(uses_of(ast.parse(read)))) == 4
    assert not list(uses_of(ast.parse("time.monotonic() + session.time + event['time']")))
    imported = [path for path in SOURCE.rglob("*.py") if "from time import time" in path.read_text()]
    assert imported == []
