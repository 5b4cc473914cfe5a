"""The time of loading the recipe's real data, measured by a trial, as part of the plan's time on this machine."""

from dataclasses import dataclass
from typing import Any

from shoestring.base.units import plural, seconds_text
from shoestring.planning.plan import Plan
from shoestring.recipe.contract import updates_per_epoch
from shoestring.runs.check.finding import Finding, passed, warned
from shoestring.runs.check.trial_findings import Trial
from shoestring.training.data.worker_count import TOLERATED, workers_for


@dataclass(frozen=True, kw_only=True)
class Loading:
    """The seconds of an update of a plan with and without its data."""

    samples: int
    """The number of samples that were loaded for the measurement, in one process."""
    sample_seconds: float
    """The seconds to load one sample, in one process."""
    computing_seconds: float
    """The seconds of an update whose data is there."""
    loading_seconds: float
    """The seconds to load the data of an update, in one process."""
    workers: int
    """The worker processes that training starts if this remains so; 0: training loads by itself."""
    updates: tuple[int | None, int | None]
    """The updates of an epoch and of the run; None if they are not known."""

    @property
    def update_seconds(self) -> float:
        """The seconds of an update, waiting for its data included."""
        if not self.workers:
            return self.computing_seconds + self.loading_seconds
        return max(self.computing_seconds, self.loading_seconds / self.workers)

    @property
    def waiting_share(self) -> float:
        """The share of the time in which training waits for data."""
        return 1 - self.computing_seconds / self.update_seconds if self.update_seconds else 0.0

    def json(self) -> dict[str, Any]:
        """Return the loading as JSON.

        Keys:
            epoch_seconds (number or null): the seconds of an epoch with loading
            total_seconds (number or null): the seconds of the run with loading
        """
        per_epoch, total = (self.update_seconds * count if count else None for count in self.updates)
        return {
            "samples": self.samples,
            "sample_seconds": self.sample_seconds,
            "computing_seconds": self.computing_seconds,
            "loading_seconds": self.loading_seconds,
            "workers": self.workers,
            "waiting_share": self.waiting_share,
            "update_seconds": self.update_seconds,
            "epoch_seconds": per_epoch,
            "total_seconds": total,
        }


def measured_loading(trial: Trial, plan: Plan, *, effective_batch: int, cores: int) -> Loading | None:
    """Return the loading of an update of `plan` with `effective_batch` samples; None if the trial has not measured it.

    The seconds of the update itself are those that were measured as well.
    """
    stage, data, computing_seconds = trial.last("loading"), trial.last("data"), trial.computing_seconds
    if stage is None or data is None or computing_seconds is None:
        return None
    sample_seconds = float(stage["seconds"]) / stage["samples"]
    loading_seconds = sample_seconds * effective_batch
    fixed = plan.settings.workers
    workers = workers_for(loading_seconds, computing_seconds, cores) if fixed is None else fixed
    per_epoch = updates_per_epoch(data["samples"], effective_batch)
    return Loading(
        samples=int(stage["samples"]),
        sample_seconds=sample_seconds,
        computing_seconds=computing_seconds,
        loading_seconds=loading_seconds,
        workers=workers,
        updates=(per_epoch, trial.loaded.total_updates(per_epoch)),
    )


def check_loading(loading: Loading) -> Finding:
    """Return whether training will wait for its data, and the time of the plan with it."""
    facts = loading.json()
    message = (
        f"{seconds_text(loading.sample_seconds)} per sample in one process ({plural(loading.samples, 'sample')} "
        f"loaded), {seconds_text(loading.loading_seconds)} per update, which computes for "
        f"{seconds_text(loading.computing_seconds)}; with {plural(loading.workers, 'worker')} an update takes "
        f"{seconds_text(loading.update_seconds)}"
    )
    if facts["epoch_seconds"] is not None:
        message += f", an epoch {seconds_text(facts['epoch_seconds'])}, the run {seconds_text(facts['total_seconds'])}"
    if loading.waiting_share <= TOLERATED:
        return passed("loading", message)
    hint = "copy slow inputs to the local disk first (--set stage=yes), or use a machine with more cores"
    return warned("loading", f"{message}; {loading.waiting_share:.0%} of it is waiting for data", hint)
