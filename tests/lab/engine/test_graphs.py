"""Training with CUDA graphs gives the bits of training without, and the graphs are replayed."""

import itertools
from dataclasses import dataclass

import pytest
import torch

from shoestring.base.errors import RunError, UsageError
from shoestring.training.engine import cuda_graphs
from tests.lab.engine.networks import NETWORKS, Classifier
from tests.lab.engine.trained import assert_same_bits, train
from tests.sessions import ActingAtLoss

EPOCHS = 3


@dataclass
class Counts:
    pools: int = 0
    captures: int = 0
    replays: int = 0


@pytest.fixture
def counts(monkeypatch):
    """How many pools, captures and replays there were."""
    counts, new_capture = Counts(), cuda_graphs.cuda_capture

    def counting_capture():
        counts.pools += 1
        capture = new_capture()

        def count_capture(work):
            result, replay = capture(work)
            counts.captures += 1

            def count_replay():
                counts.replays += 1
                replay()

            return result, count_replay

        return count_capture

    monkeypatch.setattr(cuda_graphs, "cuda_capture", counting_capture)
    return counts


def on_both(folder, recipe, values, **options):
    """Train with and without graphs, compare the bits, and return the result."""
    eager = train(folder / "eager", recipe, {"epochs": EPOCHS, **values}, **options)
    graphs = train(folder / "graphs", recipe, {"epochs": EPOCHS, "compile": "graphs", **values}, **options)
    assert graphs.updates == eager.updates and len(graphs.updates) == 3 * EPOCHS
    assert graphs.state["environment"].pop("compile") == "graphs"
    assert not eager.state["environment"].pop("compile")
    assert_same_bits(graphs, eager)
    return graphs


KINDS = {8: (2, 9), 4: (4, 18), 2: (4, 33)}
"""By microbatch, how many kinds of them there are in the updates of 8, 8 and 6 samples of an epoch, each of which runs
once without a graph, and the number of all microbatches. With 4 these are (4, 4), (4, 4) and (4, 2), where the first of
an update and those of an update of another size are of other kinds."""
SHORT = [("dense", 2, "fp32"), ("convolutional", 4, "fp16"), ("recurrent", 2, "fp16"), ("attending", 2, "fp32")]
"""With three or more microbatches the graph of the later ones is captured before that of the first one."""
CASES = [
    pytest.param(*case, marks=[] if case in SHORT else pytest.mark.slow)
    for case in itertools.product(NETWORKS, KINDS, ("fp32", "fp16"))
]


@pytest.mark.parametrize(("network", "micro_batch", "precision"), CASES)
def test_graphs_have_the_bits_of_eager_training(tmp_path, counts, network, micro_batch, precision):
    """With dropout, an evaluation after each epoch, and averaged weights for it."""
    values = {"micro_batch": micro_batch, "precision": precision, "ema": 0.5}
    graphs = on_both(tmp_path, Classifier(network=network, share=0.3), values)
    kinds, microbatches = KINDS[micro_batch]
    overflows = sum(update["skipped"] for update in graphs.updates)
    assert (counts.pools, counts.captures) == (1, kinds)
    assert counts.replays >= microbatches - kinds and (overflows or counts.replays == microbatches - kinds)


def test_graphs_work_while_other_threads_copy_and_save(tmp_path, counts):
    """Captures and replays with worker processes, whose batches a thread pins, and a checkpoint after each update."""
    values = {"workers": 2, "save_every_updates": 1, "optimizer_kernel": "fused", "memory_format": "channels_last"}
    on_both(tmp_path, Classifier(network="convolutional", share=0.3), values)
    assert counts.captures == 4


def test_a_stopped_run_continues_with_graphs_in_the_same_bits(tmp_path, counts):
    values = {"compile": "graphs", "precision": "fp16", "epochs": EPOCHS}
    recipe = Classifier(network="attending", share=0.3)
    straight = train(tmp_path / "straight", recipe, values)
    # Losses are computed in captures and without graphs; replays do not call them.
    train(tmp_path / "stopped", recipe, values, stop="limit", at=5, status="paused")
    assert_same_bits(train(tmp_path / "stopped", recipe, values), straight)
    assert counts.pools == 3


def exhaust():
    """Ask for more memory than the GPU has."""
    torch.empty(20 * 2**30, dtype=torch.uint8, device="cuda")


class Replacing(Classifier):
    """Its evaluation replaces the memory of a weight, as one that computes with other weights may."""

    def evaluate(self, model, batches):
        list(batches)
        model.outer.weight.data = model.outer.weight.data.clone()
        return {"loss": 1.0}


