"""The header of a GGUF file has the facts that llama.cpp needs."""

import gguf

from shoestring_recipes.finetune.gguf.writing import write_file
from tests.recipes.finetune.exported_models import byte_level_tokenizer, random_model


def test_header(tmp_path):
    model = random_model("qwen3", rms_norm_eps=1e-5)
    model.generation_config.eos_token_id = [2, 1]
    write_file(tmp_path / "a.gguf", model, byte_level_tokenizer("qwen2"), type_name="Q8_0", name="Answers")
    fields = gguf.GGUFReader(tmp_path / "a.gguf").fields
    found = {name: field.contents() for name, field in fields.items()}
    tokenizer = {name.removeprefix("tokenizer.ggml."): value for name, value in found.items() if "tokenizer" in name}
    facts = {name.removeprefix("qwen3."): value for name, value in found.items() if name.startswith("qwen3.")}
    assert found["general.architecture"] == "qwen3" and found["general.name"] == "Answers"
    assert found["general.file_type"] == gguf.LlamaFileType.MOSTLY_Q8_0
    assert abs(facts.pop("attention.layer_norm_rms_epsilon") - 1e-5) < 1e-9
    assert facts == {
        "vocab_size": 336,
        "block_count": 2,
        "context_length": 512,
        "embedding_length": 32,
        "feed_forward_length": 64,
        "attention.head_count": 4,
        "attention.head_count_kv": 2,
        "attention.key_length": 16,
        "attention.value_length": 16,
        "rope.freq_base": 10000.0,
        "rope.dimension_count": 16,
    }
    ids = {name: tokenizer[f"{name}_token_id"] for name in ("bos", "eos", "eot", "padding")}
    assert ids == {"bos": 0, "eos": 2, "eot": 1, "padding": 2}
    assert (tokenizer["model"], tokenizer["pre"]) == ("gpt2", "qwen2")
    assert not tokenizer["add_bos_token"] and not tokenizer["add_space_prefix"]
    assert tokenizer["tokenizer.chat_template"] == byte_level_tokenizer().chat_template
    assert len(tokenizer["tokens"]) == len(tokenizer["token_type"]) == 336
