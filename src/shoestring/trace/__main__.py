"""`python -m shoestring.trace`: the child process that simulates a GPU and serves the requests of a Tracer."""

import os

from shoestring.trace import child

if __name__ == "__main__":
    # Output of torch or of a recipe must not mix with the responses, so only they go to the original standard output.
    responses = os.fdopen(os.dup(1), "w", encoding="utf-8")
    requests = os.fdopen(os.dup(0), "r", encoding="utf-8")
    os.dup2(2, 1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    child.serve(requests, responses)
