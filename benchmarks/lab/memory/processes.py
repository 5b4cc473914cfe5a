"""The processes that answer questions about configurations: they measure, estimate or decide."""

import dataclasses
import json
import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from benchmarks.lab.memory.configurations import Configuration

from shoestring.hardware.targets import find as find_target
from shoestring.planning.simulator import environment, prepare
from shoestring.planning.simulator.build import libraries
from shoestring.planning.simulator.environment import Values

ROOT = Path(__file__).parents[3]

Side = Literal["estimating", "measuring", "deciding"]


class Answers:
    """A process of one side and the questions to it."""

    def __init__(self, process: subprocess.Popen[str], memory_bytes: int) -> None:
        self._process, self._memory_bytes = process, memory_bytes

    def ask(self, configuration: Configuration) -> dict[str, Any]:
        """Return the answer about a configuration. Raises RuntimeError if the process has ended."""
        question = {"configuration": configuration.json(), "memory_bytes": self._memory_bytes}
        assert self._process.stdin and self._process.stdout
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the process has ended with status {self._process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        return answer


@contextmanager
def started(
    side: Side, *, on: str, memory_bytes: int, values: Values = "auto", log: Path | None = None
) -> Iterator[Answers]:
    """Start the process of a side within the context, with this interpreter's packages, on two GPUs of a target with so
    many bytes of memory each. What it prints besides answers goes to `log`.

    Raises UsageError if the environment is not prepared.
    """
    interpreter, build = prepare.find()
    simulator = libraries(build)
    target = find_target(on)
    target = dataclasses.replace(target, gpus=2, device=dataclasses.replace(target.device, memory_bytes=memory_bytes))
    with tempfile.TemporaryDirectory() as folder, (log or Path(os.devnull)).open("a") as errors:
        variables = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", "OMP_NUM_THREADS": "1"}
        variables = environment.simulated(variables, simulator, target, Path(folder), values=values, operators=False)
        # Libraries ask for GPUs at import. In this way they do not use CUDA, after which no process may fork.
        variables["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
        if side != "measuring":
            variables["CUDA_VISIBLE_DEVICES"] = ""  # PyTorch's build with CUDA, on a machine without a GPU
        process = subprocess.Popen(
            [str(interpreter.executable), "-m", f"benchmarks.lab.memory.{side}"],
            env=variables,
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
        try:
            yield Answers(process, memory_bytes)
        finally:
            process.kill()
            process.wait()
            for stream in (process.stdin, process.stdout):
                if stream:
                    stream.close()
