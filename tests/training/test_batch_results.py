from collections import OrderedDict, namedtuple

import numpy as np
import pytest
import torch

from shoestring.base.errors import UsageError
from shoestring.training.batch_results import on_host
from shoestring.training.engine.parallel import messages


def test_what_another_process_receives_is_equal():
    values = torch.arange(4.0, requires_grad=True)
    result = [(values, values[:2], values, 1.5, float("inf"), "text", None, True), {0: {"a": [2]}}]
    received = messages.unpack(messages.pack(on_host(result)))
    assert torch.equal(received[0][0], values)
    assert torch.equal(received[0][1], values[:2])
    assert received[0][3:] == result[0][3:]
    assert received[1] == result[1]


@pytest.mark.parametrize(
    ("value", "name"),
    [
        (namedtuple("Fields", "a")(1), "Fields at [0]['x']"),
        (np.zeros(2), "numpy.ndarray at [0]['x']"),
        (np.float64(1), "numpy.float64"),
        (OrderedDict(), "collections.OrderedDict"),
    ],
)
def test_other_types_are_refused(value, name):
    with pytest.raises(UsageError) as raised:
        on_host([{"x": value}])
    assert name in raised.value.message
