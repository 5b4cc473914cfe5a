"""Whether hosts answer, each asked at the same time and none waited for long."""

import threading
import time
import urllib.error
import urllib.request
from collections.abc import Mapping

HUB, PYPI = "huggingface.co", "pypi.org"
HOSTS = {HUB: "https://huggingface.co/api/models?limit=1", PYPI: "https://pypi.org/simple/torch/"}
SECONDS = 2.0


def reach(hosts: Mapping[str, str] = HOSTS, seconds: float = SECONDS) -> dict[str, str]:
    """By host why it does not answer within `seconds`; empty where it does. Any answer of its own counts, an error too.

    Looking up a name has no time limit of its own, so a thread that is still at it is left behind.
    """
    answers: dict[str, str] = {}

    def ask(host: str, address: str) -> None:
        answers[host] = _ask(address, seconds)

    threads = [threading.Thread(target=ask, args=pair, daemon=True) for pair in hosts.items()]
    for thread in threads:
        thread.start()
    over = time.monotonic() + 1.2 * seconds  # a request that gives up by itself says why
    for thread in threads:
        thread.join(max(0.0, over - time.monotonic()))
    return {host: answers.get(host, f"no answer in {seconds:g} s") for host in hosts}


def _ask(address: str, seconds: float) -> str:
    try:
        with urllib.request.urlopen(urllib.request.Request(address, method="HEAD"), timeout=seconds):
            return ""
    except urllib.error.HTTPError as answer:
        answer.close()
        return ""
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        return str(reason) or type(error).__name__
