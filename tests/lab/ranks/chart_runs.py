"""Sessions of the recipe chart in the ranks of the driver, and their memory."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import torch

from shoestring.recipe.finding import choose
from shoestring.training.session.deadline import Deadline
from tests.sessions import run_session

LONGEST = 300
"""The tokens of the longest prompt, `prompt_len`."""
REWARDS_OF_AN_UPDATE = 4
"""On each of two ranks."""


class OnHost:
    """Stands in for a kernel of Triton, which a simulated GPU has not: it computes `function` on the host."""

    def __init__(self, function):
        self._function = function

    def __getitem__(self, _):
        return self._run

    def _run(self, *arguments, **flags):
        copies = [value.cpu() if isinstance(value, torch.Tensor) else value for value in arguments]
        self._function(*copies, **flags)
        for value, copy in zip(arguments, copies, strict=True):
            if isinstance(value, torch.Tensor):
                value.copy_(copy)


def use_kernels_of_triton():
    """Let TRL compute log-probabilities as on a GPU with Triton: of the completions alone, without temporaries."""
    from trl.kernels import chunked_logprob
    from trl.trainer import utils

    chunked_logprob._forward_kernel = OnHost(chunked_logprob._forward_tile)
    chunked_logprob._backward_kernel = OnHost(chunked_logprob._backward_tile)
    chunked_logprob._use_triton = utils._use_triton = lambda _: True
    chunked_logprob.triton = SimpleNamespace(cdiv=lambda *_: 1)


def train_measured(device, run, values, killed_in=0):
    """Run a session of a few charts, and return the peaks of this rank's memory in bytes.

    The last rank is killed in a call of the reward, if `killed_in` is its number.
    """
    from shoestring_recipes.chart.lengths import prompt_lengths
    from shoestring_recipes.chart.options import IMAGE_TOKENS
    from tests.recipes.chart.test_divided import Four

    class Different(Four):
        """Prompts of different lengths: a microbatch without padding would be computed by another kernel."""

        def data(self):
            charts = super(Four, self).data()["train"]
            lengths = prompt_lengths(charts, self._load_tokenizer(charts), IMAGE_TOKENS["tiny"])
            rows = {length: row for length, row in zip(lengths, charts.rows, strict=True) if length <= LONGEST}
            return {"train": replace(charts, rows=[rows[length] for length in sorted(rows)[-4:]])}

    use_kernels_of_triton()
    Four.killed_in = killed_in if device.index else 0
    loaded, settings = choose(Different(), values)
    update = run_session(loaded, settings, Path(run), Deadline(None), device=device).update
    return {
        "update": update,
        "allocated": torch.cuda.max_memory_allocated(device),
        "reserved": torch.cuda.max_memory_reserved(device),
    }
