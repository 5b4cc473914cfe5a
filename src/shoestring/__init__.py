"""Train real models on free and small GPUs: plan first, survive what small machines do, continue bit for bit.

plan = shoestring.plan("temporal", on="kaggle-t4")
run = shoestring.train("temporal", plan, run="runs/temporal")     # again to continue
"""

# A room and a verb may have one name, and importing a room for the first time binds its name here. So the rooms come
# first, empty as their __init__ files are, and the verbs have the last word.
import shoestring.check
import shoestring.estimate
import shoestring.plan
import shoestring.report
import shoestring.train  # noqa: F401
from shoestring.api import check, compare, estimate, evaluate, plan, report, train
from shoestring.version import __version__

__all__ = ["__version__", "check", "compare", "estimate", "evaluate", "plan", "report", "train"]
