"""A plan streams as few blocks as make an update fit, from host memory or the disk, and only where that is possible."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from shoestring.base.settings import Settings
from shoestring.base.units import GIB, MIB
from shoestring.hardware import targets
from shoestring.hardware.catalog import Target
from shoestring.planning.candidates import Candidate
from shoestring.planning.estimate.streaming import saved_bytes
from shoestring.planning.plan import Plan
from shoestring.planning.planner import plan_with
from shoestring.planning.search import rank
from shoestring.planning.streamed import candidates_with_streaming, streaming_notes
from shoestring.planning.trace import Tracer
from shoestring.planning.trace.record import BlockUse
from shoestring.recipe.finding import choose
from shoestring.recipe.parts import Parts
from tests.planning.fake_candidates import T4, FakeCandidates
from tests.sessions import session
from tests.training.engine.test_techniques import Blocks, training_result

WIDTH = 1024
BLOCKS, BLOCK = 32, GIB // 2
ONE = Settings(gpus=1, logical_shards=1, sharding="ddp", precision="fp16", checkpointing="full")
TWO = ONE.replace(gpus=2, logical_shards=2)
DIVIDED = ONE.replace(gpus=2, sharding="pipeline")


class Streamable(FakeCandidates):
    """Candidates with 32 blocks of half a GiB, of which streamed ones save memory and take time to copy."""

    def __init__(
        self, *, floor: float = 0.0, per_sample: float = 0.25, target: Target = T4, waits: float = 0.0
    ) -> None:
        def bytes_of(settings: Settings) -> int:
            saved = saved_bytes((BLOCK,) * BLOCKS, settings.streamed_blocks or 0)
            parts = 2 if settings.is_pipeline else 1  # and as many microbatches in flight
            activations = parts * per_sample * (settings.micro_batch or 1)
            return round((floor + activations) * GIB) + (BLOCKS * BLOCK - saved) // parts

        super().__init__(bytes_of=bytes_of, seconds=lambda _: 1.0, target=target, blocks=BLOCKS)
        self.loaded.options = {}
        self.waits = waits

    def evaluate(self, settings: Settings) -> Candidate:
        candidate = super().evaluate(settings)
        facts = SimpleNamespace(process_bytes=GIB, weight_bytes=0, frozen_bytes=0, export_bytes={})
        batch = SimpleNamespace(name="activations", bytes=GIB // 4 * (settings.micro_batch or 1))
        high, capacity = candidate.memory.high_bytes, self.target.device.memory_bytes
        trace = replace(candidate.trace, block_bytes=(BLOCK,) * BLOCKS, facts=facts)
        if settings.is_pipeline:
            half = replace(trace, block_bytes=(BLOCK,) * (BLOCKS // 2))
            trace = replace(half, second=half)
        return replace(
            candidate,
            trace=trace,
            memory=SimpleNamespace(
                fits=high <= capacity, peak_bytes=high, high_bytes=high, capacity_bytes=capacity, parts=(batch,)
            ),
            time=SimpleNamespace(value=1.0, parts={"streaming": self.waits}),
        )

    def seconds_at(self, candidate: Candidate, micro_batch: int, **changes: Any) -> float:
        """A larger microbatch is faster, up to one of 8."""
        return 1 / min(8, micro_batch) + (changes.get("streamed_blocks") or 0) / 1000


def streamed(candidates: Streamable, *layouts: Settings, divided: Settings | None = None) -> list[Settings]:
    resident = candidates.evaluate((layouts[0]).replace(micro_batch=1))
    choices = candidates_with_streaming(candidates, layouts, [resident], divided)
    return [item.settings for item in choices if item.memory.fits]


def settings_of(choices: list[Settings]) -> tuple[int | None, int | None, int | None, str | None]:
    (settings,) = choices
    return settings.micro_batch, settings.streamed_blocks, settings.gpus, settings.stream_from


def test_as_few_blocks_as_make_the_fastest_microbatch_fit() -> None:
    # 16 GiB of blocks and 2 of 8 samples are 3.44 GiB more than there are: 7 blocks, and 2 that are in slots.
    assert settings_of(streamed(Streamable(), ONE)) == (8, 9, 1, None)


def test_the_microbatch_is_smaller_if_all_blocks_do_not_make_room_for_more() -> None:
    assert settings_of(streamed(Streamable(floor=12.5), ONE)) == (4, 32, 1, None)


def test_a_wrong_prediction_is_corrected() -> None:
    """Memory that does not follow from the trace needs more blocks; where copies take time, fewer are tried."""
    candidates = Streamable(waits=0.5)
    plain = candidates.bytes_of
    candidates.bytes_of = lambda settings: plain(settings) + (settings.streamed_blocks is not None) * 3 * GIB
    counts = [settings.streamed_blocks for settings in streamed(candidates, ONE)]
    assert counts[0] == 15 and {settings.streamed_blocks for settings in candidates.evaluated} >= {9, 15, None}


@pytest.mark.parametrize(
    "changes",
    [
        {"streamed_blocks": 0},
        {"offload": "parameters"},
        {"compile": "yes"},
    ],
    ids=str,
)
def test_settings_that_forbid_it(changes: dict[str, Any]) -> None:
    assert streamed(Streamable(), ONE) and not streamed(Streamable(), ONE.replace(**changes))


def test_no_block_is_streamed_if_an_update_fits_without_or_each_token_would_copy_all() -> None:
    assert not streamed(Streamable(floor=-8), ONE)
    candidates = Streamable()
    learning = replace(candidates.loaded.parts.learning, rollout=lambda *_: None)
    candidates.loaded.parts = replace(Parts(), learning=learning)
    assert not streamed(candidates, ONE)


def test_each_gpu_has_its_own_copy_in_host_memory() -> None:
    def target(ram: float) -> Target:
        return targets.with_limits(targets.find("kaggle-t4x2"), ram_bytes=round(ram * GIB))

    # 8 blocks and 4 samples; 4.5 GiB for each process, which itself has 1.
    assert settings_of(streamed(Streamable(target=target(16)), TWO, ONE))[2] == 2
    assert settings_of(streamed(Streamable(target=target(8)), TWO, ONE))[2:] == (1, None)
    choices = streamed(Streamable(target=target(4)), TWO, ONE)
    assert {settings.stream_from for settings in choices} == {"disk"}
    too_small = targets.with_limits(target(4), disk_bytes=2 * GIB)
    assert {settings.stream_from for settings in streamed(Streamable(target=too_small), TWO, ONE)} == {None}


def test_a_host_that_is_too_small_for_whole_models_has_room_for_the_blocks_of_a_divided_one() -> None:
    def target(ram: float) -> Target:
        return targets.with_limits(targets.find("kaggle-t4x2"), ram_bytes=round(ram * GIB))

    def layouts(ram: float) -> list[tuple[Any, ...]]:
        choices = streamed(Streamable(floor=6, target=target(ram)), TWO, ONE, divided=DIVIDED)
        return [(item.sharding, item.streamed_blocks, item.stream_from) for item in choices]

    # 21 blocks, 10.5 GiB, are streamed with a whole model; of a divided one 16, and each GPU keeps 8 others.
    assert layouts(32)[0][:2] == ("ddp", 21)
    assert layouts(10) == [("pipeline", 16, None)]
    assert {source for _, _, source in layouts(6)} == {"disk"}


def test_the_microbatch_of_blocks_from_the_disk_is_chosen_at_the_rate_of_the_disk() -> None:
    """From host memory copies are hidden in each microbatch; from the disk a larger one copies less for each sample."""

    class Slow(Streamable):
        def seconds_at(self, candidate: Candidate, micro_batch: int, **changes: Any) -> float:
            from_disk = candidate.settings.stream_from == "disk"
            return 1 + (changes.get("streamed_blocks") or 0) / micro_batch if from_disk else 1.0

    def chosen(ram: float) -> tuple[int | None, int | None, int | None, str | None]:
        target = targets.with_limits(targets.find("kaggle-t4"), ram_bytes=round(ram * GIB))
        return settings_of(streamed(Slow(target=target), ONE)[-1:])

    assert chosen(16) == (1, 6, 1, None)
    # 32 samples need 21 blocks, 22 need 16: 4% slower for each, which is not worth more memory.
    assert chosen(3) == (22, 16, 1, "disk")


class Waiting(Streamable):
    """The device waits 10 ms for each copy of a block, and has the inputs of all microbatches that use a copy."""

    def __init__(self, *, inputs: float = 2.0, random: bool = False, seconds: float = 0.01, **values: Any) -> None:
        super().__init__(**values)
        of_microbatch = self.bytes_of
        self.inputs, self.random, self.copy_seconds = round(inputs * GIB), random, seconds
        self.bytes_of = lambda settings: of_microbatch(settings) + self.inputs_of(settings)

    def inputs_of(self, settings: Settings) -> int:
        if settings.stream_order != "block":
            return 0
        samples = self.loaded.effective_batch
        return self.inputs * min(samples, (settings.stream_group or samples) * (settings.micro_batch or 1)) // samples

    def evaluate(self, settings: Settings) -> Candidate:
        candidate = super().evaluate(settings)
        waiting = self.waiting(settings)
        return replace(
            candidate,
            trace=replace(
                candidate.trace,
                draws_random=self.random,
                microbatches=1 if settings.micro_batch == self.loaded.effective_batch else 2,
                block_uses=tuple(BlockUse(block, block, block + 1) for block in range(BLOCKS)),
            ),
            time=SimpleNamespace(value=1 + waiting, parts={"streaming": waiting}),
        )

    def waiting(self, settings: Settings) -> float:
        microbatches = -(-self.loaded.effective_batch // (settings.micro_batch or 1))
        copies = microbatches / (settings.gpus or 1)
        if settings.stream_order == "block":
            copies = -(-microbatches // (settings.stream_group or microbatches))
        return self.copy_seconds * (settings.streamed_blocks or 0) * copies

    def seconds_at(self, candidate: Candidate, micro_batch: int, **changes: Any) -> float:
        return 1 + self.waiting(candidate.settings.replace(micro_batch=micro_batch, **changes))

    def memory_in_block_order(self, candidate: Candidate, group: int | None) -> Any:
        memory, changes = candidate.memory, {"stream_order": "block", "stream_group": group, "streamed_blocks": BLOCKS}
        inputs = self.inputs_of(candidate.settings.replace(**changes))
        return SimpleNamespace(peak_bytes=memory.peak_bytes + inputs, high_bytes=memory.high_bytes + inputs)


def fastest(candidates: Streamable, *layouts: Settings) -> Settings:
    resident = candidates.evaluate(layouts[0].replace(micro_batch=layouts[0].micro_batch or 1))
    return min(candidates_with_streaming(candidates, layouts, [resident]), key=rank).settings


def order_of(settings: Settings) -> tuple[int | None, int | None, str | None]:
    return settings.micro_batch, settings.streamed_blocks, settings.stream_order


def test_where_the_gpu_waits_all_microbatches_of_an_update_use_each_copy() -> None:
    # In the usual order 3 microbatches of 22 copy 16 blocks each, which takes 0.48 s.
    usual = ONE.replace(stream_order="microbatch")
    assert order_of(fastest(Waiting(), usual)) == (22, 16, "microbatch")
    # In the other one an update copies as many blocks for each microbatch, and the fewest for the smallest: 10.
    assert order_of(fastest(Waiting(), ONE)) == (1, 10, "block")
    # Without the memory for the inputs of two microbatches there is no trace in that order.
    candidates = Waiting(inputs=20 * 32)
    assert order_of(fastest(candidates, ONE)) == (22, 16, None)
    assert {settings.stream_order for settings in candidates.evaluated} == {None}


@pytest.mark.parametrize(("inputs", "group", "blocks"), [(13, None, 32), (26, 16, 32), (27, 11, 25), (40, 8, 26)])
def test_the_largest_groups_whose_inputs_fit_use_each_copy(inputs: int, group: int | None, blocks: int) -> None:
    """Of 32 microbatches. With all blocks streamed there are 13.06 GiB for the inputs."""
    pairs = ONE.replace(micro_batch=2)
    settings = fastest(Waiting(inputs=inputs), pairs)
    assert (settings.stream_group, *order_of(settings)) == (group, 2, blocks, "block")
    # With a given number of blocks too.
    assert fastest(Waiting(inputs=inputs), pairs.replace(streamed_blocks=32)).stream_group == group


def test_the_order_of_blocks_from_the_disk() -> None:
    target = targets.with_limits(targets.find("kaggle-t4"), ram_bytes=3 * GIB)
    settings = fastest(Waiting(target=target), ONE)
    assert (*order_of(settings), settings.stream_from) == (1, 10, "block", "disk")


def test_one_gpu_in_the_order_of_blocks_may_be_faster_than_two_in_the_usual_one() -> None:
    target = targets.find("kaggle-t4x2")
    assert fastest(Waiting(target=target), TWO, ONE).gpus == 1
    assert fastest(Waiting(target=target), TWO).gpus == 2


@pytest.mark.parametrize(
    ("candidates", "changes"),
    [
        ({"seconds": 0.0}, {}),
        ({"random": True}, {}),
        ({}, {"checkpointing": "16"}),
        ({}, {"stream_order": "microbatch"}),
        ({}, {"logical_shards": 2}),
    ],
    ids=str,
)
def test_settings_and_models_with_the_usual_order(candidates: dict[str, Any], changes: dict[str, Any]) -> None:
    open_number = Waiting(**candidates)
    assert fastest(open_number, ONE.replace(**changes))
    assert "block" not in {settings.stream_order for settings in open_number.evaluated}
    fixed = ONE.replace(streamed_blocks=12, micro_batch=4, **changes)
    assert not candidates_with_streaming(Waiting(**candidates), [fixed], [Waiting(**candidates).evaluate(fixed)])


def test_the_order_is_chosen_for_a_given_number_of_blocks_too() -> None:
    assert order_of(fastest(Waiting(), ONE.replace(streamed_blocks=12, micro_batch=4))) == (4, 12, "block")
    # A microbatch that is the whole update has no other order.
    whole = ONE.replace(streamed_blocks=32, micro_batch=64)
    assert not candidates_with_streaming(Waiting(floor=-10), [whole], [Waiting(floor=-10).evaluate(whole)])


def test_the_note_says_what_the_order_gains() -> None:
    candidates = Waiting()
    resident = candidates.evaluate(ONE.replace(micro_batch=1))
    usual = candidates.evaluate(ONE.replace(micro_batch=22, streamed_blocks=16))
    chosen = candidates.evaluate(ONE.replace(micro_batch=1, streamed_blocks=10, stream_order="block"))
    (note,) = streaming_notes([chosen, usual, resident], T4)
    assert note.endswith(
        "; each copy serves all microbatches of an update (stream_order=block): 1.35 times as fast as one microbatch "
        "after the other"
    )
    assert "stream_order" not in next(streaming_notes([usual, chosen, resident], T4))
    in_groups = candidates.evaluate(chosen.settings.replace(stream_group=16))
    (note,) = streaming_notes([in_groups, usual, resident], T4)
    assert "each copy serves 16 microbatches of an update (stream_order=block, stream_group=16): 1." in note


def test_the_note_compares_with_a_card_that_all_fit_on() -> None:
    candidates = Streamable(waits=0.2)
    resident = candidates.evaluate(ONE.replace(micro_batch=1))
    chosen = candidates.evaluate(ONE.replace(micro_batch=1, streamed_blocks=9))
    (note,) = streaming_notes([chosen, resident], T4)
    assert note.startswith(
        "9 of 32 blocks are streamed from host memory (4.50 GiB): 1.25 times slower than on a card of"
    )
    assert "16.25 GiB" in note and not [*streaming_notes([resident, chosen], T4)]


class WideBlock(nn.Module):
    """A block of 16 MiB."""

    def __init__(self) -> None:
        super().__init__()
        self.q_proj, self.out_proj = nn.Linear(WIDTH, 2 * WIDTH, bias=False), nn.Linear(2 * WIDTH, WIDTH, bias=False)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return values + self.out_proj(torch.tanh(self.q_proj(values)))


class Wide(Blocks):
    """Most of the model is eight blocks."""

    epochs = 1
    effective_batch = 20

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(4, WIDTH), nn.Sequential(*(WideBlock() for _ in range(8))), nn.Linear(WIDTH, 2))


def test_a_planned_run_trains_to_the_bits_of_resident_blocks(tmp_path: Path) -> None:
    """On the CPU, which is both host and device here."""
    pytest.importorskip("peft")
    values = {"lora_r": 2}
    loaded, requested = choose(Wide(), values)
    requested = requested.replace(micro_batch=10)

    def plan(memory_bytes: int, settings: Settings = requested, on: Target = T4) -> Plan:
        device = replace(T4.device, memory_bytes=memory_bytes, context_bytes=(0, 0, 0))
        target = replace(on, device=device)
        return plan_with(tracer, loaded, target, settings, thorough=False, usd_per_hour=None, calibration=None)

    with Tracer(loaded) as tracer:
        roomy = plan(16 * GIB)
        memory = round(roomy.memory.peak_bytes - 3 * 16 * MIB)
        forbidden, small = plan(memory, requested.replace(streamed_blocks=0)), plan(memory)
        slow = plan(memory, requested.replace(stream_from="disk"))
        kaggle = targets.find("kaggle-t4")
        host = replace(kaggle.platform, ram_bytes=small.host.peak_bytes + 16 * MIB)
        narrow = plan(memory, on=replace(kaggle, platform=host))
    assert roomy.verdict == "fits" and roomy.settings.streamed_blocks is None
    assert forbidden.verdict != "fits"
    count = small.settings.streamed_blocks
    assert small.verdict == "fits" and count and 3 < count < 8
    # From the disk copies take most of the time, so both microbatches of an update use each of them.
    assert slow.verdict == "fits" and slow.settings.stream_order == "block" and small.settings.stream_order is None
    assert "(stream_order=block): 1." in slow.facts.notes[0]
    assert "each copy of a streamed block is used by 10, 5, 3, 2, 1 microbatches" in slow.fallbacks
    assert small.host.parts["streamed weights"] == count * 16 * MIB
    assert small.facts.notes[0].startswith(f"{count} of 8 blocks are streamed from host memory")
    # Out of memory, further blocks are streamed as long as the host has room for them.
    assert small.fallbacks[0] == f"{', '.join(map(str, range(count + 1, 9)))} of 8 blocks are streamed"
    assert narrow.fallbacks[0] == f"{count + 1} of 8 blocks are streamed"

    values |= {"micro_batch": small.settings.micro_batch, "checkpointing": small.settings.checkpointing}
    session(Wide(), tmp_path / "plain", values)
    planned = {key: getattr(slow.settings, key) for key in ("streamed_blocks", "stream_from", "stream_order")}
    session(Wide(), tmp_path / "run", {**values, **planned})
    assert training_result(tmp_path / "run") == training_result(tmp_path / "plain")
