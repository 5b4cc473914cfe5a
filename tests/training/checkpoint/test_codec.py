import math

import pytest
import torch

from shoestring.base.errors import CheckpointError
from shoestring.training.checkpoint.codec import pack, unpack


def equal(left, right):
    if isinstance(left, torch.Tensor):
        return left.dtype == right.dtype and torch.equal(left, right)
    if isinstance(left, dict):
        return type(right) is dict and list(left) == list(right) and all(equal(left[key], right[key]) for key in left)
    if isinstance(left, (list, tuple)):
        return type(left) is type(right) and len(left) == len(right) and all(map(equal, left, right))
    if isinstance(left, float) and math.isnan(left):
        return math.isnan(right)
    return type(left) is type(right) and left == right


def test_state_round_trips_with_types_and_bits():
    state = {
        "step": 3,
        "flag": True,
        "none": None,
        "rate": 0.1 + 0.2,
        "not finite": [float("inf"), float("-inf"), float("nan")],
        "betas": (0.9, 0.999),
        "by number": {0: {"exp_avg": torch.randn(3, 2)}, 1: {"exp_avg": torch.randn(2).half()}},
        "$odd": {"$tensor": "not a tensor"},
        "text": "$tensor",
        "empty": [{}, (), [], torch.empty(0, 3)],
    }
    skeleton, tensors = pack(state)
    assert equal(unpack(skeleton, tensors), state)


def test_tensor_names_follow_paths_without_collisions():
    _, tensors = pack({"a.b": torch.zeros(1), "a": {"b": torch.ones(1)}})
    assert len(tensors) == 2
    assert "a.b" in tensors


def test_tied_tensors_are_stored_once_and_views_separately():
    weight = torch.randn(4, 4)
    skeleton, tensors = pack({"in": weight, "out": weight, "row": weight[1], "transposed": weight.T})
    assert sorted(tensors) == ["in", "row", "transposed"]
    assert tensors["in"].data_ptr() == weight.data_ptr()
    assert torch.equal(unpack(skeleton, tensors)["transposed"], weight.T)


def test_unsupported_type_is_rejected_with_its_path():
    with pytest.raises(CheckpointError, match=r"a set at groups\.0\.names"):
        pack({"groups": [{"names": {1, 2}}]})


@pytest.mark.parametrize("skeleton", [{"$tensor": "missing"}, {"$pickle": "cos\nsystem"}])
def test_invalid_skeleton_is_rejected(skeleton):
    with pytest.raises(CheckpointError):
        unpack({"a": [skeleton]}, {})


def test_json_shares_no_objects_with_state():
    history = [{"loss": 1.0}]
    skeleton, _ = pack({"history": history})
    history[0]["loss"] = 2.0
    history.append({})
    assert skeleton == {"history": [{"loss": 1.0}]}
