"""The verbs of the command line as functions: each command parses its options and calls the function of its name.

A verb takes what a person would type (names, paths, numbers with their units in the name), checks it, and returns a
value that displays itself and has `json()`. It contains no logic of its own, and it imports what it needs when it is
called, so that `shoestring --help` and `import shoestring` start without torch and numpy.
"""

from shoestring.api.checking import check, measure, write_lengths
from shoestring.api.listing import priced_targets, recipes, target_names, targets
from shoestring.api.new import new_recipe
from shoestring.api.notebooks import notebook
from shoestring.api.planning import compare, estimate, plan, plan_inference
from shoestring.api.rehearsing import prepare_rehearsal, rehearse
from shoestring.api.runs import measured, replay, report, watch
from shoestring.api.training import (
    config_file,
    cross_validate,
    is_first_process,
    process_started,
    train,
    train_supervised,
)
from shoestring.api.weights import converse, evaluate, export, load, predict

__all__ = [
    "check", "compare", "config_file", "converse", "cross_validate", "estimate", "evaluate", "export",
    "is_first_process", "load", "measure", "measured", "new_recipe", "notebook", "plan", "plan_inference", "predict",
    "prepare_rehearsal", "priced_targets", "process_started", "recipes", "rehearse", "replay", "report",
    "target_names", "targets", "train", "train_supervised", "watch", "write_lengths",
]  # fmt: skip
