"""Generating completions with a policy under adapters: the tokens of transformers' `generate` at a lower cost.

The time of a token in `generate` is bound by launching hundreds of small operators. Here a prompt is processed once for
all of its completions; keys and values are preallocated at their full length; rotary angles are computed once per
token, not once per layer; an adapter is two matrix products, cast once per call. Dropout is off, as in every engine
that generates for GRPO: TRL's `generate` leaves it on, and so samples each token from a different policy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, rms_norm, scaled_dot_product_attention, silu

from shoestring.integrations.huggingface import versions
from shoestring.techniques.whole_weights import whole_weights

Projection: TypeAlias = Callable[[Tensor], Tensor]

END_CHECK_INTERVAL = 16
"""Tokens on a GPU between two checks whether all texts have ended: a check synchronizes with its queue of kernels."""


@torch.no_grad()
def generate(
    model: Any, inputs: Mapping[str, Tensor], *, length: int, end_tokens: list[int], padding: int, do_sample: bool
) -> Tensor:
    """Return the tokens (n, at most `length`) after n prompts, on the CPU: up to an end token, then `padding`.

    `model` is a Qwen2.5-VL under adapters; `inputs` is the output of its processor for n prompts with one image each:
    `input_ids` and `attention_mask` (n, prompt) padded on the left, `pixel_values`, `image_grid_thw` (n, 3). Tokens are
    sampled from the whole vocabulary at temperature 1, or chosen greedily.
    """
    with whole_weights(model):  # layers of the decoder are used without calling them
        return _generate(model, inputs, length, end_tokens, padding, do_sample=do_sample)


def _generate(
    model: Any, inputs: Mapping[str, Tensor], length: int, end_tokens: list[int], padding: int, *, do_sample: bool
) -> Tensor:
    base = model.get_base_model()
    training, device = model.training, base.get_input_embeddings().weight.device
    _disable_dropout(model)
    try:
        indices, prompts = unique_prompts(inputs)
        rows = torch.tensor(indices, device=device)
        prompts = {name: value.to(device) for name, value in prompts.items()}
        scores, cache, last_positions = _process_prompts(base, prompts)
        mask = inputs["attention_mask"].to(device).bool()
        completions = torch.ones(len(indices), length, dtype=torch.bool, device=device)
        # Without padding there is no mask, because attention without a mask is faster.
        padding_mask = None if bool(mask.all()) else torch.cat((mask, completions), dim=1)[:, None, None]
        decoder = Decoder(base, cache, rows, padding_mask, length)
        has_ended = torch.zeros(len(indices), dtype=torch.bool, device=device)
        ends = torch.tensor(end_tokens, device=device)
        scores, last_positions, tokens = scores[rows], last_positions[rows], []
        for number in range(length):
            scores[:, base.config.image_token_id] = -torch.inf  # TRL suppresses the image token as well
            chosen = sample_tokens(scores) if do_sample else scores.argmax(dim=-1)
            tokens.append(chosen.masked_fill(has_ended, padding))
            has_ended |= torch.isin(chosen, ends)
            checks_end = device.type == "cpu" or number % END_CHECK_INTERVAL == 0
            if number + 1 == length or (checks_end and bool(has_ended.all())):
                break
            scores = decoder(tokens[-1], last_positions + 1 + number, mask.shape[1] + number)
        return torch.stack(tokens, dim=1).cpu()
    finally:
        model.train(training)


def _disable_dropout(model: nn.Module) -> None:
    """Set the model to evaluation mode, except its 4-bit layers.

    In evaluation mode, on a CPU with AVX512-BF16, bitsandbytes 0.50 would irreversibly convert their weights to another
    layout with scales rounded to bf16, and fail for widths that are no multiple of 64.
    """
    model.eval()
    for module in model.modules():
        if hasattr(module, "support_avx512bf16_for_cpu"):
            module.training = True


def unique_prompts(inputs: Mapping[str, Tensor]) -> tuple[list[int], dict[str, Tensor]]:
    """Return for each row the index of its prompt among the unique prompts, and the inputs of the unique prompts.

    Rows with the same prompt must be adjacent.
    """
    ids, grids = inputs["input_ids"], inputs["image_grid_thw"]
    images = inputs["pixel_values"].split(grids.prod(dim=-1).tolist())
    assert len(images) == len(ids), "one image per prompt is required"
    unique = [
        row
        for row in range(len(ids))
        if not (row and torch.equal(ids[row], ids[row - 1]) and torch.equal(images[row], images[row - 1]))
    ]
    indices = [sum(first <= row for first in unique) - 1 for row in range(len(ids))]
    return indices, {
        "input_ids": ids[unique],
        "attention_mask": inputs["attention_mask"][unique],
        "pixel_values": torch.cat([images[row] for row in unique]),
        "image_grid_thw": grids[unique],
    }


def _process_prompts(base: Any, prompts: dict[str, Tensor]) -> tuple[Tensor, Any, Tensor]:
    """Return the logits (n, vocabulary) of the first tokens, the KV cache, and each prompt's last position (n,)."""
    tokens = prompts["input_ids"]
    positions = versions.find_positions(
        base.model,
        tokens,
        is_image=tokens == base.config.image_token_id,
        grids=prompts["image_grid_thw"],
        mask=prompts["attention_mask"],
    )
    outputs = base.model(**prompts, position_ids=positions, use_cache=True)
    return base.lm_head(outputs.last_hidden_state[:, -1]), outputs.past_key_values, positions.amax(dim=(0, 2))


