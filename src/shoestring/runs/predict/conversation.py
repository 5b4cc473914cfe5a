"""A conversation with a trained model on a terminal."""

import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TextIO

from shoestring.base import streams
from shoestring.base.errors import RunError, ShoestringError
from shoestring.base.failures import exits_as_errors
from shoestring.runs.model import Model, load_model
from shoestring.runs.run import Run

if TYPE_CHECKING:
    pass

RESET, EXIT = "/reset", "/exit"
_PROMPT = "> "
_HELP = f"{RESET} begins a new conversation, {EXIT} or Ctrl-D ends it, Ctrl-C ends an answer"


def converse(run: Run, *, input_stream: TextIO, output_stream: TextIO) -> bool:
    """Answer each line of `input_stream` on `output_stream`, knowing the earlier ones, until the end or `/exit`.

    Returns False, without having loaded the model, if the recipe has no `converse`. The errors are those of `predict`.
    An error of one answer is a message, and the conversation continues without that question.
    """
    if run.loaded.parts.use.converse is None:
        return False

    from shoestring.training.engine.determinism import deterministic
    from shoestring.training.engine.memory import explaining_out_of_memory

    with deterministic(), exits_as_errors(), run.preprocessing() as notes:
        with explaining_out_of_memory("loading the model and its weights"):
            model = load_model(run)
        streams.write_messages(*(f"note: {note}" for note in (*run.notes, *notes, *model.notes)), _HELP)
        _converse(lambda messages: _pieces(model, messages), input_stream, output_stream)
    return True


def _converse(
    answer: Callable[[list[dict[str, str]]], Iterator[str]], input_stream: TextIO, output_stream: TextIO
) -> None:
    messages: list[dict[str, str]] = []
    while (line := _read_line(input_stream, output_stream)) is not None:
        if line == EXIT:
            return
        if line == RESET:
            messages = []
        elif line:
            question = [*messages, {"role": "user", "content": line}]
            if text := _print_answer(answer(question), output_stream):
                messages = [*question, {"role": "assistant", "content": text}]


def _read_line(input_stream: TextIO, output_stream: TextIO) -> str | None:
    """Return the next line, without space around it; None at the end, or if nobody can read the answers any more."""
    while True:
        try:
            output_stream.write(_PROMPT)
            output_stream.flush()
            line = input_stream.readline()
        except KeyboardInterrupt:
            output_stream.write("\n")
            streams.write_messages(_HELP)
            continue
        except UnicodeDecodeError as error:
            streams.write_messages(f"the line is not text in {error.encoding}")
            continue
        if not line:
            output_stream.write("\n")
            return None
        return line.encode(errors="replace").decode().strip()


def _print_answer(pieces: Iterator[str], output_stream: TextIO) -> str:
    """Print an answer as it is generated, until it ends or is interrupted. Returns it; empty if it has failed."""
    text = ""
    message = ""
    try:
        with _interruption() as is_interrupted, _closing(pieces):
            for piece in pieces:
                text += piece
                output_stream.write(streams.printable(piece))
                output_stream.flush()
                if is_interrupted():
                    break
    except KeyboardInterrupt:
        pass
    except (ShoestringError, ValueError) as error:
        text, message = "", str(error)
    output_stream.write("\n")
    output_stream.flush()
    if message:
        streams.write_messages(f"error: {message}")
    return text


def _pieces(model: Model, messages: list[dict[str, str]]) -> Iterator[str]:
    """Yield the pieces of the recipe's answer, each computed as a prediction is.

    Raises RunError if the answer does not fit into memory.
    """
    import torch

    from shoestring.training.data.seeding import derive, seed_all
    from shoestring.training.engine.memory import Failure, catch_out_of_memory, free_unused_memory

    run, converse = model.run, model.run.loaded.parts.use.converse
    assert converse is not None
    precision = run.mixed_precision()

    def compute(act: Callable[[], Any]) -> Any:
        with torch.no_grad(), precision.autocast():
            return act()

    seed_all(derive(run.loaded.seed, "conversation", len(messages)))
    pieces: Iterator[str] = iter(compute(lambda: converse(model.module, messages)))
    with _closing(pieces):
        while True:
            piece = catch_out_of_memory(lambda: compute(lambda: next(pieces, None)))
            if isinstance(piece, Failure):
                break
            if piece is None:
                return
            yield piece
    free_unused_memory()
    raise RunError(f"out of memory: {piece.message}", hint=f"begin a new, shorter conversation: {RESET}")


@contextmanager
def _closing(pieces: Iterable[Any]) -> Iterator[None]:
    """Close an iterator that is a generator after the body, so that its own contexts end."""
    try:
        yield
    finally:
        if close := getattr(pieces, "close", None):
            close()


@contextmanager
def _interruption() -> Iterator[Callable[[], bool]]:
    """Return a context in which the first Ctrl-C makes the function return True, and the second raises
    KeyboardInterrupt: in the middle of a computation it could leave the model in another state.
    """
    received: list[int] = []

    def receive(number: int, _: Any) -> None:
        received.append(number)
        if len(received) > 1:
            raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    previous = signal.signal(signal.SIGINT, receive)
    try:
        yield lambda: bool(received)
    finally:
        signal.signal(signal.SIGINT, previous)
