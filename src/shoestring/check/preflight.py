"""The check of this machine before a run: every verdict there is, in the order in which a person would ask."""

import dataclasses
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shoestring.check import gpu, machine, question, tried
from shoestring.check.facts import Facts
from shoestring.check.finding import Finding, Status, failed, warned
from shoestring.check.look import look
from shoestring.errors import ShoestringError
from shoestring.hardware import probe
from shoestring.recipe.options import LoadedRecipe
from shoestring.settings import Settings

Judge = Callable[[Facts], Finding | None]

JUDGES: tuple[Judge, ...] = (
    gpu.gpu,
    machine.pytorch,
    gpu.kernels,
    gpu.driver,
    gpu.bf16,
    gpu.attention,
    gpu.gpu_memory,
    gpu.ranks,
    machine.cores,
    machine.ram,
    machine.disk,
    machine.temporary,
    machine.shared_memory,
    question.packages,
    question.versions,
    question.inputs,
    question.internet,
    question.quota,
    machine.clock,
    machine.determinism,
    machine.variables,
    question.run,
)
"""Each says one line of these facts, or nothing where there is nothing to say."""


@dataclass(frozen=True, kw_only=True)
class Checked:
    """What a check found."""

    target: str
    recipe: str
    """Empty where none was given."""
    findings: tuple[Finding, ...]
    tried: dict[str, Any] | None = None
    """What a few updates took here beside what was predicted; None where they were not tried."""

    @property
    def status(self) -> Status:
        """The worst of the findings."""
        found = {finding.status for finding in self.findings}
        return "fail" if "fail" in found else "warn" if "warn" in found else "pass"

    def json(self) -> dict[str, Any]:
        return {
            "status": self.status,
            **dataclasses.asdict(self),
            "findings": [finding.json() for finding in self.findings],
        }


def judged(facts: Facts, judges: Iterable[Judge] = JUDGES) -> tuple[Finding, ...]:
    """The lines that these facts give."""
    return tuple(finding for judge in judges if (finding := judge(facts)))


def preflight(on: str, run: Path, loaded: LoadedRecipe | None = None, wanted: Settings | None = None) -> Checked:
    """Check this machine for a run in the directory `run` under the limits of the target `on`; nothing stays written.

    With a recipe a few of its updates are tried here, where nothing failed before that they need.

    Raises UsageError for an unknown target.
    """
    facts = look(on, run, loaded)
    findings = judged(facts)
    numbers = None
    if loaded is not None:
        more, numbers = _tried(facts, findings, loaded, wanted or Settings())
        findings = (*findings, *more)
    return Checked(target=on, recipe=loaded.name if loaded else "", findings=findings, tried=numbers)


def _tried(
    facts: Facts, before: Iterable[Finding], loaded: LoadedRecipe, wanted: Settings
) -> tuple[list[Finding], dict[str, Any] | None]:
    """The lines of a plan for this machine and of a few updates by it, and their numbers."""
    needed = {"PyTorch", "kernels", "packages", "inputs"}
    missing = [finding.name for finding in before if finding.status == "fail" and finding.name in needed]
    if missing:
        return [warned("update", f"not tried, see {', '.join(missing)}", "mend that, then check again")], None
    target = probe.local_cpu() if facts.on.name == "cpu" or not facts.build.used else probe.local()
    target = dataclasses.replace(target, platform=facts.on.platform or target.platform)
    plan, found = tried.planned(loaded, target, wanted, facts)
    if plan is None:
        return found, None
    if not loaded.reference:
        hint = "write it into a file to have it tried"
        return [*found, warned("update", "not tried: the recipe lives in this process alone", hint)], None
    try:
        trial = tried.attempt(plan, loaded, target)
    except ShoestringError as error:
        return [*found, failed("update", error.message, error.hint or "shoestring plan says the same")], None
    return [*found, *tried.judged(trial)], tried.measured(trial)
