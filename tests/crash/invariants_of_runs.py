"""What must hold after every session of a run, whatever happened to it, and when the run is finished.

`INVARIANTS` is the table of checks; each yields the problems of a session, as text.
"""

import json
import signal
import time
from pathlib import Path

from tests.crash.foreign_files import changes
from tests.crash.schedule import CHECKPOINT, newest_checkpoint
from tests.crash.sessions_of_machine import children, processes_with_files
from tests.sessions import final_checkpoint, light_bits

LEFTOVER_SECONDS = 10.0
CANARY = "this file belongs to somebody else"


def result(run):
    """Return the bits of a finished run, and what else must be equal to those of an undisturbed one."""
    checkpoint = final_checkpoint(run)
    # After the last update a trainer's request to stop has no effect; a session that is stopped there has none.
    checkpoint["state"].get("trainer", {}).get("stateful_callbacks", {}).pop("TrainerControl", None)
    weights = {name: light_bits(run / name) for name in ("light", "best") if (run / name).exists()}
    return {**checkpoint, "status": state_of_run(run), **weights}


def state_of_run(run):
    state = json.loads((run / "state.json").read_text())
    return state["status"], state["update"], state["total_updates"]


def differences(expected, run, suspended):
    """Return the names of the parts of a finished run that differ from the `expected` result."""
    actual = result(run)
    expected = json.loads(json.dumps(expected, default=repr))
    actual = json.loads(json.dumps(actual, default=repr))
    if "best" in suspended:  # its save may have failed, and then the test metrics are of other weights
        for values in (expected, actual):
            values.pop("best", None)
            values["metrics"].pop("test", None)
    if "microbatch" in suspended:
        for values in (expected, actual):
            for section in (values["state"], values["state"].get("progress", {})):
                section.pop("fit", None)
            # The sums of a trainer's log are rounded in another way.
            for name in ("train_batch_size", "log_history"):
                values["state"].get("trainer", {}).pop(name, None)
            values["state"].pop("log", None)
    return sorted(name for name in expected.keys() | actual.keys() if expected.get(name) != actual.get(name))


# After every session. `before` has the facts from before the session, `after` those from after it.


def exit_status(session, before, after):
    status, allowed = session.process.returncode, session.statuses | session.refusals
    if status not in allowed:
        yield f"the exit status is {status}, but {sorted(allowed)} are allowed"
    for name, statuses, process, _ in session.others:
        if process.returncode not in statuses:
            yield f"the exit status of {name} is {process.returncode}, but {sorted(statuses)} are allowed"


def no_traceback(session, before, after):
    paths = [(session.command[0], session.errors)] if session.stderr == "file" else []
    if session.configuration.recipe is None and session.process.returncode == -signal.SIGINT:
        paths = []  # the script's own imports were interrupted
    for name, path in paths + [(name, path) for name, _, _, path in session.others]:
        text = path.read_text(errors="replace")
        if "Traceback" in text:
            yield f"{name} printed a traceback"
        if "a defect of Shoestring" in text:
            yield f"{name} printed that it has met a defect of Shoestring"


def one_clear_error(session, before, after):
    """A command that ends with 1 or 2 says why, once."""
    if session.stderr == "file" and session.process.returncode in (1, 2):
        lines = session.errors.read_text(errors="replace").splitlines()
        errors = [line for line in lines if line.startswith("error: ")]
        if len(errors) != 1:
            yield f"the exit status is {session.process.returncode}, and stderr has {len(errors)} errors: {errors}"


def intact_checkpoints(session, before, after):
    for damage in after["damaged"]:
        if damage.partition("/")[0] not in before["damaged by the machine"]:
            yield f"a checkpoint with its final name is damaged: {damage}"


def damage_is_reported(session, before, after):
    """Only if the session came so far as to train: one that is refused before reads no checkpoint."""
    if session.damaged_checkpoint and session.stderr == "file" and after["started"] and session.entries():
        text = session.errors.read_text(errors="replace")
        if "damaged" not in text:
            yield f"the damage of {session.damage} is not reported on stderr"


def consistent_state(session, before, after):
    run, status = session.run, session.process.returncode
    if not (run / "state.json").exists():
        # A command that has to stop before it restores a run writes nothing, and prints how to continue.
        has_begun = session.place is None or (run / "plan.json").exists()
        if status == 0 and has_begun:
            yield "the session ended with status 0 without a state.json"
        return
    try:
        state = json.loads((run / "state.json").read_text())
    except ValueError as error:
        yield f"state.json is not JSON: {error}"
        return
    recorded = state.get("status")
    if recorded not in ("running", "paused", "finished", "failed"):
        yield f"state.json has the status {recorded}"
    if status == 0 and recorded not in ("paused", "finished"):
        yield f"the exit status is 0, but state.json has the status {recorded}"
    if session.is_refused:
        if recorded not in ("failed", session.state_before):
            yield f"the command was refused, but state.json has the status {recorded}, not {session.state_before}"
    elif status == 1 and recorded != "failed" and "interval" not in session.suspended:
        yield f"the exit status is 1, but state.json has the status {recorded}"
    if recorded == "finished" and session.configuration.recipe and not (run / "light").exists():
        yield "the run is finished without light/"
    update = state.get("update")
    if recorded == "paused" and update and update not in after["intact"] and not before["damaged by the machine"]:
        yield f"state.json has update {update}, but the intact checkpoints are of {after['intact']}"


