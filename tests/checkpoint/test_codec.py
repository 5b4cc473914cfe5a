import math

import pytest
import torch

from shoestring.checkpoint.codec import pack, unpack
from shoestring.errors import CheckpointError


def same(left, right):
    if isinstance(left, torch.Tensor):
        return left.dtype == right.dtype and torch.equal(left, right)
    if isinstance(left, dict):
        return type(right) is dict and list(left) == list(right) and all(same(left[key], right[key]) for key in left)
    if isinstance(left, (list, tuple)):
        return type(left) is type(right) and len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, float) and math.isnan(left):
        return math.isnan(right)
    return type(left) is type(right) and left == right


def test_a_state_comes_back_in_the_same_types_and_bits():
    state = {
        "step": 3,
        "flag": True,
        "none": None,
        "rate": 0.1 + 0.2,
        "far": [float("inf"), float("-inf"), float("nan")],
        "betas": (0.9, 0.999),
        "by number": {0: {"exp_avg": torch.randn(3, 2)}, 1: {"exp_avg": torch.randn(2).half()}},
        "$odd": {"$tensor": "not a tensor"},
        "text": "$tensor",
        "empty": [{}, (), [], torch.empty(0, 3)],
    }
    skeleton, tensors = pack(state)
    assert same(unpack(skeleton, tensors), state)


def test_names_follow_the_place_and_never_collide():
    _, tensors = pack({"a.b": torch.zeros(1), "a": {"b": torch.ones(1)}})
    assert len(tensors) == 2
    assert "a.b" in tensors


def test_tied_tensors_are_stored_once_and_a_view_is_another():
    weight = torch.randn(4, 4)
    skeleton, tensors = pack({"in": weight, "out": weight, "row": weight[1], "turned": weight.T})
    assert sorted(tensors) == ["in", "row", "turned"]
    assert tensors["in"].data_ptr() == weight.data_ptr()
    assert torch.equal(unpack(skeleton, tensors)["turned"], weight.T)


def test_anything_else_is_refused_by_its_place():
    with pytest.raises(CheckpointError, match=r"a set at groups\.0\.names"):
        pack({"groups": [{"names": {1, 2}}]})


@pytest.mark.parametrize("skeleton", [{"$tensor": "gone"}, {"$pickle": "cos\nsystem"}])
def test_a_skeleton_that_stands_for_nothing_is_refused(skeleton):
    with pytest.raises(CheckpointError):
        unpack({"a": [skeleton]}, {})


def test_the_json_shares_nothing_with_the_state():
    history = [{"loss": 1.0}]
    skeleton, _ = pack({"history": history})
    history[0]["loss"] = 2.0
    history.append({})
    assert skeleton == {"history": [{"loss": 1.0}]}
