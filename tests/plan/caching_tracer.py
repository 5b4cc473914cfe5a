"""Plans for many devices of one kind, which share the traces of updates: these do not depend on memory and limits."""

from contextlib import nullcontext
from functools import cache

import pytest

from shoestring.plan import plan as plan_module
from shoestring.recipe.finding import find
from shoestring.trace import Tracer


class CachingTracer(Tracer):
    """A tracer that traces an update once, whatever memory the device has."""

    def __init__(self, loaded):
        super().__init__(loaded)
        self._traces = {}

    def trace(self, settings, **arguments):
        options = tuple((arguments.get("options") or {}).items())
        capability = arguments["device"].compute_capability
        key = (settings, arguments["accumulate"], capability, arguments.get("gpus"), options)
        if key not in self._traces:
            self._traces[key] = super().trace(settings, **arguments)
        return self._traces[key]


_OPEN = []


@cache
def tracer(recipe_class, *arguments):
    """The tracer of this recipe, which stays open until `close_all`."""
    _OPEN.append(CachingTracer(find(recipe_class(*arguments))))
    return _OPEN[-1]


def close_all():
    while _OPEN:
        _OPEN.pop().close()
    tracer.cache_clear()


@pytest.fixture(scope="module")
def cached_traces():
    """Plans of live recipes use caching tracers."""

    def open_tracer(loaded, _stored=None):
        options = getattr(loaded.recipe, "options", None)
        return nullcontext(tracer(type(loaded.recipe), *([options] if options else [])))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plan_module, "Tracer", open_tracer)
        yield
    close_all()
