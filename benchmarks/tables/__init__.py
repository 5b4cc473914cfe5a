"""The tables and numbers of the documentation and the README that are written from the results of benchmarks.

A page has a table between the comments `<!-- table: NAME -->` and `<!-- end of table -->`, and a number of a plan or an
estimate before a comment with its formula (`quoted.py`).
"""

import re
from collections.abc import Callable

from benchmarks.catalogue import ROOT
from benchmarks.tables import (
    accuracy,
    adapters,
    architectures,
    benchmarks,
    claims,
    engine,
    finetune,
    gpu,
    lab,
    measurements,
    pictures,
    quoted,
    randomness,
    recipes,
    rehearse,
    streaming,
    survival,
)

_TABLE = re.compile(
    r"(?<=<!-- table: )(?P<name>[a-z_]+)(?P<open> -->\n)(?P<table>.*?)(?=<!-- end of table -->)", re.DOTALL
)

TABLES: dict[str, Callable[[], str]] = {
    "adapters_causal": adapters.causal,
    "adapters_counts": adapters.counts,
    "adapters_not_built": adapters.not_built,
    "adapters_others": adapters.others,
    "architectures_newest": architectures.newest,
    "memory": accuracy.memory,
    "time": accuracy.time,
    "time_held_out": accuracy.time_held_out,
    "memory_groups": accuracy.memory_groups,
    "memory_reserved": accuracy.memory_reserved,
    "memory_families": accuracy.memory_families,
    "memory_rivals": accuracy.memory_rivals,
    "memory_loading": accuracy.memory_loading,
    "memory_fitcheck": accuracy.memory_fitcheck,
    "memory_calculators": accuracy.memory_calculators,
    "memory_full": accuracy.memory_full,
    "time_groups": accuracy.time_groups,
    "time_cards": accuracy.time_cards,
    "time_two_gpus": accuracy.time_two_gpus,
    "time_cpu": accuracy.time_cpu,
    "whole_run": accuracy.whole_run,
    "gpu_whole_run": gpu.whole_run,
    "estimate_speed": accuracy.estimate_speed,
    "recipes": recipes.recipes,
    "walk_forward": recipes.walk_forward,
    "legal": recipes.legal,
    "kaggle": survival.kaggle,
    "backup_losses": survival.backup_losses,
    "faults": survival.faults,
    "benchmarks": benchmarks.benchmarks,
    "engine": engine.engine,
    "engine_goals": engine.engine_goals,
    "exports": engine.exports,
    "interrupted": engine.interrupted,
    "parallel": engine.parallel,
    "overlap": engine.overlap,
    "rank_kills": engine.rank_kills,
    "rank_memory": engine.rank_memory,
    "randomness": randomness.repeatable,
    "ranks": engine.ranks,
    "spinning": engine.spinning,
    "session_limits": engine.session_limits,
    "foreign_code": finetune.foreign_code,
    "finetune_behaviour": finetune.behaviour,
    "finetune_plans": finetune.plans,
    "finetune_trl": finetune.comparison,
    "streaming_overlap": streaming.overlap,
    "streaming_orders": streaming.orders,
    "finetune_unquantized": finetune.unquantized,
    "finetune_unquantized_memory": finetune.unquantized_memory,
    "finetune_unsloth": finetune.unsloth,
    "gpu_memory": gpu.memory,
    "gpu_time": gpu.time,
    "gpu_bits": gpu.bits,
    "gpu_finetune": gpu.finetune,
    "status": gpu.status,
    "user_measurements": measurements.users,
    "rehearsed_scripts": rehearse.scripts,
    "rehearsed_allocations": rehearse.allocations,
    "rehearsed_causes": rehearse.causes,
    "lab_coverage": lab.coverage,
    "lab_breaks": lab.breaks,
    "lab_out_of_memory": lab.out_of_memory,
    "lab_memory": lab.memory,
    "lab_lengths": lab.lengths,
    "lab_worst": lab.worst,
    "lab_decisions": lab.decisions,
    "plans": claims.plans,
    "streaming_plans": streaming.plans,
    "streaming_memory": streaming.memory,
    "complete": claims.complete,
    "questions": claims.questions,
    "claim_commands": claims.claim_commands,
    "workloads": claims.workloads,
    "workload_commands": claims.workload_commands,
}


def rewrite() -> list[str]:
    """Write all tables, numbers and pictures anew, and return the names of the files that have changed."""
    changed = _differing()
    for name, text in changed.items():
        (ROOT / name).write_text(text, encoding="utf-8")
    return [*changed]


def differing_pages() -> list[str]:
    """Return the names of the pages and pictures that are not those of the results."""
    return [*_differing()]


def _differing() -> dict[str, str]:
    """Return the right text of each file that has another one, by its name."""
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    texts = {page.relative_to(ROOT).as_posix(): page.read_text(encoding="utf-8") for page in pages}
    right = {name: _rewritten(text) for name, text in texts.items()}
    for name, draw in pictures.PICTURES.items():
        file = ROOT / name
        texts[name], right[name] = file.read_text(encoding="utf-8") if file.exists() else "", draw()
    return {name: text for name, text in right.items() if text != texts[name]}


def _rewritten(text: str) -> str:
    with_tables = _TABLE.sub(lambda match: f"{match['name']}{match['open']}{TABLES[match['name']]()}", text)
    return quoted.rewritten(with_tables, claims.values())
