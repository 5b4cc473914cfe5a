"""Exports read back by the libraries that they are for, and by the code that they recommend."""

import inspect
import json
import math
import warnings
from dataclasses import replace
from pathlib import Path
from typing import get_args

import gguf
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from shoestring.base.errors import RunError, UsageError
from shoestring.integrations.huggingface import adapters_export
from shoestring.integrations.huggingface.packed import unpacked_weight
from shoestring.integrations.huggingface.saving import quiet
from shoestring.recipe.exports import Exported
from shoestring.recipe.finding import choose
from shoestring.techniques import nf4
from shoestring_recipes.finetune import export, merging, vocabulary
from shoestring_recipes.finetune.export_formats import formats
from shoestring_recipes.finetune.gguf import families
from shoestring_recipes.finetune.options import GgufType
from shoestring_recipes.finetune.samples import PairSample
from tests.recipes.finetune.exported_models import (
    byte_level_tokenizer,
    largest_difference,
    random_model,
    samples,
    sentencepiece_tokenizer,
    with_lora,
)

TOKENS = torch.arange(3, 43).view(2, 20)


@pytest.fixture(autouse=True)
def no_gradients():
    with torch.no_grad():
        yield


def run_usage(exported: Exported, folder: Path, monkeypatch, capsys) -> dict:
    """Run the code of an export in its folder, and return its names."""
    monkeypatch.chdir(folder)
    names: dict = {}
    with quiet(), warnings.catch_warnings():
        # peft uses a name that newer versions of transformers deprecate.
        warnings.simplefilter("ignore", FutureWarning)
        exec(compile(exported.usage, "usage", "exec"), names)
    assert capsys.readouterr().out.strip()
    return names


def write(name: str, model, folder: Path, **options) -> Exported:
    folder.mkdir(exist_ok=True)
    options = {"tokenizer": byte_level_tokenizer(), **options}
    return getattr(export, f"write_{name}")(model, folder, samples(), **options)


def test_adapter_is_read_by_peft(tmp_path, monkeypatch, capsys):
    model = with_lora(random_model("llama"))
    expected, planned = model(TOKENS).logits, export.bytes_of("adapter", model)
    exported = write("adapter", model, tmp_path, source=None)
    assert largest_difference(exported.compared) == 0
    assert [len(logits) for logits, _ in exported.compared] == [9, 7 + 3, 12 + 1 + 16]
    weights = sum(path.stat().st_size for path in tmp_path.rglob("*.safetensors"))
    assert planned <= weights < planned + 16_000
    names = run_usage(exported, tmp_path, monkeypatch, capsys)
    assert torch.equal(names["model"](TOKENS).logits, expected)
    assert "<|im_start|>assistant" in names["tokenizer"].decode(names["inputs"]["input_ids"][0])


def can_read_adapters_of_experts() -> bool:
    """peft 0.19 passes an argument that transformers 5.0 does not have, and then reads none of a mixture."""
    from transformers import core_model_loading

    return "loading_info" in inspect.signature(core_model_loading.WeightRenaming.convert).parameters


def test_adapter_of_experts_and_added_tokens_is_read_by_peft(tmp_path, monkeypatch, capsys):
    pytest.importorskip("peft", minversion="0.17")
    base = random_model("mixtral", num_local_experts=3, num_experts_per_tok=2, tie_word_embeddings=True)
    base.save_pretrained(tmp_path / "model")
    model = with_lora(
        vocabulary.enlarge(base, 340),
        targets=["q_proj"],
        target_parameters=["experts.gate_up_proj", "experts.down_proj"],
        trainable_token_indices=base.added_rows,
    )
    for name, weight in model.named_parameters():
        if "trainable_tokens" in name:
            weight.add_(torch.randn_like(weight))
    tokens = TOKENS.clone()
    tokens[0, 0] = 339
    expected, planned = model(tokens).logits, export.bytes_of("adapter", model, source="owner/name")
    exported = write("adapter", model, tmp_path / "adapter", source=tmp_path / "model", is_enlarged=True)
    assert largest_difference(exported.compared) == 0
    assert torch.equal(model(tokens).logits, expected)
    file = tmp_path / "adapter" / "adapter_model.safetensors"
    assert planned <= file.stat().st_size < planned + 16_000
    trained = load_file(file)
    save_file({name: weight + 1 for name, weight in trained.items()}, file)
    (changed,) = adapters_export.compute_with_saved(model, file.parent, lambda: [model(tokens).logits])
    assert not torch.allclose(changed, expected) and torch.equal(model(tokens).logits, expected)
    save_file(trained, file)
    if not can_read_adapters_of_experts():
        return
    exported = replace(exported, usage=exported.usage.replace('"model"', '"../model"'))
    names = run_usage(exported, tmp_path / "adapter", monkeypatch, capsys)
    assert torch.equal(names["model"](tokens).logits, expected)


