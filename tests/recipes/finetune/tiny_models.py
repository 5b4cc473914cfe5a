"""Random language models, small enough for a test, with and without adapters."""

import warnings

import torch
from peft import LoraConfig, get_peft_model
from transformers import Gemma2Config, Gemma2ForCausalLM, LlamaConfig, LlamaForCausalLM

WORDS = 40
_SIZES = {
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "vocab_size": WORDS,
    "max_position_embeddings": 64,
    "initializer_range": 0.5,
    "pad_token_id": None,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def llama(**changes):
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(**_SIZES | changes))


def gemma2():
    torch.manual_seed(0)
    return Gemma2ForCausalLM(Gemma2Config(**_SIZES, head_dim=8))


def with_adapter(base, dropout=0.0):
    """Return the model with an adapter that has an effect: peft begins with one that has none."""
    adapters = LoraConfig(r=2, lora_alpha=4, lora_dropout=dropout, target_modules=["q_proj", "v_proj"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # of transformers, about a name that peft uses
        model = get_peft_model(base, adapters)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "lora_B" in name:
                weight.copy_(torch.randn(weight.shape, generator=generator) * 0.3)
    return model
