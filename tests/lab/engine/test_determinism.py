"""Deterministic kernels on a GPU are selected for training, also in attention's backward, and only there."""

import os
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
from torch.nn import functional

from shoestring.base.errors import UsageError
from shoestring.base.settings import Settings
from shoestring.hardware import cublas
from shoestring.recipe.finding import choose
from shoestring.techniques import compiled
from shoestring.training.data.seeding import seed_all
from shoestring.training.engine import attention
from shoestring.training.engine.attention import deterministic_attention
from shoestring.training.engine.building import build
from shoestring.training.engine.determinism import deterministic
from shoestring.training.engine.observation import Observation
from shoestring.training.engine.precision import mixed_precision
from shoestring.training.engine.side_effects import Generators
from shoestring.training.engine.update import update
from shoestring.training.undisturbed import compute_undisturbed
from tests.lab.engine.networks import Classifier
from tests.lab.engine.trained import CPU, CUDA, train


def test_the_settings_are_those_of_training_and_are_restored():
    torch.backends.cudnn.benchmark = True
    before = torch.get_deterministic_debug_mode(), torch.utils.deterministic.fill_uninitialized_memory
    try:
        with deterministic():
            assert torch.get_deterministic_debug_mode() == 1 and not torch.backends.cudnn.benchmark
            assert not torch.utils.deterministic.fill_uninitialized_memory
            assert not torch.backends.cuda.cudnn_sdp_enabled()
            assert os.environ[cublas.CONFIG_VARIABLE]
        assert (torch.get_deterministic_debug_mode(), torch.utils.deterministic.fill_uninitialized_memory) == before
        assert torch.backends.cudnn.benchmark and torch.backends.cuda.cudnn_sdp_enabled()
    finally:
        torch.backends.cudnn.benchmark = False


def gradients(tensors):
    queries, keys, values = (tensor.clone().requires_grad_() for tensor in tensors)
    functional.scaled_dot_product_attention(queries, keys, values).square().sum().backward()
    return [tensor.grad.clone() for tensor in (queries, keys, values)]


def test_attentions_backward_runs_in_the_strict_mode(monkeypatch):
    modes, run = [], attention._run_strictly

    def record(operator, *arguments, **options):
        def kernel(*arguments, **options):
            modes.append((operator.__name__, torch.get_deterministic_debug_mode()))
            return operator(*arguments, **options)

        return run(kernel, *arguments, **options)

    monkeypatch.setattr(attention, "_run_strictly", record)
    tensors = [torch.randn(2, 2, 5, 8, device=CUDA) for _ in range(3)]
    expected = gradients(tensors)
    assert not modes
    torch.set_deterministic_debug_mode(1)
    try:
        with deterministic_attention():
            inside = gradients(tensors)
            assert torch.get_deterministic_debug_mode() == 1
    finally:
        torch.set_deterministic_debug_mode(0)
    assert modes == [("_scaled_dot_product_efficient_attention_backward", 2)]
    assert all(map(torch.equal, inside, expected))
    assert all(map(torch.equal, gradients(tensors), expected)) and len(modes) == 1


def test_the_generator_of_the_gpu_is_seeded_and_restored():
    seed_all(3)
    states = Generators(CUDA)
    numbers = torch.rand(4, device=CUDA)
    assert not states.unchanged()
    states.restore()
    assert states.unchanged() and torch.equal(torch.rand(4, device=CUDA), numbers)
    seed_all(3)
    assert torch.equal(torch.rand(4, device=CUDA), numbers)


def test_two_runs_with_the_same_seed_have_the_same_losses_and_another_one_has_not(tmp_path):
    recipe = Classifier(network="attending", share=0.3)
    runs = [
        train(tmp_path / str(number), recipe, {"seed": seed, "precision": "fp16"}).losses
        for number, seed in enumerate((1, 1, 2))
    ]
    assert runs[0] == runs[1] != runs[2]


def test_an_observed_update_has_the_same_bits_and_the_observations_of_the_cpu():
    attempts, weights = {}, {}
    for device, is_observed in ((CUDA, True), (CPU, True), (CUDA, False)):
        torch.manual_seed(0)
        recipe = Classifier(network="convolutional")
        model, (inputs, labels) = recipe.model().to(device), recipe.data()["train"][:8]
        inputs[5, 0, 0, 0] = torch.inf
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        observation = Observation(model, parts=lambda size: [range(4), range(4, 8)])
        observation.begin(4)
        batches = list(zip(inputs.to(device).split(4), labels.to(device).split(4), strict=True))
        update(
            model,
            optimizer,
            recipe.loss,
            [(batch, 4) for batch in batches],
            samples=8,
            mixed_precision=mixed_precision("fp32", device),
            run=observation.run if is_observed else None,
            on_gradients=observation.gradients if is_observed else None,
        )
        attempts[device, is_observed] = repr(observation.last)
        weights[device, is_observed] = [tensor.cpu() for tensor in model.state_dict().values()]
    assert "nan" in attempts[CUDA, True] and "samples=(5,)" in attempts[CUDA, True]
    assert attempts[CUDA, True] == attempts[CPU, True]
    for tensor, other in zip(weights[CUDA, True], weights[CUDA, False], strict=True):
        torch.testing.assert_close(tensor, other, rtol=0, atol=0, equal_nan=True)


def test_a_computation_besides_training_leaves_nothing_behind():
    """Neither in the generator of the GPU and the buffers of the model, nor in the allocator's cache."""
    loaded, settings = choose(Classifier(network="dense", share=0.3), {"precision": "fp16", "micro_batch": 4})
    state = build(loaded, settings, CUDA)
    request = SimpleNamespace(device=CUDA, recipe=loaded, stop=SimpleNamespace(interrupting=nullcontext))
    before = [tensor.clone() for tensor in state.model.buffers()]
    torch.ones(4, 4, device=CUDA, dtype=torch.float16).mm(torch.ones(4, 4, device=CUDA, dtype=torch.float16))
    states, reserved = Generators(CUDA), torch.cuda.memory_reserved()  # with the workspace of cuBLAS

    def compute():
        state.model.norm.running_mean.add_(1)
        torch.empty(2**28, device=CUDA)
        return state.model.inner(torch.rand(4, 6, device=CUDA)).dtype, state.model.training

    result = compute_undisturbed(SimpleNamespace(state=state, request=request), "a test", compute)
    assert result == (torch.float16, False)
    assert states.unchanged() and torch.cuda.memory_reserved() == reserved and state.model.training
    assert all(map(torch.equal, state.model.buffers(), before))


def test_compilation_needs_triton_which_is_not_there():
    settings = Settings(compile="yes", checkpointing="no")
    assert compiled.toolchain(settings, CUDA) is None
    with pytest.raises(UsageError, match="compile=yes: not installed: triton"):
        compiled.require(settings, CUDA)


def test_compilation_needs_a_gpu_that_triton_compiles_for(monkeypatch):
    monkeypatch.setattr(compiled, "LEAST_CAPABILITY", (8, 0))
    with pytest.raises(UsageError, match=r"needs compute capability 8\.0, Tesla T4 has 7\.5"):
        compiled.require(Settings(compile="yes", checkpointing="no"), CUDA)
