"""Each scenario with some of its requests; `python -m benchmarks.lab.out_of_memory` lets each of them fail."""

import pytest

from .campaign import ALWAYS, RIGHT, Campaign
from .scenarios import SCENARIOS

CASES = 3
"""Of each scenario: spread over its requests, with one failure, two in succession, or all from there on."""


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_some_requests_fail(scenario, tmp_path):
    with Campaign(scenario, tmp_path) as campaign:
        every = max(1, campaign.requests // CASES + 1)
        cases = [
            case
            for index, count in enumerate((1, 2, ALWAYS))
            for case in campaign.cases(3 * every, offset=index * every + len(scenario.name), counts=[count])
        ]
    assert cases and {case.outcome for case in cases} <= {*RIGHT}, [case for case in cases if case.outcome not in RIGHT]


@pytest.mark.slow
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_every_third_request_fails(scenario, tmp_path):
    with Campaign(scenario, tmp_path) as campaign:
        cases = [*campaign.cases(3, counts=[1])]
    assert cases and {case.outcome for case in cases} <= {*RIGHT}, [case for case in cases if case.outcome not in RIGHT]
