"""A simulated GPU: the unmodified CUDA build of PyTorch on a machine without one.

In goes a build of PyTorch that a person has installed (`torch_builds.py`) and a target; out come the libraries in place
of CUDA's for that build (`build.py`) and the environment of a process that uses them (`environment.py`). PyTorch's own
allocator, streams, autocast and collectives run as on a GPU; kernels do nothing, and where values are asked for, each
operator is computed on CPU tensors that alias the simulated device's memory.

`native` has the libraries, in C++, compiled on first use; `inside` is loaded into the simulated process and observes
its updates, phases and errors; what both write is read by `statistics.py`, `recorded.py` and `ledger.py`. Only
`conversion.py` imports torch, for the time of what ran, and nothing is compiled unless a rehearsal asks for it. What a
rehearsal is, `runs/rehearse` says.
"""
