"""The child's side of the protocol: a question on each line in, an answer on each line out, both JSON.

{"do": "open", "reference": ..., "options": {...}}      -> {"facts": {...}}
{"do": "trace", "settings": {...}, ...}                 -> {"trace": {...}}
any of them                                             -> {"error": {"kind", "message", "problems", "hint"}}
"""

from __future__ import annotations

import dataclasses
import faulthandler
import json
import logging
import signal
import warnings
from collections.abc import Mapping
from typing import Any, TextIO

from shoestring.errors import ShoestringError
from shoestring.recipe.finding import load
from shoestring.recipe.options import LoadedRecipe
from shoestring.settings import Settings
from shoestring.trace.record import Facts, Trace


def serve(questions: TextIO, answers: TextIO, loaded: LoadedRecipe | None = None) -> None:
    """Answer until the questions end. `loaded` is a recipe that only lives in this process."""
    # Ctrl-C reaches the whole group of processes; the parent hears it and ends this one.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # If torch aborts, the parent finds the line of the recipe's code in what this leaves on standard error.
    faulthandler.enable(2)
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)  # as in cli.main
    session = _RequestHandler(loaded)
    for line in questions:
        try:
            answer = session.answer(json.loads(line))
        except ShoestringError as error:
            answer = {
                "error": {
                    "kind": type(error).__name__,
                    "message": error.message,
                    "problems": list(error.problems),
                    "hint": error.hint,
                }
            }
        print(json.dumps(answer), file=answers, flush=True)


class _RequestHandler:
    """One recipe, and the pretend device once it was set up."""

    def __init__(self, loaded: LoadedRecipe | None) -> None:
        self._loaded = loaded
        self._facts: Facts | None = None

    def answer(self, question: Mapping[str, Any]) -> dict[str, Any]:
        if question["do"] == "open":
            if self._loaded is None:
                self._loaded = load(question["reference"], question["options"])
            self._facts = _open(self._loaded)
            return {"facts": self._facts.json()}
        assert self._loaded and self._facts
        loaded = self._loaded.replace(**question["options"]) if question["options"] else self._loaded
        return {"trace": _trace(loaded, self._facts, question).json()}


def _open(loaded: LoadedRecipe) -> Facts:
    from shoestring.techniques import uncompiled

    uncompiled.spare_the_compiler()
    from shoestring.trace import attention, autocast, experts, facts, fused, kernels, masks, pretend, recurrent
    from shoestring.trace.explain import explained

    with explained():
        found = facts.read(loaded)
    with warnings.catch_warnings():
        # Where the CPU stands in for the pretend device, its own kernels are replaced, of which torch warns.
        warnings.simplefilter("ignore", UserWarning)
        for part in (pretend, autocast, attention, kernels, fused, experts, masks, recurrent):
            part.set_up()
    return found


def _trace(loaded: LoadedRecipe, facts: Facts, question: Mapping[str, Any]) -> Trace:
    from shoestring.techniques import uncompiled
    from shoestring.trace import update
    from shoestring.trace.explain import explained
    from shoestring.trace.facts import first_batches
    from shoestring.trace.recorder import Recorder

    recorder = Recorder()
    settings = Settings.from_json(question["settings"])
    assert settings.micro_batch is not None and settings.precision is not None
    capability = question["capability"]
    with explained(recorder):
        storages, events = update.run(
            recorder,
            loaded,
            settings,
            accumulate=question["accumulate"],
            capability=tuple(capability) if capability else None,
            gpus=question["gpus"],
        )
    return Trace(
        micro_batch=settings.micro_batch,
        microbatches=min(update.FOLLOWED_MICROBATCHES, question["accumulate"]),
        precision=settings.precision,
        facts=_with_compiler(facts) if settings.compile == "yes" and not uncompiled.loaded() else facts,
        first_batches=first_batches(loaded.recipe, settings.micro_batch),
        storages=storages,
        events=events,
    )


def _with_compiler(facts: Facts) -> Facts:
    """The facts of a process that compiles, where they were found in one without the compiler."""
    from shoestring.techniques import uncompiled

    return dataclasses.replace(facts, process_bytes=facts.process_bytes + uncompiled.BYTES)
