"""Settings: what may be chosen without changing what is learnt (beyond rounding)."""

import dataclasses
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from shoestring import config
from shoestring.errors import QuestionError

Precision = Literal["fp32", "fp16", "bf16"]


@dataclass(frozen=True, kw_only=True)
class Settings:
    """`None` leaves the choice to the plan; a plan's own settings have none left open."""

    micro_batch: Annotated[int | None, "samples on the GPU at once; the effective batch stays as it is"] = None
    precision: Annotated[Precision | None, "fp32, or automatic mixed precision in fp16 or bf16"] = None
    save_every_updates: Annotated[int | None, "a full checkpoint each so many updates, besides the timed ones"] = None
    save_every_seconds: Annotated[
        float | None, "seconds between full checkpoints; by default so long that saving costs at most 2% of the time"
    ] = None
    keep_checkpoints: Annotated[int, "verified full checkpoints to keep, at least 2"] = 2

    def __post_init__(self) -> None:
        problems = config.too_small(
            vars(self), {"micro_batch": 1, "save_every_updates": 1, "save_every_seconds": 0, "keep_checkpoints": 2}
        )
        if problems:
            raise QuestionError("settings cannot be used", problems=problems)

    def replace(self, **changes: Any) -> "Settings":
        return dataclasses.replace(self, **changes)

    def json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> "Settings":
        return cls(**config.read(values, config.fields(cls), "settings"))
