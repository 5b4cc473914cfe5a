"""Executes cells in the kernel of a notebook, and prints their outputs as JSON: `executed_cells.py RUN`.

The first cell trains the run and is interrupted once it trains; the second one asks for what is not possible.
"""

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

import nbformat
from jupyter_client.kernelspec import KernelSpec
from jupyter_client.manager import KernelManager
from nbclient import NotebookClient

from shoestring.training.run_directory.stored import StoredState

run = Path(sys.argv[1])
manager = KernelManager()
manager._kernel_spec = KernelSpec(
    argv=[sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"], language="python"
)
sources = [
    f"import shoestring\nshoestring.train('temporal', run={str(run)!r}, size='tiny', epochs=100_000, patience=100_000)",
    f"shoestring.train('temporal', run={str(run)!r}, size='tiny', epochs=0)",
]
notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in sources])
client = NotebookClient(notebook, timeout=100, km=manager, allow_errors=True)


def interrupt() -> None:
    while not (run / "state.json").exists() or StoredState.read(run / "state.json").update < 5:
        time.sleep(0.05)
    os.kill(manager.provisioner.pid, signal.SIGINT)


with client.setup_kernel(env=dict(os.environ)):
    threading.Thread(target=interrupt, daemon=True).start()
    for index, cell in enumerate(notebook.cells):
        client.execute_cell(cell, index)
sys.stdout.write(json.dumps([cell.outputs for cell in notebook.cells]))
