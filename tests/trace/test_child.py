"""What is followed is the same with torch's compiler and without it."""

import json
import subprocess
import sys

from shoestring.techniques import uncompiled

FOLLOWED = """
import json, sys, torch
from shoestring.settings import Settings
from shoestring.techniques import uncompiled
from shoestring.trace import child
if not {spared}:
    uncompiled.spare_the_compiler = lambda: None
session = child._RequestHandler(None)
options = {{"size": "tiny", "architecture": "transformer"}}
session.answer({{"do": "open", "reference": "temporal", "options": options}})
question = {{"do": "trace", "accumulate": 2, "capability": (7, 5), "gpus": 1, "options": {{}}}}
process = []
for compiled in ("no", "yes"):
    settings = Settings(micro_batch=8, precision="fp16", checkpointing="full", compile=compiled)
    trace = session.answer({{**question, "settings": settings.json()}})["trace"]
    process.append(trace["facts"].pop("process_bytes"))
print(json.dumps([trace, "torch._dynamo.eval_frame" in sys.modules, process[1] - process[0]]))
"""


def test_a_trace_is_the_same_without_the_compiler_whose_memory_counts_where_it_is_used() -> None:
    told = []
    for spared in (True, False):
        code = FOLLOWED.format(spared=spared)
        done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], stdout=subprocess.PIPE, check=True)
        told.append(json.loads(done.stdout))
    assert told[0][0]["events"] and told[0][0] == told[1][0]
    assert [each[1:] for each in told] == [[False, uncompiled.BYTES], [True, 0]]
