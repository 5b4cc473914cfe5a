import math
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from shoestring.base.errors import UsageError
from shoestring_recipes.temporal import ARCHITECTURES, Options, Temporal
from shoestring_recipes.temporal.architectures import MEMBERS
from shoestring_recipes.temporal.models import AttentiveLSTM, sinusoids

every_architecture = pytest.mark.parametrize("architecture", list(ARCHITECTURES))
every_size = pytest.mark.parametrize("size", ["full", "tiny"])


def count_parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize(
    ("architecture", "count"),
    [
        ("lstm", 625_726),
        ("transformer", 608_003),
        ("mlp", 26_381),
        ("ensemble", 625_726 + 608_003 + 26_381 + 4_099 + 9),
    ],
)
def test_full_models_have_the_published_number_of_parameters(architecture: str, count: int) -> None:
    assert count_parameters(Temporal(Options(architecture=architecture)).model()) == count


def test_four_layer_transformer_has_the_published_parameters() -> None:
    assert count_parameters(Temporal(Options(architecture="transformer", layers=4)).model()) == 806_275


def test_sizes_are_options() -> None:
    lstm = Temporal(Options(hidden_dim=96, layers=3)).model()
    assert [layer.hidden_size for layer in lstm.layers] == [96, 96, 96]
    assert Temporal(Options(architecture="transformer", hidden_dim=64)).model().embed[0].out_features == 64
    ensemble = Temporal(Options(architecture="ensemble", size="tiny", hidden_dim=4, layers=1)).model()
    assert ensemble.members["lstm"].layers[0].hidden_size == 4 and len(ensemble.members["lstm"].layers) == 1
    assert ensemble.members["transformer"].embed[0].out_features == 4
    transformer = Temporal(Options(architecture="transformer", hidden_dim=96, heads=4)).model()
    layer = transformer.encoder[0]
    assert (layer.self_attn.num_heads, layer.linear1.out_features, transformer.head[1].out_features) == (4, 384, 48)
    assert lstm.score[0].out_features == 96
    mlp = Temporal(Options(architecture="mlp", widths="64,32")).model()
    assert [layer[0].out_features for layer in mlp.layers] == [64, 32]


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"hidden_dim": 0}, "hidden_dim=0: must be at least 1"),
        ({"layers": 0}, "layers=0: must be at least 1"),
        ({"architecture": "mlp", "hidden_dim": 64}, "hidden_dim=64: the mlp has no such size"),
        ({"heads": 4}, "heads=4: the lstm has no such size"),
        (
            {"architecture": "transformer", "heads": 3},
            "hidden_dim=128: must be a multiple of the transformer's 3 heads",
        ),
        ({"architecture": "mlp", "widths": "64,x"}, "widths=64,x: must be numbers from 1"),
        ({"architecture": "mlp", "widths": "64,1"}, "widths=64,1: must be numbers from 1"),
        ({"architecture": "transformer", "hidden_dim": 100}, "must be a multiple of the transformer's 8 heads"),
        ({"architecture": "ensemble", "hidden_dim": 100}, "must be a multiple of the transformer's 8 heads"),
    ],
)
def test_sizes_that_a_network_cannot_have(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(UsageError) as caught:
        Options(**options)
    assert any(problem in text for text in caught.value.problems)


@every_architecture
def test_tiny_models_have_a_few_thousand_parameters(architecture: str) -> None:
    limit = 20_000 if architecture == "ensemble" else 10_000
    assert 1000 < count_parameters(Temporal(Options(architecture=architecture, size="tiny")).model()) < limit


@every_architecture
@every_size
@pytest.mark.parametrize("seq_len", [1, 20, 33])
def test_logits_of_three_classes(architecture: str, size: str, seq_len: int) -> None:
    recipe = Temporal(Options(architecture=architecture, size=size, seq_len=seq_len))
    assert recipe.model()(recipe.batch(2)[0]).shape == (2, 3)


@every_architecture
@every_size
def test_a_step_runs_on_fake_and_meta_tensors(architecture: str, size: str) -> None:
    recipe = Temporal(Options(architecture=architecture, size=size))
    with FakeTensorMode():
        model = recipe.model()
        recipe.loss(model, recipe.batch(3)).backward()
        assert all(parameter.grad is not None for parameter in model.parameters())
    model = recipe.model().to("meta")
    inputs, labels = recipe.batch(3)
    assert recipe.loss(model, (inputs.to("meta"), labels.to("meta"))).is_meta


# torch's LSTM for the CPU exists in bf16 only for processors with such instructions, and in fp16 for none.
without_bf16_lstm = pytest.mark.skipif(
    not torch.ops.mkldnn._is_mkldnn_bf16_supported(), reason="this processor has no LSTM in bf16"
)


@pytest.mark.parametrize(
    ("architecture", "precision"),
    [
        pytest.param("lstm", torch.bfloat16, marks=without_bf16_lstm),
        ("transformer", torch.bfloat16),
        ("transformer", torch.float16),
        ("mlp", torch.bfloat16),
        ("mlp", torch.float16),
        pytest.param("ensemble", torch.bfloat16, marks=without_bf16_lstm),
    ],
)
def test_mixed_precision(architecture: str, precision: torch.dtype) -> None:
    torch.manual_seed(0)
    recipe = Temporal(Options(architecture=architecture, size="tiny", dropout=0.0))
    model, batch = recipe.model().train(), (torch.randn(64, 20, 29), torch.randint(3, (64,)))
    fp32_loss = recipe.loss(model, batch)
    with torch.autocast("cpu", precision):
        loss = recipe.loss(model, batch)
    loss.backward()
    assert loss.dtype == torch.float32
    assert float(loss.detach()) == pytest.approx(float(fp32_loss.detach()), rel=0.02)
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())


