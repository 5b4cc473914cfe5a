from shoestring.planning.estimate.phases import peak_tensor_bytes
from shoestring.planning.trace.record import Alloc, Free, Phase
from tests.planning.estimate.example_traces import trace


def test_each_phase_has_its_rounded_peak() -> None:
    peaks = peak_tensor_bytes(
        trace(
            [(1, "weights"), (513, "KV cache"), (2048, "activations"), (512, "temporaries")],
            [
                Phase("model", 0, 0),
                Alloc(0),
                Phase("generation", 1, 0),
                Alloc(1),
                Free(1),
                Phase("forward", 1, 0),
                Alloc(2),
                Phase("backward", 1, 0),
                Free(2),
                Alloc(3),
                Phase("optimizer", 1, 0),
                Free(3),
                Phase("end", 1, 0),
            ],
        )
    )
    assert peaks == {
        "loading": 512,
        "generation": 512 + 1024,
        "forward": 512 + 2048,
        "backward": 512 + 2048,
        "optimizer": 512 + 512,
    }


def test_larger_microbatch_of_the_measured_update_counts() -> None:
    peaks = peak_tensor_bytes(
        trace(
            [(4096, "activations"), (512, "activations"), (1024, "activations")],
            [
                Phase("forward", 0, 0),
                Alloc(0),
                Free(0),
                Phase("forward", 1, 0),
                Alloc(1),
                Free(1),
                Phase("backward", 1, 0),
                Phase("forward", 1, 1),
                Alloc(2),
                Free(2),
                Phase("backward", 1, 1),
                Phase("end", 1, 0),
            ],
        )
    )
    assert peaks == {"forward": 1024, "backward": 0}
