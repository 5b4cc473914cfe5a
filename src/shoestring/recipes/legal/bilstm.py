"""An LSTM in both directions over sequences of different lengths, which does not see their padding."""

import torch
from torch import Tensor, nn


class BiLSTM(nn.Module):
    """(n, steps, inputs) -> (n, steps, outputs), half of the outputs from each direction.

    torch's own reads a padded sequence backwards from its padding, unless it is packed, which needs the lengths as
    numbers on the CPU. Here a sequence is turned around within its own length, by one gather.
    """

    def __init__(self, inputs: int, outputs: int, *, layers: int = 1, dropout: float = 0.0) -> None:
        super().__init__()
        widths = [inputs, *[outputs] * (layers - 1)]
        self.forwards = nn.ModuleList(nn.LSTM(width, outputs // 2, batch_first=True) for width in widths)
        self.backwards = nn.ModuleList(nn.LSTM(width, outputs // 2, batch_first=True) for width in widths)
        self.dropout = nn.Dropout(dropout)

    def forward(self, inputs: Tensor, lengths: Tensor) -> Tensor:
        """`lengths` (n,) int64; what comes out beyond them means nothing."""
        order = _turned(lengths, inputs.shape[1])
        for number, (forwards, backwards) in enumerate(zip(self.forwards, self.backwards, strict=True)):
            if number:
                inputs = self.dropout(inputs)
            there, _ = forwards(inputs)
            back, _ = backwards(_reordered(inputs, order))
            inputs = torch.cat([there, _reordered(back, order)], dim=-1)
        return inputs


def _turned(lengths: Tensor, steps: int) -> Tensor:
    """For each sequence which step comes in which place when it is turned around, padding last, (n, steps) int64."""
    place = torch.arange(steps, device=lengths.device)
    turned = lengths[:, None] - 1 - place
    return torch.where(turned >= 0, turned, place)


def _reordered(values: Tensor, order: Tensor) -> Tensor:
    return values.gather(1, order[..., None].expand(-1, -1, values.shape[-1]))
