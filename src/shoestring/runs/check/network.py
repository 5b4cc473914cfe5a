"""Reachability of hosts, probed concurrently and with a time limit."""

import threading
import time
import urllib.error
import urllib.request
from collections.abc import Mapping

HUB, PYPI = "huggingface.co", "pypi.org"
HOSTS = {HUB: "https://huggingface.co/api/models?limit=1", PYPI: "https://pypi.org/simple/torch/"}
SECONDS = 2.0


def probe_hosts(hosts: Mapping[str, str] = HOSTS, seconds: float = SECONDS) -> dict[str, str]:
    """Return for each host why it does not answer within `seconds`, or an empty string if it does.

    Any answer of the host counts, including an HTTP error. A DNS lookup has no time limit of its own, so a thread that
    has not finished by then is abandoned.
    """
    answers: dict[str, str] = {}

    def probe(host: str, address: str) -> None:
        answers[host] = _probe_host(address, seconds)

    threads = [threading.Thread(target=probe, args=item, daemon=True) for item in hosts.items()]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + 1.2 * seconds  # longer than a request's own timeout, whose error gives the reason
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    return {host: answers.get(host, f"no answer in {seconds:g} s") for host in hosts}


def _probe_host(address: str, seconds: float) -> str:
    try:
        with urllib.request.urlopen(urllib.request.Request(address, method="HEAD"), timeout=seconds):
            return ""
    except urllib.error.HTTPError as answer:
        answer.close()
        return ""
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        return str(reason) or type(error).__name__
