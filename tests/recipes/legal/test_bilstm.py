import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from shoestring_recipes.legal.bilstm import BiLSTM

LENGTHS = torch.tensor([5, 2, 7])


def inputs(padding: float = 0.0) -> torch.Tensor:
    values = torch.randn(3, 7, 4, generator=torch.Generator().manual_seed(0))
    return values.masked_fill(~valid_steps()[..., None], padding)


def valid_steps() -> torch.Tensor:
    return torch.arange(7) < LENGTHS[:, None]


def test_output_equals_torch_over_packed_sequences() -> None:
    torch.manual_seed(0)
    bilstm, reference = BiLSTM(4, 6, layers=2), nn.LSTM(4, 3, num_layers=2, bidirectional=True, batch_first=True)
    for layer in range(2):
        for direction, suffix in ((bilstm.forwards, ""), (bilstm.backwards, "_reverse")):
            for name, weight in direction[layer].named_parameters():
                getattr(reference, name.replace("_l0", f"_l{layer}{suffix}")).data = weight.data
    packed, _ = reference(pack_padded_sequence(inputs(), LENGTHS, batch_first=True, enforce_sorted=False))
    expected, _ = pad_packed_sequence(packed, batch_first=True)
    torch.testing.assert_close(bilstm(inputs(), LENGTHS)[valid_steps()], expected[valid_steps()])


def test_padding_does_not_change_the_output() -> None:
    bilstm = BiLSTM(4, 6, layers=2)
    assert torch.equal(bilstm(inputs(), LENGTHS)[valid_steps()], bilstm(inputs(padding=9.0), LENGTHS)[valid_steps()])


def test_dropout_applies_between_layers() -> None:
    bilstm = BiLSTM(4, 6, layers=2, dropout=0.5)
    assert not torch.equal(bilstm(inputs(), LENGTHS), bilstm(inputs(), LENGTHS))
    bilstm.eval()
    assert torch.equal(bilstm(inputs(), LENGTHS), bilstm(inputs(), LENGTHS))
