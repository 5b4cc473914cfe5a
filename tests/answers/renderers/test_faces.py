"""Every kind of element on every face, and what an addition to a document needs: one change."""

import ast
import dataclasses
from pathlib import Path

import pytest

from shoestring.answers import document as elements
from shoestring.answers import renderers
from shoestring.answers.check import document
from shoestring.answers.document import (
    GAP,
    Bar,
    BarChart,
    Breakdown,
    Code,
    Column,
    Command,
    Document,
    Fact,
    Histogram,
    Image,
    Interval,
    Items,
    Labels,
    Level,
    LineBreak,
    LineChart,
    Matrix,
    Metric,
    Metrics,
    MetricsPart,
    Paragraph,
    Part,
    Point,
    Row,
    Section,
    Series,
    Span,
    Sparkline,
    Status,
    Swatch,
    Table,
    Timeline,
    key_figure,
)
from shoestring.answers.renderers.notebook.document import render as notebook
from shoestring.answers.renderers.page.document import render as page
from shoestring.answers.renderers.terminal.document import plain
from shoestring.runs.check.finding import warned
from shoestring.runs.check.preflight import CheckResult
from tests.answers.runs import RED_PIXEL

FACES = {"terminal": plain, "notebook": notebook, "page": page}
ODD = "<i>\x1b[2J"
POINTS = [Point(1, 0.5, 0.4, 0.6), Point(9, 0.25, 0.2, 0.3)]
ELEMENTS = {
    "paragraph": Paragraph(["a ", Span("paragraph", "good"), LineBreak(), Swatch("sky"), Status("fits")], "strong"),
    "": GAP,
    "figure": key_figure("figure", "17", "of 20"),
    "train me": Command("train me", "for this"),
    "some code": Code("some code", "folded"),
    "an item": Items(["an item", [Span("another", "bad")]], is_clipped=True),
    "fp16": Labels([("micro_batch", "4"), ("", "fp16")], "a remark"),
    "cell": Table(
        [Column("x"), Column("y", is_numeric=True)],
        [(Section("", [Paragraph("cell")]), "1"), (Bar([2.0]), Sparkline([1, 2]))],
        [1],
        "f",
    ),
    "loss": Metrics([MetricsPart("test", [Metric("loss", "0.5", "0.7")], [("a_copy", [Metric("psnr", "30")])])]),
    "weights": Breakdown(title="b", parts=[Part("weights", 2**20, "trace")], low=1.0, high=2.0**21, capacity=2.0**22),
    "training": LineChart(
        title="c",
        label="a curve",
        series=[
            Series(name="training", points=POINTS, color="blue"),
            Series(name="validation", points=POINTS, color="orange", has_dots=True, best=9),
        ],
        x="update",
        y="loss",
        levels=[Level(0.5, "half")],
        band=(0.1, 0.2),
        marks=[5],
        has_legend=True,
        can_be_logarithmic=True,
    ),
    "up": BarChart(title="d", label="bars", categories=["up"], series=[("recall", "sky", [0.5])]),
    "psnr": Histogram(title="psnr", label="histogram", edges=[0, 1, 2], counts=[3, 4], x="dB", y="samples"),
    "predicted": Matrix(
        title="e", label="pairs", rows="true", columns="predicted", names=["a", "b"], counts=[[1, 2]] * 2
    ),
    "paused": Timeline(
        title="g",
        label="sessions",
        intervals=[Interval(name="1", start=0, end=60, status="paused", moments=[30], ends_with_a_kill=True)],
        pauses=[(60, 90)],
        moments="save",
    ),
    "a caption": Row([Image(RED_PIXEL, "a pixel", "a caption")]),
    "below it": Section("title", [Paragraph("below it"), Section("deeper", [Paragraph("deep")], is_folded=True)]),
    "beside it": Fact("fact", [Paragraph("beside it")]),
    "inner": Document(title="inner", status="fits", subtitle="a document in another"),
}


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("text", ELEMENTS)
def test_each_element_is_shown_on_each_face(text, face):
    output = FACES[face](Document(title="title", content=[ELEMENTS[text]], footer="footer"))
    assert "footer" in output and text in output.lower()


def test_every_element_is_among_these():
    classes = set(elements.Element.replace("|", " ").split())
    assert {type(element).__name__ for element in ELEMENTS.values()} | {"Bar", "Image"} >= classes


@pytest.mark.parametrize("face", FACES)
def test_texts_are_escaped(face):
    output = FACES[face](
        Document(
            title=ODD,
            status=ODD,
            subtitle=ODD,
            content=[
                *(Paragraph(Span(ODD, tone)) for tone in ("strong", "faint", "bad")),
                Command(ODD, ODD),
                Code(ODD, ODD),
                Items([ODD]),
                Labels([(ODD, ODD)], ODD),
                Table([Column(ODD)], [[ODD]]),
                Fact(ODD, [Paragraph(ODD), key_figure(ODD, ODD, ODD)]),
                Section(ODD, [Metrics([MetricsPart(ODD, [Metric(ODD, ODD, ODD)])])]),
            ],
            footer=ODD,
        )
    )
    assert "\x1b" not in output and (face == "terminal" or "<i>\\" not in output)


def test_column_that_a_document_gains_is_on_each_face():
    answer = document(CheckResult(target="t4", recipe="", findings=(warned("cores", "two", "wait"),)))
    (table,) = (element for element in answer.content if isinstance(element, Table))
    wider = dataclasses.replace(table, columns=[*table.columns, Column()], rows=[[*row, "added"] for row in table.rows])
    longer = dataclasses.replace(answer, content=[wider])
    for render in FACES.values():
        assert "added" in render(longer) and "added" not in render(answer)


def test_narrow_terminal_leaves_out_the_columns_that_need_more_space():
    table = Table([Column("a"), Column("b", least_width=100)], [("1", "2")])
    narrow, wide = (plain(Document(title="", content=[table]), width=width).split() for width in (80, 120))
    assert narrow == ["a", "1"] and wide == ["a", "b", "1", "2"]


def test_renderers_know_no_answers():
    allowed = ("shoestring.answers.document", "shoestring.answers.renderers", "shoestring.base.")
    for file in Path(renderers.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("shoestring"):
                names = {f"{node.module}.{alias.name}" for alias in node.names}
                assert all(name.startswith(allowed) for name in names), (file.name, names)
