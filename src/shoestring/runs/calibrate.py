"""The calibration of predictions with the measured times of an earlier run, or with measured rates of the device."""

from pathlib import Path

from shoestring.base.errors import UsageError
from shoestring.hardware.measured_file import SUFFIX, read_measured
from shoestring.planning.estimate.calibration import Calibration, calibration
from shoestring.planning.estimate.spread import Spread
from shoestring.training.monitor.events import read
from shoestring.training.run_directory.directory import RunDirectory


def load_calibration(run: Path) -> Calibration:
    """Return the calibration from the run in the directory `run`, or from a file of measured rates (`.json`).

    Raises UsageError if the run has no plan with a predicted time, or too few measured updates; or if the file has no
    such rates.
    """
    if run.suffix == SUFFIX and not run.is_dir():
        measured = read_measured(run)
        spread = Spread(low=measured.noise[0], high=measured.noise[1], source=measured.source)
        return Calibration(
            device=measured.device.title, factor=1.0, spread=spread, input_seconds=0.0, save_rate=None, rates=measured
        )
    directory = RunDirectory(run)
    directory.require_own()
    stored = directory.plan()
    if stored is None or stored.plan is None:
        raise UsageError(f"{directory.plan_file} contains no plan", hint="pass the directory of a run that has trained")
    if stored.is_changed:
        raise UsageError(
            f"{directory.plan_file} has changed since it was written: its digest does not match its content",
            hint="copy the run again from its source",
        )
    return calibration(run.name, stored.plan, list(read(directory.events_file)))
