"""The search over made-up costs: what is chosen, how few questions are asked, and what is not asked at all."""

import pytest

from shoestring.errors import UsageError
from shoestring.hardware import targets
from shoestring.plan.micro_batch import micro_batches
from shoestring.plan.search import consider, search
from shoestring.settings import Settings
from tests.plan.made_candidates import GIB, Made, per_sample


def chosen(made, wanted=None):
    best = search(made, wanted or Settings())[0]
    return best.settings, len(made.asked)


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


def test_each_candidate_is_in_the_answer_once_and_the_best_first():
    made = Made(bytes_of=per_sample(0.3), seconds=lambda s: 1.0 + (s.precision == "fp32") + 1 / s.micro_batch)
    answer = search(made, Settings())
    assert {each.settings for each in answer} == set(made.asked)
    assert len(answer) == len(made.asked)
    order = [(not each.fits, each.seconds if each.fits else each.memory.high_bytes) for each in answer]
    assert order == sorted(order)
    assert {each.fits for each in answer} == {True, False}


def test_equals_are_answered_as_they_were_considered():
    made = Made(bytes_of=lambda s: GIB, seconds=lambda s: 1.0)
    answer = search(made, Settings(precision="fp16"))
    assert [each.settings.micro_batch for each in answer] == [64, 1, 32]


def test_the_answer_does_not_depend_on_what_was_asked_before():
    fresh, used = (Made(bytes_of=per_sample(24), blocks=8, effective_batch=4, weights=5 * GIB) for _ in range(2))
    search(used, Settings(precision="fp32", micro_batch=3))
    assert [each.settings for each in search(used, Settings())] == [each.settings for each in search(fresh, Settings())]


def test_where_no_settings_are_possible_those_that_were_asked_for_say_why():
    def bytes_of(settings):
        raise UsageError(f"{settings.precision} with {settings.micro_batch}")

    assert consider(Made(bytes_of=bytes_of), Settings()) == []
    with pytest.raises(UsageError, match="fp16 with 1"):
        search(Made(bytes_of=bytes_of), Settings())
    with pytest.raises(UsageError, match="fp32 with 7"):
        search(Made(bytes_of=bytes_of), Settings(precision="fp32", micro_batch=7))


def test_nothing_is_captured_without_a_gpu():
    with pytest.raises(UsageError, match="CUDA graphs need a GPU, and"):
        chosen(Made(bytes_of=per_sample(1), target=targets.find("cpu")), Settings(compile="graphs"))


def test_blocks_are_not_computed_again_for_a_larger_microbatch_that_gains_little():
    made = Made(bytes_of=per_sample(0.5), blocks=8)
    settings, _ = chosen(made, Settings(precision="fp16"))
    assert settings.checkpointing == "no"
    assert not any(each.checkpointing == "full" for each in made.asked)


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
            raise UsageError("no blocks")
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
