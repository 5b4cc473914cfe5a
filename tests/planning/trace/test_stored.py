"""Traces that are stored for a plan that was interrupted."""

from pathlib import Path

from shoestring.base.settings import Settings
from shoestring.hardware.catalog import DEVICES
from shoestring.planning.trace import StoredTraces, Tracer
from shoestring.recipe import finding
from tests import mine
from tests.planning.trace.sample_recipes import Linears

SETTINGS = Settings(micro_batch=2, precision="fp32")


def trace(path: Path, loaded: finding.LoadedRecipe, settings: Settings = SETTINGS) -> tuple[object, list[str]]:
    """Return the trace, and the requests that were made to the tracing process."""
    requests = []
    with Tracer(loaded, StoredTraces(path, loaded)) as tracer:
        request = tracer._request
        tracer._request = lambda values: requests.append(values["do"]) or request(values)  # type: ignore[method-assign]
        result = tracer.trace(settings, accumulate=1, device=DEVICES["t4"])
    return result.json() | {"facts": None}, requests


def test_stored_trace_is_not_made_again(tmp_path: Path) -> None:
    path, loaded = tmp_path / "planning.jsonl", finding.load(mine.__file__, {"effective_batch": 6})
    first, requests = trace(path, loaded)
    assert requests == ["open", "trace"]
    path.write_bytes(b"damaged\n" + path.read_bytes() + path.read_bytes()[:100])
    second, requests = trace(path, loaded)
    assert requests == ["open"]
    assert first == second
    other = finding.load(mine.__file__, {"effective_batch": 7})
    assert trace(path, other)[1] == ["open", "trace"]
    assert trace(path, loaded, SETTINGS.replace(micro_batch=3))[1] == ["open", "trace"]
    path.write_bytes(path.read_bytes().replace(b'"micro_batch": 2', b'"micro_batch": 4'))
    assert trace(path, loaded)[1] == ["open", "trace"]


def test_live_object_is_traced_in_each_session(tmp_path: Path) -> None:
    loaded = finding.find(Linears())
    for _ in range(2):
        assert trace(tmp_path / "planning.jsonl", loaded)[1] == ["open", "trace"]
    assert not (tmp_path / "planning.jsonl").exists()


def test_unusable_file_is_ignored(tmp_path: Path) -> None:
    (tmp_path / "planning.jsonl").mkdir()
    stored = StoredTraces(tmp_path / "planning.jsonl", finding.load("temporal", {"size": "tiny"}))
    assert stored._traces == {}
