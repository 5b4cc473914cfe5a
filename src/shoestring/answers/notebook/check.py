"""The display of a check: what fails first, what passes folded."""

from shoestring.answers.markup import EMPTY, Content, Markup, element
from shoestring.answers.notebook.layout import FAINT, box, code, fold, labels, pill, table
from shoestring.base import display
from shoestring.runs.check.finding import Finding
from shoestring.runs.check.preflight import CheckResult


@display.html.register
def render(result: CheckResult) -> Markup:
    """Render failures and warnings with their hints, and below them what passes."""
    subject = f"{result.recipe} on {result.target}" if result.recipe else result.target
    by_status = {
        status: [finding for finding in result.findings if finding.status == status]
        for status in ("fail", "warn", "pass")
    }
    counts = [(status, str(len(findings))) for status, findings in by_status.items() if findings]
    passed = by_status["pass"]
    return box(
        f"Check of this machine for {subject}",
        result.status,
        "",
        labels(counts),
        table([_row(finding) for status in ("fail", "warn") for finding in by_status[status]]),
        fold(f"What passes ({len(passed)})", table([_row(finding) for finding in passed])) if passed else EMPTY,
        fold("A sample of the data", code(result.preview)) if result.preview else EMPTY,
    )


def _row(finding: Finding) -> tuple[Content, ...]:
    hint = element("div", finding.hint, style=FAINT) if finding.hint else EMPTY
    return pill(finding.status), element("b", finding.name), [finding.message, hint]
