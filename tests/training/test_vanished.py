"""Directories and files of a run that are deleted or replaced while it trains, or between two sessions."""

import json
import shutil

import pytest

from shoestring.base.errors import CheckpointError
from tests.crash.schedule import Small
from tests.sessions import final_bits, session

VALUES = {"save_every_updates": 1}
AT = 8
"""The update in which something is deleted, in the third of four epochs."""


def delete_newest(run):
    shutil.rmtree(max((run / "checkpoints").glob("update-*")))


def replace_by_copy(run):
    """Replace the directory by a copy of itself: it has the same files, but neither this run's lock nor its events."""
    run.rename(run.with_name("moved"))
    shutil.copytree(run.with_name("moved"), run)


DELETIONS = {
    "run": (shutil.rmtree, "run is gone"),
    "run replaced": (replace_by_copy, "run is gone"),
    "checkpoints": (lambda run: shutil.rmtree(run / "checkpoints"), "checkpoints is gone"),
    "newest checkpoint": (delete_newest, "update-0000000[67] is gone"),
}


def train_with(action, run, **options):
    """Train a run in which `action(run)` happens in one of the updates."""
    updates = 0

    def on_update():
        nonlocal updates
        updates += 1
        if updates == AT:
            action(run)

    return session(Small(on_update), run, VALUES, **options)


@pytest.mark.parametrize("name", DELETIONS)
def test_deleted_directory_stops_the_run_at_the_next_save(tmp_path, name):
    delete, message = DELETIONS[name]
    run = tmp_path / "run"
    with pytest.raises(CheckpointError, match=message) as raised:
        train_with(delete, run)
    assert raised.value.hint
    state = json.loads((run / "state.json").read_text()) if (run / "state.json").exists() else {}
    if name == "newest checkpoint":  # the older one remains, and the run continues from it
        assert (state["status"], "update-0000000" in raised.value.hint) == ("failed", True)
        session(Small(lambda: None), tmp_path / "straight", VALUES)
        session(Small(lambda: None), run, VALUES)
        assert final_bits(run) == final_bits(tmp_path / "straight")
    elif name == "checkpoints":
        assert state["status"] == "failed"
        with pytest.raises(CheckpointError, match=r"but .*checkpoints has no checkpoint") as raised:
            session(Small(lambda: None), run, VALUES)
        assert "another --run" in raised.value.hint
        # A run that has not made any update begins, with or without checkpoints.
        (run / "state.json").write_text(json.dumps({**state, "update": 0}))
        assert session(Small(lambda: None), run, VALUES).status == "finished"
    elif name == "run":
        assert not run.exists()
    else:  # nothing is written into the directory that took its place
        assert state["status"] == "running"


class Diverging(Small):
    """No epoch is better than the first one."""

    best = ("loss", "max")

    def evaluate(self, model, batches):
        self.evaluations = getattr(self, "evaluations", 0) + 1
        return {"loss": -self.evaluations}


def test_deleted_best_weights_are_an_error(tmp_path):
    run = tmp_path / "run"
    updates = 0

    def on_update():
        nonlocal updates
        updates += 1
        if updates == AT:
            shutil.rmtree(run / "best")

    with pytest.raises(CheckpointError, match=r"best weights, .*, are gone") as raised:
        session(Diverging(on_update), run, VALUES)
    assert "--allow-inexact" in raised.value.hint
    assert session(Diverging(lambda: None), run, VALUES, allow_inexact=True).status == "finished"
