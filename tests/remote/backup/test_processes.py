"""The process of a backup beside a session."""

import os
import signal
import subprocess
import sys

COPYING = """
import sys
from pathlib import Path
from shoestring.remote.backup import processes
from shoestring.training.run_directory.directory import RunDirectory
from shoestring.training.session.deadline import Deadline
from shoestring.training.session.signals import StopSignals
from shoestring.training.session.stop import Stop

# It imports for some time, as any process of Python does, before it can ignore a signal.
IMPORTING = "import signal, time; print(flush=True); time.sleep(0.3); signal.signal(signal.SIGINT, signal.SIG_IGN);"
processes._COMMAND = (sys.executable, "-c", IMPORTING + "print('{}', flush=True); input()")
folder = Path(sys.argv[1])
run = RunDirectory(folder / "run")
run.create()
process_class = processes.subprocess.Popen
def start(*arguments, **options):
    process = process_class(*arguments, **options)
    process.stdout.readline()
    print("started", flush=True)
    return process
processes.subprocess.Popen = start
with StopSignals() as signals:
    stop = Stop(deadline=Deadline(None), signals=signals)
    with processes.copying(run, str(folder / "copies"), stop):
        print("copying", signals.received, flush=True)
"""


def test_ctrl_c_does_not_end_the_process_while_it_starts(tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-c", COPYING, str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout.readline() == "started\n"
    os.killpg(process.pid, signal.SIGINT)
    output, messages = process.communicate(timeout=30)
    assert (output, messages) == ("copying SIGINT\n", "")
