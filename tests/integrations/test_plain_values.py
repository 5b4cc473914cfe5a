"""Values are equal as JSON in two processes if they decide the same."""

import enum
import functools
import json
from pathlib import Path

import torch

from shoestring.integrations.plain_values import flat, plain


class Kind(enum.Enum):
    FIRST = "first"


def test_values_are_json():
    value = {
        "kind": Kind.FIRST, "number": float("inf"), "names": {"b", "a"}, "path": Path("x"), "type": torch.bfloat16,
        "rows": (1, [2.5]), "tensor": torch.tensor([1, 2]), "large": torch.zeros(5000), "object": object(),
    }  # fmt: skip
    assert json.loads(json.dumps(plain(value), allow_nan=False)) == {
        "kind": "first", "number": "inf", "names": ["a", "b"], "path": "x", "type": "torch.bfloat16",
        "rows": [1, [2.5]], "tensor": [1, 2], "large": "tensor (5000,) of torch.float32", "object": "builtins.object",
    }  # fmt: skip


def compiled(source):
    variables = {"__name__": "script"}
    exec(source, variables)
    return variables["reward"]


def test_a_function_is_its_code():
    first = compiled("def reward(x):\n    return [len(item) for item in x]\n")
    commented = compiled(
        '# A comment.\n\ndef reward(x):\n    """Documented."""\n    return [len(item) for item in x]\n'
    )
    other = compiled("def reward(x):\n    return [len(item) + 1 for item in x]\n")
    assert plain(first) == plain(commented) != plain(other)
    assert plain(functools.partial(first, x=1)) != plain(functools.partial(first, x=2))


def test_nested_mappings_are_named_by_dots():
    assert flat("a", {"b": {"c": 1}, "d": {}}) == {"a.b.c": 1, "a.d": {}}
