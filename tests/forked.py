"""A server that has imported everything and forks a process for each session, which is faster than starting one.

It reads one request per line, {"run", "limit", "margin", "slow", "block"}, and responds with the child's process ID,
then with its exit status and its duration in seconds. Run it as `python -m tests.forked`.
"""

import contextlib
import io
import json
import os
import subprocess
import sys
import tempfile
import time
import traceback
from contextlib import suppress
from pathlib import Path

UPDATES = 60  # an epoch


class Server:
    """The server as a context manager, for tests."""

    def __enter__(self):
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.forked"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        return self

    def __exit__(self, *_):
        self._process.stdin.close()
        self._process.wait(60)
        self._process.stdout.close()

    def begin(self, run, **request):
        """Start a session and return its process ID."""
        print(json.dumps({"run": str(run), **request}), file=self._process.stdin, flush=True)
        return json.loads(self._process.stdout.readline())

    def end(self):
        """Return the exit status (negative: a signal) and the seconds from before the fork to the end."""
        return json.loads(self._process.stdout.readline())


def recipe(*, slow, block):
    """Return a recipe whose updates take 2 to 40 ms if `slow`, and which blocks in the phase named by `block`."""
    import torch
    from torch import nn

    def block_in(phase, run):
        if block == phase:
            (run / "standing").touch()
            deadline = time.monotonic() + 60
            while time.monotonic() < deadline:
                time.sleep(0.01)

    class Slow:
        epochs = 200
        effective_batch = 4
        run = Path()

        def model(self):
            return nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.2), nn.Linear(8, 1))

        def batch(self, size):
            return torch.zeros(size, 3)

        def loss(self, model, batch):
            block_in("update" if model.training else "evaluation", self.run)
            if slow and model.training:
                time.sleep(0.002 + 0.038 * float(batch[0, 0].abs() % 1))
            return (model(batch) - batch.sum(dim=1, keepdim=True)).square().mean()

        def data(self):
            block_in("data", self.run)
            points = torch.randn(4 * UPDATES + 20, 3, generator=torch.Generator().manual_seed(0))
            return {"train": points[20:], "validation": points[:20]}

    return Slow()


def run_one_session(request, start):
    """Run a session in the child and return its exit status."""
    import torch

    from shoestring.recipe.finding import choose
    from shoestring.training.session.deadline import Deadline
    from shoestring.training.session.stop import SessionOver
    from tests.sessions import run_session

    torch.set_num_threads(1)
    slow_recipe = recipe(slow=request.get("slow", True), block=request.get("block"))
    slow_recipe.run = Path(request["run"])
    loaded, settings = choose(slow_recipe, {"epochs": request["epochs"]})
    settings = settings.replace(micro_batch=4, precision="fp32", save_every_seconds=60.0)
    deadline = Deadline(request.get("limit"), started=start, margin_seconds=request.get("margin", 0.0))
    with suppress(SessionOver):
        run_session(loaded, settings, slow_recipe.run, deadline)
    return 0


def serve():
    # The first session imports torch's lazy modules: its optimizers import its compiler, in 0.7 s.
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stderr(io.StringIO()):
        run_one_session({"run": folder, "slow": False, "epochs": 1}, time.monotonic())
    for line in sys.stdin:
        request, start = json.loads(line), time.monotonic()
        child = os.fork()
        if child == 0:
            status = 1
            try:
                log = os.open(request["run"] + ".log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
                os.dup2(log, 1)
                os.dup2(log, 2)
                status = run_one_session(request, start)
            except BaseException:
                traceback.print_exc()
                raise
            finally:
                os._exit(status)
        sys.stdout.write(f"{child}\n")
        sys.stdout.flush()
        _, status = os.waitpid(child, 0)
        sys.stdout.write(json.dumps([os.waitstatus_to_exitcode(status), time.monotonic() - start]) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    serve()
