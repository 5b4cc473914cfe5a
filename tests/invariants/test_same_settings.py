"""The same command chooses the same settings on a CPU, whatever the measurement of its rates says.

`benchmarks/plan/same_settings.py` is the long form: whole plans while other processes start and stop.
"""

import random

import pytest

from shoestring.base.settings import Settings
from shoestring.hardware import cpu_rates, probe, targets
from shoestring.hardware.cpu_rates import CpuRates
from shoestring.planning.candidates import Candidates
from shoestring.planning.estimate.calibration import Calibration
from shoestring.planning.estimate.spread import Spread
from shoestring.planning.gpus import search
from shoestring.planning.trace import Tracer
from shoestring.recipe.finding import choose
from tests.hardware.measured_files import CPU
from tests.slow import slow_except


@pytest.fixture
def noisy(monkeypatch, tmp_path):
    """Each call of the fixture's value measures this machine anew, with rates that are far apart."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(probe, "gpus", lambda: ())
    generator = random.Random(0)

    def attempt():
        flops, bandwidth = 10 ** generator.uniform(10, 12.5), 10 ** generator.uniform(9.5, 11.5)
        return CpuRates(fp32_flops=flops, bandwidth=bandwidth, spread=0.0, is_disturbed=False)

    def measure():
        for file in tmp_path.rglob("*.json"):
            file.unlink()
        for function in (probe.local, probe.local_cpu):
            function.cache_clear()
        return targets.find("local")

    monkeypatch.setattr(cpu_rates, "_attempt", attempt)
    yield measure
    for function in (probe.local, probe.local_cpu):
        function.cache_clear()


@pytest.mark.parametrize("recipe", slow_except(["temporal", "finetune", "legal", "cloud", "vqa"], "temporal"))
def test_noisy_rates_choose_one_set_of_settings_and_change_the_times(recipe, noisy):
    loaded, requested = choose(recipe, {"size": "tiny"})
    chosen, times = set(), set()
    with Tracer(loaded) as tracer:
        for _ in range(20):
            best = search(Candidates(tracer, loaded, noisy()), requested)[0]
            chosen.add(best.settings)
            times.add(best.seconds)
    assert len(chosen) == 1 and len(times) == 20


@pytest.mark.slow
def test_rates_that_the_user_gives_are_decisive(noisy):
    loaded, _ = choose("temporal", {"size": "tiny"})
    target = noisy()
    spread = Spread(low=0.9, high=1.1, source="")
    calibration = Calibration(
        device=target.device.title, factor=1.0, spread=spread, input_seconds=0.0, save_rate=None, rates=CPU
    )
    with Tracer(loaded) as tracer:
        measured = search(Candidates(tracer, loaded, target, calibration), Settings())
        plain = search(Candidates(tracer, loaded, target), Settings())
    assert all(candidate.comparable_seconds == candidate.seconds for candidate in measured)
    assert all(candidate.comparable_seconds != candidate.seconds for candidate in plain)
