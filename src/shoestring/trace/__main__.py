"""`python -m shoestring.trace`: the process that pretends a GPU and answers a Tracer's questions."""

import os

from shoestring.trace import child

if __name__ == "__main__":
    # What torch or a recipe prints must not come between the answers: they get the old standard output alone.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    questions = os.fdopen(os.dup(0), "r", encoding="utf-8")
    os.dup2(2, 1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    child.serve(questions, answers)
