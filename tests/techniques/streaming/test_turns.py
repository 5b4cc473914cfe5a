"""Functions take turns in threads, of which none is left after an error or an interruption."""

import threading
import traceback
from contextlib import contextmanager
from typing import Any

import pytest

from shoestring.techniques.streaming.turns import Suspendable


def names() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "microbatch"]


def test_functions_take_turns_in_the_order_of_their_caller() -> None:
    order: list[tuple[str, int]] = []

    def steps(name: str) -> str:
        for number in range(3):
            order.append((name, number))
            turns[name].pause()
        return name

    turns = {name: Suspendable(lambda name=name: steps(name)) for name in "ab"}  # type: ignore[misc]
    while not turns["a"].is_over:
        for turn in turns.values():
            turn.resume()
    assert order == [(name, number) for number in range(3) for name in "ab"]
    assert [turn.take_result() for turn in turns.values()] == ["a", "b"] and names() == []


def test_an_error_has_its_own_traceback_and_ends_the_thread() -> None:
    def fails() -> None:
        raise KeyError("the error of a loss")

    turn = Suspendable(fails)
    with pytest.raises(KeyError, match="the error of a loss") as raised:
        turn.resume()
    assert traceback.extract_tb(raised.value.__traceback__)[-1].name == "fails"
    assert turn.is_over and names() == []


@pytest.mark.parametrize("is_stubborn", [False, True])
def test_a_function_that_is_not_continued_ends(is_stubborn: bool) -> None:
    ended = []

    def endless() -> None:
        while True:
            try:
                turn.pause()
            finally:
                ended.append(len(ended))
                if is_stubborn and len(ended) < 3:
                    continue  # noqa: B012

    turn = Suspendable(endless)
    turn.resume()
    turn.close()
    assert ended == list(range(3 if is_stubborn else 1)) and names() == []


def test_an_interruption_of_the_caller_waits_for_the_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    is_interrupted, pauses = threading.Event(), []

    def waits() -> None:
        is_interrupted.wait()
        pauses.append("begins")
        turn.pause()
        pauses.append("continues")

    class Interrupted(threading.Semaphore):  # type: ignore[misc]
        def acquire(self, *args: Any, **kwargs: Any) -> bool:
            raise KeyboardInterrupt

    turn = Suspendable(waits)
    monkeypatch.setattr(turn, "_has_paused", Interrupted(0))
    with pytest.raises(KeyboardInterrupt):
        turn.resume()
    monkeypatch.undo()
    threading.Timer(0.05, is_interrupted.set).start()
    turn.close()
    assert pauses == ["begins"] and names() == []


def test_the_thread_is_in_the_context_of_the_caller() -> None:
    entered: list[str] = []

    @contextmanager
    def around() -> Any:
        entered.append("in")
        yield
        entered.append("out")

    turn = Suspendable(lambda: entered.append("runs"), around)
    turn.resume()
    assert entered == ["in", "runs", "out"]
    turn.close()


def test_what_a_failed_function_holds_ends_in_its_thread() -> None:
    threads: list[str] = []

    def watching() -> Any:
        try:
            yield
        finally:
            threads.append(threading.current_thread().name)

    def fails() -> None:
        generator = watching()
        next(generator)
        raise ValueError("of a loss")

    turn = Suspendable(fails)
    with pytest.raises(ValueError, match="of a loss"):
        turn.resume()
    assert threads == ["microbatch"]
