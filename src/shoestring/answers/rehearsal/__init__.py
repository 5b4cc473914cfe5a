"""The answer of `shoestring rehearse`, in a module for each part.

`document.py` puts it together: the verdict in one sentence (`verdict.py`), the memory with its time line (`memory.py`,
`timeline.py`), the out-of-memory with what held the memory (`out_of_memory.py`), the predicted time and the limits of
the target (`limits.py`). `files.py` writes it into a folder.
"""
