"""A process that has imported everything and forks ranks on simulated GPUs, which is faster than starting each.

It reads one request per line, {"size", "call", "arguments", "device", "seconds"}. `call` is "module:function"; the
function is called in each rank as `function(device, **arguments)`, within the process group that the ranks of a run
have. The response has the exit status of each rank, None for one that was still running after so many seconds, and
what the function has returned there, which is JSON. Run it as `python -m tests.lab.ranks.driver`.

Ranks import transformers and peft themselves: these initialize CUDA, and then no process can be forked.
"""

import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import traceback
from dataclasses import dataclass
from pathlib import Path

from shoestring.hardware.targets import find
from shoestring.planning.simulator.environment import simulated

_RANK_MODULES = (
    "tests.lab.ranks.training",
    "shoestring.training.loop",
    "torch._dynamo",
    "torch.distributed.fsdp",
    "rich",
)


@dataclass
class Answers:
    """How the ranks of a request have ended."""

    statuses: list
    values: list
    """What the function has returned in each rank; None where it has not returned."""
    seconds: float
    output: str
    """What the ranks have printed."""


class Driver:
    """The driver as a context manager, for tests."""

    def __init__(self, target, folder: Path, libraries, **variables) -> None:
        """Use the simulator's `libraries`, and `variables` of the environment; `folder` must exist."""
        self._folder = folder
        self._log = folder / "log"
        self._environment = simulated(
            {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0", **variables},
            libraries,
            find(target),
            folder,
            values="all",
        )

    def __enter__(self):
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.lab.ranks.driver", str(self._folder)],
                env=self._environment,
                cwd=Path(__file__).parents[3],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        return self

    def __exit__(self, *_):
        self._process.stdin.close()
        self._process.wait(60)
        self._process.stdout.close()

    def call(self, size, function, *, device="cuda", seconds=120.0, **arguments) -> Answers:
        """Call a module's function in `size` ranks, and return how they have ended."""
        begins_at = self._log.stat().st_size
        request = {
            "size": size,
            "call": f"{function.__module__}:{function.__qualname__}",
            "arguments": arguments,
            "device": device,
            "seconds": seconds,
        }
        print(json.dumps(request, default=str), file=self._process.stdin, flush=True)
        line = self._process.stdout.readline()
        output = self._log.read_bytes()[begins_at:].decode(errors="replace")
        assert line, output
        return Answers(**json.loads(line), output=output)

    def run(self, size, function, **arguments):
        """Return what a module's function has returned in each of `size` ranks, all of which must end well."""
        answers = self.call(size, function, **arguments)
        assert answers.statuses == [0] * size, answers.output[-6000:]
        return answers.values


def run_rank(request, rank, port, answer: Path):
    """Call the request's function as one rank, and write what it returns to the file `answer`."""
    import torch

    from shoestring.training.engine.parallel.joining import join

    torch.set_num_threads(1)
    device, size = torch.device(request["device"]), request["size"]
    if size > 1:
        names = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        os.environ.update({name: str(value) for name, value in names.items()})
        device = join(device)
    module, _, name = request["call"].partition(":")
    value = getattr(importlib.import_module(module), name)(device, **request["arguments"])
    answer.write_text(json.dumps(value))


def run_ranks(request, folder: Path):
    """Fork the ranks of a request and return how they have ended."""
    start = time.monotonic()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    files = [folder / f"answer-{rank}" for rank in range(request["size"])]
    pids = []
    for rank, file in enumerate(files):
        file.unlink(missing_ok=True)
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                run_rank(request, rank, port, file)
                status = 0
            except SystemExit as error:
                status = error.code
            except BaseException:
                traceback.print_exc()
                raise
            finally:
                sys.stderr.flush()
                os._exit(status)
        pids.append(pid)
    statuses = dict.fromkeys(pids)
    while (running := [pid for pid in pids if statuses[pid] is None]) and time.monotonic() < start + request["seconds"]:
        for pid in running:
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                statuses[pid] = os.waitstatus_to_exitcode(status)
        time.sleep(0.02)
    for pid in running:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    return {
        "statuses": list(statuses.values()),
        "values": [json.loads(file.read_text()) if file.exists() else None for file in files],
        "seconds": time.monotonic() - start,
    }


def serve(folder: Path):
    responses = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for name in _RANK_MODULES:
        importlib.import_module(name)
    for line in sys.stdin:
        responses.write(json.dumps(run_ranks(json.loads(line), folder)) + "\n")
        responses.flush()


if __name__ == "__main__":
    serve(Path(sys.argv[1]))
