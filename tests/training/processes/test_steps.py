"""Which processes take a step, as its decorator says."""

from types import SimpleNamespace

import pytest

from shoestring.training.processes import steps
from shoestring.training.processes.divided_weights import DividedWeights
from shoestring.training.processes.one_process import Processes
from shoestring.training.processes.replicas import Replicas


def owner(is_first=True, **attributes):
    """Return the owner of a step in one of two processes, and the ways in which the processes have taken it."""
    ways = []

    def way(name, acts):
        return lambda act: (ways.append(name), act() if acts else None)[1]

    acting = {"call": True, "call_in_turn": True, "call_first": is_first, "share": is_first}
    processes = SimpleNamespace(**{name: way(name, acts) for name, acts in acting.items()}, **attributes)
    return SimpleNamespace(processes=processes), ways


@pytest.mark.parametrize(
    ("name", "way", "acts"),
    [
        ("agreed", "call", True),
        ("in_turn", "call_in_turn", True),
        ("by_first", "call_first", False),
        ("shared", "share", False),
    ],
)
def test_decorator_names_who_takes_the_step(name, way, acts):
    @getattr(steps, name)
    def step(_, value, *, factor):
        """Multiply."""
        return value * factor

    assert step.__doc__ == "Multiply."
    assert step(SimpleNamespace(processes=Processes()), 2, factor=3) == 6
    for is_first in (True, False):
        session, ways = owner(is_first)
        assert step(session, 2, factor=3) == (6 if is_first or acts else None)
        assert ways == [way]


def test_nobody_takes_a_step_that_needs_the_whole_model_where_weights_are_divided():
    taken = steps.with_whole_model(lambda _: numbers.append(1))
    numbers = []
    for has_whole_weights, expected in ((True, ["call_first"]), (False, [])):
        session, ways = owner(has_whole_weights=has_whole_weights)
        taken(session)
        assert ways == expected
    assert numbers == [1]


def test_strategies_have_no_other_methods_than_the_interface():
    """Steps that call a method of one strategy would fail with the others."""
    interface = {name for name in vars(Processes) if not name.startswith("_")}
    for strategy in (Replicas, DividedWeights):
        assert {name for name in vars(strategy) if not name.startswith("_")} <= interface
