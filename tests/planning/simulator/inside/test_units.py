"""The parts that need no process of their own."""

import importlib
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from shoestring.planning.simulator.inside import events as events_module
from shoestring.planning.simulator.inside import frames, imports, quiet
from shoestring.planning.simulator.inside.events import Events
from shoestring.planning.simulator.inside.exceptions import chain, is_out_of_memory
from shoestring.planning.simulator.inside.native import Native
from shoestring.planning.simulator.inside.phases import Phases
from shoestring.planning.simulator.inside.updates import ABANDONED, Updates


class _Forward:
    def arm(self) -> None:
        pass


class _Lines(Events):
    def __init__(self) -> None:
        super().__init__(None)
        self.lines: list[dict[str, Any]] = []

    def write(self, kind: str, **values: Any) -> None:
        self.lines.append({"kind": kind, **values})


def _updates() -> tuple[_Lines, Updates]:
    lines = _Lines()
    phases = Phases(lines, Native(None))
    return lines, Updates(lines, Native(None), phases, _Forward())  # type: ignore[arg-type]


class _Optimizer:
    pass


def test_a_second_optimizer_in_the_loop_does_not_add() -> None:
    lines, updates = _updates()
    first, second = _Optimizer(), _Optimizer()
    for _ in range(4):
        for optimizer in (first, second, second):
            updates._before_step(optimizer)
            updates._after_step(optimizer)
    assert updates.completed == 4
    assert [line["update"] for line in lines.lines if line["kind"] == "update"] == [1, 2, 3, 4]


def test_the_next_optimizer_is_counted_when_the_first_is_gone() -> None:
    _, updates = _updates()
    first = _Optimizer()
    updates._after_step(first)
    del first
    second = _Optimizer()
    updates._after_step(second)
    assert updates.completed == 2


def test_the_next_optimizer_is_counted_when_the_first_steps_no_more() -> None:
    _, updates = _updates()
    first, second = _Optimizer(), _Optimizer()
    updates._after_step(first)
    for _ in range(ABANDONED + 5):
        updates._after_step(second)
    assert updates.completed == 1 + ABANDONED + 5


def test_lines_of_a_long_run_are_thinned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events_module, "LISTED_UPDATES", 5)
    events = Events(str(tmp_path))
    events.write("update", update=1)  # before it begins
    assert not list(tmp_path.iterdir())
    assert events.begin() and not events.begin()
    for update in range(1, 31):
        events.write("update", update=update)
    text = (tmp_path / f"events.{os.getpid()}.jsonl").read_text()
    assert text.count('"update"') == 2 * (5 + 3)


def test_an_observer_that_fails_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quiet, "_errors", {})
    monkeypatch.setattr(quiet, "_returned", set())

    def fails() -> None:
        raise ValueError("wrong")

    assert quiet.quiet(fails)() is None
    events = Events(str(tmp_path))
    events.begin()
    events.write("exit")
    text = (tmp_path / f"events.{os.getpid()}.jsonl").read_text()
    assert text.count("observer_error") == 1 and "ValueError: wrong" in text


def _raised(hidden: bool) -> KeyError:
    try:
        try:
            raise torch.cuda.OutOfMemoryError("no memory")
        except RuntimeError as error:
            raise KeyError("other") from (None if hidden else error)
    except KeyError as error:
        return error


def test_out_of_memory_is_recognised_behind_other_exceptions() -> None:
    assert any(is_out_of_memory(one) for one in chain(_raised(hidden=False)))
    assert not any(is_out_of_memory(one) for one in chain(_raised(hidden=True)))
    assert is_out_of_memory(RuntimeError("process 1 ended: torch.OutOfMemoryError: CUDA out of memory."))
    looped = ValueError()
    looped.__cause__ = looped
    assert list(chain(looped)) == [looped]


def test_whose_a_line_is() -> None:
    assert frames.is_own(__file__)
    assert frames.is_own("<ipython-input-3-abc>")
    assert frames.is_own("/tmp/ipykernel_12/345.py")
    assert not frames.is_own(os.__file__)
    assert not frames.is_own(torch.__file__)
    assert not frames.is_own("<eval_with_key>.3")
    assert not frames.is_own(frames.__file__)
    nearest = frames.nearest_own()
    assert nearest is not None and nearest["function"] == "test_whose_a_line_is"


def test_a_function_is_replaced_after_the_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "imported_later.py").write_text("def generate():\n    return 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    called: list[str] = []

    def replaced(module: Any) -> None:
        called.append(module.__name__)
        module.generate = lambda: 2

    imports.when_imported({"imported_later": replaced, "json": lambda module: called.append(module.__name__)})
    assert called == ["json"]
    try:
        module = importlib.import_module("imported_later")
        assert module.generate() == 2 and called == ["json", "imported_later"]
        assert importlib.reload(module).generate() == 1  # only once
    finally:
        sys.modules.pop("imported_later", None)
