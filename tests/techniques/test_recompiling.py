"""Exceeding the limit of compiled shapes raises an error, whether torch counts the shapes or has no limits."""

import importlib
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from shoestring.techniques import recompiling

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(autouse=True)
def reset_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    with torch._dynamo.config.patch(
        recompile_limit=8, accumulated_recompile_limit=256, fail_on_recompile_limit_hit=False
    ):
        yield


def count_accepted_shapes(limit: recompiling.Limit, shapes: int) -> int:
    """Return for how many of `shapes` shapes a compiled function runs until the limit raises."""

    def doubled(values: torch.Tensor) -> torch.Tensor:
        return values * 2

    compiled = torch.compile(doubled, dynamic=False, backend="eager")
    function = limit.guard(compiled, "doubled", lambda shapes: LookupError(f"more than {shapes}"))
    for count in range(shapes):
        for _ in range(2):  # the compiled code is reused
            try:
                assert torch.equal(function(torch.ones(count + 1)), torch.full((count + 1,), 2.0))
            except LookupError as error:
                return count if str(error) == f"more than {count}" else -1
    return shapes


@pytest.mark.parametrize("modules", [recompiling._MODULES, recompiling._MODULES[1:]])
def test_torch_counts_up_to_the_limit(modules: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recompiling, "_MODULES", modules)
    assert count_accepted_shapes(recompiling.Limit(10), 20) == 10


def test_torch_without_limits_uses_its_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recompiling, "_NAMES", ("no_such_limit",))
    assert count_accepted_shapes(recompiling.Limit(10), 20) == 8
    assert not torch._dynamo.config.fail_on_recompile_limit_hit


def test_private_module_replaces_a_missing_public_one(monkeypatch: pytest.MonkeyPatch) -> None:
    import_module = importlib.import_module

    def import_private_only(name: str) -> Any:
        if name == "torch.compiler.config":
            raise ImportError(name)
        return import_module(name)

    monkeypatch.setattr(importlib, "import_module", import_private_only)
    assert recompiling._find_config() is torch._dynamo.config


def test_other_errors_are_not_replaced() -> None:
    def broken() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        recompiling.Limit(8).guard(broken, "broken", lambda shapes: LookupError(f"more than {shapes}"))()
