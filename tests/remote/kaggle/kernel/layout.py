"""A folder laid out as Kaggle does, and the script of a session run in it as a process."""

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

from shoestring.remote.kaggle.kernel.script import embedded, make_script
from shoestring.remote.kaggle.kernel.session_file import NAME, SessionFile, read_session_file
from shoestring.remote.wheel import build_wheel, wheel_name

PACKAGE = "me/package"


def make_config(number, files=(), **values):
    """Return the configuration of a session."""
    common = {"format": 1, "nonce": f"{number:032x}", "session": number, "package": PACKAGE, "package_digest": ""}
    common |= {"recipe": "temporal", "set": {}, "inputs": {}, "on": "local", "previous": None, "internet": False}
    common |= {"extras": ["temporal"], "python": "3.12"}
    common |= {"limit_seconds": 100, "hand_over_seconds": 5, "output_bytes": 20_000_000_000, "arguments": []}
    return {**common, **embedded(dict(files)), **values}


def write_package(folder):
    """Write the dataset with Shoestring's wheel."""
    folder.mkdir(parents=True)
    (folder / wheel_name()).write_bytes(build_wheel())
    list_package(folder)


def list_package(folder):
    """Write the list of the wheels in the dataset."""
    contents = {path.name: path.read_bytes() for path in folder.glob("*.whl")}
    files = {
        name: {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        for name, content in contents.items()
    }
    (folder / "shoestring-package.json").write_text(json.dumps({"format": 1, "digest": "d", "files": files}))


def start(root, config, python=sys.executable, **environment):
    """Start the script as Kaggle does: in /kaggle/working, and nothing of this checkout can be imported.

    It has one thread, as the tests, so that its sums round as theirs.
    """
    working = root / "working"
    working.mkdir(parents=True, exist_ok=True)
    script = root / "script.py"
    script.write_text(make_script(config))
    inherited = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"} | {"OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [python, script],
        cwd=working,
        env={**inherited, "SHOESTRING_KAGGLE_ROOT": str(root), **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def finish(process, root) -> SessionFile:
    """Wait for the script, and return what it left; the exit status is 0 whatever happened."""
    output, _ = process.communicate(timeout=100)
    assert process.returncode == 0, output
    return read_session_file(Path(root, "working", NAME))


def run_session(root, config, python=sys.executable, **environment) -> SessionFile:
    return finish(start(root, config, python, **environment), root)
