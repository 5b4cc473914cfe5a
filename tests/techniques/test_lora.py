"""Which weights of a model have adapters, for each way to name them."""

import re

import pytest
import torch
from torch import nn

from shoestring.base.errors import UsageError
from shoestring.recipe.adaptation import Adaptation
from shoestring.recipe.finding import choose
from shoestring.techniques import lora

peft = pytest.importorskip("peft", minversion="0.17")
transformers = pytest.importorskip("transformers", minversion="5")

SIZES = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 64,
}
MIXTURES = {
    "mixtral": {"num_local_experts": 3},
    "qwen2_moe": {"num_experts": 3, "moe_intermediate_size": 16, "shared_expert_intermediate_size": 16},
    "deepseek_v3": {"n_routed_experts": 4, "moe_intermediate_size": 16, "first_k_dense_replace": 1}
    | {"q_lora_rank": 8, "kv_lora_rank": 8, "qk_nope_head_dim": 8, "qk_rope_head_dim": 8, "v_head_dim": 8},
}
EXPERTS = {"mlp.experts.gate_up_proj", "mlp.experts.down_proj"}
DENSE = {f"mlp.{name}_proj" for name in ("gate", "up", "down")}
SHARED = {
    "mixtral": set(),
    "qwen2_moe": {f"mlp.shared_expert.{name}_proj" for name in ("gate", "up", "down")},
    "deepseek_v3": {f"mlp.shared_experts.{name}_proj" for name in ("gate", "up", "down")} | DENSE,
}


def build(kind: str, **changes: object) -> nn.Module:
    config = transformers.AutoConfig.for_model(kind, **{**SIZES, **MIXTURES.get(kind, {}), **changes})
    with torch.device("meta"):
        return transformers.AutoModelForCausalLM.from_config(config)


def adapted(model: nn.Module) -> set[str]:
    """Return the names of the weights with adapters, without the numbers of the blocks."""
    return {
        re.sub(r"^model\.layers\.\d+\.", "", weight.name).removesuffix(".weight")
        for weight in lora._weights(model)
        if weight.is_adapted
    }


@pytest.mark.parametrize("kind", MIXTURES)
@pytest.mark.parametrize("targets", ["mlp", "linear", "gate_proj,up_proj,down_proj"])
def test_experts_of_a_mixture_have_adapters(kind: str, targets: str) -> None:
    names = adapted(lora.with_adapters(build(kind), Adaptation(lora_r=2, lora_targets=targets)))
    of_blocks = {name for name in names if not name.startswith("self_attn") and name != "mlp.shared_expert_gate"}
    assert of_blocks == EXPERTS | SHARED[kind]
    assert ("self_attn.o_proj" in names) == (targets == "linear")


def test_without_experts_all_other_layers_have_adapters() -> None:
    adaptation = Adaptation(lora_r=2, lora_targets="linear", lora_experts="no", lora_dropout=0.0)
    names = adapted(lora.with_adapters(build("deepseek_v3"), adaptation))
    assert names >= SHARED["deepseek_v3"] | {"self_attn.o_proj"} and not names & EXPERTS


def test_share_of_the_weights_is_told() -> None:
    model = lora.with_adapters(build("mixtral"), Adaptation(lora_r=2, lora_targets="linear"))
    assert lora.notes(model, Adaptation(lora_r=2, lora_targets="linear")) == [
        "lora_targets=linear adapts 99% of the weights of the model's blocks"
    ]
    attention = Adaptation(lora_r=2)
    weights = {"attention": 32 * 32 * 2 + 32 * 16 * 2, "experts": 3 * 32 * 48 * 3, "gate": 3 * 32}
    share = weights["attention"] / sum(weights.values())
    (note,) = lora.notes(lora.with_adapters(build("mixtral"), attention), attention)
    assert f"lora_targets=attention adapts {share:.0%} of the weights" in note
    assert "without adapters are experts.gate_up_proj (54%), experts.down_proj (27%)" in note


def test_packed_weights_count_one_by_one() -> None:
    from shoestring.techniques import nf4

    model = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model("llama", **SIZES))
    nf4.quantize(model, nf4.placeholder_layer, compute=torch.float32, double=True)
    share = lora.shares(lora.with_adapters(model, Adaptation(lora_r=2)))
    assert share.adapted == (2 * 32 * 32 + 2 * 32 * 16) / (2 * 32 * 32 + 2 * 32 * 16 + 3 * 32 * 48)


@pytest.mark.filterwarnings("ignore:The following (rank|alpha)_pattern keys did not match")  # of peft 0.21
@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")  # peft uses it
@pytest.mark.parametrize("kind", MIXTURES)
def test_runs_of_earlier_versions_have_their_adapters(kind: str) -> None:
    """peft alone decides, and its versions give some names to the stacked experts of some mixtures."""
    names = adapted(lora.with_adapters(build(kind), Adaptation(lora_r=2, lora_targets="linear", lora_experts="peft")))
    base = build(kind)
    endings = {name.rpartition(".")[2] for name, module in base.named_modules() if hasattr(module, "in_features")}
    config = peft.LoraConfig(r=2, target_modules=sorted(endings - {"lm_head"}))
    assert names == adapted(peft.get_peft_model(base, config))


