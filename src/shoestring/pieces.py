"""The parts of the engine for a training loop of your own, without a recipe: see `examples/own_loop.py`.

DataOrder, split             the samples of update number n, and their microbatches
Shards, pad_batch, stage     data larger than memory, samples of different lengths, slow storage
update, mixed_precision      one update in fp32, fp16 or bf16
Recovering                   repeats an update with smaller microbatches on out-of-memory
session                      stops before a time limit and on signals
Store                        atomic, verified checkpoints
Input, Rows                  new inputs of a recipe's `inputs`, and values of several rows
seed_all, deterministic      reproducible bits: random numbers by position in the run, deterministic kernels

Each can be used alone. Importing this module imports torch.
"""

from typing import TYPE_CHECKING

from shoestring.base.renamed import accepts_old_arguments, attributes_of
from shoestring.recipe.exports import Exported, Format, OnnxGraph
from shoestring.recipe.inputs import Input, Rows
from shoestring.recipe.microbatches import split
from shoestring.training.checkpoint.store import Store
from shoestring.training.data.order import DataOrder
from shoestring.training.data.padding import pad_batch
from shoestring.training.data.seeding import derive, seed_all
from shoestring.training.data.shards import Shards
from shoestring.training.data.staging import stage
from shoestring.training.engine.determinism import deterministic
from shoestring.training.engine.precision import mixed_precision
from shoestring.training.engine.recovery import Recovering
from shoestring.training.engine.update import update as engine_update
from shoestring.training.session.stop import session

__all__ = [
    "DataOrder",
    "Exported",
    "Format",
    "Input",
    "OnnxGraph",
    "Recovering",
    "Rows",
    "Shards",
    "Store",
    "arithmetic",  # noqa: F822  the old name of mixed_precision
    "derive",
    "deterministic",
    "mixed_precision",
    "pad_batch",
    "seed_all",
    "session",
    "split",
    "stage",
    "update",
]

update = accepts_old_arguments(engine_update)

if not TYPE_CHECKING:
    __getattr__ = attributes_of(__name__)


def __dir__() -> list[str]:
    """Return the public names alone."""
    return __all__
