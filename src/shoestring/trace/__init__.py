"""One training update on a pretend GPU, recorded in a process of its own."""

from shoestring.trace.record import Facts, Trace
from shoestring.trace.tracer import Tracer

__all__ = ["Facts", "Trace", "Tracer"]