def interval_of_saves(session, before, after):
    """A kill costs at most the interval; a session that ended by itself costs nothing."""
    if "interval" in session.suspended:
        return
    lost = after["started"] - after["newest"]
    # An attempt that ran out of memory may be all that a session that was stopped has started.
    attempts = int("microbatch" in session.suspended)
    is_whole = session.process.returncode == 0 and "at the end" not in session.suspended
    allowed = attempts if is_whole else session.configuration.interval
    if lost > allowed:
        yield f"{lost} updates will be repeated, but at most {allowed} may be: exit status {session.process.returncode}"


def order_of_samples(session, before, after):
    yield from after["order"]


def on_time(session, before, after):
    if session.limit and "on time" not in session.suspended and session.seconds_late() > 0:
        yield f"the command ended {session.seconds_late():.2f} s after its limit of {session.limit:g} s"


def no_leftover_processes(session, before, after):
    deadline = time.monotonic() + LEFTOVER_SECONDS
    while time.monotonic() < deadline and after["processes"]():
        time.sleep(0.05)
    for pid in after["processes"]():
        try:
            command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        yield f"process {pid} is left {LEFTOVER_SECONDS:g} s after the end of the session: {command[:200]}"


def no_leftover_files(session, before, after):
    """After a session that ended by itself, whatever an earlier one left."""
    is_killed = bool({"interval", "at the end"} & session.suspended)
    if session.process.returncode == 0 and not is_killed and after["started"] > before["newest"]:
        for path in session.run.rglob(".*"):
            if not any(str(path) == name or str(path).startswith(f"{name}/") for name in session.planted):
                yield f"{str(path.relative_to(session.run))!r} is left"


def other_files(session, before, after):
    canary = session.run.parent / "canary"
    if canary.read_text() != CANARY:
        yield "the file beside the run has changed"
    beside = {path.name for path in session.run.parent.iterdir()} - {session.run.name, "canary", "copies"}
    if session.process.returncode == 0 and beside:
        yield f"there are other files beside the run: {sorted(beside)}"


def foreign_files(session, before, after):
    yield from changes(session.planted)
    outside = [path.name for path in session.outside.iterdir()] if session.outside else ["file"]
    if outside != ["file"]:
        yield f"the folder to which links point contains {outside}"


INVARIANTS = [
    exit_status, no_traceback, intact_checkpoints, damage_is_reported, consistent_state, interval_of_saves,
    order_of_samples, on_time, no_leftover_processes, no_leftover_files, other_files,
    one_clear_error, foreign_files,
]  # fmt: skip


def facts_before(session, damaged_by_machine):
    newest, _ = newest_checkpoint(session.run, without=[target for target, _, _ in session.replaced])
    if session.place and not (session.run / "plan.json").exists():
        newest = newest_copy(session.place)
    return {"newest": newest, "damaged by the machine": set(damaged_by_machine)}


def newest_copy(place):
    """Return the update of the newest copy of a run; 0 if there is none."""
    names = sorted(path.name for path in (place / "commits").glob("[0-9]*-update-*.json"))
    return int(names[-1].split("-")[2]) if names else 0


def facts_after(session, before, order):
    """`order` is the samples of each update in the undisturbed run."""
    newest, damaged = newest_checkpoint(session.run)
    if session.place and not (session.run / "plan.json").exists():
        newest = newest_copy(session.place)
    started, problems = compare_order(session.entries(), before["newest"], order, returns_of(session, before))
    session.lost_updates = 0 if "interval" in session.suspended else started - newest
    damaged_names = {damage.partition("/")[0] for damage in damaged}
    paths = (session.run / "checkpoints").glob(CHECKPOINT)
    server = [session.server.pid] if session.server else []
    forked = set(children(server[0])) if server else set()

    def processes():
        own = processes_with_files(session.folder) | processes_with_files(session.disk.path)
        return (own | (forked & set(children(server[0])) if server else own)) - {*server}

    return {
        "newest": newest,
        "damaged": damaged,
        "damaged names": damaged_names,
        "intact": sorted(int(path.name[7:]) for path in paths if path.name not in damaged_names),
        "started": started,
        "order": problems,
        "processes": processes,
    }


def returns_of(session, before):
    """Return the updates of the checkpoints that a trainer's run returned to on out-of-memory, in order."""
    events = session.run / "events.jsonl"
    returns = []
    for line in events.read_bytes().splitlines() if events.exists() else []:
        try:
            event = json.loads(line)
        except ValueError:
            continue
        if event.get("event") == "session":
            returns = []
        if event.get("event") == "oom" and event.get("back_to") is not None:
            returns.append(event["back_to"])
    return returns


def compare_order(entries, update, order, returns):
    """Compare the logged samples with the `order`, starting at `update`.

    Return the number of started updates of the run, and the problems.
    """
    started, last, place = update, update, 0
    for entry in entries:
        if entry == "memory":  # the update is repeated, or the run returns to a checkpoint
            update, place = (returns.pop(0) if returns else last), 0
        if not entry.startswith("samples "):
            continue
        samples = [int(number) for number in entry[8:].split(",")]
        if update >= len(order):
            return started, [f"samples {samples} follow the last update"]
        if order[update][place : place + len(samples)] != samples:
            return started, [f"update {update} has {samples} from sample {place} on, but {order[update]} is its order"]
        last, started = update, max(started, update + 1)
        place += len(samples)
        if place == len(order[update]):
            update, place = update + 1, 0
    return started, []


def order_of_updates(entries):
    """Return the samples of each update from the log of an undisturbed run."""
    samples = [int(number) for entry in entries if entry.startswith("samples ") for number in entry[8:].split(",")]
    return [samples[start : start + 8] for start in range(0, len(samples), 8)]
