"""A model divided between two GPUs of one process by its blocks, with two microbatches in flight.

The first blocks of the recipe, and what comes before them, are on the first GPU; the others and the head are on the
second one. While the second GPU computes the second half of a microbatch, the first one computes the first half of the
next: the backward of a microbatch is deferred until the next forward has reached the boundary. Each GPU then has
forward and backward in turn in its queue, the schedule that is called 1F1B
(https://arxiv.org/abs/1806.03377), without a stream or a thread of its own. Gradients are added in the order of the
microbatches, as on one GPU.

- `split`: how many blocks are on the first GPU. A pure function of numbers.
- `crossing`: what happens where a forward crosses the boundary: inputs are copied, a deferred backward runs.
- `blocks`: the modules of each part, which have their inputs on their GPU.
- `placement`: moving a model to the two GPUs.
"""