def sample_tokens(scores: Tensor) -> Tensor:
    """Sample tokens (n,) from logits (n, vocabulary)."""
    return torch.multinomial(scores.float().softmax(dim=-1), num_samples=1)[:, 0]


class Decoder:
    """The language model for one token of each text: returns the logits (n, vocabulary) of the next token."""

    def __init__(self, base: Any, cache: Any, rows: Tensor, mask: Tensor | None, length: int) -> None:
        """Copy the cache: `rows` (n,) is the index of each text's prompt, `length` the tokens that follow it at most.

        `mask` (n, 1, 1, prompt and `length`) is False for padding; without padding there is none.
        """
        text = base.model.language_model
        self._embed, self._rotary, self._head = base.get_input_embeddings(), text.rotary_emb, base.lm_head
        self._norm = text.norm
        self._mask = mask
        self._layers = []
        for layer, cached in zip(text.layers, cache.layers, strict=True):
            self._layers.append(_DecoderLayer(layer, cached.keys, cached.values, rows, length))
            cached.keys = cached.values = None  # free the original of each copy, so that only one layer exists twice

    @property
    def cache(self) -> list[Tensor]:
        """The keys and values of all layers, (n, key heads, prompt and `length`, head width)."""
        return [tensor for layer in self._layers for tensor in layer.cache]

    def __call__(self, tokens: Tensor, positions: Tensor, index: int) -> Tensor:
        """Process `tokens` (n,) at rotary positions `positions` (n,) and index `index` of the cache."""
        hidden: Tensor = self._embed(tokens)
        # Temporal, row and column positions of a text's token are equal. `Qwen2_5_VLRotaryEmbedding.forward` returns
        # angles for each of the three in transformers 4.56 to 5.0, and one for all in 5.15 and later.
        angles = positions[:, None].float() * self._rotary.inv_freq
        angles = torch.cat((angles, angles), dim=-1)[:, None]
        cos, sin = (
            (values * self._rotary.attention_scaling).to(hidden.dtype) for values in (angles.cos(), angles.sin())
        )
        mask = None if self._mask is None else self._mask[..., : index + 1]
        for layer in self._layers:
            hidden = layer(hidden, cos, sin, index, mask)
        scores: Tensor = self._head(_apply_norm(hidden, self._norm))
        return scores


class _DecoderLayer:
    """A decoder layer for one token of each text, with the keys and values of the tokens before it."""

    def __init__(self, layer: Any, keys: Tensor, values: Tensor, rows: Tensor, length: int) -> None:
        """Copy the `keys` and `values` of the prompts, (prompts, heads, positions, head width), for each text."""
        attention, mlp = layer.self_attn, layer.mlp
        dtype = keys.dtype
        self._q, self._k, self._v, self._o = (
            build_projection(module, dtype)
            for module in (attention.q_proj, attention.k_proj, attention.v_proj, attention.o_proj)
        )
        self._gate, self._up, self._down = (
            build_projection(module, dtype) for module in (mlp.gate_proj, mlp.up_proj, mlp.down_proj)
        )
        self._attention_norm, self._mlp_norm = layer.input_layernorm, layer.post_attention_layernorm
        self._scale, self._width = attention.scaling, attention.head_dim
        self.cache: list[Tensor] = []
        for prompts in (keys, values):
            cache = prompts.new_empty(len(rows), prompts.shape[1], prompts.shape[2] + length, prompts.shape[3])
            cache[:, :, : prompts.shape[2]] = prompts[rows]
            self.cache.append(cache)

    def __call__(self, hidden: Tensor, cos: Tensor, sin: Tensor, index: int, mask: Tensor | None) -> Tensor:
        """Map hidden states (n, width) to those after the layer, and append the token to the cache at `index`."""
        normed = _apply_norm(hidden, self._attention_norm)
        keys, values = self.cache
        heads = keys.shape[1]
        rotated = torch.cat((self._q(normed), self._k(normed)), dim=-1).unflatten(-1, (-1, self._width))
        first, second = rotated.chunk(2, dim=-1)
        rotated = rotated * cos + torch.cat((-second, first), dim=-1) * sin
        keys[:, :, index] = rotated[:, -heads:]
        values[:, :, index] = self._v(normed).unflatten(-1, (heads, -1))
        # The query heads that share a key head take the dimension of positions.
        queries = rotated[:, :-heads].unflatten(1, (heads, -1))
        attended = scaled_dot_product_attention(
            queries, keys[:, :, : index + 1], values[:, :, : index + 1], attn_mask=mask, scale=self._scale
        )
        hidden = hidden + self._o(attended.flatten(1))
        normed = _apply_norm(hidden, self._mlp_norm)
        return hidden + self._down(silu(self._gate(normed)) * self._up(normed))


def build_projection(layer: Any, dtype: torch.dtype) -> Projection:
    """Return a dense layer with its adapter as a function of (n, inputs)."""
    base = getattr(layer, "base_layer", layer)
    plain: Projection = base
    if type(base) is nn.Linear:
        weight, bias = base.weight, base.bias

        def plain(inputs: Tensor) -> Tensor:
            return linear(inputs, weight, bias)

    if base is layer:
        return plain
    (name,) = layer.active_adapters
    down = layer.lora_A[name].weight.T.to(dtype)
    up = (layer.lora_B[name].weight * layer.scaling[name]).T.to(dtype)
    return lambda inputs: torch.addmm(plain(inputs), inputs @ down, up)


def _apply_norm(hidden: Tensor, norm: Any) -> Tensor:
    return rms_norm(hidden, hidden.shape[-1:], norm.weight, norm.variance_epsilon)
