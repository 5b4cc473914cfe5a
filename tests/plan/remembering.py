"""Plans for many devices of one kind, for which an update is followed once: memory and limits do not change it."""

from contextlib import nullcontext
from functools import cache

import pytest

from shoestring.plan import plan as room
from shoestring.recipe.finding import find
from shoestring.trace import Tracer


class Remembering(Tracer):
    """The same question is followed once, whatever memory the device has."""

    def __init__(self, loaded):
        super().__init__(loaded)
        self._traces = {}

    def trace(self, settings, **question):
        options = tuple((question.get("options") or {}).items())
        capability = question["device"].compute_capability
        key = (settings, question["accumulate"], capability, question.get("gpus"), options)
        if key not in self._traces:
            self._traces[key] = super().trace(settings, **question)
        return self._traces[key]


_OPEN = []


@cache
def tracer(recipe_class, *arguments):
    """The tracer of this recipe, which stays open until `close_all`."""
    _OPEN.append(Remembering(find(recipe_class(*arguments))))
    return _OPEN[-1]


def close_all():
    while _OPEN:
        _OPEN.pop().close()
    tracer.cache_clear()


@pytest.fixture(scope="module")
def remembered():
    """Plans of live recipes ask remembering tracers."""

    def open_(loaded):
        options = getattr(loaded.recipe, "options", None)
        return nullcontext(tracer(type(loaded.recipe), *([options] if options else [])))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(room, "Tracer", open_)
        yield
    close_all()
