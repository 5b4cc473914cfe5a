"""Train PyTorch models on free and small GPUs: plan first, survive failures, and resume bit for bit.

plan = shoestring.plan("temporal", on="kaggle-t4")
run = shoestring.train("temporal", plan, run="runs/temporal")     # call it again to continue
"""

# Some packages have the name of a verb, and the first import of a package binds its name here. They are imported first,
# which is cheap since their __init__ files are empty, so that the names stay bound to the verbs.
import shoestring.answers
import shoestring.planning
import shoestring.planning.estimate
import shoestring.runs.check
import shoestring.train  # noqa: F401
from shoestring.api import (
    check,
    compare,
    estimate,
    evaluate,
    export,
    load,
    notebook,
    plan,
    plan_inference,
    predict,
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
    "estimate",
    "evaluate",
    "export",
    "load",
    "notebook",
    "plan",
    "plan_inference",
    "predict",
    "replay",
    "report",
    "train",
    "watch",
]
