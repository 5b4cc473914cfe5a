"""The search over made-up costs: what is chosen, how few questions are asked, and what is not asked at all."""

from types import SimpleNamespace

import pytest

from shoestring.errors import QuestionError
from shoestring.hardware import targets
from shoestring.plan import search as room
from shoestring.plan.candidates import Candidate
from shoestring.plan.search import micro_batches
from shoestring.settings import Settings
from tests.estimate.handmade_traces import op, update

T4 = targets.find("t4")
GIB = 2**30


class Made:
    """Candidates of a cost that is said: bytes for each sample and precision, and seconds."""

    def __init__(self, *, bytes_of, seconds=None, effective_batch=64, target=T4, blocks=0, weights=0, batch_norm=False):
        self.bytes_of, self.seconds, self.target = bytes_of, seconds or usual, target
        self.loaded = SimpleNamespace(effective_batch=effective_batch)
        facts = SimpleNamespace(blocks=blocks, weight_bytes=weights, batch_norm=batch_norm)
        self.tracer = SimpleNamespace(facts=facts)
        self.asked = {}

    def __call__(self, settings):
        if settings not in self.asked:
            high = self.bytes_of(settings)
            size = settings.micro_batch
            trace = update(forward=op(flops=10**9 * size), backward=op(flops=2 * 10**9 * size), optimizer=op(size=1000))
            seconds = self.seconds(settings)
            self.asked[settings] = Candidate(
                settings=settings,
                trace=room.replace(trace, micro_batch=size, precision=settings.precision),
                memory=SimpleNamespace(
                    fits=high <= self.target.device.memory_bytes,
                    high_bytes=high,
                    parts=(SimpleNamespace(name="activations", bytes=high),),
                ),
                time=None if seconds is None else SimpleNamespace(value=seconds, parts={"optimizer": 0.0}),
            )
        return self.asked[settings]

    def ahead(self, settings): ...

    def seconds_of(self, trace, settings):
        return 0.0 if trace.precision == "fp16" else 0.1

    def known(self, **fixed):
        return [
            each
            for settings, each in self.asked.items()
            if all(getattr(settings, name) == value for name, value in fixed.items())
        ]


