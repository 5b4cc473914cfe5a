"""A comparison of the plans of one recipe for several targets."""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from shoestring.base import display
from shoestring.base.settings import Settings
from shoestring.base.units import plural, seconds_text
from shoestring.hardware.catalog import Target
from shoestring.planning.estimate.calibration import Calibration
from shoestring.planning.plan import Plan
from shoestring.planning.planner import plan_with
from shoestring.planning.trace import Tracer
from shoestring.planning.weight_type import with_weight_type
from shoestring.recipe.options import LoadedRecipe


@dataclass(frozen=True, kw_only=True)
class Comparison(display.Displayed):
    """One plan for each target, in the requested order."""

    plans: tuple[Plan, ...]
    """The complete plans, in the same order."""
    by_hours: float | None = None
    """The hours within which the run has to be done; None without such a limit."""
    platform: str | None = None
    """The platform that was asked for as a whole, all machines of which are compared; None without one."""

    @property
    def cheapest(self) -> Plan | None:
        """The plan with the least cost that fits and is done in time, of equal costs the fastest; None without any."""
        plans = [plan for plan in self.plans if plan.fits and plan.cost_usd is not None and self._is_in_time(plan)]
        return min(plans, key=lambda plan: (plan.cost_usd, plan.calendar_hours), default=None)

    def first(self, *, depends_on_account: bool) -> Plan | None:
        """Return the plan of the platform's machine that finishes first, with waiting for the weekly quota.

        Either of the machines that every account has, or of those that depend on the account. None if the run fits
        none of them, if their time is unknown, or without a platform.
        """
        plans = [
            plan for plan in self._of_platform(depends_on_account) if plan.fits and plan.calendar_hours is not None
        ]
        return min(plans, key=lambda plan: plan.calendar_hours or 0.0, default=None)

    @property
    def command(self) -> str:
        """What to type next: to train on the machine that every account has and that finishes first.

        If the run fits none of them, to plan it with changes that make it fit one. Empty if there is no such command,
        or without a platform.
        """
        first = self.first(depends_on_account=False)
        if first is not None:
            return first.answers[-1].command if first.answers else first.next_command
        return next((plan.next_command for plan in self._of_platform(False) if plan.next_command), "")

    @property
    def sentences(self) -> list[str]:
        """Which machines of the platform finish first: of those that every account has, then of the others."""
        return [
            _first_text(plans, self.first(depends_on_account=depends_on_account), clause)
            for depends_on_account, clause in ((False, "that every account has"), (True, "that depend on the account"))
            if (plans := self._of_platform(depends_on_account))
        ]

    def _of_platform(self, depends_on_account: bool) -> list[Plan]:
        return [
            plan
            for plan in self.plans
            if plan.target.platform
            and plan.target.platform.name == self.platform
            and plan.target.depends_on_account == depends_on_account
        ]

    def _is_in_time(self, plan: Plan) -> bool:
        hours = plan.calendar_hours
        return hours is not None and (self.by_hours is None or hours <= self.by_hours)

    def rows(self) -> list[dict[str, Any]]:
        """Return the compared values of each plan; None for unknown ones."""
        return [_row(plan) for plan in self.plans]

    def json(self) -> dict[str, Any]:
        """Return the rows and the complete plans.

        Keys:
            comparison (list of objects): a row for each target, in the order of `--on`
            by (object or null): the answer to `--by`
            by.hours (number): the hours within which the run has to be done
            by.target (text or null): the cheapest target that does it
            first (object or null): which machines of a platform finish first, if all of them are compared
            first.platform (text): the name of the platform
            first.every_account (text or null): of the machines that every account has; null if the run fits none
            first.some_accounts (text or null): of the machines that depend on the account
            first.command (text): what to type next for one that every account has; empty if there is nothing
        """
        by = None
        if self.by_hours is not None:
            by = {"hours": self.by_hours, "target": self.cheapest.target.name if self.cheapest else None}
        first = None
        if self.platform is not None:
            every, some = (self.first(depends_on_account=depends) for depends in (False, True))
            first = {
                "platform": self.platform,
                "every_account": every.target.name if every else None,
                "some_accounts": some.target.name if some else None,
                "command": self.command,
            }
        return {"comparison": self.rows(), "by": by, "first": first, "plans": [plan.json() for plan in self.plans]}

    def __repr__(self) -> str:
        verdicts = ", ".join(f"{plan.target.name} {plan.verdict}" for plan in self.plans)
        return f"<Comparison of {self.plans[0].recipe if self.plans else 'no plans'}: {verdicts}>"

    def __str__(self) -> str:
        """Return the table that `shoestring plan` prints for several targets."""
        return display.text(self)