def test_option_that_did_not_exist_has_its_earlier_meaning() -> None:
    stored = {"lora_targets": "linear"}
    assert choose("finetune", stored, stored=True)[0].options["lora_experts"] == "peft"
    assert choose("finetune", stored)[0].options["lora_experts"] == "yes"
    assert choose("finetune", stored | {"lora_experts": "no"}, stored=True)[0].options["lora_experts"] == "no"
    assert "lora_experts" not in choose("chart", {}, stored=True)[0].options


def test_every_linear_layer_of_gpt2_has_an_adapter() -> None:
    changes = {"n_embd": 32, "num_hidden_layers": 1, "n_head": 4, "n_positions": 16}
    model = lora.with_adapters(build("gpt2", **changes), Adaptation(lora_r=2, lora_targets="linear"))
    assert adapted(model) == {
        f"transformer.h.0.{name}" for name in ("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj")
    }
    assert lora.shares(model).adapted == 1


class WithTower(nn.Module):
    """A head of torch's attention beside attention whose layers have the same names, as in SigLIP."""

    def __init__(self) -> None:
        super().__init__()
        self.block = nn.ModuleDict({"q_proj": nn.Linear(4, 4), "out_proj": nn.Linear(4, 4)})
        self.head = nn.MultiheadAttention(4, 2)


@pytest.mark.parametrize("targets", ["attention", "linear"])
def test_what_bypasses_adapters_is_left_out_of_a_preset(targets: str) -> None:
    model = lora.with_adapters(WithTower(), Adaptation(lora_r=2, lora_targets=targets))
    assert adapted(model) == {"block.q_proj", "block.out_proj"}
    with pytest.raises(UsageError, match="cannot be used") as caught:
        lora.with_adapters(WithTower(), Adaptation(lora_r=2, lora_targets="out_proj"))
    assert caught.value.problems == (
        "head.out_proj is inside torch's MultiheadAttention or a fused kernel, which bypasses adapters",
    )


@pytest.mark.parametrize(
    ("targets", "problem"),
    [("gate_proj", "the model has no module 'gate_proj'"), ("self_attn", "Target module MixtralAttention(")],
)
def test_hint_has_values_that_can_be_used(targets: str, problem: str) -> None:
    with pytest.raises(UsageError) as caught:
        lora.with_adapters(build("mixtral"), Adaptation(lora_r=2, lora_targets=targets))
    assert caught.value.problems == (problem,)
    hint = "with this model lora_targets can be attention, mlp, linear, or names of its layers: "
    assert caught.value.hint == f"{hint}k_proj,o_proj,q_proj,v_proj,gate_up_proj,down_proj"
    for value in ("attention", "mlp", "linear", caught.value.hint.removeprefix(hint)):
        lora.with_adapters(build("mixtral"), Adaptation(lora_r=2, lora_targets=value))


@pytest.mark.parametrize(
    ("kind", "without"),
    [("mamba", {"mixer.out_proj", "mixer.x_proj"}), ("mamba2", {"mixer.out_proj"}), ("phimoe", {"mlp.router"})],
)
def test_layers_whose_adapter_would_not_be_computed_have_none(kind: str, without: set[str]) -> None:
    """Weights that fused kernels read, and a router, which has more results than a product."""
    changes = {"hidden_size": 64, "num_heads": 8, "head_dim": 16} if kind == "mamba2" else {}
    model = lora.with_adapters(build(kind, **changes), Adaptation(lora_r=2, lora_targets="linear"))
    weights = {
        re.sub(r"^\w+\.layers\.\d+\.", "", weight.name).removesuffix(".weight") for weight in lora._weights(model)
    }
    names = {re.sub(r"^\w+\.layers\.\d+\.", "", name) for name in adapted(model)}
    assert weights >= without and not names & without and names


@pytest.mark.parametrize("changes", [{"lora_dropout": 0.1}, {"lora_dora": True}])
def test_what_adapters_of_experts_cannot_do_is_refused(changes: dict) -> None:
    adaptation = {"lora_r": 2, "lora_targets": "linear", **changes}
    with pytest.raises(UsageError, match="peft has neither dropout") as caught:
        lora.with_adapters(build("mixtral"), Adaptation(**adaptation))
    assert "lora_experts=no" in caught.value.hint
    assert adapted(lora.with_adapters(build("mixtral"), Adaptation(**adaptation, lora_experts="no")))


def test_model_whose_embedding_is_not_known_can_have_adapters() -> None:
    class Unknown(WithTower):
        config = None

        def get_input_embeddings(self) -> nn.Module:
            raise NotImplementedError

    assert adapted(lora.with_adapters(Unknown(), Adaptation(lora_r=2)))
