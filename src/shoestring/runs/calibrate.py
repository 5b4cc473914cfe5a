"""What a run measured, read from its directory for the predictions of others."""

from pathlib import Path

from shoestring.errors import UsageError
from shoestring.estimate.calibration import Calibration, calibration
from shoestring.monitor.events import read
from shoestring.session.directory import RunDirectory


def calibrated(run: Path) -> Calibration:
    """The calibration of the run in the directory `run`.

    Raises UsageError where that has no plan with a predicted time, or too few measured updates.
    """
    directory = RunDirectory(run)
    stored = directory.plan()
    if stored is None or stored.plan is None:
        raise UsageError(f"{directory.plan_file} is no plan", hint="give the directory of a run that trained")
    return calibration(run.name, stored.plan, list(read(directory.events_file)))
