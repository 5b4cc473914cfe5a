"""One shape too many ends a run, whether torch counts them or has no limits to set."""

import importlib
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from shoestring.techniques import recompiling

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(autouse=True)
def anew() -> Iterator[None]:
    torch._dynamo.reset()
    with torch._dynamo.config.patch(
        recompile_limit=8, accumulated_recompile_limit=256, fail_on_recompile_limit_hit=False
    ):
        yield


def runs_for(limit: recompiling.Limit, shapes: int) -> int:
    """For how many of so many shapes a compiled function runs until it is refused."""

    def doubled(values: torch.Tensor) -> torch.Tensor:
        return values * 2

    compiled = torch.compile(doubled, dynamic=False, backend="eager")
    function = limit.on(compiled, "doubled", lambda shapes: LookupError(f"more than {shapes}"))
    for done in range(shapes):
        for _ in range(2):  # what was compiled is there for another time
            try:
                assert torch.equal(function(torch.ones(done + 1)), torch.full((done + 1,), 2.0))
            except LookupError as error:
                return done if str(error) == f"more than {done}" else -1
    return shapes


@pytest.mark.parametrize("places", [recompiling._PLACES, recompiling._PLACES[1:]])
def test_torch_counts_up_to_what_is_asked_for(places: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recompiling, "_PLACES", places)
    assert runs_for(recompiling.Limit(10), 20) == 10


def test_without_limits_to_set_they_are_torchs_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recompiling, "_NAMES", ("no_such_limit",))
    assert runs_for(recompiling.Limit(10), 20) == 8
    assert not torch._dynamo.config.fail_on_recompile_limit_hit


def test_where_the_public_names_are_missing_the_others_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    imported = importlib.import_module

    def without(name: str) -> Any:
        if name == "torch.compiler.config":
            raise ImportError(name)
        return imported(name)

    monkeypatch.setattr(importlib, "import_module", without)
    assert recompiling._config() is torch._dynamo.config


def test_another_error_comes_through() -> None:
    def broken() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        recompiling.Limit(8).on(broken, "broken", lambda shapes: LookupError(f"more than {shapes}"))()
