"""What a script's run learns, in its checkpoints: compared when the run continues, and changed only on purpose.

A change of anything that decides learning is an error that names it. `allow_inexact=True` continues with the new
values: from this update on, each of them has the effect that it has in a run of its own. `extend=True` permits more
updates alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from shoestring.base.errors import CheckpointError, UsageError
from shoestring.base.reading import COUNT, OBJECT, find_problems
from shoestring.base.units import count_text, plural
from shoestring.integrations.argument_kinds import LENGTH, effect_of
from shoestring.integrations.learning_facts import VERSION, learning_facts
from shoestring.integrations.optimization import Optimization, is_independent_of_length

_OF_ENVIRONMENT = ("micro_batch", "accumulation", "precision", "seed")
"""Facts of the environment that are arguments of the trainer as well, with other names."""
_HINT = (
    "restore the saved values, or continue with the new ones on purpose: surviving(..., allow_inexact=True). From this "
    "update on they then have the effect described here, and the run is that of neither value"
)
_EXTEND_HINT = (
    "restore the saved value, or continue with more updates on purpose: surviving(..., extend=True). From this update "
    "on the learning rate is then that of a run of the new length"
)
_CHANGED = "from here on the run learns with changed values: {}"
_UNRECORDED = (
    "this run was begun by a version that did not record what decides learning: changes of the trainer's arguments, "
    "model or data since then are not noticed in this session. Its checkpoints record them from now on"
)


class Learning:
    """What decides the learning of a script's trainer, in one session."""

    def __init__(self, trainer: Any, *, allow_inexact: bool = False, extend: bool = False) -> None:
        self._trainer, self._allow_inexact, self._extend = trainer, allow_inexact, extend
        self._facts = learning_facts(trainer)
        self._optimization: Optimization | None = None
        self._has_changed_facts = False

    def pack(self) -> dict[str, Any]:
        """Return the section of a checkpoint with which later sessions compare theirs."""
        built = self._optimization.facts if self._optimization else {}
        return {"version": VERSION, "facts": self._facts, "built": built}

    def require_same(self, saved: Mapping[str, Any], environment: Sequence[str], *, other_libraries: bool) -> list[str]:
        """Return notes for the user on what has changed since the checkpoint with the sections `saved`.

        Raises UsageError with all changes that are not permitted, and with those of the `environment`.
        """
        earlier = _section(saved)
        if earlier is None:
            self._require(environment, _HINT)
            is_ended = saved["trainer"]["global_step"] >= saved["trainer"]["max_steps"]
            return [] if is_ended else [_UNRECORDED]
        before = earlier["facts"]
        names = self._changed_names(earlier, other_libraries=other_libraries)
        changes = {name: f"{name}: saved with {_text(before.get(name))}, now {self._text(name)}" for name in names}
        of_environment = [line for line in environment if line.partition(":")[0] not in _OF_ENVIRONMENT]
        permitted = LENGTH if self._extend else ()
        problems = [f"{line}; {effect_of(name)}" for name, line in changes.items() if name not in permitted]
        is_length_alone = set(names) <= set(LENGTH) and not of_environment
        self._require([*of_environment, *problems], _EXTEND_HINT if is_length_alone else _HINT)
        other_changes = [line for name, line in changes.items() if name not in LENGTH]
        self._has_changed_facts = bool(names)
        return [_CHANGED.format("; ".join(other_changes))] if other_changes else []

    def _changed_names(self, earlier: Mapping[str, Any], *, other_libraries: bool) -> list[str]:
        before, after = earlier["facts"], self._facts
        names = before.keys() | after.keys()
        if other_libraries or earlier["version"] != VERSION:  # which have other arguments, or record other facts
            names = before.keys() & after.keys()
        changed = [name for name in sorted(names) if before.get(name) != after.get(name)]
        # The library ignores the epochs of a run with a number of updates.
        return [name for name in changed if name != LENGTH[0] or LENGTH[1] not in changed]

    def load(self, saved: Mapping[str, Any]) -> list[str]:
        """Load the states of optimizer and schedule of the sections `saved`, which may be none of a new run.

        Returns notes for the user. Raises UsageError for changes that are not permitted, and for fewer updates than the
        run has made.
        """
        self._optimization = optimization = Optimization(self._trainer)
        if not saved:
            return []
        earlier = (_section(saved) or {}).get("built") or {}
        changes = optimization.changes(earlier) if earlier else {}
        if not earlier and optimization.is_foreign(saved["optimizer"]["param_groups"]):
            changes = {"optimizer": [f"the optimizer was another one; {effect_of('optim')}"]}
        before, after = saved["trainer"]["max_steps"], self._trainer.state.max_steps
        self._require_length(saved["trainer"]["global_step"], before, after)
        length = [] if after == before else [f"the run had {plural(before, 'update')}, and has {count_text(after)} now"]
        permitted = ("schedule",) if self._extend else ()
        problems = [line for part, lines in changes.items() if part not in permitted for line in lines]
        self._require([*problems, *([] if self._extend else length)], _HINT if problems else _EXTEND_HINT)
        changed = frozenset([*changes, *(["schedule"] if length else [])])
        optimization.load(saved, earlier, changed, update=saved["trainer"]["global_step"])
        load_notes = [f"{length[0]}: {self._schedule_text(before, after)}"] if length else []
        if problems and not self._has_changed_facts:  # which are noted already
            load_notes.append(_CHANGED.format("; ".join(line.partition("; ")[0] for line in problems)))
        return load_notes

    def _require_length(self, update: int, before: int, after: int) -> None:
        if after >= update and (after >= before or not self._extend or self._allow_inexact):
            return
        progress = f"{count_text(update)} of {count_text(before)} updates"
        raise UsageError(
            f"the run has made {progress} and cannot end at {count_text(after)}",
            hint="set num_train_epochs or max_steps to no fewer updates than before; for a shorter run, give "
            "surviving(...) another directory",
        )

    def _schedule_text(self, before: int, after: int) -> str:
        is_ended = self._trainer.state.global_step == before
        if is_ended and not hasattr(self._trainer.train_dataset, "__len__"):
            return "the data has no length, so it begins again, where a run of the new length would have continued it"
        if is_independent_of_length(self._trainer.args, (before, after)):
            return (
                "its schedule does not depend on that, so it ends with the bits of a run that had them from the start"
            )
        return "from here on the learning rate is that of a run of the new length, and until here it was not"

    def _require(self, problems: Sequence[str], hint: str) -> None:
        if problems and not self._allow_inexact:
            raise UsageError("the run would not continue bit for bit", problems=problems, hint=hint)

    def _text(self, name: str) -> str:
        return _text(self._facts.get(name))


def _section(saved: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return what `Learning.pack` returned; None in a checkpoint of a version without it."""
    if (section := saved.get("learning")) is None:
        return None
    kinds = {"version": COUNT, "facts": OBJECT, "built": OBJECT}
    if not isinstance(section, dict) or section.keys() != kinds.keys() or find_problems(section, kinds):
        raise CheckpointError("the checkpoint's section `learning` was not written by a trainer")
    return section


def _text(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
