"""The script of a session, run as a process in a folder laid out as Kaggle does."""

import hashlib
import signal
import time

import pytest

from tests.remote.kaggle.kernel.layout import OPTIONS, finish, make_config, start, write_package

WEIGHTS = "run/light/model.safetensors"


@pytest.fixture(scope="module")
def first(tmp_path_factory):
    """The root and the file of a session that was asked to end after its first checkpoint."""
    root = tmp_path_factory.mktemp("first")
    write_package(root / "input" / "datasets" / "me" / "package")
    # The run has as many epochs as take several seconds.
    process = start(root, make_config(1, options={**OPTIONS, "epochs": "200"}))
    events = root / "working" / "run" / "events.jsonl"
    while not (events.exists() and '"progress"' in events.read_text()):
        assert process.poll() is None, process.stdout.read()
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    return root, finish(process, root)


def test_session_that_is_asked_to_end_leaves_what_continues(first):
    root, left = first
    assert (left.status, left.first_update) == ("paused", 0) and 0 < left.update < left.total_updates, left
    assert left.has_progress and left.checkpoint == f"update-{left.update:08d}" and not left.damaged
    assert {"shoestring.log", "run/plan.json", "run/state.json", "run/events.jsonl"} <= left.files.keys()
    assert f"run/checkpoints/{left.checkpoint}/manifest.json" in left.files
    for name, entry in left.files.items():
        content = (root / "working" / name).read_bytes()
        assert (len(content), hashlib.sha256(content).hexdigest()) == (entry.bytes, entry.sha256)
    assert left.facts["shoestring"] and left.facts["disk_free_bytes"] > 0
