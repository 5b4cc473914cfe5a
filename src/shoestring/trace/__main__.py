"""`python -m shoestring.trace DESCRIPTORS`: the child process that simulates a GPU and serves a Tracer's requests."""

import sys

from shoestring.trace import child

if __name__ == "__main__":
    child.serve([int(descriptor) for descriptor in sys.argv[1:]])
