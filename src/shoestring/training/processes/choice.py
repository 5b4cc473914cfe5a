"""The strategy of the processes of a session."""

from shoestring.base.settings import Settings
from shoestring.training.engine.parallel.fully_sharded import is_fully_sharded
from shoestring.training.engine.parallel.ranks import ONE_RANK, Ranks
from shoestring.training.processes.divided_weights import DividedWeights
from shoestring.training.processes.one_process import ONE_PROCESS, Processes
from shoestring.training.processes.replicas import Replicas


def choose_processes(ranks: Ranks, settings: Settings) -> Processes:
    """Return the strategy of a process that trains with these settings as one of `ranks`."""
    if ranks == ONE_RANK:
        return ONE_PROCESS
    if is_fully_sharded(settings, ranks):
        assert settings.sharding is not None
        return DividedWeights(ranks, settings.sharding)
    return Replicas(ranks)
