"""Which samples an update has, and how they reach the device.

In go a recipe's `data()` and the number of an update; out come its microbatches on the device, and for evaluation the
batches from the first sample to the last.

The samples of an update are a function of seed, epoch and effective batch (`order.py`), and its random numbers one of
the seed and its number (`seeding.py`). The number of workers, the microbatch, prefetching, staging and the number of
GPUs change when a sample is loaded, never which one it is or what is drawn for it: so there is no state of a sampler or
a generator to save, and a repeated update sees the same data.
"""
