"""Fused attention for BLIP, without a matrix of scores in memory: transformers has no fused attention for it."""

from typing import Any

from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention


class FusedAttention(nn.Module):
    """A replacement of `BlipAttention` with the same weights under the same names; results differ by rounding."""

    def __init__(self, original: Any) -> None:
        """Use the modules of `original`, a `BlipAttention`."""
        super().__init__()
        self.heads, self.dropout = original.num_heads, original.dropout.p
        self.qkv, self.projection = original.qkv, original.projection

    def forward(self, hidden_states: Tensor, **_: Any) -> tuple[Tensor, None]:
        """Map (n, patches, width) to the same shape; no attention weights are returned."""
        queries, keys, values = self.qkv(hidden_states).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        dropout = self.dropout if self.training else 0.0
        context = scaled_dot_product_attention(queries, keys, values, dropout_p=dropout)
        return self.projection(context.transpose(1, 2).flatten(2)), None


def fuse_attention(vision: Any) -> None:
    """Replace the attention of every layer of a `BlipVisionModel` in place."""
    for layer in vision.encoder.layers:
        layer.self_attn = FusedAttention(layer.self_attn)
