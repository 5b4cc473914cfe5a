"""What lies in lists, tuples and dictionaries, as torch looks into them.

torch offers this under a private name only (`torch.utils._pytree`, the same from torch 2.6 to 2.13). It stays: other
libraries register their own kinds of batches and outputs there, which nothing of ours could know, and their code keeps
the names where they are.
"""

from torch.utils._pytree import tree_flatten as flatten
from torch.utils._pytree import tree_leaves as leaves
from torch.utils._pytree import tree_map as mapped
from torch.utils._pytree import tree_unflatten as unflatten

__all__ = ["flatten", "leaves", "mapped", "unflatten"]
