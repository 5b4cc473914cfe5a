"""`python -m shoestring.trace DESCRIPTORS FOLDERS`: the child that simulates a GPU and serves the requests of a Tracer.

The four descriptors are those of its pipes; modules are imported from the folders.
"""

import sys

if __name__ == "__main__":
    sys.path[:] = sys.argv[5:]
    from shoestring.trace import child

    child.serve([int(descriptor) for descriptor in sys.argv[1:5]])
