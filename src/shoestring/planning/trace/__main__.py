"""`python -m shoestring.planning.trace DESCRIPTORS FOLDERS`: the child that simulates a GPU for a Tracer.

The four descriptors are those of its pipes; modules are imported from the folders. Standard input has a live recipe, or
is empty.
"""

import pickle
import sys

if __name__ == "__main__":
    sys.path[:] = sys.argv[5:]
    from shoestring.planning.trace import child

    # The parent serialized the recipe into an anonymous file that nobody else can write to.
    with open(0, "rb") as file:
        live = pickle.load(file) if file.peek(1) else None  # noqa: S301
    child.serve([int(descriptor) for descriptor in sys.argv[1:5]], live)