def compare(
    loaded: LoadedRecipe,
    targets: Sequence[Target],
    requested: Settings,
    *,
    usd_per_hour: float | None = None,
    calibration: Calibration | None = None,
    by_hours: float | None = None,
    platform: str | None = None,
) -> Comparison:
    """Make a thorough plan for each target. Raises what `make_plan` raises."""
    plans = []
    with ExitStack() as tracers:
        by_weights: dict[object, Tracer] = {}
        for target in targets:
            recipe = with_weight_type(loaded, target, requested)
            weights = recipe.options.get("weights")
            if weights not in by_weights:
                by_weights[weights] = tracers.enter_context(Tracer(recipe))
            plan = plan_with(
                by_weights[weights],
                recipe,
                target,
                requested,
                thorough=True,
                usd_per_hour=usd_per_hour,
                calibration=calibration,
            )
            plans.append(plan)
    return Comparison(plans=tuple(plans), by_hours=by_hours, platform=platform)


def _first_text(plans: Sequence[Plan], first: Plan | None, clause: str) -> str:
    """Return which of the machines finishes first, as a sentence; `clause` says which they are."""
    machines = f"the machines {clause} ({', '.join(plan.target.name for plan in plans)})"
    if first is None:
        unknown = [plan for plan in plans if plan.fits]
        return (
            f"It is not known which of {machines} finishes first." if unknown else f"The run fits none of {machines}."
        )
    platform, hours = first.target.platform, first.calendar_hours
    assert platform is not None and hours is not None
    quota = ""
    if platform.weekly_gpu_hours is not None and first.weeks:
        weeks = "one week's quota" if len(first.weeks) == 1 else f"{len(first.weeks)} weeks' quotas"
        quota = f", within {weeks} of {platform.weekly_gpu_hours:g} GPU hours"
    return (
        f"Of {machines}, {first.target.name} finishes first: {seconds_text(hours * 3600)} after the start, in "
        f"{plural(len(first.sessions), 'session')}{quota}."
    )


def _row(plan: Plan) -> dict[str, Any]:
    """Return the compared values of a plan.

    Keys:
        update_seconds (number or null): the predicted seconds of an update
        total_seconds (number or null): the predicted seconds of all updates
        calendar_hours (number or null): the hours from the start to the end, with waiting for the quota
        sessions (integer or null): the number of sessions
        weeks (integer or null): the number of weeks of the platform's quota
        usd_per_hour (number or null): the price of one GPU for an hour in US dollars
        price_date (text or null): the date of that price
        depends_on_account (true or false): whether only some accounts of the platform get the machine
    """
    predicted = plan.time.predicted
    return {
        "target": plan.target.name,
        "verdict": plan.verdict,
        "micro_batch": plan.settings.micro_batch,
        "precision": plan.settings.precision,
        "checkpointing": plan.settings.checkpointing,
        "high_bytes": plan.memory.high_bytes,
        "capacity_bytes": plan.memory.capacity_bytes,
        "update_seconds": predicted.update_seconds,
        "total_seconds": predicted.total_seconds,
        "hours": plan.hours,
        "calendar_hours": plan.calendar_hours,
        "sessions": len(plan.sessions) or None,
        "weeks": len(plan.weeks) or None,
        "usd": plan.cost_usd,
        "usd_per_hour": plan.price.usd_per_hour if plan.price else None,
        "price_date": plan.price.date if plan.price else None,
        "depends_on_account": plan.target.depends_on_account,
    }
