"""How the samples of an update are divided among GPUs and logical shards."""

from shoestring.base.settings import Settings

SHARDED_STATES = ("zero1", "zero2", "zero3")
"""The values of `sharding` under which each GPU has a share of the optimizer's states."""


def shards_per_gpu(settings: Settings) -> int:
    """Return how many logical shards a GPU computes one after the other."""
    return (settings.logical_shards or settings.processes) // settings.processes


def samples_per_shard(effective_batch: int, settings: Settings) -> int:
    """Return the samples of the largest logical shard, which no microbatch exceeds."""
    return -(-effective_batch // (settings.logical_shards or settings.processes))


def samples_per_gpu(effective_batch: int, settings: Settings) -> int:
    """Return the samples of an update on the GPU that has most of them."""
    return shards_per_gpu(settings) * samples_per_shard(effective_batch, settings)


def states_shares(settings: Settings) -> int:
    """Return how many GPUs divide the optimizer's states among them."""
    return settings.processes if settings.sharding in SHARDED_STATES else 1