def test_adapter_names_its_base_without_a_path(tmp_path):
    model = with_lora(random_model("llama"))
    exported = write("adapter", model, tmp_path, source=Path("/home/me/SmolLM2-135M"))
    assert not (tmp_path / "base").exists()
    assert json.loads((tmp_path / "adapter_config.json").read_text())["base_model_name_or_path"] == "SmolLM2-135M"
    assert 'from_pretrained("SmolLM2-135M", dtype="auto")' in exported.usage
    assert not [path for path in tmp_path.iterdir() if b"/home/me" in path.read_bytes()]


def test_wrong_adapter_file_differs(tmp_path, monkeypatch):
    model, save = with_lora(random_model("llama")), export.save_adapter

    def save_another(*arguments, **options):
        model.get_base_model().model.layers[0].self_attn.q_proj.lora_B["default"].weight.mul_(2)
        return save(*arguments, **options)

    monkeypatch.setattr(export, "save_adapter", save_another)
    assert largest_difference(write("adapter", model, tmp_path, source="owner/name").compared) > 1e-3


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_merged_is_read_by_transformers(tmp_path, monkeypatch, capsys, dtype):
    model = with_lora(random_model("llama").to(dtype))
    generation = model.get_base_model().generation_config
    generation.do_sample, generation.top_k = dtype == torch.float32, 7
    expected, planned = model(TOKENS).logits, export.bytes_of("merged", model)
    exported = write("merged", model, tmp_path)
    assert 0 < largest_difference(exported.compared) < exported.tolerance
    assert planned <= (tmp_path / "model.safetensors").stat().st_size < planned + 4_000
    # Without sampling top_k has no effect, and transformers refuses to save it.
    saved = json.loads((tmp_path / "generation_config.json").read_text())
    assert saved.get("top_k") == (7 if dtype == torch.float32 else None)
    names = run_usage(exported, tmp_path, monkeypatch, capsys)
    assert names["model"].dtype == dtype
    assert float((names["model"](TOKENS).logits - expected).abs().max() / expected.abs().max()) < exported.tolerance
    assert names["tokenizer"].chat_template == byte_level_tokenizer().chat_template


def test_usage_gives_the_model_no_token_types(tmp_path, monkeypatch, capsys):
    names = ["input_ids", "token_type_ids", "attention_mask"]
    tokenizer = byte_level_tokenizer()
    tokenizer.model_input_names = tokenizer.init_kwargs["model_input_names"] = names
    exported = write("merged", random_model("llama"), tmp_path, tokenizer=tokenizer)
    used = run_usage(exported, tmp_path, monkeypatch, capsys)
    assert used["tokenizer"].model_input_names == names
    assert used["inputs"].keys() == {"input_ids", "attention_mask"}
    tokenizer.model_input_names = names[::2]
    assert "token_type_ids" not in write("merged", random_model("llama"), tmp_path, tokenizer=tokenizer).usage


def test_merging_frees_the_model_before_the_files_are_read(tmp_path, monkeypatch):
    devices, merge = [], merging.merge
    monkeypatch.setattr(
        export.merging, "merge", lambda model, *place: devices.append(merge(model, *place)) or devices[0]
    )
    write("merged", with_lora(random_model("llama")), tmp_path)
    assert {weight.device.type for weight in devices[0].parameters()} == {"meta"}


