"""Train PyTorch models on free and small GPUs: plan first, survive failures, and resume bit for bit.

plan = shoestring.plan("temporal", on="kaggle-t4")
run = shoestring.train("temporal", plan, run="runs/temporal")     # call it again to continue
"""

from shoestring.api import (
    check,
    compare,
    cross_validate,
    estimate,
    evaluate,
    export,
    load,
    measured,
    notebook,
    plan,
    plan_inference,
    predict,
    prepare_rehearsal,
    rehearse,
    replay,
    report,
    train,
    watch,
)
from shoestring.version import __version__

__all__ = [
    "__version__",
    "check",
    "compare",
    "cross_validate",
    "estimate",
    "evaluate",
    "export",
    "load",
    "measured",
    "notebook",
    "plan",
    "plan_inference",
    "predict",
    "prepare_rehearsal",
    "rehearse",
    "replay",
    "report",
    "train",
    "watch",
]


def __dir__() -> list[str]:
    """Return the public names alone, without the modules that they are from."""
    return __all__
