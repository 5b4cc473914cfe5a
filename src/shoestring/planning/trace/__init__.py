"""One update of a recipe, recorded with fake tensors on a simulated GPU, in a child process.

In go a recipe with its options, settings and the number of GPUs; out comes a `Trace`, which holds the allocations and
frees of every storage, each operator with its FLOPs, bytes and shape, and `Facts` about the model and the data.

The update is made by the techniques that training uses (`update.py`), and operators take the kernels and casts that
the target would choose. What the fake device does differently from CUDA is corrected where it is recorded, with the
file of torch that says so beside it. Of identical blocks only three are run (`folding.py`, `block_calls.py`), and the
whole is run where that cannot be exact.

The child is a process of its own because a recipe's code may do anything, and because a device that is registered with
torch cannot be unregistered. It never allocates the tensors of a model, and nothing that it does reaches the run.
"""

from shoestring.planning.trace.record import Facts, Trace
from shoestring.planning.trace.stored import StoredTraces
from shoestring.planning.trace.tracer import Tracer

__all__ = ["Facts", "StoredTraces", "Trace", "Tracer"]
