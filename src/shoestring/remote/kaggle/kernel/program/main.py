"""The steps of a session in their order, and what becomes of it if one fails."""

import contextlib
import importlib.metadata
import signal
import traceback
from typing import Any

from shoestring.remote.kaggle.kernel.program.installation import find_package, install
from shoestring.remote.kaggle.kernel.program.machine import (
    facts,
    has_internet,
    probe_disk,
    require_gpu,
    require_kernels,
)
from shoestring.remote.kaggle.kernel.program.output import leave
from shoestring.remote.kaggle.kernel.program.places import SITE, TEMP, WORKING, SessionError
from shoestring.remote.kaggle.kernel.program.previous import copy_previous
from shoestring.remote.kaggle.kernel.program.recipe import unpack_recipe
from shoestring.remote.kaggle.kernel.program.session import Session, Stopped
from shoestring.remote.kaggle.kernel.program.training import train


def main(config: dict[str, Any]) -> None:
    """Make a session with this configuration. Whatever happens, it is recorded, and the output is left."""
    session = Session(config)
    with contextlib.suppress(ValueError):  # of another thread than the main one, at which no signal arrives
        signal.signal(signal.SIGTERM, session.stop)
    try:
        WORKING.mkdir(parents=True, exist_ok=True)
        session.write()
        TEMP.mkdir(parents=True, exist_ok=True)
        run(session)
    except SessionError as error:
        session.record(status="failed", reason=str(error), hint=error.hint)
    except Stopped:
        session.record(status="paused", reason="Kaggle ended the session before training began")
    except BaseException as error:
        session.log(traceback.format_exc())
        session.record(status="failed", reason=f"the script of the session failed: {type(error).__name__}: {error}")
    session.is_leaving = True
    try:
        leave(session)
    except BaseException:  # the output that is there counts, and so does exit status 0
        session.log(traceback.format_exc())
        with contextlib.suppress(BaseException):
            session.record(notes=[*session.state["notes"], "the output could not be pruned, see shoestring.log"])
            session.write()


def run(session: Session) -> None:
    """Install, continue and train. Raises SessionError for what ends the session before training."""
    session.state["facts"] = facts(internet=session.config["internet"] and has_internet())
    session.state["facts"]["disk_free_bytes"] = probe_disk(session)
    if session.config.get("needs_gpu"):
        require_gpu(session.state["facts"]["gpus"])
    require_kernels()
    package = find_package(session)
    install(session, package)
    installed = {item.name: item.version for item in importlib.metadata.distributions(path=[str(SITE)])}
    session.state["facts"]["shoestring"] = installed.pop("shoestring")
    session.state["facts"]["brought"] = installed
    recipe = unpack_recipe(session)
    if session.config["previous"]:
        copy_previous(session)
    train(session, recipe)


if __name__ == "__main__":
    main(globals()["CONFIG"])
