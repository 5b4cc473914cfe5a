"""A run that is being watched: position, loss, speed, memory, metrics and what happened last, in 80 columns."""

from collections.abc import Iterator
from datetime import UTC, datetime

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from shoestring.answers.metrics import is_qualifier, with_error
from shoestring.answers.renderers.terminal.blocks import chart, sparkline
from shoestring.answers.renderers.terminal.document import element_text, status_style
from shoestring.answers.values import count, words
from shoestring.answers.watch import sentences
from shoestring.answers.watch.document import facts
from shoestring.answers.watch.sentences import number_text
from shoestring.answers.watch.view import View
from shoestring.base.streams import one_line

_HEIGHT, _LABELS, _WIDEST = 7, 10, 100
_HISTORY = 5
_MAX_METRICS = 5
_MAX_REWARDS = 3


class Screen:
    """Shows a view in the width of the console, at most 100 columns."""

    def __init__(self, view: View) -> None:
        self._view = view

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width = min(options.max_width, _WIDEST)
        yield from console.render(Group(*_lines(self._view, width)), options.update(width=width))


def _lines(view: View, width: int) -> Iterator[RenderableType]:
    title = Text(no_wrap=True, overflow="ellipsis")
    title.append(one_line(view.recipe), style="bold")
    title.append(f"  {one_line(view.status)}", style=status_style(view.status))
    device = f" · session {count(view.session)} on {one_line(view.device)}" if view.session else ""
    title.append(f"{device} · {one_line(view.run)}")
    yield title
    if sentence := sentences.explanation(view):
        yield Text(one_line(sentence))
    if sentences.can_continue(view):
        yield Text(f"continue with: {one_line(view.next)}")
    yield _position(view, width)
    yield from _loss(view, width)
    table = Table.grid(padding=(0, 1))
    table.add_column(no_wrap=True, width=_LABELS, overflow="ellipsis")
    table.add_column(no_wrap=True, overflow="ellipsis", max_width=width - _LABELS - 1)
    for name, text in _rewards(view, width):
        table.add_row(Text(name, style="dim"), Text(one_line(text)))
    for fact in facts(view):
        table.add_row(Text(fact.title, style="dim"), Group(*map(element_text, fact.content)))
    for name, text in _metrics(view):
        table.add_row(Text(name, style="dim"), Text(one_line(text)))
    yield table
    for event in view.events[-_HISTORY:]:
        clock = datetime.fromtimestamp(event["time"], UTC).strftime("%H:%M:%S")
        line = Text(no_wrap=True, overflow="ellipsis").append(f"{clock:{_LABELS}} ", "dim")
        yield line.append(one_line(event["text"]))
    for problem in view.problems:
        yield Text(one_line(problem), style="yellow")


def _position(view: View, width: int) -> Text:
    share = min(1.0, view.update / view.total_updates) if view.total_updates else 0.0
    epoch = f" · epoch {count(view.epoch)}" if view.epoch is not None else ""
    text = f" update {count(view.update)} of {count(view.total_updates)} · {share:.1%}{epoch}"
    cells = max(1, width - len(text))
    eighths = round(share * 8 * cells)
    bar = "█" * (eighths // 8) + " ▏▎▍▌▋▊▉"[eighths % 8].strip()
    line = Text(no_wrap=True, overflow="ellipsis")
    return line.append(f"{bar:{cells}}", "cyan on grey23").append(text)


def _loss(view: View, width: int) -> Iterator[RenderableType]:
    columns = width - _LABELS - 1
    values = view.loss_curve.columns(columns)
    if not values:
        return
    last_update = max(1, view.update, *(old.update for old in view.evaluations))
    validation = {
        min(columns - 1, max(0, round(old.update / last_update * columns) - 1)): old.metrics["loss"]
        for old in view.evaluations
        if old.part == "validation" and "loss" in old.metrics
    }
    legend = Text(no_wrap=True, overflow="ellipsis")
    legend.append(f"{'loss':{_LABELS}} ", "dim").append("▅ training", "cyan").append(f" {number_text(view.loss)}")
    if validation:
        last = view.metrics.get("validation", {}).get("loss")
        legend.append("   ● validation", "red").append(f" {number_text(last)}")
        best = view.best_metrics.get("loss")
        legend.append(f"   best {number_text(best)} at update {count(view.best_update)}" if best is not None else "")
    yield legend
    yield Group(
        *chart(values, validation, height=_HEIGHT, labels=_LABELS, style="cyan", dot_style="red"),
        Text(f"{' ' * _LABELS} 0{f'update {count(last_update)}':>{columns - 1}}", style="dim", no_wrap=True),
    )


def _rewards(view: View, width: int) -> Iterator[tuple[str, str]]:
    for name in list(view.rewards)[:_MAX_REWARDS]:
        curve = view.reward_curves[name].columns(max(1, width - _LABELS - 16 - len(name)))
        yield "reward", f"{words(name)} {number_text(view.rewards[name])}  {sparkline(curve)}"


def _metrics(view: View) -> Iterator[tuple[str, str]]:
    for part, metrics in view.metrics.items():
        names = [name for name in metrics if not is_qualifier(name)][:_MAX_METRICS]
        if names:
            yield part[:10], " · ".join(f"{words(name)} {with_error(metrics, name)}" for name in names)
