"""What was prepared for rehearsals, as a value."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from shoestring.base.display import Displayed, text


@dataclass(frozen=True, kw_only=True)
class PreparedRehearsal(Displayed):
    """The build of PyTorch that rehearsals use from now on."""

    stack: str | None
    """The platform whose versions were installed; null for those of this environment."""
    torch: str
    """The version of PyTorch and of its CUDA."""
    folder: str
    """The folder of the package torch."""

    def json(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        return text(self)
