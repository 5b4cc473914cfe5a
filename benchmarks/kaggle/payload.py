"""The script of a session without torch: it keeps the protocol of `shoestring kaggle` and computes a chain of digests.

An update replaces a digest by the digest of it and the update's number, so the last one depends on every update having
been made once and in order. A checkpoint is a file with the update and the digest, and with a digest of both.
"""

import hashlib
import json
import os
import time
from pathlib import Path

ROOT = Path(os.environ.get("SHOESTRING_KAGGLE_ROOT", "/kaggle"))
WORKING, RUN = ROOT / "working", ROOT / "working" / "run"
STARTED = time.monotonic()


def digest_of(*parts):
    return hashlib.sha256(" ".join(map(str, parts)).encode()).hexdigest()


def advance(value, update):
    return digest_of("update", update, value)


def write(path, value):
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}")
    temporary.write_text(json.dumps(value))
    temporary.replace(path)


def save(update, value):
    """Write a checkpoint, and keep the newest two."""
    content = {"update": update, "value": value, "digest": digest_of(update, value)}
    write(RUN / "checkpoints" / f"update-{update:08d}" / "state.json", content)
    for folder in sorted((RUN / "checkpoints").iterdir())[:-2]:
        (folder / "state.json").unlink()
        folder.rmdir()


def restore(previous):
    """Return the update and the value of the newest checkpoint that the session before left, and what is damaged."""
    for file in sorted((ROOT / "input").rglob("shoestring-session.json")):
        if json.loads(file.read_text())["nonce"] == previous["nonce"]:
            damaged = []
            for folder in sorted((file.parent / "run" / "checkpoints").glob("update-*"), reverse=True):
                try:
                    content = json.loads((folder / "state.json").read_text())
                    if content["digest"] != digest_of(content["update"], content["value"]):
                        raise ValueError("the digest differs")
                    return content["update"], content["value"], damaged
                except (OSError, ValueError, KeyError) as error:
                    damaged.append(f"checkpoints/{folder.name}/state.json: {error}")
            return None, None, damaged
    return None, None, ["the output of the session before is not there"]


def main(config):
    session = {"format": 1, "nonce": config["nonce"], "session": config["session"], "status": "running"}
    write(WORKING / "shoestring-session.json", session)
    time.sleep(config["start_seconds"])
    update, value, damaged = 0, digest_of("start", config["seed"]), []
    status, reason = "failed", ""
    if config["previous"]:
        update, value, damaged = restore(config["previous"])
    first = update or 0
    if update is None:
        reason = f"nothing of the session before can be used: {'; '.join(damaged)}"
    else:
        status = "paused"
        save(update, value)
        # On a busy machine a process may wait for its turn longer than so short a session keeps for its output.
        end = STARTED + config["limit_seconds"] - config["hand_over_seconds"] - 0.5
        last = min(config["updates"], update + config.get("session_updates", config["updates"]))
        while update < last and time.monotonic() < end - 2 * config["update_seconds"]:
            time.sleep(config["update_seconds"])
            value = advance(value, update + 1)
            update += 1
            save(update, value)
            print(f"update {update}", flush=True)
        if update == config["updates"]:
            status = "finished"
        write(RUN / "plan.json", {"updates": config["updates"]})
        write(RUN / "state.json", {"status": status, "update": update, "value": value})
    files = {
        path.relative_to(WORKING).as_posix(): {
            "bytes": path.stat().st_size,
            "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        }
        for path in sorted(RUN.rglob("*"))
        if path.is_file()
    }
    session |= {"status": status, "reason": reason, "update": update or 0, "total_updates": config["updates"]}
    if update is not None:
        session["checkpoint"] = f"update-{update:08d}"
    session |= {"first_update": first, "damaged": damaged, "files": files, "seconds": time.monotonic() - STARTED}
    write(WORKING / "shoestring-session.json", session)


if __name__ == "__main__":
    main(globals()["CONFIG"])
