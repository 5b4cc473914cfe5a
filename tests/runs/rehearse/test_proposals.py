"""What is proposed for an out-of-memory error, by what held the memory."""

from shoestring.base.units import GIB
from shoestring.runs.rehearse.proposals import proposals
from shoestring.runs.rehearse.rehearsal import Frame, Holder, OutOfMemory

FRAME = Frame(file="./train.py", line=3, function="main")


def error(*, update=1, phase="training", allocated=14, reserved=14, requested=1):
    sizes = {"allocated_bytes": allocated * GIB, "reserved_bytes": reserved * GIB, "requested_bytes": requested * GIB}
    return OutOfMemory(device=0, update=update, phase=phase, free_bytes=0, stack=(), **sizes)


def holder(kind, size):
    return Holder(bytes=size * GIB, count=1, kind=kind, frame=FRAME)


def texts(failure, *holders):
    return proposals(failure, holders, 15 * GIB)


def test_activations_are_checkpointed_or_halved():
    first, second = texts(error(), holder("weights", 1))
    assert "activation checkpointing" in first and "13.00 GiB" in first
    assert "a microbatch of half the size" in second


def test_optimizer_states_come_before_few_activations():
    first, second, *_ = texts(error(), holder("weights", 3), holder("gradients", 3), holder("optimizer states", 7))
    assert "LoRA" in first and "10.00 GiB" in first
    assert "8-bit states" in second


def test_error_after_updates_that_fitted_is_told_as_one_of_longer_samples():
    assert "160 updates fitted before this one" in texts(error(update=161))[0]
    assert not any("fitted before" in text for text in texts(error(update=2)))


def test_fragmented_memory_is_told_only_if_it_would_be_enough():
    assert any("expandable_segments" in text for text in texts(error(allocated=10, reserved=14, requested=2)))
    assert not any("expandable_segments" in text for text in texts(error(allocated=13, reserved=14, requested=2)))


def test_evaluation_and_generation_are_made_smaller_themselves():
    assert "evaluation batch" in texts(error(phase="evaluation"))[0]
    assert "shorter generations" in texts(error(phase="generation"))[0]
