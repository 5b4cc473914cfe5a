"""BLIP's attention without the scores between all its patches in memory: transformers has no fused path for it."""

from typing import Any

from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention


class Fused(nn.Module):
    """`BlipAttention` with the same weights under the same names, up to rounding."""

    def __init__(self, whole: Any) -> None:
        """In the place of `whole`, a `BlipAttention`."""
        super().__init__()
        self.heads, self.dropout = whole.num_heads, whole.dropout.p
        self.qkv, self.projection = whole.qkv, whole.projection

    def forward(self, hidden_states: Tensor, **_: Any) -> tuple[Tensor, None]:
        """(n, patches, width) in and out, and no scores."""
        queries, keys, values = self.qkv(hidden_states).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        dropout = self.dropout if self.training else 0.0
        found = scaled_dot_product_attention(queries, keys, values, dropout_p=dropout)
        return self.projection(found.transpose(1, 2).flatten(2)), None


def fuse(vision: Any) -> None:
    """Every layer's attention of a `BlipVisionModel`, in place."""
    for layer in vision.encoder.layers:
        layer.self_attn = Fused(layer.self_attn)
