"""Memory, time and disk of an update as pure functions of its trace.

In goes a `Trace` (allocations, frees, operators with FLOPs and bytes) with a device; out comes a `Breakdown` of memory,
the `Seconds` of an update, or bytes on disk: named parts that sum to the whole, and a low and a high end.

Memory: `requests.py` makes of the trace what a CUDA process requests from torch's allocator, `replay.py` replays it
through a simulation of that allocator (`allocator.py`, `expandable.py`), `memory.py` adds what lies outside of it.
Time: `kernels.py` has the duration of a kernel at the rates of `rates.py` or of a measured device, `time.py` simulates
the two clocks of host and device, and `spread.py` makes of it a range that measured updates were found to lie in.

No function here imports torch, reads a file or looks at this machine, so every one is tested by a trace that was
written by hand. A constant has the file of torch, the document or the measurement beside it that it comes from.
"""
