"""Trace training updates with fake tensors on a simulated GPU, in a child process."""

from shoestring.planning.trace.record import Facts, Trace
from shoestring.planning.trace.stored import StoredTraces
from shoestring.planning.trace.tracer import Tracer

__all__ = ["Facts", "StoredTraces", "Trace", "Tracer"]
