"""The check of this machine before a run: all checks, in the order in which their findings are printed."""

import dataclasses
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shoestring.base.display import Displayed
from shoestring.base.errors import ShoestringError, TraceError
from shoestring.base.settings import Settings
from shoestring.hardware import probe, targets
from shoestring.hardware.images import ImageAnswer
from shoestring.planning.weight_type import with_weight_type
from shoestring.recipe.options import LoadedRecipe
from shoestring.recipe.whole_batch import require_whole_batch
from shoestring.runs.check import gpu, machine, measuring, requirements, trial_findings
from shoestring.runs.check.collect import collect_facts
from shoestring.runs.check.facts import Facts
from shoestring.runs.check.finding import Finding, Status, failed, warned
from shoestring.runs.check.loading import check_loading, measured_loading

Check = Callable[[Facts], Finding | None]

CHECKS: tuple[Check, ...] = (
    gpu.check_gpu,
    machine.check_pytorch,
    gpu.check_kernels,
    gpu.check_driver,
    gpu.check_bf16,
    gpu.check_attention,
    gpu.check_gpu_memory,
    gpu.check_gpu_count,
    gpu.check_gpu_link,
    machine.check_cores,
    machine.check_ram,
    machine.check_disk,
    machine.check_temporary_folder,
    machine.check_shared_memory,
    requirements.check_packages,
    requirements.check_image,
    requirements.check_versions,
    requirements.check_inputs,
    requirements.check_internet,
    requirements.check_quota,
    machine.check_clock,
    machine.check_determinism,
    machine.check_variables,
    requirements.check_run,
)
"""Each returns a finding, or None if it does not apply to these facts."""


@dataclass(frozen=True, kw_only=True)
class CheckResult(Displayed):
    """The result of checking this machine."""

    target: str
    """The target of `--on`."""
    recipe: str
    """The name of the recipe; empty for a check without one."""
    findings: tuple[Finding, ...]
    """The result of each check, in the order in which they are printed."""
    tried: dict[str, Any] | None = None
    """The measured and predicted values of a trial of a few updates; None if there was no complete trial."""
    image: ImageAnswer | None = None
    """What the image of the target's platform lacks for this recipe with these options; None without an image, and in a
    session of the platform itself."""
    preview: str = ""
    """What a sample of the recipe's data is to its model, for people; empty if the recipe does not show it."""
    notes: tuple[str, ...] = ()
    """What the recipe says about its data, apart from notes that are in the preview."""

    @property
    def status(self) -> Status:
        """The worst status of the findings."""
        statuses = {finding.status for finding in self.findings}
        return "fail" if "fail" in statuses else "warn" if "warn" in statuses else "pass"

    def json(self) -> dict[str, Any]:
        """Return the result as JSON.

        Keys:
            tried.loading (object): the time of the plan with that of loading the data; missing if it was not measured
        """
        return {
            "status": self.status,
            **dataclasses.asdict(self),
            "image": self.image.json() if self.image else None,
            "findings": [finding.json() for finding in self.findings],
        }


def run_checks(facts: Facts, checks: Iterable[Check] = CHECKS) -> tuple[Finding, ...]:
    """Return the findings of the checks that apply to these facts."""
    return tuple(finding for check in checks if (finding := check(facts)))


def preflight(on: str, run: Path, loaded: LoadedRecipe | None = None, settings: Settings | None = None) -> CheckResult:
    """Check this machine for a run in the directory `run` under the limits of the target `on`; no file remains.

    With a recipe, a few of its updates are tried on this machine, unless a check that they depend on has failed.

    Raises UsageError for an unknown target, and for settings that would split an update that is never split.
    """
    if loaded is not None:
        require_whole_batch(loaded, settings or Settings())
    facts = collect_facts(on, run, loaded)
    findings = (*run_checks(facts), *_check_rates(on, facts))
    trial_summary, preview = None, ""
    notes: tuple[str, ...] = ()
    if loaded is not None:
        trial_results, trial_summary = _try_updates(facts, findings, loaded, settings or Settings())
        findings = (*findings, *trial_results)
        preview, notes = _preview(loaded)
    return CheckResult(
        target=on,
        recipe=loaded.name if loaded else "",
        findings=findings,
        tried=trial_summary,
        image=requirements.image_of(facts),
        preview=preview,
        notes=notes,
    )


def _check_rates(on: str, facts: Facts) -> list[Finding]:
    """Return a warning if `on` is a file of rates that were measured on another device than this machine's."""
    if not targets.is_file(on) or facts.target.device.measured:
        return []
    message = f"those of {on} are not used: this machine has {facts.target.device.title}"
    return [warned("rates", message, f"measure this machine: shoestring check --measure {on} --overwrite")]


def _preview(loaded: LoadedRecipe) -> tuple[str, tuple[str, ...]]:
    """Return the recipe's preview of its data, and its other notes; nothing of data that cannot be used.

    That is a finding.
    """
    data = loaded.parts.data
    try:
        preview = data.preview() if data.preview is not None else ""
        return preview, tuple(note for note in data.notes() if note not in preview)
    except ShoestringError:
        return "", ()


def _try_updates(
    facts: Facts, findings: Iterable[Finding], loaded: LoadedRecipe, settings: Settings
) -> tuple[list[Finding], dict[str, Any] | None]:
    """Plan for this machine and run a trial; return the findings of both and the summary of the trial.

    `findings` are those of the checks of the machine.
    """
    prerequisites = {"PyTorch", "kernels", "packages", "inputs"}
    failures = [finding.name for finding in findings if finding.status == "fail" and finding.name in prerequisites]
    if failures:
        message = f"not tried, because these checks failed: {', '.join(failures)}"
        return [warned("update", message, "fix the failures, then check again")], None
    target = probe.local_cpu() if facts.target.name == "cpu" or not facts.build.gpus else probe.local()
    target = dataclasses.replace(target, platform=facts.target.platform or target.platform)
    if facts.target.device.measured:
        target = targets.with_rates(target, facts.target.device.measured)
    loaded = with_weight_type(loaded, target, settings)
    try:
        plan, plan_findings = trial_findings.plan_trial(loaded, target, settings, facts)
    except TraceError as error:
        return measuring.check_by_trying(loaded, target, settings, error), None
    if plan is None:
        return plan_findings, None
    if not loaded.reference:
        message, hint = (
            "not tried: the recipe exists only in this process",
            "save the recipe in a file to have it tried",
        )
        return [*plan_findings, warned("update", message, hint)], None
    try:
        trial = trial_findings.run_trial(plan, loaded, target)
    except ShoestringError as error:
        hint = error.hint or "see the same error in: shoestring plan"
        return [*plan_findings, failed("update", error.message, hint)], None
    trial_results, summary = trial_findings.check_trial(trial), trial_findings.summarize_trial(trial)
    loading = measured_loading(trial, plan, effective_batch=loaded.effective_batch, cores=facts.host.cores)
    if loading and summary:
        trial_results = [*trial_results, check_loading(loading)]
        summary = {**summary, "loading": loading.json()}
    return [*plan_findings, *trial_results], summary
