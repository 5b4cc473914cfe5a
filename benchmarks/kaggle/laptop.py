"""A laptop that goes on with a chain of the payload, `python laptop.py DIR PLAN.json`, until it is killed."""

import json
import sys
from pathlib import Path

from shoestring.base.errors import ShoestringError
from shoestring.remote.kaggle.chain import run_chain
from shoestring.remote.kaggle.chain_file import ChainState
from shoestring.remote.kaggle.client import Client
from shoestring.remote.kaggle.job import Job

PAYLOAD = Path(__file__).with_name("payload.py").read_text()


def script(config):
    return f"import json\nCONFIG = json.loads({json.dumps(dict(config))!r})\n{PAYLOAD}"


def main(run: Path, plan: dict) -> int:
    names = ("seed", "updates", "update_seconds", "start_seconds")
    job = Job(
        script=script,
        config={name: plan[name] for name in names},
        package={"shoestring-package.json": b"{}"},
        package_digest="0" * 64,
        datasets=("me/rows",),
    )
    state = ChainState(
        user="me",
        base=f"chain-{plan['seed']:04d}",
        recipe="payload",
        on="kaggle-t4x2",
        limit_seconds=plan["limit_seconds"],
    )
    every = plan["every_seconds"]
    with Client(
        timeout_seconds=plan["timeout_seconds"], patience_seconds=20 * every, pause_seconds=every / 2
    ) as client:
        try:
            final = run_chain(run, client, job, every, lambda text: print(text, flush=True), state=state)
        except ShoestringError as error:
            print(f"error: {error}", flush=True)
            return 1
    print(f"{final.status}: {final.reason}", flush=True)
    return 0 if final.status == "finished" else 1


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), json.loads(Path(sys.argv[2]).read_text())))
