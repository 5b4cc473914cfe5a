"""One line of a check: what was looked at, whether it will do, what was seen, and what to do about it."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from shoestring.renamed import instance_attributes_of

Status = Literal["pass", "warn", "fail"]


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A verdict on one thing. A warning or a failure always has a hint; what passes may have one."""

    name: str
    status: Status
    message: str
    hint: str = ""

    def __post_init__(self) -> None:
        assert self.hint or self.status == "pass", f"{self.name} complains and does not say what to do"

    def json(self) -> dict[str, Any]:
        return {"name": self.name, "status": self.status, "said": self.message, "hint": self.hint}

    if not TYPE_CHECKING:
        __getattr__ = instance_attributes_of("Finding")


def passed(name: str, message: str, hint: str = "") -> Finding:
    return Finding(name=name, status="pass", message=message, hint=hint)


def warned(name: str, message: str, hint: str) -> Finding:
    return Finding(name=name, status="warn", message=message, hint=hint)


def failed(name: str, message: str, hint: str) -> Finding:
    return Finding(name=name, status="fail", message=message, hint=hint)
