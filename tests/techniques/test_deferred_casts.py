"""Weights that are cast when they are moved have the bits of those that are cast before."""

import copy

import pytest
import torch
from torch import distributed as dist
from torch import nn

from shoestring.base.settings import Settings
from shoestring.recipe.options import Adaptation
from shoestring.techniques import adapt, deferred_casts
from shoestring.techniques.pipeline import placement
from shoestring.training.engine.parallel import fully_sharded
from shoestring.training.engine.parallel.ranks import ONE_RANK
from tests.slow import slow_except

pytest.importorskip("peft")
transformers = pytest.importorskip("transformers")
CPU = torch.device("cpu")
SIZES = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 2, "vocab_size": 50}


def llama():
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES))


def mixture():
    config = transformers.MixtralConfig(**SIZES, num_local_experts=2, num_key_value_heads=1)
    return transformers.MixtralForCausalLM(config)


def gpt2():
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(n_embd=64, n_layer=3, n_head=2, vocab_size=50))


def with_added_rows():
    model = llama()
    model.added_rows = {"model.embed_tokens": [48, 49], "lm_head": [48, 49]}
    return model


def adapted(make, values, settings=None):
    """Return the adapted model of a file in bf16, before it is moved."""
    torch.manual_seed(0)
    base = make().bfloat16()
    with torch.no_grad():
        for weight in base.parameters():
            weight[..., :2] *= 1e-4  # some values that fp16 rounds
    adaptation = Adaptation(lora_r=2, lora_experts="no", **values)
    return adapt.trained_model(base, adaptation, settings or Settings(), keeps_stored_type=True)


def cast_before(make, values):
    """Return the adapted model whose weights were all cast when it was adapted."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(deferred_casts, "deferrable", lambda _model: set())
        return adapted(make, values)


def moved(model, settings):
    placement.move(model, object(), settings, CPU)
    return model


def bits(model):
    return bits_of(model.state_dict(keep_vars=True))


def bits_of(state):
    return {name: (value.dtype, value.detach().reshape(-1).view(torch.uint8).tolist()) for name, value in state.items()}


NF4 = {"quantization": "nf4"}
CASES = {
    "fp16": (llama, {"weights": "fp16"}),
    "fp32": (llama, {"weights": "fp32"}),
    "own type": (llama, {"weights": "bf16"}),
    "dora": (llama, {"weights": "fp16", "lora_dora": True}),
    "4 bits": (llama, {**NF4, "weights": "fp16", "double_quantization": True}),
    "4 bits, others in their type": (llama, {**NF4, "weights": "fp16", "unquantized": "own"}),
    "4 bits, experts in fp32": (mixture, {**NF4, "weights": "fp16"}),
    "4 bits, transposed": (gpt2, {**NF4, "weights": "fp16"}),
    "added rows": (with_added_rows, {"weights": "fp16"}),
    "adapters in bf16": (llama, {"weights": "fp16", "lora_dtype": "bf16"}),
}


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")  # peft reads it
@pytest.mark.parametrize("case", slow_except(CASES, "fp16", "dora", "4 bits", "4 bits, experts in fp32", "added rows"))
def test_same_bits_as_when_all_weights_are_cast_before(case):
    make, values = case
    if "quantization" in values:
        pytest.importorskip("bitsandbytes")
    plain = cast_before(make, values)
    dtypes, expected = [weight.dtype for weight in plain.parameters()], bits(moved(plain, Settings()))
    for settings in (Settings(), Settings(streamed_blocks=3)):
        model = adapted(make, values, settings)
        assert [weight.dtype for weight in model.parameters()] == dtypes
        assert bits(moved(model, settings)) == expected


@pytest.mark.parametrize(
    "settings", [{"gpus": 2, "sharding": "pipeline"}, {"offload": "parameters"}, {"sharding": "zero3"}], ids=str
)
def test_each_way_to_the_device_ends_with_all_values(settings, monkeypatch):
    values = {"weights": "fp16"}
    expected = bits(moved(cast_before(llama, values), Settings()))
    model = adapted(llama, values, Settings(**settings))
    if "offload" in settings:  # on a CPU nothing is offloaded
        monkeypatch.setattr("shoestring.techniques.offload.HOST", torch.device("cpu", 0))
    if settings.get("sharding") == "zero3":
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        try:
            blocks = list(model.base_model.model.model.layers)
            fully_sharded.shard(model, blocks, ONE_RANK, CPU, reshard_after_forward=True)
            assert bits_of({name: weight.full_tensor() for name, weight in model.state_dict().items()}) == expected
        finally:
            dist.destroy_process_group()
    else:
        assert bits(moved(model, Settings(**settings))) == expected


def test_a_weight_is_converted_when_the_one_before_it_has_moved(monkeypatch):
    model = adapted(llama, {"weights": "fp16"})
    convert, with_values = deferred_casts.convert, []

    def counted(tensor):
        convert(tensor)
        frozen = [weight for weight in model.parameters() if not weight.requires_grad and weight.dim() == 2]
        on_host = [weight for weight in frozen if not weight.is_meta]
        with_values.append(sum(weight.untyped_storage().nbytes() > weight.element_size() for weight in on_host))

    monkeypatch.setattr(deferred_casts, "convert", counted)
    placement.move(model, object(), Settings(), torch.device("meta"))
    assert max(with_values) == 1 and sum(with_values) == 2 + 3 * 7
    assert all(weight.is_meta for weight in model.parameters())


@pytest.mark.parametrize("values", [{}, {**NF4}], ids=str)
def test_weights_have_no_memory_of_their_own_before_they_are_moved(values):
    if values:
        pytest.importorskip("bitsandbytes")
    model = adapted(llama, {**values, "weights": "fp16"})
    frozen = [weight for weight in model.parameters() if not weight.requires_grad and weight.dim() == 2]
    assert len(frozen) == 2 + 3 * 7
    assert all(weight.untyped_storage().nbytes() == weight.element_size() for weight in frozen)


def test_a_model_that_is_not_moved_can_be_given_its_values():
    values = {"weights": "fp16"}
    plain, model = cast_before(llama, values), adapted(llama, values)
    assert not all(map(torch.equal, model.parameters(), plain.parameters()))
    deferred_casts.convert_all(model)
    assert all(map(torch.equal, model.parameters(), plain.parameters()))


def test_a_cast_that_is_not_deferred_follows_those_that_are():
    weight = nn.Parameter(torch.tensor([[1e-6, 1.0]]), requires_grad=False)
    expected = copy.deepcopy(weight).data.half().float()
    deferred_casts.cast(weight, torch.float16, is_deferred=True)
    deferred_casts.cast(weight, torch.float32, is_deferred=False)
    assert torch.equal(weight, expected) and not torch.equal(expected, torch.tensor([[1e-6, 1.0]]))
