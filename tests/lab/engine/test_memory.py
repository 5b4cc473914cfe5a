"""What is read of a GPU's memory, and updates that need more of it than there is."""

import json

import pytest
import torch

from shoestring.base.errors import RunError
from shoestring.training.engine.memory import alloc_retries, free_unused_memory, no_memory_error
from shoestring.training.monitor.sampling import sample
from tests.lab.engine.networks import Classifier
from tests.lab.engine.trained import CUDA, assert_same_bits, train
from tests.sessions import ActingAtLoss

GIB = 2**30


def allocate(size):
    """Return memory of the GPU that nobody touches, so that it takes none of the host's."""
    return torch.empty(size, dtype=torch.uint8, device=CUDA)


def test_a_sample_has_the_numbers_of_the_allocator_and_of_the_driver():
    before = sample()
    tensor = allocate(3 * GIB)
    during = sample()
    del tensor
    after = sample()
    assert during.gpu_allocated_bytes == before.gpu_allocated_bytes + 3 * GIB == during.gpu_peak_allocated_bytes
    assert after.gpu_allocated_bytes == before.gpu_allocated_bytes
    assert after.gpu_reserved_bytes == after.gpu_peak_reserved_bytes == before.gpu_reserved_bytes + 3 * GIB
    assert during.gpu_utilisation is not None and 0 <= during.gpu_utilisation <= 1
    assert during.gpu_watts is not None and during.gpu_facts().keys() == {
        "gpu_allocated_bytes",
        "gpu_utilisation",
        "gpu_watts",
    }
    free_unused_memory()
    assert sample().gpu_reserved_bytes == before.gpu_reserved_bytes
    assert before.rss_bytes and after.rss_bytes < before.rss_bytes + GIB


def test_an_error_describes_the_memory_of_the_gpu():
    problems = no_memory_error("testing", "CUDA out of memory").problems
    assert any(problem.startswith("the GPU has 14.56 GiB: ") and "reserved by torch" in problem for problem in problems)


def test_a_run_tells_that_the_allocator_had_to_empty_its_cache(tmp_path):
    def retry():
        allocate(10 * GIB)  # it stays in the cache, which leaves too little for the next one
        allocate(12 * GIB)

    before = alloc_retries()
    wrap = lambda recipe: ActingAtLoss(recipe, 3, retry)  # noqa: E731
    trained = train(tmp_path, Classifier(network="dense"), {}, wrap=wrap)
    assert alloc_retries() == before + 1
    notes = [event["message"] for event in trained.of_kind("note")]
    assert any(note.startswith("GPU memory is nearly full") for note in notes)
    assert not trained.of_kind("oom")


class Hungry(torch.autograd.Function):
    """Returns its input, and needs memory in the forward pass until backward, or for a moment in backward."""

    @staticmethod
    def forward(ctx, values, forward_bytes, backward_bytes):
        ctx.backward_bytes = backward_bytes
        ctx.save_for_backward(allocate(forward_bytes))
        return values.clone()

    @staticmethod
    def backward(ctx, gradient):
        allocate(ctx.backward_bytes)
        return gradient, None, None


class Exhausting(Classifier):
    """Needs 5 GiB for each sample, so that two fit, in one phase of an update or in evaluations."""

    def __init__(self, phase, **fields):
        super().__init__(network="dense", share=0.3, **fields)
        self.phase = phase

    def loss(self, model, batch):
        size, in_training = 5 * GIB * len(batch[0]), torch.is_grad_enabled()
        model.hungry = Hungry.apply
        if self.phase == "evaluation" and not in_training:
            allocate(size)
        forward = size if self.phase == "forward" and in_training else 0
        backward = size if self.phase == "backward" else 0
        inputs = batch[0].requires_grad_() if in_training else batch[0]
        return super().loss(model, [Hungry.apply(inputs, forward, backward), batch[1]])


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.parametrize("phase", ["forward", "backward"])
def test_an_update_that_does_not_fit_has_the_bits_of_smaller_microbatches(tmp_path, phase, precision):
    halved = train(tmp_path / "halved", Exhausting(phase), {"micro_batch": 8, "precision": precision})
    smaller = train(tmp_path / "smaller", Exhausting(phase), {"micro_batch": 2, "precision": precision})
    assert [event["done"] for event in halved.of_kind("oom")] == ["microbatch 4", "microbatch 2"]
    assert not smaller.of_kind("oom")
    assert halved.updates == smaller.updates
    assert_same_bits(halved, smaller, state=False)


def test_an_evaluation_that_does_not_fit_has_smaller_batches(tmp_path):
    halved = train(tmp_path / "halved", Exhausting("evaluation"), {"micro_batch": 8})
    plain = train(tmp_path / "plain", Exhausting(""), {"micro_batch": 8})
    assert {event["during"] for event in halved.of_kind("oom")} == {"evaluation"}
    assert halved.updates == plain.updates
    assert halved.evaluations == pytest.approx(plain.evaluations, rel=1e-6)


def test_a_step_that_does_not_fit_returns_to_a_checkpoint(tmp_path):
    """The optimizer then updates one tensor at a time, to the same bits."""
    steps = []

    def optimizer(model):
        built = torch.optim.AdamW(model.parameters(), lr=0.01)

        def count(*_):
            steps.append(1)
            if len(steps) == 3:
                allocate(20 * GIB)

        built.register_step_pre_hook(count)
        return built

    failed = train(tmp_path / "failed", Classifier(network="dense", share=0.3, optimizer=optimizer), {})
    plain = train(tmp_path / "plain", Classifier(network="dense", share=0.3, optimizer=optimizer), {})
    (event,) = failed.of_kind("oom")
    assert (event["during"], event["done"]) == ("optimizer step", "the optimizer updates one tensor at a time")
    assert_same_bits(failed, plain, state=False)


def test_a_run_that_cannot_fit_ends_with_what_takes_the_memory(tmp_path):
    class Impossible(Classifier):
        def loss(self, model, batch):
            allocate(20 * GIB)
            return super().loss(model, batch)

    with pytest.raises(RunError, match="out of memory with the smallest microbatch") as raised:
        train(tmp_path, Impossible(network="attending"), {})
    assert any(
        problem.startswith("the GPU has 14.56 GiB, of which torch reserved") for problem in raised.value.problems
    )
    assert "a GPU with more memory: the next larger one is" in raised.value.hint
    events = map(json.loads, (tmp_path / "events.jsonl").read_text().splitlines())
    done = [event["done"] for event in events if event["event"] == "oom"]
    assert done == ["microbatch 2", "microbatch 1", "the activations of all 3 blocks are recomputed in backward"]


def test_segments_become_expandable_after_torch_was_imported(run_simulated):
    """What is allocated from then on is in an expandable segment."""
    code = """
    import torch
    from shoestring.techniques import expandable_segments
    before = torch.empty(2**22, device="cuda")
    print(expandable_segments.enable())
    after = torch.empty(2**25, device="cuda")
    segments = torch.cuda.memory_snapshot()
    print(sorted((segment["total_size"] >= after.nbytes, segment["is_expandable"]) for segment in segments))
    """
    assert run_simulated(code, values="auto").lines == ["True", "[(False, False), (True, True)]"]