def test_packed_base_is_exported_in_fp16(tmp_path):
    def packed_model():
        base = random_model("llama")
        nf4.quantize(base, nf4.real_layer, compute=torch.float32, double=True)
        return with_lora(base.to("cpu"))

    planned = export.bytes_of("merged", packed_model())
    exported = write("merged", packed_model(), tmp_path / "merged")
    assert largest_difference(exported.compared) < exported.tolerance == export.TOLERANCES[torch.float16]
    assert planned <= (tmp_path / "merged/model.safetensors").stat().st_size < planned + 4_000
    assert "4 bits" in exported.notes[0]
    exported = write("gguf", packed_model(), tmp_path / "gguf")
    assert largest_difference(exported.compared) < exported.tolerance
    # A base with random weights is unpacked, too.
    exported = write("adapter", packed_model(), tmp_path / "adapter", source=None)
    base = AutoModelForCausalLM.from_pretrained(tmp_path / "adapter/base")
    assert not [name for name in base.state_dict() if "absmax" in name]
    expected = packed_model().get_base_model().model.layers[0].mlp.up_proj
    assert torch.equal(base.model.layers[0].mlp.up_proj.weight, unpacked_weight(expected))


@pytest.mark.parametrize(("family", "tied"), [("llama", True), ("llama", False), ("qwen2", True), ("qwen3", False)])
def test_gguf_in_f16_generates_the_tokens_of_the_rounded_model(tmp_path, family, tied):
    changes = {"tie_word_embeddings": tied, **({"head_dim": 128} if family == "qwen3" else {})}
    tokenizer = byte_level_tokenizer("smollm" if family == "llama" else "qwen2")
    rounded = merging.merge(with_lora(random_model(family, **changes)))
    for weight in rounded.parameters():
        if weight.dim() > 1:
            weight.copy_(weight.half().float())
    exported = write("gguf", with_lora(random_model(family, **changes)), tmp_path, tokenizer=tokenizer)
    assert 0 < largest_difference(exported.compared) < exported.tolerance
    assert "config=" not in exported.usage
    with export.redirect_stderr(export.StringIO()):
        read = AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file="model-F16.gguf", dtype=torch.float32).eval()
    answers = [
        model.generate(input_ids=TOKENS, attention_mask=torch.ones_like(TOKENS), do_sample=False, max_new_tokens=10)
        for model in (read, rounded)
    ]
    assert torch.equal(*answers)
    assert (read.lm_head.weight is read.model.embed_tokens.weight) == tied


@pytest.mark.parametrize(
    ("changes", "tokenizer"),
    [
        ({}, byte_level_tokenizer("gpt-2")),
        ({"attention_bias": True, "mlp_bias": True}, byte_level_tokenizer("gpt-2")),
        (
            {  # as in published configurations, a form that every version of transformers reads
                "rope_theta": 5e5,
                "rope_scaling": {
                    "rope_type": "llama3",
                    "factor": 8.0,
                    "low_freq_factor": 1.0,
                    "high_freq_factor": 4.0,
                    "original_max_position_embeddings": 64,
                },
            },
            byte_level_tokenizer("llama-bpe", bos=True),
        ),
        ({}, sentencepiece_tokenizer()),
    ],
    ids=["plain", "biases", "llama3", "sentencepiece"],
)
def test_usage_of_gguf_reads_all_of_the_model(tmp_path, monkeypatch, capsys, changes, tokenizer):
    model = with_lora(random_model("llama", **changes))
    expected = model(TOKENS).logits
    exported = write("gguf", model, tmp_path, tokenizer=tokenizer, gguf_type="F32")
    assert largest_difference(exported.compared) < 1e-5
    with export.redirect_stderr(export.StringIO()):
        names = run_usage(exported, tmp_path, monkeypatch, capsys)
    assert torch.allclose(names["model"](TOKENS).logits, expected, atol=1e-4)
    assert ("config=" in exported.usage) == bool(changes)
    tensors = {tensor.name: tensor.data for tensor in gguf.GGUFReader("model-F32.gguf").tensors}
    factors = families.rope_factors(model.config)
    assert factors is None or factors.tolist() == tensors["rope_freqs.weight"].tolist()
    assert ("rope_freqs.weight" in tensors) == ("rope_scaling" in changes)


