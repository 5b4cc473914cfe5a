"""Candidates share traces, and are traced in the background."""

from dataclasses import fields, replace
from threading import current_thread, main_thread
from types import SimpleNamespace

from shoestring.base.errors import TraceError
from shoestring.base.settings import Settings
from shoestring.hardware import targets
from shoestring.hardware.catalog import DEVICES, Target
from shoestring.planning import candidates as candidates_module
from shoestring.planning.candidates import UNTRACED, Candidates, with_nominal_rates
from shoestring.planning.length_work import PROPORTIONAL
from shoestring.planning.trace import Tracer
from shoestring.recipe.finding import find
from shoestring.recipe.parts import Parts
from tests.hardware.measured_files import CPU
from tests.planning.trace.sample_recipes import Linears

SETTINGS = Settings(micro_batch=2, precision="fp32", checkpointing="no", gpus=1, logical_shards=1, sharding="ddp")


def test_candidates_that_differ_in_untraced_settings_share_a_trace() -> None:
    traced = {
        *("micro_batch", "precision", "checkpointing", "optimizer_kernel", "offload", "gpus", "logical_shards"),
        *("sharding", "packing", "compile", "fp32_modules", "memory_format", "streamed_blocks"),
    }
    assert set(UNTRACED) == {field.name for field in fields(Settings)} - traced
    loaded = find(Linears())
    with Tracer(loaded) as tracer, Candidates(tracer, loaded, targets.find("t4")) as candidates:
        plain = candidates.evaluate(SETTINGS)
        expandable = candidates.evaluate(SETTINGS.replace(allocator="expandable"))
        assert plain is not expandable and plain.trace is expandable.trace
        assert candidates.evaluate(SETTINGS.replace(precision="fp16")).trace is not plain.trace


def test_changed_options_are_traced_in_the_background(monkeypatch) -> None:
    threads = {}

    def candidate(_tracer, _loaded, _target, settings, *, options, calibration, length_work):
        assert calibration is None and length_work is PROPORTIONAL
        threads[settings, *options.items()] = current_thread()
        return object()

    monkeypatch.setattr(candidates_module, "candidate", candidate)
    loaded = SimpleNamespace(reference="fake", replace=lambda **_: None, parts=Parts())
    target = SimpleNamespace(device=DEVICES["t4"])
    with Candidates(SimpleNamespace(copy=object, facts=None), loaded, target) as candidates:
        candidates.prefetch(SETTINGS, {"seq_len": 8})
        first = candidates.evaluate_with_options({"seq_len": 8}, SETTINGS)
        assert candidates.evaluate_with_options({"seq_len": 8}, SETTINGS) is first
        assert candidates.evaluate(SETTINGS) is not first
        candidates.prefetch(SETTINGS)  # is known already
    assert threads[SETTINGS, ("seq_len", 8)] is not main_thread() and threads[(SETTINGS,)] is main_thread()


def test_errors_of_the_background_tracer_are_not_final(monkeypatch) -> None:
    tracers = []

    def candidate(tracer, *_, **__):
        tracers.append(tracer)
        if tracer == "copy":
            raise TraceError("the copy died")
        return "candidate"

    monkeypatch.setattr(candidates_module, "candidate", candidate)
    tracer = SimpleNamespace(copy=lambda: "copy", facts=None)
    with Candidates(tracer, SimpleNamespace(parts=Parts()), SimpleNamespace(device=DEVICES["t4"])) as candidates:
        candidates.prefetch(SETTINGS)
        assert candidates.evaluate(SETTINGS) == "candidate"
    assert tracers == ["copy", tracer]


def test_cpu_is_compared_by_nominal_rates_unless_the_user_gave_rates() -> None:
    cpu, measured = targets.find("cpu").device, replace(CPU.device, title="another")
    slow = replace(cpu, fp32_flops=1e9, bandwidth=1e9)
    assert with_nominal_rates(cpu) == with_nominal_rates(slow) != slow
    given = replace(slow, measured=replace(CPU, device=measured))
    assert with_nominal_rates(given) is given
    assert with_nominal_rates(DEVICES["t4"]) is DEVICES["t4"]
    loaded = find(Linears())
    with Tracer(loaded) as tracer:
        first, second = (
            Candidates(tracer, loaded, Target(name="cpu", device=device, gpus=0)).evaluate(SETTINGS)
            for device in (cpu, slow)
        )
    assert first.comparable_seconds == second.comparable_seconds
    assert first.seconds < second.seconds
