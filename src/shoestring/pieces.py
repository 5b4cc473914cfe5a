"""What survives in anyone's own loop, without a recipe. `examples/own_loop.py` puts it together in forty lines.

DataOrder, split             which samples make up update number n, and their microbatches
Shards, pad_batch, stage     data too large for memory, of different lengths, slow to read
update, arithmetic           one update in fp32, fp16 or bf16
Recovering                   the same update again in smaller microbatches where memory runs out
session                      deadline and signals: when to stop
Store                        whole, verified checkpoints
seed_all, deterministic      the same bits again: random numbers by their place in the run, kernels without races

Each stands alone; `train/loop.py` is nothing but them. Importing this imports torch.
"""

from shoestring.checkpoint.store import Store
from shoestring.session.stop import session
from shoestring.train.determinism import deterministic
from shoestring.train.order import DataOrder, split
from shoestring.train.padding import pad_batch
from shoestring.train.precision import arithmetic
from shoestring.train.recovery import Recovering
from shoestring.train.seeding import derive, seed_all
from shoestring.train.shards import Shards
from shoestring.train.staging import stage
from shoestring.train.update import update

__all__ = [
    "DataOrder",
    "Recovering",
    "Shards",
    "Store",
    "arithmetic",
    "derive",
    "deterministic",
    "pad_batch",
    "seed_all",
    "session",
    "split",
    "stage",
    "update",
]
