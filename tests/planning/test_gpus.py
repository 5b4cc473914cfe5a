"""The choice of the number of GPUs and of what they share, over fake costs."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from shoestring.base.errors import UsageError
from shoestring.base.settings import Settings
from shoestring.hardware import targets
from shoestring.planning import gpus
from shoestring.planning.candidates import Candidate
from shoestring.planning.costs import planned_disk, planned_host
from shoestring.planning.estimate.memory import memory
from shoestring.planning.gpu_reasons import gpu_reasons
from shoestring.planning.gpus import search
from shoestring.recipe.adaptation import Adaptation
from shoestring.recipe.parts import Parts
from tests.planning.estimate.example_traces import TRAINING
from tests.planning.fake_candidates import GIB, FakeCandidates, bytes_per_sample

PAIR = targets.find("kaggle-t4x2")


class FakePair(FakeCandidates):
    """Two GPUs whose samples take a second each, and whose exchange takes `exchange` seconds, or more if sharded."""

    def __init__(self, *, exchange=1.0, bytes_of=None, target=PAIR, parts=None, **costs):
        super().__init__(bytes_of=bytes_of or bytes_per_sample(0.1), seconds=lambda s: 1.0, target=target, **costs)
        self.exchange = exchange
        self.loaded = SimpleNamespace(name="fake", effective_batch=self.loaded.effective_batch, parts=parts or Parts())
        self.loaded.adaptation = Adaptation()

    def evaluate(self, settings):
        candidate = super().evaluate(settings)
        parts = self.parts_of(settings, recomputes=settings.checkpointing != "no")
        return replace(candidate, time=SimpleNamespace(value=sum(parts.values()), parts=parts))

    def parts_of(self, settings, *, recomputes=False):
        compute = self.loaded.effective_batch / settings.gpus * (1.4 if recomputes else 1.0)
        if settings.gpus == 1:
            return {"forward": compute}
        times = 1 + ["ddp", "zero1", "zero2", "zero3"].index(settings.sharding)
        return {"forward": compute, "exchange": self.exchange * times}

    def seconds_of(self, trace, settings, micro_batch=None):
        return sum(self.parts_of(settings).values())

    def seconds_at(self, candidate, micro_batch, **changes):
        settings = candidate.settings.replace(**changes)
        return sum(self.parts_of(settings, recomputes=settings.checkpointing != "no").values())

    def reasons(self, ranked, **requested):
        return list(gpu_reasons(ranked, self.loaded, self.target, Settings(**requested)))


ONE_PRECISION = Settings(precision="fp16")


@pytest.mark.parametrize(
    ("exchange", "chosen", "reason"),
    [
        (1.0, 2, "both GPUs: an update takes 33.0 s instead of 1 min 04 s on one, 1.0 s of it to exchange gradients"),
        (29.0, 1, "only one of the 2 GPUs is used: an update would take 1 min 01 s on both GPUs, 29.0 s of it to"),
        (40.0, 1, "only one of the 2 GPUs is used: an update would take 1 min 12 s on both GPUs, 40.0 s of it to"),
    ],
)
def test_gpus_are_chosen_by_time_with_the_exchange(exchange, chosen, reason):
    candidates = FakePair(exchange=exchange)
    ranked = search(candidates, ONE_PRECISION)
    settings = ranked[0].settings
    assert (settings.gpus, settings.logical_shards, settings.sharding) == (chosen, chosen, "ddp")
    (sentence,) = candidates.reasons(ranked)
    assert sentence.startswith(reason)
    assert ("less than the error of the prediction" in sentence) is (exchange == 29.0)
    assert {candidate.settings.sharding for candidate in ranked} == {"ddp"}  # nothing else could be faster


def test_target_with_one_gpu_is_searched_as_ever():
    candidates = FakePair(target=targets.find("kaggle-t4"))
    ranked = search(candidates, ONE_PRECISION)
    assert {candidate.settings.gpus for candidate in ranked} == {1} and not candidates.reasons(ranked)


def test_states_are_divided_if_that_makes_them_fit():
    """Optimizer states of 10 GiB beside weights and activations of 8 GiB."""

    def bytes_of(settings):
        return (8 + 10 // (settings.gpus if settings.sharding == "zero1" else 1)) * GIB

    candidates = FakePair(bytes_of=bytes_of)
    evaluate = candidates.evaluate
    parts = (SimpleNamespace(name="optimizer states", bytes=10 * GIB),)
    candidates.evaluate = lambda settings: (
        result := evaluate(settings),
        setattr(result.memory, "parts", parts),
    )[0]
    ranked = search(candidates, ONE_PRECISION)
    assert (ranked[0].settings.gpus, ranked[0].settings.sharding, ranked[0].fits) == (2, "zero1", True)
    assert {candidate.settings.gpus for candidate in ranked} == {2}  # a whole model would not fit on one GPU either
    reasons = candidates.reasons(ranked)
    assert reasons[0].startswith("both GPUs: no settings that were tried fit on one; 2.0 s of it")
    assert reasons[1].endswith("a share of the optimizer states, because those of a whole model do not fit")
    candidates.loaded.parts = Parts.from_recipe(SimpleNamespace(trainer=print))  # a library has whole models
    assert not search(candidates, ONE_PRECISION)[0].fits


def test_weights_are_not_divided_if_a_hook_needs_them_whole():
    def bytes_of(settings):
        return (8 if settings.sharding == "zero3" else 26) * GIB

    candidates = FakePair(bytes_of=bytes_of, parts=Parts.from_recipe(SimpleNamespace(after_update=lambda model: None)))
    evaluate = candidates.evaluate
    parts = (SimpleNamespace(name="weights", bytes=25 * GIB),)
    candidates.evaluate = lambda settings: (
        result := evaluate(settings),
        setattr(result.memory, "parts", parts),
    )[0]
    ranked = search(candidates, ONE_PRECISION)
    assert not ranked[0].fits and not {"zero2", "zero3"} & {settings.sharding for settings in candidates.evaluated}
    assert candidates.reasons(ranked)[-1].startswith("sharding zero2 and zero3 were not tried: after_update(model)")
    with pytest.raises(UsageError) as error:
        search(candidates, Settings(precision="fp16", sharding="zero3"))
    assert error.value.problems[0].startswith("sharding=zero3: after_update(model) needs whole weights")
    candidates.loaded.parts = Parts()
    assert search(candidates, ONE_PRECISION)[0].settings.sharding == "zero3"


@pytest.mark.parametrize(("exchange", "sharding"), [(1.0, "zero2"), (30.0, "ddp")])
def test_gradients_are_divided_if_the_memory_saves_more_than_the_exchange_takes(monkeypatch, exchange, sharding):
    """Replicas have to recompute, which takes 40% longer."""
    monkeypatch.setitem(gpus.TRAINED, False, ("ddp", "zero1", "zero2"))

    def bytes_of(settings):
        return (16 if settings.checkpointing == "no" and settings.sharding in ("ddp", "zero1") else 8) * GIB

    candidates = FakePair(exchange=exchange, bytes_of=bytes_of, blocks=8)
    candidates.part = "gradients"
    ranked = search(candidates, Settings(precision="fp16", gpus=2))
    assert ranked[0].settings.sharding == sharding
    reasons = candidates.reasons(ranked, gpus=2)
    assert reasons[0].startswith("both GPUs: gpus=2 was requested")
    if sharding == "zero2":
        assert "faster settings: 35.0 s instead of 45.8 s for an update with sharding=ddp. The run" in reasons[1]


def test_faster_exchange_of_divided_weights_is_a_reason():
    candidates = FakePair(exchange=1.0)
    replicas, divided = (
        candidates.evaluate(
            Settings(precision="fp16", micro_batch=8, checkpointing="no", gpus=2, logical_shards=2, sharding=sharding)
        )
        for sharding in ("ddp", "zero2")
    )
    (reason,) = candidates.reasons([divided, replicas], gpus=2)[1:]
    assert "they are exchanged during the whole computation instead of from the last backward on" in reason
    assert reason.endswith("The run continues bit for bit on 2 GPUs only")


@pytest.mark.parametrize(
    ("requested", "layouts"),
    [
        ({"gpus": 1}, {(1, 1, "ddp")}),
        ({"gpus": 2}, {(2, 2, "ddp")}),
        ({"gpus": 1, "sharding": "zero3"}, {(1, 1, "zero3")}),
        ({"sharding": "zero3"}, {(2, 2, "zero3")}),
        ({"sharding": "ddp"}, {(2, 2, "ddp"), (1, 1, "ddp")}),
        ({"logical_shards": 1}, {(1, 1, "ddp")}),
        ({"logical_shards": 4}, {(2, 4, "ddp"), (1, 4, "ddp")}),
    ],
    ids=lambda value: str(sorted(value) if isinstance(value, set) else value),
)
def test_requested_division_stays(requested, layouts):
    candidates = FakePair()
    ranked = search(candidates, Settings(**requested))
    divisions = {
        (settings.gpus, settings.logical_shards, settings.sharding)
        for settings in (candidate.settings for candidate in ranked)
    }
    assert divisions == layouts
    assert max(candidate.settings.micro_batch for candidate in ranked) == 64 // min(count for _, count, _ in layouts)


@pytest.mark.parametrize(
    ("requested", "effective_batch", "target", "parts", "message"),
    [
        ({"gpus": 4}, 64, "kaggle-t4x2", {}, "kaggle-t4x2 has 2 GPUs"),
        ({"gpus": 4}, 64, "rtx3090x2", {}, "rtx3090x2 has 2 GPUs"),
        ({"gpus": 32}, 64, "cpu", {}, "at most 16 processes share a CPU"),
        ({"gpus": 2}, 1, "kaggle-t4x2", {}, "an update has only 1 sample"),
        ({"sharding": "zero1"}, 64, "kaggle-t4x2", {"trainer": print}, "trained by a library, whose optimizer makes"),
        ({"offload": "parameters"}, 64, "kaggle-t4x2", {"trainer": print}, "which moves whole weights to the GPU"),
        ({"gpus": 1, "logical_shards": 2}, 64, "kaggle-t4x2", {"trainer": print}, "divides an update among 1 GPUs"),
    ],
    ids=str,
)
def test_impossible_division_is_refused(requested, effective_batch, target, parts, message):
    candidates = FakePair(
        effective_batch=effective_batch, target=targets.find(target), parts=Parts.from_recipe(SimpleNamespace(**parts))
    )
    with pytest.raises(UsageError) as raised:
        search(candidates, Settings(**requested))
    assert message in raised.value.problems[0]


@pytest.mark.parametrize(("effective_batch", "gpus"), [(1, 1), (2, 2), (3, 2), (64, 4)])
def test_gpus_without_a_sample_are_not_used(effective_batch, gpus):
    candidates = FakePair(effective_batch=effective_batch, target=replace(PAIR, gpus=5), exchange=0.01)
    assert search(candidates, ONE_PRECISION)[0].settings.gpus == gpus


def test_one_gpu_is_not_traced_if_that_takes_long_and_cannot_win(monkeypatch):
    monkeypatch.setattr(gpus, "LONG_TRACE_EVENTS", 0)
    candidates = FakePair()
    search(candidates, ONE_PRECISION)
    # The settings that are best for both, with as large a microbatch as fits.
    assert [settings.micro_batch for settings in candidates.evaluated if settings.gpus == 1] == [64]


@pytest.mark.parametrize(("sharding", "states"), [("ddp", 1), ("zero1", 2)])
def test_each_gpu_has_a_process_and_the_states_are_saved_once(sharding, states):
    trace = replace(TRAINING, host_bytes={"weights": 3000, "gradients": 2000})
    candidate = Candidate(
        settings=Settings(gpus=2, sharding=sharding, offload="optimizer"), trace=trace, memory=None, time=None
    )
    disk, host = planned_disk(candidate, PAIR), planned_host(candidate, PAIR)
    assert disk.full_checkpoint_bytes - disk.light_checkpoint_bytes == states * 8000
    assert host.parts["process"] == 2 * 2**28
    assert host.parts["offloaded states and weights"] == 2 * 5000


def test_each_process_loads_the_weights_before_the_state_is_saved():
    def parts(loading_host_bytes):
        trace = replace(TRAINING, loading_host_bytes=loading_host_bytes)
        candidate = Candidate(settings=Settings(gpus=2, sharding="ddp"), trace=trace, memory=None, time=None)
        return planned_host(candidate, PAIR).parts

    copy = parts(0)["copy of the state for saving"]
    assert parts(copy // 2).keys() == {"copy of the state for saving", "process"}
    more = parts(copy)
    assert more.keys() == {"loading of the weights", "process"} and more["loading of the weights"] == 2 * copy


def test_processes_share_the_memory_of_a_cpu():
    device = targets.find("cpu").device
    assert memory(TRAINING, device, gpus=4).capacity_bytes == device.memory_bytes // 4


def test_small_batch_and_processes_on_a_cpu():
    candidates = FakePair(effective_batch=1)
    ranked = search(candidates, ONE_PRECISION)
    assert ranked[0].settings.gpus == 1
    assert candidates.reasons(ranked) == ["only one of the 2 GPUs is used, because an update has only one sample"]
    candidates = FakePair(target=targets.find("cpu"))
    assert {candidate.settings.gpus for candidate in search(candidates, Settings())} == {1}
    (reason,) = candidates.reasons(search(candidates, Settings(gpus=4)))
    assert "4 processes share the CPU and its memory" in reason


def test_a_model_divided_by_blocks_is_one_process_on_two_gpus() -> None:
    loaded = FakePair().loaded
    requested = Settings(sharding="pipeline")
    (layout,) = gpus.layouts(loaded, PAIR, requested)
    assert (layout.gpus, layout.logical_shards, layout.processes) == (2, 1, 1)
    assert gpus.layouts(loaded, targets.find("kaggle-l4x4"), requested) == [layout]
    for name, problem in (("kaggle-t4", "kaggle-t4 has 1 GPU"), ("cpu", "cpu has no GPU")):
        with pytest.raises(UsageError) as error:
            gpus.layouts(loaded, targets.find(name), requested)
        assert problem in error.value.problems[0] and "kaggle-t4x2" in error.value.hint


@pytest.mark.parametrize(
    ("requested", "cause"),
    [
        (Settings(sharding="pipeline"), "sharding pipeline was requested: "),
        (Settings(), "sharding pipeline streams fewer blocks than whole models would: "),
    ],
)
def test_the_reason_of_a_divided_model_says_who_chose_it(requested: Settings, cause: str) -> None:
    candidates = FakePair()
    whole, *_ = search(candidates, ONE_PRECISION)
    divided = replace(whole, settings=whole.settings.replace(gpus=2, logical_shards=1, sharding="pipeline"))
    reasons = [*gpu_reasons([divided], candidates.loaded, candidates.target, requested)]
    assert reasons == [f"{cause}the blocks are divided between two GPUs"]


def test_a_model_whose_library_moves_it_is_not_divided_by_blocks() -> None:
    parts = Parts()
    parts = replace(parts, learning=replace(parts.learning, trainer=object))
    with pytest.raises(UsageError) as error:
        gpus.layouts(FakePair(parts=parts).loaded, PAIR, Settings(sharding="pipeline"))
    assert "moves the whole model to one GPU" in error.value.problems[0]
