"""Tests of what runs on a GPU, on a simulated one: with PyTorch's CUDA build, its allocator and real values.

`make lab` runs them, in the environment of Kaggle's versions. They are no part of `make test`.
"""
