"""Memory and operators of one update, counted by hand where possible, and the kernels that a target would choose."""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
import torch

from shoestring.base.settings import Precision, Settings
from shoestring.hardware.catalog import DEVICES
from shoestring.planning.trace import Trace, Tracer
from shoestring.planning.trace.operators import operator
from shoestring.planning.trace.record import Alloc, Free, Op, Phase
from shoestring.recipe import finding
from tests.planning.trace import sample_recipes

T4, L4, P100 = DEVICES["t4"], DEVICES["l4"], DEVICES["p100"]

TraceRecipe = Callable[..., Trace]


@pytest.fixture(scope="module")
def tracers() -> Iterator[dict[str, Tracer]]:
    """One child process for each recipe, shared by the module, since starting a process is slow."""
    open_tracers: dict[str, Tracer] = {}
    yield open_tracers
    for tracer in open_tracers.values():
        tracer.close()


@pytest.fixture
def trace_recipe(tracers: dict[str, Tracer]) -> TraceRecipe:
    def trace(name: str, precision: Precision = "fp32", device: object = T4, *, accumulate: int = 1) -> Trace:
        if name not in tracers:
            tracers[name] = Tracer(finding.find(getattr(sample_recipes, name)()))
        settings = Settings(micro_batch=32, precision=precision)
        return tracers[name].trace(settings, accumulate=accumulate, device=device)

    return trace


def live_by_part(trace: Trace, name: str, *, update: int = 1, microbatch: int = 0) -> Counter[str]:
    """Return the bytes by part at the start of a phase."""
    live: Counter[str] = Counter()
    for event in trace.events:
        if isinstance(event, Alloc | Free):
            storage = trace.storages[event.storage]
            live[storage.part] += storage.bytes if isinstance(event, Alloc) else -storage.bytes
        elif event == Phase(name, update, microbatch):
            return +live
    raise AssertionError(f"no phase {name}")


def peak(trace: Trace, *, update: int = 1) -> int:
    live, peak_bytes, measured = 0, 0, False
    for event in trace.events:
        if isinstance(event, Phase):
            measured = event.update == update
        elif isinstance(event, Alloc | Free):
            size = trace.storages[event.storage].bytes
            live += size if isinstance(event, Alloc) else -size
            peak_bytes = max(peak_bytes, live) if measured else peak_bytes
    return peak_bytes


def operators(trace: Trace) -> Counter[str]:
    return Counter(event.name.removeprefix("aten::") for event in trace.events if isinstance(event, Op))


WEIGHTS = 4 * (256 * 512 + 512 * 128)
LARGEST = 4 * 256 * 512
LOSS = 4
"""Bytes of a scalar: the engine has the sum of the losses, and their mean."""


def test_memory_of_two_linear_layers_with_sgd(trace_recipe: TraceRecipe) -> None:
    trace = trace_recipe("LinearsSgd")
    batch, hidden, output = 4 * 32 * 256, 4 * 32 * 512, 4 * 32 * 128
    before_backward = live_by_part(trace, "backward")
    assert before_backward == {"weights": WEIGHTS, "batch": batch, "activations": hidden + 4}
    assert live_by_part(trace, "optimizer") == {"weights": WEIGHTS, "gradients": WEIGHTS, "activations": LOSS}
    # The peak is when the first layer's gradient is added to the second's and that of the hidden layer.
    gradients = WEIGHTS + hidden
    assert peak(trace) == WEIGHTS + batch + gradients + 3 * LOSS
    assert output < hidden


def test_adamw_creates_its_states_in_the_first_update(trace_recipe: TraceRecipe) -> None:
    trace = trace_recipe("Linears")
    assert live_by_part(trace, "optimizer", update=0)["optimizer states"] == 0
    live = live_by_part(trace, "optimizer")
    assert live == {
        "weights": WEIGHTS,
        "gradients": WEIGHTS,
        "optimizer states": 2 * WEIGHTS,
        "activations": LOSS,
    }
    assert peak(trace) == 5 * WEIGHTS + 2 * LOSS  # foreach: the square roots of all second moments


