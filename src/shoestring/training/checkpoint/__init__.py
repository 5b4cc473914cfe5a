"""States as sets of files that are complete or absent, and verified whenever they are read.

In goes the state of a run as sections of tensors and plain values; out come folders `update-N` with a manifest that
has the digest of each file (`store.py`, `writing.py`), folders with weights to use (`light.py`), and on the way back
the newest state that passes verification.

Files are written beside, synced, read back for the manifest, and become visible by one rename; only then is an older
checkpoint removed. `fsync` of the folder makes the rename itself durable, which POSIX does not promise without it
(fsync(2): the entry in the directory needs an explicit fsync of the directory).

Nothing is unpickled: tensors are safetensors, all else is JSON. Nothing in a folder can make code run or change a file
outside of it. The last verified checkpoint is never removed, and a state that does not fit is an error before any part
of it is loaded.
"""
