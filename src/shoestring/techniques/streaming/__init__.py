"""Frozen blocks streamed from host memory: fine-tuning of a model whose frozen weights are larger than the device.

As many of the recipe's blocks as fit are resident on the device. The frozen weights of the others are in host memory
and are copied to the device ahead of each use, into *slots*: memory that is allocated once, so nothing fragments. What
is trained never moves, and frozen weights need no way back. The bits of training are those of resident blocks.

- `schedule`: which blocks are streamed, and which copies a use of a block starts. Pure functions of numbers.
- `tensors`: which tensors of a block are streamed, and how a module is given other ones of the same kind.
- `host_weights`: the streamed tensors of a block in one buffer in host memory.
- `slots`: the memory on the device, and the copies to it.
- `stream`: what happens before and after the forward and the backward of a block.
- `placement`: moving a model to the device, block by block.
"""
