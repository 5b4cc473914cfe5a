"""Plans for many devices of one kind, which share the traces of updates: these do not depend on memory and limits."""

from contextlib import nullcontext
from functools import cache

import pytest

from shoestring.planning import planner
from shoestring.planning.trace import Tracer
from shoestring.recipe.finding import find

_OPEN = []


@cache
def tracer(recipe_class, *arguments):
    """The tracer of this recipe, which stays open until `close_all`."""
    _OPEN.append(Tracer(find(recipe_class(*arguments))))
    return _OPEN[-1]


def close_all():
    while _OPEN:
        _OPEN.pop().close()
    tracer.cache_clear()


@pytest.fixture(scope="module")
def cached_traces():
    """Plans of live recipes share tracers."""

    def open_tracer(loaded, _stored=None):
        options = getattr(loaded.recipe, "options", None)
        return nullcontext(tracer(type(loaded.recipe), *([options] if options else [])))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(planner, "Tracer", open_tracer)
        yield
    close_all()
