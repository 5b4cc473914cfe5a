"""The memory estimate of specific settings."""

from shoestring.answers import wording
from shoestring.answers.document import Document, Fact, Labels, Paragraph, Section, Status
from shoestring.base.units import bytes_text
from shoestring.planning.estimation import Estimate


def document(estimate: Estimate) -> Document:
    """Return the verdict, the settings and the parts of the memory."""
    verdict = "fits" if estimate.memory.fits else "does not fit"
    reason = _reason(estimate)
    return Document(
        title=f"{estimate.recipe} on {estimate.target.name}",
        status=verdict,
        subtitle=wording.device_text(estimate.target, estimate.facts),
        sentences=[
            wording.heading(estimate.recipe, estimate.target, estimate.facts),
            [Status(verdict), f": {reason}" if reason else ""],
        ],
        content=[
            Section("", [Paragraph(reason)], is_extra=True),
            Fact("settings", [wording.settings(estimate.settings.json())]),
            wording.memory(estimate.memory),
            Fact("tensors by phase", [Labels([(name, bytes_text(size)) for name, size in estimate.phases.items()])]),
            *wording.notes(
                [text for text in (estimate.assumption, *wording.all_notes(estimate.target, estimate.facts)) if text]
            ),
        ],
    )


def _reason(estimate: Estimate) -> str:
    """Return why it does not fit; empty if it fits, or if the numbers say it themselves."""
    memory = estimate.memory
    if memory.fits:
        return ""
    if memory.loading_bytes > memory.capacity_bytes:
        return "the model does not fit while it is loaded"
    if memory.peak_bytes <= memory.capacity_bytes:
        return "the high end of the range decides; shoestring plan finds settings that fit"
    return ""
