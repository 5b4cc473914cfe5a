"""What one update holds and runs: counted by hand where that can be done, and the kernels a target would choose."""

from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from shoestring.hardware.catalog import DEVICES
from shoestring.recipe import finding
from shoestring.settings import Precision, Settings
from shoestring.trace import Trace, Tracer
from shoestring.trace.record import Alloc, Free, Op, Phase
from tests.trace import recipes_of_each_kind

T4, L4, P100 = DEVICES["t4"], DEVICES["l4"], DEVICES["p100"]

Ask = Callable[..., Trace]


@pytest.fixture(scope="module")
def tracers() -> Iterator[dict[str, Tracer]]:
    """One child for each recipe, for the whole module: starting one is what costs."""
    open_: dict[str, Tracer] = {}
    yield open_
    for tracer in open_.values():
        tracer.close()


@pytest.fixture
def ask(tracers: dict[str, Tracer]) -> Ask:
    def trace(name: str, precision: Precision = "fp32", device: object = T4, *, accumulate: int = 1) -> Trace:
        if name not in tracers:
            tracers[name] = Tracer(finding.find(getattr(recipes_of_each_kind, name)()))
        settings = Settings(micro_batch=32, precision=precision)
        return tracers[name].trace(settings, accumulate=accumulate, device=device)

    return trace


def live_by_part(trace: Trace, name: str, *, update: int = 1, microbatch: int = 0) -> Counter[str]:
    """Bytes by part when a phase begins."""
    live: Counter[str] = Counter()
    for event in trace.events:
        if isinstance(event, Alloc | Free):
            storage = trace.storages[event.storage]
            live[storage.part] += storage.bytes if isinstance(event, Alloc) else -storage.bytes
        elif event == Phase(name, update, microbatch):
            return +live
    raise AssertionError(f"no phase {name}")


def peak(trace: Trace, *, update: int = 1) -> int:
    live, most, measured = 0, 0, False
    for event in trace.events:
        if isinstance(event, Phase):
            measured = event.update == update
        elif isinstance(event, Alloc | Free):
            size = trace.storages[event.storage].bytes
            live += size if isinstance(event, Alloc) else -size
            most = max(most, live) if measured else most
    return most


def operators(trace: Trace) -> Counter[str]:
    return Counter(event.name.removeprefix("aten::") for event in trace.events if isinstance(event, Op))


WEIGHTS = 4 * (256 * 512 + 512 * 128)
LARGEST = 4 * 256 * 512


def test_two_linear_layers_with_sgd_to_the_byte(ask: Ask) -> None:
    trace = ask("LinearsSgd")
    batch, hidden, output = 4 * 32 * 256, 4 * 32 * 512, 4 * 32 * 128
    before_backward = live_by_part(trace, "backward")
    assert before_backward == {"weights": WEIGHTS, "batch": batch, "activations": hidden + 4}
    assert live_by_part(trace, "optimizer") == {"weights": WEIGHTS, "gradients": WEIGHTS}
    # Most lives when the first layer's gradient joins the second's, with the gradient of the hidden layer.
    gradients = WEIGHTS + hidden
    assert peak(trace) == WEIGHTS + batch + gradients + 8
    assert output < hidden


def test_adamw_makes_its_states_in_the_first_update_and_many_at_once_needs_a_copy(ask: Ask) -> None:
    trace = ask("Linears")
    assert live_by_part(trace, "optimizer", update=0)["optimizer states"] == 0
    kept = live_by_part(trace, "optimizer")
    assert kept == {"weights": WEIGHTS, "gradients": WEIGHTS, "optimizer states": 2 * WEIGHTS}
    assert peak(trace) == 5 * WEIGHTS  # foreach: a root of every second moment at once


def test_on_a_cpu_the_optimizer_takes_one_tensor_after_another(ask: Ask) -> None:
    from shoestring.hardware.probe import local_cpu

    trace = ask("Linears", device=local_cpu().device)
    assert peak(trace) == 4 * WEIGHTS + 2 * LARGEST
    assert not any("foreach" in name for name in operators(trace))


def test_gradients_of_the_first_microbatch_live_through_the_second(ask: Ask) -> None:
    trace = ask("Linears", accumulate=7)
    assert trace.microbatches == 2
    assert live_by_part(trace, "forward", microbatch=1)["gradients"] == WEIGHTS
    assert live_by_part(trace, "forward", microbatch=0)["gradients"] == 0


