"""An LSTM as one operator of ONNX. torch exports its own as one copy of a step for each step of the example."""

from typing import Any

import torch
from torch import Tensor, nn


class OnnxLSTM(nn.Module):
    """The operator with the weights of `lstm`: one layer, one direction, the batch first. It can only be exported."""

    def __init__(self, lstm: Any) -> None:
        super().__init__()
        self.width = lstm.hidden_size
        self.register_buffer("inputs", _reorder(lstm.weight_ih_l0)[None])
        self.register_buffer("recurrent", _reorder(lstm.weight_hh_l0)[None])
        self.register_buffer("bias", torch.cat([_reorder(lstm.bias_ih_l0), _reorder(lstm.bias_hh_l0)])[None])

    def forward(self, sequences: Tensor) -> tuple[Tensor, None]:
        count, steps = sequences.shape[:2]
        symbolic: Any = torch.onnx.ops.symbolic
        states: Tensor = symbolic(
            "LSTM",
            (sequences.transpose(0, 1), self.inputs, self.recurrent, self.bias),
            {"hidden_size": self.width},
            dtype=sequences.dtype,
            shape=(steps, 1, count, self.width),
            version=14,
        )
        return states[:, 0].transpose(0, 1), None


def _reorder(weight: Tensor) -> Tensor:
    """Order the gates as ONNX does: input, output, forget, cell."""
    inputs, forget, cell, outputs = weight.detach().chunk(4)
    return torch.cat([inputs, outputs, forget, cell])
