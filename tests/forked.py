"""Real processes at the price of a fork: a server that has imported everything already runs one session in each.

It reads a question a line, {"run", "limit", "margin", "slow", "block"}, and answers with the child's process number,
then with its exit status and how many seconds it lived. Run it as `python -m tests.forked`.
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
    """The server as a context, for tests."""

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

    def begin(self, run, **question):
        """Begin a session; returns its process number."""
        print(json.dumps({"run": str(run), **question}), file=self._process.stdin, flush=True)
        return json.loads(self._process.stdout.readline())

    def end(self):
        """(exit status as the shell counts signals: negative; seconds from before the fork to after the end)."""
        return json.loads(self._process.stdout.readline())


def recipe(*, slow, block):
    """A model that takes 2 to 40 ms an update when `slow`, and stands still in the first phase that `block` names."""
    import torch
    from torch import nn

    def stand_still(phase, run):
        if block == phase:
            (run / "standing").touch()
            until = time.monotonic() + 60
            while time.monotonic() < until:
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
            stand_still("update" if model.training else "evaluation", self.run)
            if slow and model.training:
                time.sleep(0.002 + 0.038 * float(batch[0, 0].abs() % 1))
            return (model(batch) - batch.sum(dim=1, keepdim=True)).square().mean()

        def data(self):
            stand_still("data", self.run)
            points = torch.randn(4 * UPDATES + 20, 3, generator=torch.Generator().manual_seed(0))
            return {"train": points[20:], "validation": points[:20]}

    return Slow()


def one_session(question, began):
    """What a child does; the status it ends with."""
    import torch

    from shoestring.recipe.finding import choose
    from shoestring.session.deadline import Deadline
    from shoestring.session.stop import SessionOver
    from tests.sessions import run_session

    torch.set_num_threads(1)
    mine = recipe(slow=question.get("slow", True), block=question.get("block"))
    mine.run = Path(question["run"])
    loaded, settings = choose(mine, {"epochs": question["epochs"]})
    settings = settings.replace(micro_batch=4, precision="fp32", save_every_seconds=60.0)
    deadline = Deadline(question.get("limit"), started=began, margin_seconds=question.get("margin", 0.0))
    with suppress(SessionOver):
        run_session(loaded, settings, mine.run, deadline)
    return 0


def serve():
    # What torch imports late as well: its optimizers import its compiler, in 0.7 s.
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stderr(io.StringIO()):
        one_session({"run": folder, "slow": False, "epochs": 1}, time.monotonic())
    for line in sys.stdin:
        question, began = json.loads(line), time.monotonic()
        child = os.fork()
        if child == 0:
            status = 1
            try:
                said = os.open(question["run"] + ".log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
                os.dup2(said, 1)
                os.dup2(said, 2)
                status = one_session(question, began)
            except BaseException:
                traceback.print_exc()
                raise
            finally:
                os._exit(status)
        sys.stdout.write(f"{child}\n")
        sys.stdout.flush()
        _, status = os.waitpid(child, 0)
        sys.stdout.write(json.dumps([os.waitstatus_to_exitcode(status), time.monotonic() - began]) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    serve()
