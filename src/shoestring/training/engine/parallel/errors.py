"""The errors of a process that others do not follow, or cannot follow any more: it can only end."""

from shoestring.base.errors import Interruption
from shoestring.training.engine.memory import Failure
from shoestring.training.engine.parallel.rank_channel import OUT_OF_MEMORY_STATUS, PEER_LOST_STATUS


class PeerLostError(Interruption):
    """Another rank has ended. This one can only end too: nothing of the update can be completed."""

    status = PEER_LOST_STATUS
    """The exit status of this process."""


class RanksApartError(PeerLostError):
    """This rank has run out of memory while others wait in a collective: all have to start again with less memory."""

    status = OUT_OF_MEMORY_STATUS

    def __init__(self, failure: Failure, *, on_all_ranks: bool) -> None:
        super().__init__(f"out of memory, while another process waits: {failure.message}")
        self.failure = failure
        self.on_all_ranks = on_all_ranks
        """Whether all ranks know of it, and raise this error."""
