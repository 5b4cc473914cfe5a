"""The version, in the one place that packaging and a run's record read it from."""

__version__ = "0.2.0"
