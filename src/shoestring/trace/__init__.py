"""Trace training updates with fake tensors on a simulated GPU, in a child process."""

from shoestring.trace.record import Facts, Trace
from shoestring.trace.stored import StoredTraces
from shoestring.trace.tracer import Tracer

__all__ = ["Facts", "StoredTraces", "Trace", "Tracer"]