def usual(settings):
    """Arithmetic in proportion, twice as fast in 16 bits, a third more for all of 8 blocks, and a launch each."""
    again = int({"no": 0, "full": 8}.get(settings.checkpointing, settings.checkpointing))
    return (1.0 if settings.precision == "fp32" else 0.5) * (1 + again / 24) + 0.01 * -(-64 // settings.micro_batch)


@pytest.fixture(autouse=True)
def time_of_other_sizes(monkeypatch):
    """The costs that are said, not what the made-up traces would take."""
    monkeypatch.setattr(room, "_seconds_at", lambda _, found, size: usual(found.settings.replace(micro_batch=size)))


def per_sample(gib, *, blocks=8, floor=0.0):
    def bytes_of(settings):
        again = {"no": 0, "full": blocks}.get(settings.checkpointing, settings.checkpointing)
        kept = 1 - 0.9 * int(again) / blocks
        return round((floor + gib * settings.micro_batch * kept * (1.5 if settings.precision == "fp32" else 1)) * GIB)

    return bytes_of


def chosen(made, wanted=None):
    best = room.search(made, wanted or Settings())[0]
    return best.settings, len(made.asked)


def test_microbatches_are_as_equal_as_possible_and_each_number_of_them_has_one():
    assert micro_batches(9) == [1, 2, 3, 5, 9]
    assert micro_batches(9, least=2) == [2, 3, 5, 9]
    assert micro_batches(1, least=2) == [1]
    assert micro_batches(64)[-4:] == [16, 22, 32, 64]


def test_the_whole_batch_is_one_question_for_each_type_and_two_for_the_time_of_its_parts():
    settings, asked = chosen(Made(bytes_of=per_sample(0.1)))
    assert (settings.micro_batch, settings.precision, settings.checkpointing) == (64, "fp16", "no")
    assert asked == 4


@pytest.mark.parametrize("gib", [0.3, 0.5, 0.66, 0.9, 1.7, 5.0])
def test_the_largest_that_fits_is_found_with_few_questions(gib):
    made = Made(bytes_of=per_sample(gib))
    settings, _ = chosen(made, Settings(precision="fp16", optimizer_kernel="foreach"))
    fitting = [size for size in micro_batches(64) if gib * size <= 14912 / 1024]
    assert settings.micro_batch == fitting[-1]
    assert len(made.asked) <= 5


def test_memory_that_bends_is_found_too():
    """Up to 8 samples something else is the peak, and a prediction from below is too low."""
    made = Made(bytes_of=lambda s: round(max(6.0, 0.55 * s.micro_batch + 1) * GIB))
    settings, _ = chosen(made, Settings(precision="fp16"))
    assert settings.micro_batch == 22


def test_what_is_faster_is_chosen_and_what_fits_goes_before_what_is_fast():
    made = Made(bytes_of=per_sample(0.1), seconds=lambda s: 1.0 if s.precision == "fp32" else 1.1)
    assert chosen(made)[0].precision == "fp32"
    made = Made(bytes_of=lambda s: GIB if s.precision == "fp32" and s.micro_batch == 1 else 99 * GIB)
    settings, _ = chosen(made)
    assert (settings.precision, settings.micro_batch) == ("fp32", 1)


def test_some_blocks_are_computed_again_before_all_are():
    made = Made(bytes_of=per_sample(24), blocks=8, effective_batch=1, weights=5 * GIB)
    settings, asked = chosen(made, Settings(precision="fp16"))
    assert settings.checkpointing == "4"  # 24 GiB less 4/8 of nine tenths is 13.2
    assert asked == 3


def test_no_block_is_computed_again_in_what_is_captured():
    made = Made(bytes_of=per_sample(24), blocks=8, effective_batch=1, weights=5 * GIB)
    settings, _ = chosen(made, Settings(precision="fp16", compile="graphs"))
    assert settings.checkpointing == "no"
    assert all(each.checkpointing == "no" for each in made.asked)


def test_nothing_is_captured_without_a_gpu():
    with pytest.raises(QuestionError, match="CUDA graphs need a GPU, and"):
        chosen(Made(bytes_of=per_sample(1), target=targets.find("cpu")), Settings(compile="graphs"))


def test_blocks_are_not_computed_again_for_a_larger_microbatch_that_gains_little():
    made = Made(bytes_of=per_sample(0.5), blocks=8)
    settings, _ = chosen(made, Settings(precision="fp16"))
    assert settings.checkpointing == "no"
    assert not made.known(checkpointing="full")


def test_what_is_asked_for_is_kept_even_where_it_does_not_fit():
    nothing = Made(bytes_of=lambda s: 99 * GIB + s.micro_batch)
    assert chosen(nothing)[0].micro_batch == 1  # the nearest to fitting
    wanted = Settings(precision="fp32", micro_batch=48, checkpointing="no")
    made = Made(bytes_of=lambda s: 99 * GIB)
    settings, asked = chosen(made, wanted)
    assert (settings, asked) == (wanted, 1)
    assert chosen(Made(bytes_of=per_sample(0.1)), Settings(micro_batch=1000))[0].micro_batch == 64


def test_a_lone_sample_has_no_batch_statistics():
    made = Made(bytes_of=lambda s: 99 * GIB, batch_norm=True)
    chosen(made)
    assert min(settings.micro_batch for settings in made.asked) == 2


def test_a_model_that_cannot_be_so_is_planned_without():
    def bytes_of(settings):
        if settings.checkpointing != "no":
            raise QuestionError("no blocks")
        return 99 * GIB

    assert chosen(Made(bytes_of=bytes_of, blocks=8))[0].checkpointing == "no"


def test_a_device_of_unknown_rates_is_planned_by_memory_alone():
    settings, _ = chosen(Made(bytes_of=per_sample(0.5), seconds=lambda s: None))
    assert settings.micro_batch == 22


@pytest.mark.parametrize(("name", "precisions"), [("t4", {"fp32", "fp16"}), ("l4", {"fp32", "bf16"})])
def test_only_what_the_device_has_and_could_be_best_is_asked_for(name, precisions):
    made = Made(bytes_of=per_sample(0.1), target=targets.find(name))
    chosen(made)
    assert {settings.precision for settings in made.asked} == precisions
