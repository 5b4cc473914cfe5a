"""Warnings of libraries that tell a user of Shoestring nothing."""

import logging


def quiet_bitsandbytes() -> None:
    """Let bitsandbytes not warn at each import that it has no kernel from the hub, as it does on CPUs with AVX512-BF16.

    It is one that computes with 4-bit weights on a CPU; without it, bitsandbytes does so with its own code.
    """
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
