"""A finding: the result of one check, with its subject, status, message and hint."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from shoestring.base.renamed import instance_attributes_of

Status = Literal["pass", "warn", "fail"]


@dataclass(frozen=True, kw_only=True)
class Finding:
    """The result of one check. A warning or a failure always has a hint; a passed check may have one."""

    name: str
    """The subject of the check, such as "disk"."""
    status: Status
    """Whether a run can begin (`pass`), may have a problem (`warn`), or cannot begin (`fail`)."""
    message: str
    """What was found, as a sentence."""
    hint: str = ""
    """What to do; empty if there is nothing to do."""

    def __post_init__(self) -> None:
        assert self.hint or self.status == "pass", f"the finding {self.name!r} with status {self.status} has no hint"

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
