import pytest
from benchmarks.tables.quoted import evaluate, number_text, rewritten

VALUES = {"a.memory": 14.36e9, "b.memory": 15.24e9, "a.update": 1.8213, "a.job": 200_280.0, "a.updates": 12_345}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("it needs 1.0 GB<!--= a.memory -->.", "it needs 14.4 GB<!--= a.memory -->."),
        ("9.9<!--= a.memory / GB --> to 9.9 GB<!--= b.memory -->",
         "14.4<!--= a.memory / GB --> to 15.2 GB<!--= b.memory -->"),
        ("**1 h 00 min<!--= a.job -->**", "**55 h 38 min<!--= a.job -->**"),
        ("1 min 00 s<!--= a.update * 60 -->", "1 min 49 s<!--= a.update * 60 -->"),
        ("1%<!--= 1 - a.memory / b.memory --> less", "6%<!--= 1 - a.memory / b.memory --> less"),
        ("7 updates<!-- no formula --> of 1<!--= a.updates -->",
         "7 updates<!-- no formula --> of 12,345<!--= a.updates -->"),
        ("T4 1 s<!--= a.update -->", "T4 2 s<!--= a.update -->"),
        ("16 x 1,000 ms<!--= (a.update + a.update) * 2 -->", "16 x 7,285 ms<!--= (a.update + a.update) * 2 -->"),
    ],
)  # fmt: skip
def test_numbers_are_written_from_their_formulas(text, expected):
    assert rewritten(text, VALUES) == expected
    assert rewritten(expected, VALUES) == expected


@pytest.mark.parametrize("formula", ["a.unknown", "a.memory ** 2", "print(1)", "a.memory if 1 else 2", "'a'"])
def test_a_formula_is_arithmetic_of_known_values(formula):
    with pytest.raises(ValueError, match=r"claims\.json|arithmetic"):
        evaluate(formula, VALUES)


def test_digits_and_units_are_those_of_the_example():
    assert number_text(5021.4, "1 h 00 min") == "1 h 24 min"
    assert number_text(0.0634, "10.0%") == "6.3%"
    assert number_text(8.3e9, "1.00 GiB") == "7.73 GiB"
    assert number_text(1234.5, "0") == "1,234"
