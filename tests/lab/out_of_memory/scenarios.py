"""What is tried: pieces of work whose memory runs out."""

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from shoestring.recipe.finding import choose
from shoestring.runs.evaluate import evaluate
from shoestring.runs.predict.predict import predict
from shoestring.runs.run import open_run
from shoestring.training.run_directory.directory import RunDirectory
from shoestring.training.run_directory.stored import StoredPlan

from . import recipes, sessions, trainers
from .campaign import CONTINUED, ERROR, SAME, Ended, Scenario, ended

_VALUES: Mapping[str, Any] = {"micro_batch": 4, "save_every_updates": 1, "save_every_seconds": 0, "ema": 0.5}


class Session:
    """A session of training: building, updates, evaluation, saves and the weights at the end."""

    def __init__(self, recipe: type, *, resumed: bool = False, **values: Any) -> None:
        """`resumed`: the session continues a run that stopped after its first update."""
        self._recipe_class, self._values, self._is_resumed = recipe, {**_VALUES, **values}, resumed
        self._references: dict[sessions.SizesByUpdate, Any] = {}

    def begin(self, folder: Path) -> None:
        self._folder = folder
        self._observed = sessions.Observed()
        if self._is_resumed:
            run = folder / "run"
            sessions.train(self._recipe_class(stop_after=1), run, self._values, observed=self._observed)
            assert self._observed.by_update, "nothing to resume"

    def act(self) -> None:
        sessions.train(self._recipe_class(), self._folder / "run", self._values, observed=self._observed)

    def check(self, result: Ended) -> str:
        run = self._folder / "run"
        if result.error:
            problems = sessions.damaged(run)
            assert not problems, f"after the error: {problems}"
            again = ended(self.act)
            assert not again.error and not again.traceback, f"the same command again: {again}"
        others = sessions.other_batches(self._observed)
        assert not others, f"another effective batch: {others}"
        sizes = self._observed.by_update
        if sizes not in self._references:
            self._references[sizes] = self._reference(sizes)
        expected, present = self._references[sizes], sessions.bits(run)
        different = [name for name in expected if expected[name] != present[name]]
        assert not different, f"other bits than with {sizes} from the start: {different}"
        return CONTINUED if result.error else SAME

    def _reference(self, sizes: sessions.SizesByUpdate) -> Any:
        folder = self._folder.parent / f"reference{len(self._references)}"
        observed = sessions.Observed()
        sessions.train(self._recipe_class(), folder, self._values, observed=observed, sizes=sizes)
        assert observed.by_update == sizes, f"the reference has {observed.by_update}"
        return sessions.bits(folder)


class Use:
    """The use of a trained model: its evaluation, or predictions for new inputs."""

    def __init__(self, recipe: type, act: Callable[["Use"], Any], **values: Any) -> None:
        self._recipe_class, self._act, self._values = recipe, act, {"micro_batch": 4, **values}
        self._run: Path | None = None
        self._expected: Any = None

    def begin(self, folder: Path) -> None:
        self._folder = folder
        if self._run is None:
            self._run = folder.parent / "trained"
            recipe = self._recipe_class()
            sessions.train(recipe, self._run, self._values, observed=sessions.Observed())
            loaded, settings = choose(recipe, dict(self._values))
            settings = replace(settings, precision=settings.precision or "fp32")
            StoredPlan.from_recipe(loaded, {"settings": settings.json()}).write(RunDirectory(self._run).plan_file)

    def act(self) -> None:
        self._result = None
        self._result = self._act(self)

    def open_run(self) -> Any:
        assert self._run
        return open_run(self._run, {"micro_batch": 4}, recipe=self._recipe_class())

    @property
    def out(self) -> Path:
        return self._folder / "predictions.jsonl"

    def check(self, result: Ended) -> str:
        if result.error:
            again = ended(self.act)
            assert not again.error and not again.traceback, f"the same command again: {again}"
        if self._expected is None:
            self._expected = self._result
        without_memory = _inputs_without_memory(self._result)
        expected = self._expected
        if without_memory:
            assert expected
            expected = [row for row in expected if row["id"] not in without_memory]
            self._result = [row for row in self._result or () if row["id"] not in without_memory]
        assert _are_close(self._result, expected), f"{self._result} instead of {expected}"
        return ERROR if result.error or without_memory else SAME


def _evaluate(use: Use) -> Any:
    return evaluate(use.open_run()).metrics


def _predict(use: Use) -> Any:
    predict(use.open_run(), out=use.out)
    return [json.loads(line) for line in use.out.read_text().splitlines()]


def _inputs_without_memory(result: Any) -> set[int]:
    """Return the inputs for which a row says that they did not fit into memory: the documented error of one input."""
    rows = result if isinstance(result, list) else []
    return {row["id"] for row in rows if str(row.get("error", "")).startswith("out of memory: ")}


def _are_close(actual: Any, expected: Any) -> bool:
    """Return whether nested values are equal, except for the rounding of batches of another size."""
    if isinstance(expected, float):
        return isinstance(actual, float) and abs(actual - expected) <= 1e-5 * max(1.0, abs(expected))
    if isinstance(expected, dict):
        return actual.keys() == expected.keys() and all(_are_close(actual[name], expected[name]) for name in expected)
    if isinstance(expected, list):
        return len(actual) == len(expected) and all(map(_are_close, actual, expected))
    return bool(actual == expected)


SCENARIOS = (
    Scenario(name="session fp32", work=lambda: Session(recipes.Small)),
    Scenario(name="session fp16", work=lambda: Session(recipes.Scaled, precision="fp16", optimizer_kernel="fused")),
    Scenario(name="session checkpointing", work=lambda: Session(recipes.Small, checkpointing="full")),
    Scenario(name="session offload optimizer", work=lambda: Session(recipes.Small, offload="optimizer")),
    Scenario(name="session offload parameters", work=lambda: Session(recipes.Weighted, offload="parameters")),
    Scenario(name="session streamed", work=lambda: Session(recipes.Adapted, streamed_blocks=3, checkpointing="2")),
    Scenario(name="session weighted", work=lambda: Session(recipes.Weighted, micro_batch=3)),
    Scenario(name="session whole batch", work=lambda: Session(recipes.Whole, micro_batch=8)),
    Scenario(name="session shards", work=lambda: Session(recipes.Small, logical_shards=2)),
    Scenario(name="session following", work=lambda: Session(recipes.Following, precision="fp16")),
    Scenario(name="session resumed fp32", work=lambda: Session(recipes.Small, resumed=True)),
    Scenario(
        name="session resumed fp16",
        work=lambda: Session(recipes.Scaled, resumed=True, precision="fp16", optimizer_kernel="fused"),
    ),
    Scenario(
        name="session graphs", work=lambda: Session(recipes.Captured, compile="graphs", micro_batch=2), each=False
    ),
    Scenario(name="session segments", work=lambda: Session(recipes.Wide), each=False),
    Scenario(name="script", work=trainers.Script),
    Scenario(name="script fp16", work=lambda: trainers.Script(fp16=True)),
    Scenario(name="evaluation", work=lambda: Use(recipes.Small, _evaluate)),
    Scenario(name="evaluation of batches", work=lambda: Use(recipes.Weighted, _evaluate, precision="fp16")),
    Scenario(name="prediction", work=lambda: Use(recipes.Small, _predict)),
    Scenario(name="generation", work=lambda: Use(recipes.Generating, _predict)),
)
