"""Asking a child process to follow updates on a pretend GPU. Nothing here imports torch."""

from __future__ import annotations

import gc
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from shoestring import config, errors
from shoestring.errors import ShoestringError, TraceError
from shoestring.hardware.catalog import Device
from shoestring.recipe.options import LoadedRecipe
from shoestring.settings import Settings
from shoestring.trace.record import Facts, Trace

_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+) in (?P<name>\S+)')


class Tracer:
    """Follows updates of one recipe, as many as asked for, in one child process.

        with Tracer(loaded) as tracer:
            trace = tracer.trace(Settings(micro_batch=8, precision="fp16"), accumulate=4, device=catalog_entry)

    A process of its own, because torch may abort on the way and since a pretend device cannot be taken back. A
    recipe with a reference is loaded again there; a live object goes along by `fork`, and so does torch where it is
    here: importing it is the larger part of the time.
    """

    def __init__(self, loaded: LoadedRecipe) -> None:
        self._loaded = loaded
        self._child: _Child | None = None
        self._facts: Facts | None = None

    @property
    def facts(self) -> Facts:
        """What the recipe is. Raises the recipe's own UsageError or DataError, or TraceError."""
        if self._facts is None:
            answer = self._ask(
                {"do": "open", "reference": self._loaded.reference, "options": config.as_json(self._loaded.options)}
            )
            self._facts = Facts.from_json(answer["facts"])
        return self._facts

    def trace(
        self,
        settings: Settings,
        *,
        accumulate: int,
        device: Device,
        gpus: int = 1,
        options: Mapping[str, Any] | None = None,
    ) -> Trace:
        """Two updates as one of `gpus` such devices would run them, the second in at most two microbatches.

        `settings` leave neither microbatch nor precision open; `options` are those in which the recipe differs from
        the one that was opened, whose facts the trace keeps. Raises TraceError naming the operator or the line that
        cannot be followed.
        """
        assert self.facts
        answer = self._ask(
            {
                "do": "trace",
                "settings": settings.json(),
                "accumulate": accumulate,
                "capability": device.compute_capability,
                "gpus": gpus,
                "options": config.as_json(options or {}),
            }
        )
        return Trace.from_json(answer["trace"])

    def close(self) -> None:
        """End the child, also in the middle of an answer."""
        if self._child:
            self._child.end()
            self._child = None

    def __enter__(self) -> Tracer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _ask(self, question: dict[str, Any]) -> dict[str, Any]:
        if self._child is None:
            if not self._loaded.reference:
                self._child = _fork(self._loaded)
            else:
                self._child = _fork(None) if _torch_can_be_shared() else _spawn()
        try:
            answer = self._child.ask(question)
        except KeyboardInterrupt:
            # The answer to come must not be taken for the next question's.
            self.close()
            raise
        if answer is None:
            died, self._child, self._facts = self._child, None, None
            raise died.obituary()
        if "error" in answer:
            raise _rebuilt(answer["error"])
        return answer


class _Child:
    """A process with a question and an answer pipe; `wait` blocks and returns its status (negative: a signal)."""

    def __init__(
        self, pid: int, questions: IO[str], answers: IO[str], talk: IO[bytes], wait: Callable[[], int]
    ) -> None:
        self._pid = pid
        self._questions = questions
        self._answers = answers
        self._talk = talk
        self._wait = wait

    def ask(self, question: dict[str, Any]) -> dict[str, Any] | None:
        """The answer; None when the child died."""
        try:
            self._questions.write(json.dumps(question) + "\n")
            self._questions.flush()
        except BrokenPipeError:
            return None
        line = self._answers.readline()
        answer: dict[str, Any] | None = json.loads(line) if line.endswith("\n") else None
        return answer

    def end(self) -> int:
        """Kill the process (it holds nothing of value), reap it and return its status."""
        os.kill(self._pid, signal.SIGKILL)
        return self._reap()

    def obituary(self) -> TraceError:
        """Reap a process that died by itself, and say of what."""
        status = self._reap(keep_talk=True)
        cause = f"signal {signal.Signals(-status).name}" if status < 0 else f"status {status}"
        self._talk.seek(0)
        talk = self._talk.read().decode(errors="replace")
        self._talk.close()
        last = [line for line in talk.strip().splitlines() if line][-1:]
        return TraceError(
            f"the process that follows the update died with {cause}{_place(talk)}",
            problems=last,
            hint="run the recipe's loss on the CPU with a small batch; report what works there and dies here",
        )

    def _reap(self, *, keep_talk: bool = False) -> int:
        for pipe in (self._questions, self._answers):
            try:
                pipe.close()
            except BrokenPipeError:
                continue
        if not keep_talk:
            self._talk.close()
        return self._wait()


def _spawn() -> _Child:
    talk = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the child
    process = subprocess.Popen(
        [sys.executable, "-m", "shoestring.trace"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=talk,
        text=True,
        encoding="utf-8",
    )
    assert process.stdin and process.stdout
    return _Child(process.pid, process.stdin, process.stdout, talk, process.wait)


def _torch_can_be_shared() -> bool:
    """Whether this process has imported torch and does nothing with it that a child could not go on from.

    With CUDA it may: threads for each device's backward, which a child does not have, cannot be seen from here.
    """
    torch = sys.modules.get("torch")
    return torch is not None and threading.active_count() == 1 and not (torch.version.cuda or torch.version.hip)


def _fork(loaded: LoadedRecipe | None) -> _Child:
    """A child that has what was imported here, and the live recipe where there is one, which could not be sent without
    running foreign bytes as code.

    Its limits: other threads of this process do not exist there, so torch may not use its pool of them (one thread);
    CUDA, where this process has it, cannot be used there (the pretend device does not); POSIX only.
    """
    talk = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the child
    question_end, questions = os.pipe()
    answers, answer_end = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    with warnings.catch_warnings():
        # Python 3.12 warns where other threads run; the child uses none of their locks but the allocator's.
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        # What is garbage here may wait for its threads to end (a process group of gloo does), which are not here.
        gc.freeze()
        status = 1
        try:
            os.close(questions)
            os.close(answers)
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.dup2(talk.fileno(), 1)
            os.dup2(talk.fileno(), 2)
            _serve_forked(question_end, answer_end, loaded)
            status = 0
        finally:
            # Neither the parent's exit handlers nor its buffers are this process's to run or write.
            os._exit(status)
    os.close(question_end)
    os.close(answer_end)

    def wait() -> int:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    return _Child(pid, os.fdopen(questions, "w", encoding="utf-8"), os.fdopen(answers, encoding="utf-8"), talk, wait)


def _serve_forked(questions: int, answers: int, loaded: LoadedRecipe | None) -> None:
    import torch

    from shoestring.trace import child

    torch.set_num_threads(1)
    child.serve(os.fdopen(questions, encoding="utf-8"), os.fdopen(answers, "w", encoding="utf-8"), loaded)


def _rebuilt(error: dict[str, Any]) -> ShoestringError:
    kind = getattr(errors, error["kind"], TraceError)
    rebuilt: ShoestringError = kind(error["message"], problems=error["problems"], hint=error["hint"])
    return rebuilt


def _place(talk: str) -> str:
    """` at file:line in function` of the recipe's innermost frame in a crash's listing of frames."""
    own = str(Path(__file__).parent)
    for frame in _FRAME.finditer(talk):
        if "/torch/" not in frame["file"] and not frame["file"].startswith(own):
            return f" at {frame['file']}:{frame['line']} in {frame['name']}"
    return ""
