"""A bidirectional LSTM over padded sequences whose output does not depend on the padding."""

import torch
from torch import Tensor, nn


class BiLSTM(nn.Module):
    """Maps (n, steps, inputs) to (n, steps, outputs), half of the outputs from each direction.

    nn.LSTM reads a padded sequence backwards from its padding unless it is packed, which needs the lengths on the CPU.
    Here a sequence is reversed within its own length by one gather.
    """

    def __init__(self, inputs: int, outputs: int, *, layers: int = 1, dropout: float = 0.0) -> None:
        super().__init__()
        widths = [inputs, *[outputs] * (layers - 1)]
        self.forwards = nn.ModuleList(nn.LSTM(width, outputs // 2, batch_first=True) for width in widths)
        self.backwards = nn.ModuleList(nn.LSTM(width, outputs // 2, batch_first=True) for width in widths)
        self.dropout = nn.Dropout(dropout)

    def forward(self, inputs: Tensor, lengths: Tensor) -> Tensor:
        """Return the outputs; those beyond `lengths` (n,) int64 are undefined."""
        order = _reversed_order(lengths, inputs.shape[1])
        for number, (forwards, backwards) in enumerate(zip(self.forwards, self.backwards, strict=True)):
            if number:
                inputs = self.dropout(inputs)
            forward_states, _ = forwards(inputs)
            backward_states, _ = backwards(_reorder(inputs, order))
            inputs = torch.cat([forward_states, _reorder(backward_states, order)], dim=-1)
        return inputs


def _reversed_order(lengths: Tensor, steps: int) -> Tensor:
    """Return the steps of each sequence in reverse order, padding unmoved at the end, (n, steps) int64."""
    positions = torch.arange(steps, device=lengths.device)
    reverse = lengths[:, None] - 1 - positions
    return torch.where(reverse >= 0, reverse, positions)


def _reorder(values: Tensor, order: Tensor) -> Tensor:
    return values.gather(1, order[..., None].expand(-1, -1, values.shape[-1]))
