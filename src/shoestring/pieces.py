"""What survives in anyone's own loop, without a recipe. `examples/own_loop.py` puts it together in forty lines.

DataOrder, split             which samples make up update number n, and their microbatches
Shards, pad_batch, stage     data too large for memory, of different lengths, slow to read
update, mixed_precision      one update in fp32, fp16 or bf16
Recovering                   the same update again in smaller microbatches where memory runs out
session                      deadline and signals: when to stop
Store                        whole, verified checkpoints
seed_all, deterministic      the same bits again: random numbers by their place in the run, kernels without races

Each stands alone; `train/loop.py` is nothing but them. Importing this imports torch.
"""

from typing import TYPE_CHECKING

from shoestring.checkpoint.store import Store
from shoestring.data.order import DataOrder, split
from shoestring.data.padding import pad_batch
from shoestring.data.seeding import derive, seed_all
from shoestring.data.shards import Shards
from shoestring.data.staging import stage
from shoestring.engine.determinism import deterministic
from shoestring.engine.precision import mixed_precision
from shoestring.engine.recovery import Recovering
from shoestring.engine.update import update as engine_update
from shoestring.renamed import accepts_old_arguments, attributes_of
from shoestring.session.stop import session

__all__ = [
    "DataOrder",
    "Recovering",
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