@pytest.mark.parametrize("type_name", get_args(GgufType))
def test_every_type_is_read(tmp_path, type_name):
    model = with_lora(random_model("llama", intermediate_size=48))
    planned = export.bytes_of("gguf", model, gguf_type=type_name)
    exported = write("gguf", model, tmp_path, gguf_type=type_name)
    assert largest_difference(exported.compared) < exported.tolerance
    reader = gguf.GGUFReader(tmp_path / f"model-{type_name}.gguf")
    assert reader.data.nbytes - reader.data_offset == planned
    types = {tensor.name: tensor.tensor_type.name for tensor in reader.tensors}
    assert {types[name] for name in ("blk.0.attn_q.weight", "token_embd.weight", "output.weight")} == {type_name}
    assert types["blk.1.attn_norm.weight"] == types["output_norm.weight"] == "F32"
    # Its rows of 48 values have no blocks of 32.
    assert types["blk.0.ffn_down.weight"] == (type_name if "F" in type_name else "F16")
    assert any("in F16" in note for note in exported.notes) == ("F" not in type_name)


def test_wrong_gguf_file_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(export.writing, "in_layout", lambda family, config, name, tensor: tensor)
    with pytest.raises(RunError, match="as transformers reads it differ"):
        write("gguf", with_lora(random_model("llama")), tmp_path, gguf_type="Q4_0")


def test_weight_beyond_f16_is_refused(tmp_path):
    model = random_model("llama")
    model.model.layers[1].mlp.up_proj.weight[0, 0] = 70000
    with pytest.raises(RunError, match=r"layers\.1\.mlp\.up_proj.*F16") as raised:
        write("gguf", model, tmp_path)
    assert raised.value.hint == "--set gguf_type=BF16"
    assert write("gguf", random_model("llama"), tmp_path, gguf_type="BF16").tolerance < math.inf


def test_unknown_type_is_refused_before_training():
    with pytest.raises(UsageError) as raised:
        choose("finetune", {"gguf_type": "Q8_1"})
    assert "gguf_type=Q8_1" in str(raised.value.problems) and "Q8_0" in str(raised.value.problems)


def test_unknown_family_is_refused_before_merging(tmp_path):
    model = with_lora(random_model("llama"))
    model.config.model_type = "gemma3_text"
    with pytest.raises(UsageError, match="type gemma3_text cannot be exported to gguf") as raised:
        write("gguf", model, tmp_path)
    assert "Qwen3 can" in raised.value.problems
    assert not list(tmp_path.iterdir())


def test_pairs_are_compared_by_the_preferred_answer():
    first, second = samples()[0] + samples()[1][:1]
    model = random_model("llama")
    [pair] = export._logits(model, [[PairSample(chosen=first, rejected=second)]])
    [alone] = export._logits(model, [[first]])
    assert torch.equal(pair, alone)


def test_padding_does_not_change_the_compared_logits():
    model, (_, _, batch) = random_model("llama"), samples()
    together = export._logits(model, [batch])[0]
    alone = torch.cat(export._logits(model, [[sample] for sample in batch]))
    assert torch.allclose(together, alone, atol=1e-5)


def test_formats_have_an_adapter_only_with_lora(tmp_path):
    options = {"tokenizer": byte_level_tokenizer, "source": "owner/name", "gguf_type": "Q8_0"}
    assert list(formats(adapted=False, **options)) == ["merged", "gguf"]
    by_name = formats(adapted=True, **options)
    assert list(by_name) == ["adapter", "merged", "gguf"]
    model = with_lora(random_model("llama"))
    for name, format_ in by_name.items():
        assert format_.takes_adapters
        assert format_.size(model) == export.bytes_of(name, model, source="owner/name", gguf_type="Q8_0")
    exported = by_name["gguf"].write(model, tmp_path, samples())
    assert (tmp_path / "model-Q8_0.gguf").is_file() and exported.tolerance < math.inf


def test_saved_tokenizer_is_the_one_in_use(tmp_path):
    tokenizer = byte_level_tokenizer("smollm")
    write("gguf", random_model("llama"), tmp_path, tokenizer=tokenizer)
    read = AutoTokenizer.from_pretrained(tmp_path)
    assert read("it's  333<think>")["input_ids"] == tokenizer("it's  333<think>")["input_ids"]
