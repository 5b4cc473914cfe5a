"""What a run has found to fit into memory: it begins as the settings say, only ever gets smaller, and is kept."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeGuard

from shoestring.settings import Settings


@dataclass(frozen=True, kw_only=True)
class Fit:
    """In force now; part of a checkpoint, so that the next session does not learn it by failing again."""

    asked: str = ""
    """The settings it was learnt under. Under others it is forgotten: they are set by a person, on purpose."""
    micro_batch: int = 1
    evaluation_batch: int | None = None
    """Once evaluating has a size of its own; until then that of training."""
    checkpointing: str | None = None
    optimizer_kernel: str | None = None

    @classmethod
    def of(cls, settings: Settings) -> Fit:
        """As the settings say."""
        names = ("micro_batch", "checkpointing", "optimizer_kernel")
        asked = " ".join(f"{name}={getattr(settings, name)}" for name in names)
        return cls(
            asked=asked,
            micro_batch=settings.micro_batch or 1,
            checkpointing=settings.checkpointing,
            optimizer_kernel=settings.optimizer_kernel,
        )

    def json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    def resumed(self, saved: object) -> Fit:
        """What a checkpoint has, where it was learnt under the same settings; never more than these say."""
        if not isinstance(saved, Mapping) or saved.get("asked") != self.asked:
            return self
        training, evaluating = saved.get("micro_batch"), saved.get("evaluation_batch")
        return dataclasses.replace(
            self,
            micro_batch=training if self._is_size(training) else self.micro_batch,
            evaluation_batch=evaluating if self._is_size(evaluating) else None,
            checkpointing="full" if saved.get("checkpointing") == "full" else self.checkpointing,
            optimizer_kernel="for-loop" if saved.get("optimizer_kernel") == "for-loop" else self.optimizer_kernel,
        )

    def _is_size(self, value: object) -> TypeGuard[int]:
        return isinstance(value, int) and 0 < value <= self.micro_batch
