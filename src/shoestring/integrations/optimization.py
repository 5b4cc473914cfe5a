"""The optimizer and the schedule of a library's trainer: as it has built them, and continued from a checkpoint.

What the trainer has built says which values decide learning, also in a script that makes its own optimizer or schedule.
Their states are loaded over these values; where a run continues with other ones, these are set again.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from shoestring.integrations.argument_kinds import effect_of
from shoestring.integrations.plain_values import flat, plain, type_name
from shoestring.techniques import eightbit

_RATES = ("lr", "initial_lr")
_OF_SCHEDULES = (*_RATES, "max_lr", "min_lr", "momentum", "base_momentum", "max_momentum", "betas")
"""The values of a group that a schedule of torch changes (`torch.optim.lr_scheduler`, 2.13)."""
_WITHOUT_LENGTH = ("constant", "constant_with_warmup", "inverse_sqrt", "reduce_lr_on_plateau", "greedy")
"""The schedules of transformers (`TYPE_TO_SCHEDULER_FUNCTION`, 5.23) that are not told the number of updates."""


class Optimization:
    """The optimizer and the schedule, before any state is loaded into them."""

    def __init__(self, trainer: Any) -> None:
        # Those in the wrappers of Accelerate.
        self._optimizer = getattr(trainer.optimizer, "optimizer", trainer.optimizer)
        self._schedule = getattr(trainer.lr_scheduler, "scheduler", trainer.lr_scheduler)
        groups = self._optimizer.param_groups
        self._values = [{name: value for name, value in group.items() if name != "params"} for group in groups]
        self.facts: dict[str, Any] = {
            "optimizer": type_name(self._optimizer),
            "sizes": [len(group["params"]) for group in groups],
            "groups": plain(self._values),
            "schedule": _schedule_facts(self._schedule),
        }
        """Facts for a checkpoint, as JSON."""

    def changes(self, earlier: Mapping[str, Any]) -> dict[str, list[str]]:
        """Return what differs from the facts of an `earlier` session, by part: optimizer, values, schedule."""
        facts, changes = self.facts, dict[str, list[str]]()
        for name in ("optimizer", "sizes"):
            if facts[name] != earlier[name]:
                changes.setdefault("optimizer", []).append(
                    f"{_TITLES[name]}: saved with {earlier[name]}, now {facts[name]}; {effect_of('optim')}"
                )
        if not changes:
            pairs = enumerate(zip(earlier["groups"], facts["groups"], strict=True))
            changes["values"] = [
                f"{name} of the optimizer's group {number}: saved with {before.get(name)}, now {after.get(name)}; "
                + effect_of("learning_rate" if name in _RATES else "weight_decay")
                for number, (before, after) in pairs
                for name in sorted(before.keys() | after.keys())
                if before.get(name) != after.get(name) and not (name == "lr" and "initial_lr" in after)
            ]
        before, after = (flat("schedule", schedule) for schedule in (earlier["schedule"], facts["schedule"]))
        changes["schedule"] = [
            f"{name}: saved with {before.get(name)}, now {after.get(name)}; {effect_of('learning_rate')}"
            for name in sorted(before.keys() | after.keys())
            if before.get(name) != after.get(name)
        ]
        return {part: lines for part, lines in changes.items() if lines}

    def is_foreign(self, groups: Sequence[Mapping[str, Any]]) -> bool:
        """Return whether saved `groups` are of another kind of optimizer: each of the two has values of its own.

        A later version of an optimizer only adds some.
        """
        own = [set(values) - {*_OF_SCHEDULES} for values in self._values]
        saved = [set(group) - {"params", *_OF_SCHEDULES} for group in groups]
        return len(own) != len(saved) or any(a - b and b - a for a, b in zip(own, saved, strict=True))

    def load(
        self, saved: Mapping[str, Any], earlier: Mapping[str, Any], changed: frozenset[str], *, update: int
    ) -> None:
        """Load the optimizer's and the schedule's states of the sections `saved`, but for the parts that have `changed`
        since the `earlier` session; these begin with the values of this one.

        A changed schedule is that of a run which had it from the start: its learning rate is the one after `update`.
        """
        if "optimizer" not in changed:
            eightbit.load_states(self._optimizer, saved["optimizer"])
        for group, own, before in zip(
            self._optimizer.param_groups, self._values, earlier.get("groups", ()), strict=False
        ):
            is_changed = {name for name, value in own.items() if plain(value) != before.get(name)}
            group.update({name: own[name] for name in is_changed - {*_RATES}})
        if not changed & {"optimizer", "schedule", "values"}:
            self._schedule.load_state_dict(saved["scheduler"])
        elif _uses_metrics(self._schedule):
            self._continue_with_metrics(saved, earlier)
        else:
            is_same = earlier.get("schedule", {}).get("type", type_name(self._schedule)) == type_name(self._schedule)
            # Fewer than the updates: the library makes no step of the schedule where fp16 has skipped one.
            self._step(saved["scheduler"].get("last_epoch", update) if is_same else update)

    def _step(self, count: int) -> None:
        """Make `count` steps of the new schedule, from its start."""
        for group, own in zip(self._optimizer.param_groups, self._values, strict=True):
            group.update({name: own[name] for name in _OF_SCHEDULES if name in own})
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that the optimizer has made no steps in this process
            for _ in range(count):
                self._schedule.step()

    def _continue_with_metrics(self, saved: Mapping[str, Any], earlier: Mapping[str, Any]) -> None:
        """Let the learning rate be the same share of its first value as before, if the schedule's kind is the same."""
        groups, before = saved["optimizer"]["param_groups"], earlier.get("groups", ())
        if earlier.get("schedule", {}).get("type") != type_name(self._schedule) or len(groups) != len(self._values):
            for group, own in zip(self._optimizer.param_groups, self._values, strict=True):
                group["lr"] = own["lr"]
            return
        self._schedule.load_state_dict(saved["scheduler"])
        for group, own, old, first in zip(self._optimizer.param_groups, self._values, groups, before, strict=True):
            group["lr"] = old["lr"] * own["lr"] / first["lr"] if first["lr"] else own["lr"]


_TITLES = {"optimizer": "optimizer", "sizes": "parameters in the optimizer's groups"}


def is_independent_of_length(args: Any, lengths: Sequence[int]) -> bool:
    """Return whether the learning rates of runs with these `lengths` are the same as long as both run."""
    warmups = {args.get_warmup_steps(length) for length in lengths}
    return plain(args.lr_scheduler_type) in _WITHOUT_LENGTH and len(warmups) == 1


def _schedule_facts(schedule: Any) -> dict[str, Any]:
    state = {name: value for name, value in schedule.state_dict().items() if name != "lr_lambdas"}
    functions = plain(getattr(schedule, "lr_lambdas", ()))
    return {"type": type_name(schedule), "functions": functions, **plain(state)}


def _uses_metrics(schedule: Any) -> bool:
    return "metrics" in inspect.signature(schedule.step).parameters
