"""Values of any kind have one form in JSON, or are refused with their place."""

import collections
import dataclasses
import datetime
import enum
import json
import math
import re
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from uuid import UUID

import numpy as np
import pytest
import torch

from shoestring.base.json_values import NotJsonError, encode, encode_record

SOURCES = Path(__file__).parents[2] / "src"


class Color(enum.Enum):
    RED = "red"


@dataclasses.dataclass
class Point:
    x: float = math.nan


class Word(str):
    """A text of a type of its own, with another representation."""

    def __str__(self):
        return "another text"


class Count(int):
    """An integer of a type of its own."""


class NAType:
    """What pandas has in place of a value that is missing."""


class Failing:
    def __repr__(self) -> str:
        raise RuntimeError("no representation")


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("half \ud800 \udcff", "half ? ?"),
        (math.nan, None),
        ([math.inf, -math.inf], [None, None]),
        (NAType(), None),
        (Word("half \ud800"), "half ?"),
        (Count(3), 3),
        ({"half \ud800": 1}, {"half ?": 1}),
        (np.float32(1.5), 1.5),
        (np.longdouble(1.5), 1.5),
        (np.int64(3), 3),
        (np.bool_(True), True),
        (np.array([1.0, math.nan]), [1.0, None]),
        (torch.tensor(1.5), 1.5),
        (torch.tensor([1.5], dtype=torch.bfloat16, requires_grad=True), [1.5]),
        (torch.eye(2).to_sparse(), [[1.0, 0.0], [0.0, 1.0]]),
        (np.array(["2026-01-02", "NaT"], dtype="datetime64[ns]"), ["2026-01-02T00:00:00.000000000", None]),
        (np.array([1500, "NaT"], dtype="timedelta64[ms]"), [1.5, None]),
        (np.array([1500, "NaT"], dtype="timedelta64[us]").astype("timedelta64[ns]"), [0.0015, None]),
        (datetime.datetime(2026, 1, 2, 3, 4), "2026-01-02T03:04:00"),
        (datetime.timedelta(minutes=1), 60.0),
        (UUID(int=10), "00000000-0000-0000-0000-00000000000a"),
        ((Decimal("1.50"), Fraction(1, 2), Decimal("sNaN"), Fraction(10**400)), [1.5, 0.5, None, None]),
        ({2, 10, "a", None}, [2, 10, None, "a"]),
        (
            {Color.RED: Color.RED, (1, 2): Path("a/b"), None: Point()},
            {"red": "red", "(1, 2)": "a/b", "None": {"x": None}},
        ),
        (collections.deque([range(2)]), [[0, 1]]),
        ([shared := [1], {"again": shared}], [[1], {"again": [1]}]),
    ],
)
def test_value_has_a_form_in_json(value, expected):
    encoded = encode(value)
    assert encoded == expected and type(encoded) is type(expected)
    json.dumps(encode_record(value), allow_nan=False)


def circular():
    value = []
    value.append({"inner": value})
    return value


def deep():
    value = []
    for _ in range(5000):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (memoryview(b"x"), "of type memoryview"),
        ({"a": [0, b"x"]}, r"b'x' of type bytes at a\[1\]"),
        (1 + 2j, "of type complex"),
        (bytearray(b"x"), "of type bytearray"),
        (Point, "of type type"),
        (10**400, "an integer of more than 290 digits"),
        (circular(), r"a list that contains itself at \[0\].inner"),
        (deep(), "a list of more than 64 levels"),
        ({1: 1, "1": 2}, "a mapping with two keys '1'"),
        (torch.empty(2, device="meta"), "of type Tensor: Cannot copy out of meta tensor"),
        (Failing(), "an object of type Failing"),
        (iter([1]), "of type list_iterator"),
    ],
)
def test_other_value_is_refused_with_its_place(value, message):
    with pytest.raises(NotJsonError, match=message):
        encode(value)
    json.dumps(encode_record(value), allow_nan=False)


def test_record_has_names_of_numbers_and_bytes_of_paths():
    assert encode_record({"loss": math.nan, "path": Path("a\udcff"), "text": "\ud800"}) == {
        "loss": "nan",
        "path": "a\udcff",
        "text": "?",
    }


FIXED = {
    "what Shoestring's own processes send each other, made of its own dataclasses and numbers": """
        answers/watch/watching planning/trace/tracer planning/trace/child_process planning/trace/child
        planning/trace/stored planning/simulator/torch_builds training/engine/parallel/messages
        training/engine/parallel/ranks training/engine/parallel/rank_channel training/processes/replicas
        training/shared_store remote/backup/conversation remote/kaggle/client_process remote/kaggle/client
        remote/kaggle/kernel/program/previous remote/kaggle/kernel/program/session remote/kaggle/kernel/leaving
        remote/kaggle/kernel/script runs/train/meeting runs/check/reporting runs/check/child runs/check/build""",
    "files of Shoestring's own facts": """
        answers/rehearsal/files planning/simulator/build training/run_directory/trust training/checkpoint/tensors
        training/checkpoint/manifest training/checkpoint/files remote/backup/kaggle_store remote/notebook/writing
        remote/kaggle/package remote/kaggle/upload remote/kaggle/job hardware/cpu_rates hardware/measured_file
        runs/measurement/file
        runs/check/lengths integrations/private_parts""",
    "the state of a run, which training/checkpoint/codec.py has packed": """
        training/checkpoint/writing training/checkpoint/light""",
    "a digest or the size of what is encoded already": """
        training/record training/engine/environment training/held_out_answers integrations/state""",
    "values that were read from JSON or TOML, as a text": """
        answers/values answers/replayed training/run_directory/config_file runs/export/model_card""",
    "encoded in the same line, or by the caller whose rows it formats": """
        training/monitor/events cli/output runs/predict/rows runs/predict/output""",
    "the simulator's own record, which a script's process writes": "planning/simulator/inside/events",
}
"""Modules that make JSON, by the reason why no other value can reach them."""


def test_json_is_made_in_few_places():
    root = SOURCES / "shoestring"
    makers = {
        path.relative_to(root).with_suffix("").as_posix()
        for path in root.rglob("*.py")
        if re.search(r"\bjson\.dumps?\(", path.read_text())
    }
    assert makers == {name for names in FIXED.values() for name in names.split()}