@every_architecture
def test_every_parameter_gets_a_gradient(architecture: str) -> None:
    torch.manual_seed(0)
    recipe = Temporal(Options(architecture=architecture, size="tiny"))
    model = recipe.model()
    recipe.loss(model, (torch.randn(64, 20, 29), torch.randint(3, (64,)))).backward()
    assert all(parameter.grad is not None and parameter.grad.any() for parameter in model.parameters())


@every_architecture
def test_the_same_seed_gives_the_same_model(architecture: str) -> None:
    def state() -> dict[str, torch.Tensor]:
        torch.manual_seed(3)
        return Temporal(Options(architecture=architecture)).model().state_dict()

    assert all(map(torch.equal, state().values(), state().values()))


def test_transformer_layers_are_initialized_differently() -> None:
    first, second, third, _ = Temporal(Options(architecture="transformer")).model().encoder
    assert not torch.equal(first.linear1.weight, second.linear1.weight)
    assert not torch.equal(second.linear1.weight, third.linear1.weight)


@pytest.mark.parametrize("architecture", ["lstm", "transformer"])
def test_output_depends_on_bar_order_not_on_other_samples(architecture: str) -> None:
    torch.manual_seed(0)
    model, inputs = Temporal(Options(architecture=architecture)).model().eval(), torch.randn(2, 20, 29)
    with torch.no_grad():
        logits = model(inputs)
        assert not torch.allclose(model(inputs.flip(1)), logits)
        torch.testing.assert_close(model(inputs[:1]), logits[:1])


def test_the_mlp_uses_the_last_bar_only() -> None:
    model, inputs = Temporal(Options(architecture="mlp")).model().eval(), torch.randn(2, 20, 29)
    changed = torch.randn(2, 20, 29)
    changed[:, -1] = inputs[:, -1]
    with torch.no_grad():
        assert torch.equal(model(changed), model(inputs))


@every_architecture
def test_dropout_is_the_default_or_the_option(architecture: str) -> None:
    def probabilities(**options: float) -> set[float]:
        modules = list(Temporal(Options(architecture=architecture, **options)).model().modules())
        assert not any(module.dropout for module in modules if isinstance(module, nn.LSTM)), (
            "dropout of nn.LSTM is not reproducible on a GPU"
        )
        return {module.p for module in modules if isinstance(module, nn.Dropout)}

    defaults = MEMBERS.values() if architecture == "ensemble" else [ARCHITECTURES[architecture]]
    assert probabilities() == {default.dropout for default in defaults}
    assert probabilities(dropout=0.25) == {0.25}


def test_stacked_lstm_layers_equal_a_multi_layer_lstm() -> None:
    torch.manual_seed(0)
    model = AttentiveLSTM(29, 3, hidden=8, head=4, dropout=0.4)
    torch.manual_seed(0)
    reference = nn.LSTM(29, 8, 2, batch_first=True, dropout=0.4, bidirectional=True)
    inputs = torch.randn(6, 20, 29)
    torch.manual_seed(1)
    expected = reference(model.norm(inputs))[0]
    torch.manual_seed(1)
    norm_inputs = []
    model.lstm_norm.register_forward_pre_hook(lambda module, arguments: norm_inputs.append(arguments[0]))
    model(inputs)
    assert torch.equal(norm_inputs[0], expected)


def test_sinusoids_by_hand() -> None:
    expected = [math.sin(3), math.cos(3), math.sin(0.03), math.cos(0.03)]
    assert sinusoids(5, 4)[3].tolist() == pytest.approx(expected)
