"""What a terminal and a notebook say in the same words."""

from shoestring.estimate.memory import Breakdown
from shoestring.plan.limits import Limit
from shoestring.units import bytes_text


def memory_text(memory: Breakdown) -> str:
    """The peak, its range and what there is."""
    return (
        f"{bytes_text(memory.peak_bytes)} at the peak, between {bytes_text(memory.low_bytes)} and "
        f"{bytes_text(memory.high_bytes)}, of {bytes_text(memory.capacity_bytes)}"
    )


def limit_text(limit: Limit) -> str:
    """What the run needs, of what there is."""
    return f"{limit.text(limit.needs)} of {limit.text(limit.has)}"
