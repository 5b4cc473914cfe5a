"""Checks of what a request requires, on facts of invented machines."""

from dataclasses import replace
from pathlib import Path

from shoestring.base.packages.requirements import Package
from shoestring.hardware.targets import known
from shoestring.runs.check import requirements
from shoestring.runs.check.facts import Input, RunLock
from tests.runs.check.sample_facts import HOST, finding_named, make_facts

DATA = Input(
    option="data",
    path=Path("/kaggle/input/prices/bars.csv"),
    problem="does not exist",
    alternatives=(Path("/kaggle/input/datasets/me/prices/bars.csv"),),
)
NO_INTERNET = {"huggingface.co": "Name or service not known", "pypi.org": "no answer in 2 s"}


def test_missing_and_outdated_packages_fail_with_a_hint():
    torch = Package(name="torch", minimum="2.10", below="3", installed="2.5.1+cu121")
    peft = Package(name="peft", minimum="0.15", installed="", extra="chart")
    finding = finding_named("packages", make_facts(packages=(torch, peft)))
    assert finding.status == "fail"
    assert "torch 2.5.1+cu121 is too old (required: torch>=2.10,<3)" in finding.message
    assert "peft is not installed" in finding.message
    assert finding.hint.startswith("pip install 'torch>=2.10,<3' 'peft>=0.15'")
    assert finding_named("packages", make_facts(packages=(replace(torch, installed="3.0"),))).status == "fail"
    assert "[chart]" in finding_named("packages", make_facts(packages=(peft,))).hint
    assert "--no-index" in finding_named("packages", make_facts(packages=(peft,), internet=NO_INTERNET)).hint


def test_what_the_image_of_another_platform_lacks_is_said():
    packages = (
        Package(name="torch", minimum="2.10", installed="2.13.0"),
        Package(name="trl", minimum="1.10", installed="1.16.0", extra="chart"),
    )
    facts = make_facts(packages=packages, platform=None)
    finding = finding_named("image", facts)
    assert finding.status == "pass"
    assert "lacks trl, datasets>=4.7.0, pyarrow>=21.0.0: kaggle start and the notebook bring them;" in finding.message
    assert finding.message.endswith("by hand: pip install trl==1.16.0 datasets==5.0.1 pyarrow==26.0.1")
    complete = finding_named("image", replace(facts, packages=packages[:1]))
    assert complete.message == "Kaggle's image of 2026-08-12 has all packages"
    # In a session of the platform, and for a GPU without a platform, there is nothing to say.
    assert requirements.check_image(make_facts(packages=packages)) is None
    assert requirements.check_image(replace(facts, target=known()["t4"])) is None


def test_untested_versions_are_a_warning():
    assert finding_named("versions", make_facts()).status == "pass"
    untested = Package(name="torch", minimum="2.10", installed="2.14.0")
    finding = finding_named("versions", make_facts(packages=(untested,)))
    assert finding.status == "warn"
    assert "torch 2.14.0 (tested: 2.10.0, 2.11.0, 2.13.0)" in finding.message
    assert finding.hint.endswith("pip install torch==2.13.0")
    of_kaggle = Package(name="torch", minimum="2.10", installed="2.10.0+cu128")
    assert finding_named("versions", make_facts(packages=(of_kaggle,))).status == "pass"


def test_moved_input_is_suggested_in_the_hint():
    finding = finding_named("inputs", make_facts(inputs=(DATA,)))
    assert (finding.status, finding.hint) == ("fail", "--set data=/kaggle/input/datasets/me/prices/bars.csv")


def test_missing_input_lists_mounted_data_sets():
    finding = finding_named("inputs", make_facts(inputs=(replace(DATA, alternatives=()),)))
    assert (finding.status, "/kaggle/input/datasets/me/prices" in finding.hint) == ("fail", True)
    assert finding_named("inputs", make_facts(inputs=(replace(DATA, problem=""),))).status == "pass"


def test_session_without_data_sets_is_a_warning():
    assert finding_named("inputs", make_facts(mounted=())).status == "warn"
    assert requirements.check_inputs(make_facts(mounted=(), platform=None)) is None


def test_unreachable_hosts_name_what_needs_them():
    finding = finding_named("internet", make_facts(internet=NO_INTERNET))
    assert finding.status == "warn"
    assert "hub" in finding.message and "pip install" in finding.message
    assert "Settings" in finding.hint
    assert finding_named("internet", make_facts(internet=NO_INTERNET, needs_hub=True)).status == "fail"
    assert finding_named("internet", make_facts()).status == "pass"


def test_offline_variable_fails_for_hub_recipes():
    host = replace(HOST, environment={"HF_HUB_OFFLINE": "1"})
    assert finding_named("internet", make_facts(host=host, needs_hub=True)).status == "fail"
    assert finding_named("internet", make_facts(host=host)).status == "pass"


def test_remaining_quota_is_unknown():
    finding = finding_named("quota", make_facts())
    assert (
        "30 h" in finding.message
        and "cannot see how much remains" in finding.message
        and "kaggle.com/settings" in finding.hint
    )
    assert requirements.check_quota(make_facts(on="t4", platform=None)) is None


def test_process_holding_the_run_lock_is_named():
    run = Path("runs/x")
    zombie = RunLock(run=run, holder="pid 77 on here, begun 1790000000", locked=True, process_status="zombie")
    finding = finding_named("run", make_facts(run_lock=zombie))
    assert finding.status == "fail"
    assert "pid 77" in finding.message and "dead" in finding.message and "kill 77" in finding.hint
    assert finding_named("run", make_facts(run_lock=replace(zombie, locked=False, process_status=""))).status == "pass"
    assert (
        requirements.check_run(make_facts(run_lock=RunLock(run=run, holder="", locked=False, process_status="")))
        is None
    )
