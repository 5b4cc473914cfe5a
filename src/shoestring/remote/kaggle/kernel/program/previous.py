"""The run that the session before left, copied from its output and verified."""

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from shoestring.remote.kaggle.kernel.program.checkpoints import call_leaving
from shoestring.remote.kaggle.kernel.program.files import digest, read_json, regular_files
from shoestring.remote.kaggle.kernel.program.inputs import folders_with
from shoestring.remote.kaggle.kernel.program.places import RUN, SESSION_FILE, SessionError
from shoestring.remote.kaggle.kernel.program.session import Session

# What a run consists of. Nothing else of an earlier output is copied, so it cannot bring code or links along.
RUN_FILES = {"plan.json", "state.json", "run.toml", "events.jsonl", "ledger.json", "report.html"}
RUN_FOLDERS = {"checkpoints", "light", "best", "preprocessing", "evidence", "logs"}
CODE = {".py", ".pyc", ".pyd", ".so", ".pth", ".pkl", ".pickle"}
CHECKPOINT = re.compile(r"update-([0-9]{8,18})")
UNDONE_REPLACEMENT = re.compile(r"\.replaced-[0-9]{8,18}")


def copy_previous(session: Session) -> None:
    """Copy the run that the session before left. Inputs are read-only, and a run is written to."""
    kernel, nonce = session.config["previous"]["kernel"], session.config["previous"]["nonce"]
    nonces = []
    for folder in folders_with(SESSION_FILE, kernel):
        try:
            left = read_json(folder / SESSION_FILE)
            nonces.append(str(left["nonce"])[:32])
        except (OSError, ValueError, KeyError, TypeError):
            continue
        if left["nonce"] == nonce:
            break
    else:
        raise SessionError(
            f"the output of {kernel} that this session continues from "
            + (f"is of another session ({', '.join(nonces)} instead of {nonce})" if nonces else "is not mounted"),
            "nothing was trained; start again once Kaggle has the output",
        )
    shutil.rmtree(RUN, ignore_errors=True)
    listed = {} if left.get("status") == "running" else left.get("files") or {}
    damaged = list(copy_files(folder / "run", listed))
    answer = call_leaving(session, "check", "--damaged", json.dumps(damaged))
    session.record(damaged=[*damaged, *(text for text in answer["damaged"] if text not in damaged)])
    for text in session.state["damaged"]:
        session.log(f"damaged on the way, and not used: {text}\n")
    if answer["update"] is None:
        raise SessionError(
            f"the output of {kernel} has no checkpoint that can be used: {answer['reason']}",
            "nothing was trained; continue from an earlier output",
        )
    session.record(first_update=answer["update"], update=answer["update"], checkpoint=answer["checkpoint"])
    session.write()


def copy_files(source: Path, listed: dict[str, Any]) -> Iterator[str]:
    """Copy the files of a run, and yield what is damaged. Links and files that no run has are left out."""
    for path in run_files(source):
        name = path.relative_to(source).as_posix()
        if listed and not isinstance(listed.get(f"run/{name}"), dict):
            continue  # it is not of the session that left the output
        target = RUN / name
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            copied = digest(path, target)
        except (OSError, ValueError) as error:
            yield f"{name}: it cannot be read: {error}"
            continue
        if listed and copied != (listed[f"run/{name}"].get("bytes"), listed[f"run/{name}"].get("sha256")):
            yield f"{name}: it differs from the file that was left"
    for listed_name in listed:
        name = listed_name.removeprefix("run/")
        if name.startswith("checkpoints/") and not (source / name).is_file():
            yield f"{name}: it is missing"


def run_files(source: Path) -> Iterator[Path]:
    """Yield the regular files of a run."""
    for path in regular_files(source):
        first, *below = path.relative_to(source).parts
        if first == "checkpoints":
            if len(below) == 2 and (CHECKPOINT.fullmatch(below[0]) or UNDONE_REPLACEMENT.fullmatch(below[0])):
                yield path
        elif path.suffix not in CODE and first in (RUN_FOLDERS if below else RUN_FILES):
            yield path
