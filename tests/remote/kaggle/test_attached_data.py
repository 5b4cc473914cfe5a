"""A run of attached data, from the command that a plan prints to the session that finds other data.

The sessions on the loopback Kaggle are real, and the client is the unpatched official one.
"""

import contextlib
import json
import shlex
import signal
import threading
from pathlib import Path

import psutil
import pytest

from shoestring.hardware.targets import find as find_target
from shoestring.planning.commands import training_command
from shoestring.recipe.finding import choose
from shoestring.remote.kaggle import starting
from shoestring.remote.kaggle.chain_file import read_chain
from tests.loopback_kaggle import Loopback

JUDGMENTS, SENTENCES = 40, 8


def judgments(words):
    roles = ("Facts", "Issue", "Decision")
    lines = "".join(f"{words} {number} of the court\t{roles[number % 3]}\n" for number in range(SENTENCES))
    return {f"cases/{number:03d}.txt": lines.encode() for number in range(JUDGMENTS)}


def pause_first_session(loopback, is_over):
    """Replace the dataset once the first session has measured some updates, and ask that session to end."""
    while not is_over.wait(0.05):
        sessions = loopback.kernels.sessions
        machine = sessions[0].machine if sessions else None
        events = machine.working / "run" / "events.jsonl" if machine else None
        if not events or not events.exists() or events.read_text().count('"progress"') < 3:
            continue
        loopback.add_dataset("me/judgments", judgments("another sentence"))
        for process in psutil.Process(machine._process.pid).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                if "python" in process.name() and process.cmdline()[-1].endswith("script.py"):
                    process.send_signal(signal.SIGTERM)
        return


@pytest.fixture
def loopback(tmp_path, monkeypatch):
    with Loopback(tmp_path / "kaggle", session_seconds=100, keep_outputs="always", processing_seconds=0.1) as loopback:
        loopback.add_dataset("me/judgments", judgments("a sentence"))
        for name, value in loopback.environment.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("OMP_NUM_THREADS", "1")
        monkeypatch.setattr(starting, "download_wheels", lambda _: [])
        monkeypatch.chdir(tmp_path)
        is_over = threading.Event()
        threading.Thread(target=pause_first_session, args=(loopback, is_over)).start()
        yield loopback
        is_over.set()


@pytest.mark.slow
def test_the_command_of_a_plan_trains_attached_data_and_the_rest_is_planned_again(loopback, run_command):
    loaded, settings = choose("legal", {"size": "tiny", "rows": JUDGMENTS, "epochs": 300})
    command = training_command(loaded, settings, find_target("kaggle-t4x2"))
    assert "--data OWNER/DATASET" in command and f"--set rows={JUDGMENTS}" in command
    words = shlex.split(command.replace("OWNER/DATASET", "me/judgments:cases"))[1:]
    status, _, err = run_command(*words, "--allow-cpu", "--every", "0.2s")
    assert status == 1 and "session 1 is paused" in err, err
    chain = read_chain(Path("runs/legal/kaggle"))
    assert chain.set == {"size": "tiny", "epochs": "300"}  # the rows are of the plan alone
    problem = "data: its files have changed since the checkpoint (names, sizes or content)"
    assert chain.status == "failed" and problem in chain.reason and "a new version of the dataset" in chain.reason

    chain = json.loads(run_command("kaggle", "status", "--run", "runs/legal", "--json")[1])
    forecast, updates = chain["forecast"], 300 * JUDGMENTS * 0.8 * SENTENCES / 16
    assert (forecast["total_updates"], forecast["updates"]) == (updates, chain["update"])
    assert forecast["planned_total_updates"] > 10 * updates  # the sentences of usual judgments
    assert forecast["source"] == "measured" and forecast["update_seconds"] > 0 < forecast["planned_update_seconds"]
    assert forecast["sessions_left"] == 1 and forecast["hours_left"] * 3600 > 1000 * forecast["update_seconds"]
    assert forecast["text"].splitlines()[0] in err
    text = run_command("kaggle", "watch", "--run", "runs/legal")[1]
    assert problem in text and "with the data of the sessions the run has 4,800" in text