def test_what_follows_an_update_is_in_its_memory_and_its_operators(trace_recipe: TraceRecipe) -> None:
    trace = trace_recipe("LinearsWithTeacher", accumulate=2)
    assert peak(trace) == WEIGHTS + 12 * LARGEST  # the teacher, ten tensors and their mean
    counts = operators(trace)
    assert (
        counts["stack"] + counts["cat"] == 2 and counts["copy_"] - operators(trace_recipe("LinearsSgd"))["copy_"] == 2
    )


def test_cpu_optimizer_updates_one_tensor_at_a_time(trace_recipe: TraceRecipe) -> None:
    from shoestring.hardware.probe import local_cpu

    trace = trace_recipe("Linears", device=local_cpu().device)
    assert peak(trace) == 4 * WEIGHTS + 2 * LARGEST + 2 * LOSS
    assert not any("foreach" in name for name in operators(trace))


def test_second_microbatch_accumulates_into_gradients(trace_recipe: TraceRecipe) -> None:
    trace = trace_recipe("Linears", accumulate=7)
    assert trace.microbatches == 2
    assert live_by_part(trace, "forward", microbatch=1)["gradients"] == WEIGHTS
    assert live_by_part(trace, "forward", microbatch=0)["gradients"] == 0


def test_autocast_saves_casts_of_weights_for_backward(trace_recipe: TraceRecipe) -> None:
    activations = live_by_part(trace_recipe("Linears", "fp16"), "backward")["activations"]
    # Backward needs the second layer's weight, both layers' inputs, and the scaled loss.
    assert activations == 2 * (512 * 128 + 32 * 256 + 32 * 512) + 4


def test_weight_is_cast_once_per_microbatch(trace_recipe: TraceRecipe) -> None:
    trace = trace_recipe("Repeated", "fp16")
    casts = [event for event in trace.events if isinstance(event, Op) and event.name == "aten::_to_copy"]
    # In each of two updates: the input, the weight, and in backward the gradient of the weight. Other
    # casts are of scalars.
    assert len([cast for cast in casts if cast.bytes > 100]) == 2 * 3


def test_autocast_runs_products_but_not_the_loss(trace_recipe: TraceRecipe) -> None:
    by_name = {event.name: event for event in trace_recipe("Mlp", "fp16").events if isinstance(event, Op)}
    assert by_name["aten::addmm"].precision == "fp16"
    assert by_name["aten::nll_loss_forward"].precision == "fp32"
    assert "aten::_amp_foreach_non_finite_check_and_unscale_" in by_name


def test_gradient_clipping_and_boolean_dropout_mask(trace_recipe: TraceRecipe) -> None:
    trace = trace_recipe("Mlp")
    assert operators(trace)["_foreach_norm"] + operators(trace)["_foreach_norm.Scalar"] == 2
    assert 32 * 64 in {storage.bytes for storage in trace.storages if storage.part == "activations"}


def test_operators_count_flops_and_bytes(trace_recipe: TraceRecipe) -> None:
    product = next(event for event in trace_recipe("Linears").events if isinstance(event, Op))
    assert (product.name, product.flops) == ("aten::mm", 2 * 32 * 256 * 512)
    assert product.bytes == 4 * (32 * 256 + 256 * 512 + 32 * 512)


def test_a_copy_from_host_memory_does_not_read_its_target() -> None:
    target, source = torch.zeros(1000), torch.ones(1000)
    recorded = operator(torch.ops.aten.copy_.default, (target, source), {}, target, [target], [target])
    assert recorded.bytes == target.nbytes


def test_flops_and_activations_of_convolutions(trace_recipe: TraceRecipe) -> None:
    trace = trace_recipe("Convolutions")
    convolution = next(event for event in trace.events if isinstance(event, Op) and "convolution" in event.name)
    assert convolution.flops == 2 * 32 * 16 * 30 * 30 * 3 * 3 * 3
    assert live_by_part(trace, "backward")["activations"] > 2 * 4 * 32 * 16 * 30 * 30