def test_autocast_keeps_casts_of_the_weights_for_backward(ask: Ask) -> None:
    activations = live_by_part(ask("Linears", "fp16"), "backward")["activations"]
    # Backward needs the second layer's weight, both layers' inputs, and the scaled loss.
    assert activations == 2 * (512 * 128 + 32 * 256 + 32 * 512) + 4


def test_a_weight_is_cast_once_in_a_microbatch(ask: Ask) -> None:
    casts = operators(ask("Repeated", "fp16"))["_to_copy"]
    # In each of two updates: the input and the weight; in backward the loss's gradient and the weight's.
    assert casts == 2 * 4


def test_products_run_in_half_precision_and_the_loss_does_not(ask: Ask) -> None:
    by_name = {event.name: event for event in ask("Mlp", "fp16").events if isinstance(event, Op)}
    assert by_name["aten::addmm"].precision == "fp16"
    assert by_name["aten::nll_loss_forward"].precision == "fp32"
    assert "aten::_amp_foreach_non_finite_check_and_unscale_" in by_name


def test_a_gradient_norm_is_clipped_and_dropout_keeps_one_byte_an_element(ask: Ask) -> None:
    trace = ask("Mlp")
    assert operators(trace)["_foreach_norm"] + operators(trace)["_foreach_norm.Scalar"] == 2
    assert 32 * 64 in {storage.bytes for storage in trace.storages if storage.part == "activations"}


def test_operators_count_flops_and_bytes(ask: Ask) -> None:
    product = next(event for event in ask("Linears").events if isinstance(event, Op))
    assert (product.name, product.flops) == ("aten::mm", 2 * 32 * 256 * 512)
    assert product.bytes == 4 * (32 * 256 + 256 * 512 + 32 * 512)


def test_convolutions_pool_and_normalise(ask: Ask) -> None:
    trace = ask("Convolutions")
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
def test_attention_runs_as_the_target_would(ask: Ask, device: object, precision: Precision, kernel: str) -> None:
    run = operators(ask("Encoder", precision, device))
    assert run[kernel] == run[f"{kernel}_backward"] == 4
    assert not run["bmm"]


def test_a_cpu_runs_attention_with_a_trained_bias_in_plain_mathematics(ask: Ask) -> None:
    from shoestring.hardware.probe import local_cpu

    run = operators(ask("BiasedAttention", device=local_cpu().device))
    assert run["_softmax_backward_data"] == 2
    assert not any("flash" in name for name in run)


def test_a_recurrent_layer_is_one_operator_with_its_reserve_space(ask: Ask) -> None:
    trace = ask("Recurrent")
    fused = [event for event in trace.events if isinstance(event, Op) and event.name.startswith("shoestring::")]
    forward, backward = fused[-2:]
    steps, units, layers = 32 * 24, 2 * 32, 2
    assert live_by_part(trace, "backward")["reserve space"] == steps * units * (layers * 6 * 4 + 1)
    weights = 2 * 4 * 32 * (30 + 32) + 2 * 4 * 32 * (64 + 32)
    assert forward.flops == 2 * steps * weights
    assert backward.flops == 2 * forward.flops
    assert forward.launches == 24 * layers * 2 * 2
    assert not any("lstm" in name for name in operators(trace))


def test_other_recurrent_layers_are_followed_too(ask: Ask) -> None:
    assert operators(ask("OtherRecurrent", "fp16"))["shoestring::recurrent_backward"] == 4


def test_a_sum_with_its_weight_and_tied_weights(ask: Ask) -> None:
    trace = ask("Tied")
    assert live_by_part(trace, "forward")["weights"] == trace.facts.weight_bytes
    assert live_by_part(trace, "optimizer")["gradients"] == trace.facts.weight_bytes


def test_a_trace_survives_its_json(ask: Ask) -> None:
    trace = ask("Mlp", "fp16")
    assert Trace.from_json(trace.json()) == trace


def test_everything_is_freed_that_the_update_made(ask: Ask) -> None:
    kept = live_by_part(ask("Mlp", "fp16", accumulate=2), "end")
    assert set(kept) <= {"weights", "buffers", "optimizer states", "temporaries"}
    assert kept["temporaries"] == 3 * 4  # the loss scale, its growth count, and whether infinities were found
