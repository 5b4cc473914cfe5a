"""Numbers in the text of pages, each with a comment behind it that says which values it is computed from:

    a full checkpoint has 5.41 GB<!--= vqa.guide.checkpoint -->, saved 1.5<!--= vqa.a.update / vqa.b.update --> times

A value is that of a command (`benchmarks/claims/cases.py`), in bytes, seconds or a count, and a formula may add,
subtract, multiply and divide values and units. The number is written anew in the unit that stands there, with as many
digits behind the point. A reader of the page does not see the comment.
"""

import ast
import operator
import re
from collections.abc import Callable, Mapping

UNITS = {
    "GB": 1e9,
    "MB": 1e6,
    "GiB": 2.0**30,
    "MiB": 2.0**20,
    "ms": 1e-3,
    "s": 1.0,
    "min": 60.0,
    "h": 3600.0,
}
_OPERATORS: Mapping[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}
QUOTED = re.compile(
    r"(?P<text>(?<![\w.,])(?:\d[\d,]* (?:h|min) )?\d[\d,.]*(?:%|(?: (?:"
    + "|".join(UNITS)
    + r"))?))<!--=(?P<formula>.+?)-->"
)


def rewritten(text: str, values: Mapping[str, float]) -> str:
    """Return the text of a page with its quoted numbers written anew.

    Raises ValueError for a formula that has an unknown value or anything but arithmetic.
    """
    return QUOTED.sub(
        lambda match: f"{number_text(evaluate(match['formula'], values), match['text'])}<!--={match['formula']}-->",
        text,
    )


def evaluate(formula: str, values: Mapping[str, float]) -> float:
    """Return the result of a formula. Raises ValueError if it has an unknown value or anything but arithmetic."""

    def result(node: ast.expr) -> float:
        match node:
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
                return _OPERATORS[type(op)](result(left), result(right))
            case ast.Constant(value=int() | float() as value):
                return value
            case ast.Name() | ast.Attribute():
                name = ast.unparse(node)
                if name in values or name in UNITS:
                    return values[name] if name in values else UNITS[name]
                raise ValueError(f"{formula.strip()}: there is no value {name} in benchmarks/results/claims.json")
            case _:
                raise ValueError(f"{formula.strip()}: {ast.unparse(node)} is not arithmetic")

    return result(ast.parse(formula.strip(), mode="eval").body)


def number_text(value: float, example: str) -> str:
    """Return a number in the unit of `example`, with as many digits behind the point.

    >>> number_text(5021.4, "1 h 00 min"), number_text(0.0634, "10.0%"), number_text(14.36e9, "1.0 GB")
    ('1 h 24 min', '6.3%', '14.4 GB')
    """
    if match := re.fullmatch(r"[\d,]+ (?P<large>h|min) \d+ (?P<small>min|s)", example):
        large, small = divmod(round(value / UNITS[match["small"]]), 60)
        return f"{large:,} {match['large']} {small:02d} {match['small']}"
    number = re.match(r"[\d,.]+", example)
    assert number, example
    unit = example[number.end() :]
    scale = 0.01 if unit == "%" else UNITS[unit.strip()] if unit else 1.0
    return f"{value / scale:,.{len(number[0].partition('.')[2])}f}{unit}"
