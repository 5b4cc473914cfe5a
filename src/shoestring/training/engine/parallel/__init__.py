"""Updates of several processes, each with a GPU of its own, that end in the bits of one process.

In goes an update in logical shards; out come the same weights in all processes. Each shard is summed by itself, and the
sums are added in a fixed binary tree (`tree.py`, `updates.py`): floating-point addition is not associative, so the
order of the additions must not depend on the number of processes. torch's FSDP2 divides the weights instead
(`fully_sharded.py`); there the order is that of its own reductions.

All ranks agree on what has happened, such as out-of-memory or a stop, before they exchange anything: a rank that waits
in a collective operation for one that has given up would wait for ever. Messages are tensors and JSON, never pickles.
"""
