"""Greedy answers of a causal language model: of several prompts at once, or of one as a stream of text."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn
from transformers import GenerationConfig

from shoestring.techniques.deferred_compiler import is_compiler_loaded
from shoestring.training.engine.evaluation_mode import evaluation_mode

_HALF_CHARACTER = "\N{REPLACEMENT CHARACTER}"
"""What tokenizers decode the first bytes of a character to, as long as the others are missing."""


def generate(
    model: nn.Module, prompts: Sequence[Sequence[int]], *, stop_tokens: Collection[int], max_tokens: int, pad: int
) -> list[list[int]]:
    """Return the most likely continuation of each prompt, token by token, of at most `max_tokens` tokens.

    It ends with the stop token if the model has generated one. Prompts have at least one token; shorter ones are padded
    with `pad` on the left, which the model does not see. The model's own generation settings are not used, and its
    modes are as before afterwards. Raises ValueError for an empty prompt.
    """
    if not all(prompts):
        raise ValueError("a prompt has no tokens")
    if not prompts:
        return []
    base = base_model(model)
    device = base.get_input_embeddings().weight.device
    length = max(map(len, prompts))
    tokens = torch.tensor([[pad] * (length - len(prompt)) + list(prompt) for prompt in prompts], device=device)
    mask = torch.tensor([[0] * (length - len(prompt)) + [1] * len(prompt) for prompt in prompts], device=device)
    make_settings: Any = GenerationConfig  # its arguments are not typed
    settings = make_settings(
        max_new_tokens=max_tokens,
        do_sample=False,
        num_beams=1,
        eos_token_id=sorted(stop_tokens) or None,
        pad_token_id=pad,
        use_cache=True,
    )
    with torch.no_grad(), _generating(model), _own_settings(base, settings):
        sequences = base.generate(input_ids=tokens, attention_mask=mask, generation_config=settings)
    return [_until_stop(sequence, stop_tokens) for sequence in sequences[:, length:].tolist()]


def stream(
    model: nn.Module,
    prompt: Sequence[int],
    *,
    stop_tokens: Collection[int],
    max_tokens: int,
    decode: Callable[[list[int]], str],
) -> Iterator[str]:
    """Yield the text of the most likely continuation of a prompt in pieces, each as soon as its token is known.

    `decode` returns the text of tokens; the stop token is not decoded. A character of several tokens is one piece. The
    modes of the model are as before whenever a piece is yielded. Raises ValueError for an empty prompt.
    """
    if not prompt:
        raise ValueError("the prompt has no tokens")
    base = base_model(model)
    device = base.get_input_embeddings().weight.device
    # The logits of a whole prompt may be larger than the model.
    only_last = {"logits_to_keep": 1} if "logits_to_keep" in inspect.signature(base.forward).parameters else {}
    inputs, cache = torch.tensor([list(prompt)], device=device), None
    generated: list[int] = []
    text = ""
    while len(generated) < max_tokens:
        # A context that is still open when a piece is yielded would apply to the caller's code.
        with torch.no_grad(), _generating(model):
            output = base(input_ids=inputs, past_key_values=cache, use_cache=True, **only_last)
            token = int(output.logits[0, -1].argmax())
        if token in stop_tokens:
            break
        generated.append(token)
        inputs, cache = torch.tensor([[token]], device=device), output.past_key_values
        decoded = decode(generated)
        if not decoded.endswith(_HALF_CHARACTER):
            yield decoded[len(text) :]
            text = decoded
    yield decode(generated)[len(text) :]


def base_model(model: nn.Module) -> Any:
    """Return the model of transformers, into whose layers peft has put the adapters."""
    wrapped: Any = model
    return wrapped.get_base_model() if hasattr(model, "get_base_model") else wrapped


def _until_stop(tokens: list[int], stop_tokens: Collection[int]) -> list[int]:
    """Return the tokens up to the first stop token, without the padding after it."""
    end = next((index + 1 for index, token in enumerate(tokens) if token in stop_tokens), len(tokens))
    return tokens[:end]


@contextmanager
def _generating(model: nn.Module) -> Iterator[None]:
    """Return a context for generation: without dropout, recomputation of activations, and compilation."""
    with ExitStack() as stack:
        stack.enter_context(evaluation_mode(model))
        if is_compiler_loaded():
            # Blocks are compiled for each shape (`techniques/compiled.py`), and each token lengthens the cache.
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        yield


@contextmanager
def _own_settings(base: Any, settings: GenerationConfig) -> Iterator[None]:
    """Replace the model's generation settings, which `generate` takes for whatever `settings` leave open."""
    previous = base.generation_config
    base.generation_config = settings
    try:
        yield
    finally:
        base.generation_config = previous