@pytest.mark.parametrize(
    ("device", "precision", "kernel"),
    [
        (T4, "fp32", "_scaled_dot_product_efficient_attention"),
        (T4, "fp16", "_scaled_dot_product_efficient_attention"),
        (P100, "fp16", "_scaled_dot_product_efficient_attention"),
        (L4, "fp32", "_scaled_dot_product_efficient_attention"),
        (L4, "bf16", "_scaled_dot_product_flash_attention"),
    ],
)
def test_attention_uses_the_targets_kernel(
    trace_recipe: TraceRecipe, device: object, precision: Precision, kernel: str
) -> None:
    run = operators(trace_recipe("Encoder", precision, device))
    assert run[kernel] == run[f"{kernel}_backward"] == 4
    assert not run["bmm"]


def test_gpus_whose_traces_are_equal_share_them(trace_recipe: TraceRecipe, monkeypatch: pytest.MonkeyPatch) -> None:
    shared = trace_recipe("Encoder", "bf16", DEVICES["a10"])
    assert trace_recipe("Encoder", "bf16", L4) is shared
    monkeypatch.setattr("shoestring.planning.trace.tracer._TRACED_AS", {})
    own = trace_recipe("Encoder", "bf16", L4)
    assert own is not shared and own == shared != trace_recipe("Encoder", "bf16", T4)


def test_cpu_attention_with_trained_bias_uses_math(trace_recipe: TraceRecipe) -> None:
    from shoestring.hardware.probe import local_cpu

    run = operators(trace_recipe("BiasedAttention", device=local_cpu().device))
    assert run["_softmax_backward_data"] == 2
    assert not any("flash" in name for name in run)


def test_recurrent_layer_is_one_operator_with_reserve_space(trace_recipe: TraceRecipe) -> None:
    trace = trace_recipe("Recurrent")
    fused = [event for event in trace.events if isinstance(event, Op) and event.name.startswith("shoestring::")]
    forward, backward = fused[-2:]
    steps, units, layers = 32 * 24, 2 * 32, 2
    assert live_by_part(trace, "backward")["reserve space"] == steps * units * (layers * 6 * 4 + 1)
    weights = 2 * 4 * 32 * (30 + 32) + 2 * 4 * 32 * (64 + 32)
    assert forward.flops == 2 * steps * weights
    assert backward.flops == 2 * forward.flops
    assert forward.launches == 24 * layers * 2 * 2
    assert not any("lstm" in name for name in operators(trace))


def test_other_recurrent_layers_are_traced(trace_recipe: TraceRecipe) -> None:
    assert operators(trace_recipe("OtherRecurrent", "fp16"))["shoestring::recurrent_backward"] == 4


def test_weighted_loss_and_tied_weights(trace_recipe: TraceRecipe) -> None:
    trace = trace_recipe("Tied")
    assert live_by_part(trace, "forward")["weights"] == trace.facts.weight_bytes
    assert live_by_part(trace, "optimizer")["gradients"] == trace.facts.weight_bytes


def test_trace_survives_json(trace_recipe: TraceRecipe) -> None:
    trace = trace_recipe("Mlp", "fp16")
    assert Trace.from_json(trace.json()) == trace


def test_update_frees_everything_it_allocated(trace_recipe: TraceRecipe) -> None:
    live = live_by_part(trace_recipe("Mlp", "fp16", accumulate=2), "end")
    assert set(live) <= {"weights", "buffers", "optimizer states", "temporaries"}
    assert live["temporaries"] == 2 * 4  # the loss scale and its growth count


def test_form_of_the_batch_changes_nothing(trace_recipe):
    assert trace_recipe("Wrapped", accumulate=2) == replace(
        plain := trace_recipe("Linears", accumulate=2), facts=trace_recipe("Wrapped", accumulate=2).facts
    )
    assert any(storage.part == "batch" for storage in plain.storages)


def test_each_stage_is_one_of_the_measured_updates(trace_recipe):
    trace, weight = trace_recipe("Staged"), 256 * 512 * 4
    assert (trace.stages, Trace.from_json(trace.json()).stages) == (2, 2)
    steps = [event for event in trace.events if event == Phase("optimizer", 1, 0)]
    forwards = [event for event in trace.events if event == Phase("forward", 1, 0)]
    assert len(steps) == len(forwards) == 2
    live = live_by_part(trace, "forward")  # of the first stage, with the states of both
    assert live["optimizer states"] // weight == 4 and live["gradients"] == 0
