"""The findings about random numbers in the data and in the loss."""

from shoestring.runs.check.randomness import check_randomness

DATA = {"samples": 4, "skipped": "", "difference": "", "generators": []}
LOSS = {"unseeded": "", "changed": ""}


def test_each_kind_has_its_finding():
    assert check_randomness(None, None) == [] == check_randomness(None, LOSS)
    (finding,) = check_randomness({**DATA, "generators": ["a", "b"]}, LOSS)
    assert finding.status == "pass" and "4 samples" in finding.message and "2 generators" in finding.message
    (finding,) = check_randomness({**DATA, "samples": 0, "skipped": "a sample takes 3 s"}, LOSS)
    assert finding.status == "pass" and "a sample takes 3 s" in finding.message
    findings = check_randomness({**DATA, "difference": "batch differs"}, {"unseeded": "it differs", "changed": "a"})
    assert [(finding.name, finding.status, finding.message) for finding in findings] == [
        ("random numbers", "warn", "batch differs"),
        ("random numbers of the loss", "warn", "it differs"),
        ("state of the loss", "warn", "a"),
    ]
