"""Texts shared by the terminal and the notebook."""

from shoestring.estimate.memory import Breakdown
from shoestring.plan.limits import Limit
from shoestring.units import bytes_text


def memory_text(memory: Breakdown) -> str:
    """Describe the predicted peak, its range and the capacity, and whether the model fits before the first update."""
    loads = memory.loading_bytes <= memory.capacity_bytes
    return (
        f"{bytes_text(memory.peak_bytes)} at the peak, between {bytes_text(memory.low_bytes)} and "
        f"{bytes_text(memory.high_bytes)}, of {bytes_text(memory.capacity_bytes)}"
        + ("" if loads else f"; loading the model alone takes {bytes_text(memory.loading_bytes)}")
    )


def limit_text(limit: Limit) -> str:
    """Describe what the run needs and what is available."""
    return f"{limit.text(limit.needs)} of {limit.text(limit.has)}"
