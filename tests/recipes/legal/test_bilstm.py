import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from shoestring.recipes.legal.bilstm import BiLSTM

LENGTHS = torch.tensor([5, 2, 7])


def inputs(padding: float = 0.0) -> torch.Tensor:
    values = torch.randn(3, 7, 4, generator=torch.Generator().manual_seed(0))
    return values.masked_fill(~inside()[..., None], padding)


def inside() -> torch.Tensor:
    return torch.arange(7) < LENGTHS[:, None]


def test_it_is_torchs_own_over_packed_sequences() -> None:
    torch.manual_seed(0)
    ours, theirs = BiLSTM(4, 6, layers=2), nn.LSTM(4, 3, num_layers=2, bidirectional=True, batch_first=True)
    for layer in range(2):
        for direction, suffix in ((ours.forwards, ""), (ours.backwards, "_reverse")):
            for name, weight in direction[layer].named_parameters():
                getattr(theirs, name.replace("_l0", f"_l{layer}{suffix}")).data = weight.data
    packed, _ = theirs(pack_padded_sequence(inputs(), LENGTHS, batch_first=True, enforce_sorted=False))
    expected, _ = pad_packed_sequence(packed, batch_first=True)
    torch.testing.assert_close(ours(inputs(), LENGTHS)[inside()], expected[inside()])


def test_padding_is_not_seen() -> None:
    ours = BiLSTM(4, 6, layers=2)
    assert torch.equal(ours(inputs(), LENGTHS)[inside()], ours(inputs(padding=9.0), LENGTHS)[inside()])


def test_between_layers_there_is_dropout() -> None:
    ours = BiLSTM(4, 6, layers=2, dropout=0.5)
    assert not torch.equal(ours(inputs(), LENGTHS), ours(inputs(), LENGTHS))
    ours.eval()
    assert torch.equal(ours(inputs(), LENGTHS), ours(inputs(), LENGTHS))
