"""The examples and the guides of the documentation on a machine with a GPU."""

import copy
import os
import signal
from functools import partial

import pytest
import torch

from shoestring import pieces as p
from tests.docs import snippets
from tests.lab.commands.demand import ask_for
from tests.sessions import final_bits, session
from tests.test_examples import EXAMPLES, load_state, train_accelerate

CUDA = torch.device("cuda")


@pytest.mark.parametrize(
    ("name", "values", "stop_at"),
    [
        ("spiral", {"epochs": 1, "micro_batch": 16, "effective_batch": 200}, 12),
        ("gan", {"epochs": 1, "micro_batch": 32}, 7),
    ],
)
def test_recipes_of_the_examples_end_in_the_same_bits(name, values, stop_at, tmp_path):
    on_gpu = partial(session, str(EXAMPLES / f"{name}.py"), device=CUDA)
    values = values | {"precision": "fp16"}
    whole = on_gpu(tmp_path / "whole", values)
    assert on_gpu(tmp_path / "run", values, stop="SIGTERM", at=stop_at).status == "paused"
    assert on_gpu(tmp_path / "run", values).metrics == whole.metrics
    assert final_bits(tmp_path / "run") == final_bits(tmp_path / "whole")


def test_the_loop_with_accelerate_uses_the_gpu_and_continues(tmp_path):
    """40 updates of four microbatches; the signal comes within the eighth."""
    assert train_accelerate(tmp_path / "run", 30)[0] == 8
    assert train_accelerate(tmp_path / "run") == train_accelerate(tmp_path / "whole")
    assert torch.cuda.max_memory_allocated() > 0


POINTS = torch.randn(256, 2, generator=torch.Generator().manual_seed(0))
UPDATES = 8


class Loop:
    """The loop of `examples/own_loop.py` in fp16 on the GPU, whose loss needs a GiB for `samples_per_gib`."""

    def __init__(self, run, *, samples_per_gib, stop_at=None):
        self.store, self.samples_per_gib, self.stop_at = p.Store(run / "checkpoints"), samples_per_gib, stop_at
        self.sizes = []

    def loss(self, model, points):
        self.sizes.append(len(points))
        if len(self.sizes) == self.stop_at:
            os.kill(os.getpid(), signal.SIGTERM)
        ask_for(len(points) // self.samples_per_gib)
        return torch.nn.functional.mse_loss(model(points), points.norm(dim=1, keepdim=True))

    def train(self):
        """Return the reason of an early stop, or None."""
        order = p.DataOrder(samples=len(POINTS), effective_batch=64, seed=0)
        with p.session(None) as stop, p.deterministic():
            p.seed_all(p.derive(0, "model"))
            model = torch.nn.Sequential(torch.nn.Linear(2, 64), torch.nn.Dropout(0.1), torch.nn.Linear(64, 1)).to(CUDA)
            optimizer, fp16 = torch.optim.AdamW(model.parameters(), lr=0.01), p.mixed_precision("fp16", CUDA)
            recovering, size, update, reason = p.Recovering(model, optimizer, fp16), 64, 0, None
            if saved := self.store.load():
                model.load_state_dict(saved.state["model"])
                optimizer.load_state_dict(copy.deepcopy(saved.state["optimizer"]))
                fp16.scaler.load_state_dict(copy.deepcopy(saved.state["scaler"]))
                size, update = saved.state["size"], saved.update

            def attempt(size):
                p.seed_all(p.derive(0, "update", update))
                batches = ((POINTS[part].to(CUDA), len(part)) for part in p.split(order.indices(update), size))
                return p.update(model, optimizer, self.loss, batches, samples=64, mixed_precision=fp16)

            while update < UPDATES and not reason:
                _, size = recovering.run(attempt, size)
                update, reason = update + 1, stop.reason()
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "size": size}
            self.store.save(update, state | {"scaler": fp16.scaler.state_dict()})
            return reason


def test_an_own_loop_survives_out_of_memory_and_continues(tmp_path):
    """A T4 has memory for 8 GiB, and not for 16."""
    loop = partial(Loop, samples_per_gib=4)
    whole = loop(tmp_path / "whole")
    whole.train()
    assert whole.sizes[0] == 64 and set(whole.sizes[1:]) == {32}
    assert loop(tmp_path / "run", stop_at=6).train()
    assert load_state(tmp_path / "run")[0] < UPDATES
    assert not loop(tmp_path / "run").train()
    assert load_state(tmp_path / "run") == load_state(tmp_path / "whole")


PAGES = (
    "guides/recipe",
    "guides/lightning",
    "guides/own_loop",
    "guides/finetune",
    "reference/index",
)
"""Those that need one GPU."""


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in PAGES if any(b.is_executed for b in snippets.page_blocks(page))])
def test_commands_of_a_page_run_on_a_machine_with_a_gpu(page, tmp_path):
    (tmp_path / "page").mkdir()
    snippets.execute(page, tmp_path / "page")
