"""What a plan counts and a session keeps to: the disk space of what a run retains, and the time to stop."""

from shoestring.base.settings import Settings
from shoestring.base.units import plural

KEEP_CHECKPOINTS = 2
"""The number of full checkpoints that are kept if the setting is left open and the disk has space for them."""


def disk_parts(full_bytes: int, light_bytes: int, settings: Settings, epochs: int) -> dict[str, int]:
    """Return the peak disk usage by part from the sizes of a full checkpoint and of light weights.

    Of the checkpoints that the setting `save_epochs` retains, that of the last epoch is one of the newest in any case.
    """
    full, light = settings.keep_checkpoints or KEEP_CHECKPOINTS, settings.keep_light
    retained = (epochs - 1) // settings.save_epochs if settings.save_epochs else 0
    return {
        plural(full, "full checkpoint"): full * full_bytes,
        **({plural(retained, "checkpoint") + " at the ends of epochs": retained * full_bytes} if retained else {}),
        "one being written": full_bytes,
        "best and last weights, and one of them being written": 3 * light_bytes,
        **({f"weights of {light} epochs": light * light_bytes} if light else {}),
    }


def stop_seconds(limit_seconds: float) -> float:
    """Return the end of a session that is reserved for exiting: 2% of its limit, at least 3 s and at most a minute.

    A session that its limit ends is shorter by as much; the time is not used. Exiting Python and torch took 1.2 s on a
    busy machine.
    """
    return min(60.0, max(3.0, 0.02 * limit_seconds))
