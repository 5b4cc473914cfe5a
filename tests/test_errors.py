from shoestring.errors import CheckpointError, DataError, RunError, ShoestringError, TraceError, UsageError, nearest


def test_an_error_reads_as_what_each_problem_and_a_hint():
    error = DataError("bars.csv cannot be used", problems=["line 3: close is -1", "line 9: no time"], hint="mend them")
    assert str(error).splitlines() == [
        "bars.csv cannot be used",
        "  - line 3: close is -1",
        "  - line 9: no time",
        "hint: mend them",
    ]


def test_a_wrong_question_is_status_2_and_a_failed_run_1():
    assert {kind.status for kind in (UsageError, DataError)} == {2}
    assert {kind.status for kind in (ShoestringError, RunError, TraceError, CheckpointError)} == {1}


def test_the_nearest_name_is_proposed_or_all_are_listed():
    assert nearest("tempral", ["legal", "temporal"]) == "did you mean temporal?"
    assert nearest("xyz", ["legal", "temporal"]) == "available: legal, temporal"
    assert nearest("xyz", []) == "available: none"