def test_weights_that_an_evaluation_has_replaced_are_captured_anew(tmp_path, counts):
    on_both(tmp_path, Replacing(network="dense", share=0.3), {"micro_batch": 8})
    assert counts.pools > 1


def test_further_kinds_of_microbatches_run_without_graphs(tmp_path, counts, monkeypatch):
    monkeypatch.setattr(cuda_graphs, "MAX_GRAPHS", 1)
    on_both(tmp_path, Classifier(network="dense", share=0.3), {"micro_batch": 2})
    assert (counts.pools, counts.captures) == (1, 1)


def test_a_step_that_does_not_fit_ends_the_graphs(tmp_path, counts):
    """The run returns to its checkpoint, and captures again."""
    steps = []

    def optimizer(model):
        built = torch.optim.AdamW(model.parameters(), lr=0.01)
        built.register_step_pre_hook(lambda *_: exhaust() if steps.append(1) or len(steps) == 5 else None)
        return built

    failed = train(
        tmp_path, Classifier(network="dense", optimizer=optimizer), {"micro_batch": 8, "epochs": 3, "compile": "graphs"}
    )
    plain = train(tmp_path / "plain", Classifier(network="dense"), {"micro_batch": 8, "epochs": 3})
    assert [event["during"] for event in failed.of_kind("oom")] == ["optimizer step"] and counts.pools == 2
    failed.evaluations = list(dict.fromkeys(failed.evaluations))  # the epoch that had just ended is evaluated again
    assert_same_bits(failed, plain, state=False)


@pytest.mark.parametrize("at", [1, 3])
def test_recovery_from_out_of_memory_without_a_graph_and_in_a_capture(tmp_path, counts, at):
    """In the first update and in the second one, which captures. Without graphs the same loss is of the same update."""
    recipe = Classifier(network="dense", share=0.3)
    graphs = on_both(tmp_path, recipe, {}, wrap=lambda recipe: ActingAtLoss(recipe, at, exhaust))
    assert [event["done"] for event in graphs.of_kind("oom")] == ["microbatch 2"]
    assert counts.pools == 2 and counts.captures == 4
    assert torch.cuda.current_stream() == torch.cuda.default_stream()


def test_work_that_waits_for_the_gpu_is_refused(tmp_path):
    class Waiting(Classifier):
        def loss(self, model, batch):
            loss = super().loss(model, batch)
            loss.item()
            return loss

    with pytest.raises(RunError, match="cannot be captured") as raised:
        train(tmp_path, Waiting(network="dense"), {"compile": "graphs"})
    assert "compile=no" in raised.value.hint
    assert torch.cuda.current_stream() == torch.cuda.default_stream()
    assert torch.isfinite(torch.randn(8, device="cuda")).all()


def test_draws_on_the_host_are_refused(tmp_path):
    class Drawing(Classifier):
        def loss(self, model, batch):
            return super().loss(model, batch) * torch.rand(()).item()

    with pytest.raises(UsageError, match="draws random numbers on the host"):
        train(tmp_path, Drawing(network="dense"), {"compile": "graphs"})


NO_MEMORY_TO_BEGIN = """
import contextlib, ctypes, gc, torch
from shoestring.training.engine import cuda_graphs

fail_at = ctypes.CDLL(f"libcudart.so.{torch.version.cuda.split('.')[0]}").simulator_fail_at
fail_at.argtypes = [ctypes.c_uint64, ctypes.c_uint64]
numbers, small = torch.ones(8, device="cuda"), []
capture = cuda_graphs.cuda_capture()
fail_at(1, 10**6)
with contextlib.suppress(torch.OutOfMemoryError):
    while True:  # until no segment has space for another tensor
        small.append(torch.ones(1, device="cuda"))
try:
    capture(lambda: numbers + torch.rand(8, device="cuda"))
except torch.OutOfMemoryError:
    print("out of memory")
fail_at(0, 0)
del small
gc.collect()
result, replay = cuda_graphs.cuda_capture()(lambda: numbers + torch.rand(8, device="cuda"))
replay()
assert torch.cuda.current_stream() == torch.cuda.default_stream()
assert ((result >= 1) & (result < 2)).all() and result.unique().numel() > 1
print("captured")
"""


def test_a_capture_that_does_not_begin_leaves_the_gpu_as_it_was(run_simulated):
    """torch has no memory for the state of the random generator in the graph, neither at first nor to undo that.

    In a process of its own, in which the generator has no such state.
    """
    assert run_simulated(NO_MEMORY_TO_BEGIN, on="kaggle-t4", values="all").lines == ["out of memory", "captured"]
