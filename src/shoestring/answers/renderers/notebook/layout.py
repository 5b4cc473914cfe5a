"""The layout that all displays share: box, headline, tiles, labels, tables, folded lists.

The page of a notebook has its own styles and may remove these. So text has the color of the page, colors are
backgrounds and shapes that are visible on light and dark pages, and without styles there remain lists and tables in a
sensible order. There is no `<style>`, because its rules would hold for the whole page.
"""

from collections.abc import Iterable, Sequence

from shoestring.answers.renderers.markup import EMPTY, Content, Markup, element, join

BLUE, ORANGE, GREEN, RED, GRAY = "#2a7fd4", "#d9822b", "#2da44e", "#d9483b", "#8a929b"
_PILLS = {GREEN: "#1a7f37", RED: "#c4372c", ORANGE: "#9a6700", BLUE: "#0b66c3", GRAY: "#656d76"}
"""The darker tone of each color, on which white text is readable."""
STATUS_COLORS = {
    "pass": GREEN,
    "warn": ORANGE,
    "fail": RED,
    "fits": GREEN,
    "fits with changes": ORANGE,
    "does not fit": RED,
    "finished": GREEN,
    "running": BLUE,
    "starting": BLUE,
    "paused": ORANGE,
    "failed": RED,
    "killed": RED,
    "exceeded": RED,
}
TRACK = "rgba(128,128,128,.2)"
_BOX = (
    "font-family:system-ui,sans-serif;font-size:14px;line-height:1.45;max-width:860px;box-sizing:border-box;"
    "border:1px solid rgba(128,128,128,.35);border-radius:10px;padding:14px 16px;margin:4px 0"
)
_HEADLINE = "display:flex;flex-wrap:wrap;align-items:center;gap:4px 10px"
_PILL = (
    "display:inline-block;border-radius:1em;padding:1px 10px;font-size:12px;font-weight:600;color:#fff;"
    "background:{color}"
)
FAINT = "opacity:.72;font-size:12px"
_FLOW = "display:flex;flex-wrap:wrap;gap:{gap};list-style:none;padding:0;margin:8px 0"
_LABEL = "border:1px solid rgba(128,128,128,.4);border-radius:1em;padding:0 9px;margin:0;font-size:12px"
_TILE = (
    "flex:1 1 115px;box-sizing:border-box;margin:0;padding:6px 10px;border-radius:8px;background:rgba(128,128,128,.1)"
)
_CELL = "text-align:{align};padding:2px 14px 2px 0;vertical-align:top;border:0;background:none;white-space:{wrap}"
# A page without a doctype does not pass its color on to tables.
_TABLE = "border-collapse:collapse;margin:2px 0;font-size:13px;border:0;color:inherit"
_CODE = (
    "font-family:ui-monospace,monospace;font-size:12px;white-space:pre-wrap;overflow-wrap:anywhere;"
    "background:rgba(128,128,128,.12);border-radius:6px;padding:5px 9px;margin:6px 0;color:inherit"
)


def box(title: str, status: str, subtitle: str, *content: Content) -> Markup:
    """Return a display with its headline; `status` is a word of `STATUS_COLORS`, or empty."""
    headline = element(
        "div",
        element("b", title, style="font-size:17px;overflow-wrap:anywhere"),
        " ",
        pill(status) if status else EMPTY,
        " ",
        element("span", subtitle, style=FAINT),
        style=_HEADLINE,
    )
    return element("div", headline, *content, style=_BOX)


def pill(status: str) -> Markup:
    """Return a status on a background of its color."""
    return element("span", status, style=_PILL.format(color=_PILLS[STATUS_COLORS.get(status, GRAY)]))


def tiles(values: Iterable[tuple[str, str, str]]) -> Markup:
    """Return (name, value, details) side by side, as many as the width allows."""
    items = [
        element(
            "li",
            element("div", name, style=FAINT),
            element("div", element("b", value, style="font-size:17px")),
            element("div", details, style=FAINT) if details else EMPTY,
            style=_TILE,
        )
        for name, value, details in values
    ]
    return element("ul", items, style=_FLOW.format(gap="8px")) if items else EMPTY


def labels(pairs: Iterable[tuple[str, Content]]) -> Markup:
    """Return names with their values as small labels."""
    items = [element("li", name, " ", element("b", value), style=_LABEL) for name, value in pairs]
    return element("ul", items, style=_FLOW.format(gap="5px 6px")) if items else EMPTY


def legend(items: Iterable[tuple[str, str, str]]) -> Markup:
    """Return (color, text, source) with a square of each color; the source is shown under the mouse."""
    entries = [
        element(
            "li",
            element(
                "span",
                style=f"display:inline-block;width:9px;height:9px;border-radius:2px;margin-right:5px;background:{color}",
            ),
            text,
            title=source,
            style="margin:0;font-size:12px",
        )
        for color, text, source in items
    ]
    return element("ul", entries, style=_FLOW.format(gap="1px 16px"))


def section(title: str, *content: Content) -> Markup:
    """Return content below a small title."""
    heading = element("div", element("b", title), style="margin-top:12px;font-size:13px")
    return join([heading, *content])


def table(rows: Sequence[Sequence[Content]], head: Sequence[Content] = (), numeric: Iterable[int] = ()) -> Markup:
    """Return a table that scrolls if it is too wide, whatever the page draws around its own."""
    right = set(numeric)

    def row(tag: str, cells: Sequence[Content]) -> Markup:
        columns = [
            element(
                tag,
                cell,
                style=_CELL.format(
                    align="right" if column in right else "left",
                    wrap="nowrap" if tag == "td" and (column < len(cells) - 1 or column in right) else "normal",
                ),
            )
            for column, cell in enumerate(cells)
        ]
        return element("tr", columns, style="background:none;border:0")

    if not rows:
        return EMPTY
    top = element("thead", row("th", head), style="border:0") if head else EMPTY
    lines = element("table", top, element("tbody", [row("td", cells) for cells in rows]), style=_TABLE)
    return element("div", lines, style="overflow-x:auto")


def fold(title: str, content: Content) -> Markup:
    """Return content that the title shows and hides."""
    summary = element("summary", title, style="cursor:pointer;font-size:13px")
    return element("details", summary, content, style="margin:3px 0;font-size:13px;overflow-wrap:anywhere")


def lines(texts: Iterable[str], *, style: str = FAINT) -> Markup:
    """Return each text as a paragraph of its own."""
    return join([element("div", text, style=style) for text in texts])


def dotted(texts: Iterable[Content]) -> list[Content]:
    """Return texts on one line with dots between them."""
    return [[" \N{MIDDLE DOT} " if index else "", text] for index, text in enumerate(texts)]


def code(text: str) -> Markup:
    """Return a command that can be copied."""
    return element("pre", text, style=_CODE)
