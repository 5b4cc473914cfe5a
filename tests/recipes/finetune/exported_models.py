"""Tiny models with random weights and adapters, their tokenizers, and samples, for the exports."""

import warnings
from typing import Any

import numpy
import torch
from peft import LoraConfig, get_peft_model
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import (
    DeepseekV3Config,
    DeepseekV3ForCausalLM,
    GptOssConfig,
    GptOssForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from shoestring_recipes.finetune.samples import Sample

TEXTS = ["The capital of France is Paris.", "Count: 1, 22, 333, 4444.", "Oh, it's what we're told!", "Ünïcödé 東京 😀"]
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+"
_BYTES = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
_WORDS_IN_BYTES = pre_tokenizers.ByteLevel(add_prefix_space=False)
SPLITS = {
    "gpt-2": _WORDS_IN_BYTES,
    "smollm": pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), _WORDS_IN_BYTES]),
    "qwen2": pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(_WORDS + r"|\p{N}" + _REST), behavior="isolated"), _BYTES]
    ),
    "llama-bpe": pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(_WORDS + r"|\p{N}{1,3}" + _REST), behavior="isolated"), _BYTES]
    ),
}
SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
}


def byte_level_tokenizer(split: str = "smollm", *, bos: bool = False) -> PreTrainedTokenizerFast:
    """Return byte-level BPE trained on `TEXTS`, with a token that is not special and ChatML."""
    tokenizer = Tokenizer(models.BPE(ignore_merges=split == "llama-bpe"))
    tokenizer.pre_tokenizer = SPLITS[split]
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=320, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(TEXTS * 4, trainer)
    if bos:
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<|endoftext|> $A", special_tokens=[("<|endoftext|>", 0)]
        )
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token=SPECIAL[0], eos_token=SPECIAL[2], pad_token=SPECIAL[2]
    )
    wrapped.add_tokens(["<think>"])
    wrapped.chat_template = TEMPLATE
    return wrapped


def sentencepiece_tokenizer(*, complete: bool = True) -> PreTrainedTokenizerFast:
    """Return a tokenizer as that of Llama 2, with every pair that makes a token among its merges if `complete`."""
    characters = list("▁abcehimnost")
    # In the order of their merges; of "then" it decides between `t he n` and `th en`.
    pieces = ["he", "at", "th", "en", "▁t", "▁the", "then", "sa", "sat", "▁c", "▁cat", "on"]
    vocabulary = {"<unk>": 0, "<s>": 1, "</s>": 2}
    vocabulary |= {f"<0x{byte:02X}>": 3 + byte for byte in range(256)}
    vocabulary |= {piece: 259 + index for index, piece in enumerate([*characters, *pieces])}
    merges = [
        (piece[:cut], piece[cut:])
        for piece in pieces
        for cut in range(1, len(piece))
        if piece[:cut] in vocabulary and piece[cut:] in vocabulary
    ]
    if not complete:
        merges.remove(("s", "at"))
    tokenizer = Tokenizer(
        models.BPE(vocab=vocabulary, merges=merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    )
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", unk_token="<unk>")


def random_model(family: str, *, rows: int = 336, seed: int = 0, **changes: Any) -> Any:
    """Return a model of a family with random weights, some of them large."""
    config_class, model_class = {
        "llama": (LlamaConfig, LlamaForCausalLM),
        "qwen2": (Qwen2Config, Qwen2ForCausalLM),
        "qwen3": (Qwen3Config, Qwen3ForCausalLM),
        "mixtral": (MixtralConfig, MixtralForCausalLM),
        "gpt_oss": (GptOssConfig, GptOssForCausalLM),
        "deepseek_v3": (DeepseekV3Config, DeepseekV3ForCausalLM),
    }[family]
    torch.manual_seed(seed)
    head = {"head_dim": 16} if family == "qwen3" else {}
    config = config_class(**{**SIZES, **head, "vocab_size": rows, "bos_token_id": 0, "eos_token_id": 2, **changes})
    model = model_class(config).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            spread = 0.3 if weight.dim() > 1 else 0.1
            weight.copy_(torch.randn_like(weight) * spread + (1.0 if "norm" in name else 0.0))
    return model


def with_lora(base: Any, *, targets: list[str] | None = None, **changes: Any) -> Any:
    """Return the model with adapters that have an effect."""
    names = targets or ["q_proj", "v_proj", "down_proj"]
    with warnings.catch_warnings():
        # peft uses a name that newer versions of transformers deprecate.
        warnings.simplefilter("ignore", FutureWarning)
        warnings.filterwarnings("ignore", ".*a tied layer is part of the adapter")  # peft 0.19, where it is targeted
        model = get_peft_model(base, LoraConfig(r=4, lora_alpha=8, target_modules=names, **changes)).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "lora_B" in name or "lora_embedding" in name:
                weight.copy_(torch.randn_like(weight) * 0.1)
            if "lora_magnitude" in name:
                weight.mul_(1.1)
    return model


def samples(rows: int = 323) -> list[list[Sample]]:
    """Return lists of one, two and three samples of different lengths."""
    numbers = numpy.random.default_rng(0)

    def sample(length: int) -> Sample:
        tokens = numbers.integers(3, rows, length).astype(numpy.int32)
        return Sample(tokens=tokens, loss_mask=numpy.ones(length, dtype=bool), full_length=length)

    return [[sample(9)], [sample(7), sample(3)], [sample(12), sample(1), sample(40)]]


def largest_difference(compared: Any) -> float:
    """Return the largest difference of the compared outputs, as a share of the largest output."""
    largest = max(float(expected.abs().max()) for expected, _ in compared)
    return max(float((actual - expected).abs().max()) for expected, actual in compared) / largest
