"""One line of a check: what was looked at, whether it will do, what was seen, and what to do about it."""

from dataclasses import dataclass
from typing import Literal

Status = Literal["pass", "warn", "fail"]


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A verdict on one thing. A warning or a failure always has a hint; what passes may have one."""

    name: str
    status: Status
    said: str
    hint: str = ""

    def __post_init__(self) -> None:
        assert self.hint or self.status == "pass", f"{self.name} complains and does not say what to do"


def passed(name: str, said: str, hint: str = "") -> Finding:
    return Finding(name=name, status="pass", said=said, hint=hint)


def warned(name: str, said: str, hint: str) -> Finding:
    return Finding(name=name, status="warn", said=said, hint=hint)


def failed(name: str, said: str, hint: str) -> Finding:
    return Finding(name=name, status="fail", said=said, hint=hint)
