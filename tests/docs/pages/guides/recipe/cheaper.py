from dataclasses import dataclass
from typing import Annotated, Literal

from shoestring.base import config

# block

fields = config.fields(Options)
assert {name: field.notes[0].change for name, field in fields.items()} == {
    "side": "smaller images",
    "chunk": "smaller chunks",
    "decoder": "a light head",
}
assert fields["side"].notes[0].than(512) == [64, 128, 192, 256, 320, 384, 448]
assert fields["decoder"].notes[0].than("full") == ["light"]
