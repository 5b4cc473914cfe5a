"""What objects hold: attributes, elements, and what functions refer to."""

import functools
from collections import deque

from shoestring.training.data.reachable import walk


class Leaf:
    pass


GLOBAL, UNUSED = Leaf(), Leaf()


class Slotted:
    __slots__ = ("item", "unset")

    def __init__(self, item):
        self.item = item


class Holder:
    of_class = Leaf()

    def __init__(self):
        self.attribute, self.items = Leaf(), [1, (Leaf(), {"key": Leaf()}), deque([Slotted(Leaf())])]
        inner = Leaf()
        self.closure = lambda value, default=Leaf(): (value, inner, default)  # noqa: B008
        self.partial = functools.partial(self.method, argument=Leaf())
        self.itself = self

    @property
    def computed(self):
        raise AssertionError("a property was called")

    def method(self, argument):
        return uses_global(argument)


def uses_global(argument):
    return [GLOBAL for _ in argument]


def test_each_object_is_visited_once_and_the_nearest_first():
    holder = Holder()
    pairs = list(walk({"data": holder}))
    assert {path for path, value in pairs if isinstance(value, Leaf)} == {
        "data.attribute",
        "data.of_class",
        "data.items[1][0]",
        "data.items[1][1]['key']",
        "data.items[2][0].item",
        "data.closure.inner",
        "data.closure[0]",
        "data.partial.keywords['argument']",
        "data.method uses_global GLOBAL",
    }
    depths = [path.count("[") + path.count(".") for path, _ in pairs[:4]]
    assert depths == sorted(depths)
    assert len({id(value) for _, value in pairs}) == len(pairs) and pairs[0] == ("data", holder)


def test_long_containers_and_many_objects_are_bounded():
    assert len(list(walk({"data": [[Leaf()] for _ in range(1000)]}))) < 300
    nested = []
    for _ in range(50):
        nested = [nested]
    assert len(list(walk({"data": nested}))) < 20
