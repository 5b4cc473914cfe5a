"""Functions on nested lists, tuples and dictionaries, with torch's definition of nesting.

torch offers them only under a private name (`torch.utils._pytree`, the same from torch 2.10 to 2.13). They are used
nevertheless: other libraries register their own types of batches and outputs there, which a reimplementation could not
know, and that code depends on the same names.
"""

from torch.utils._pytree import SUPPORTED_NODES
from torch.utils._pytree import tree_flatten as flatten
from torch.utils._pytree import tree_leaves as leaves
from torch.utils._pytree import tree_map as mapped
from torch.utils._pytree import tree_unflatten as unflatten

__all__ = ["flatten", "is_registered", "leaves", "mapped", "unflatten"]


def is_registered(kind: type) -> bool:
    """Return whether torch or another library has registered the type as a container."""
    return kind in SUPPORTED_NODES
