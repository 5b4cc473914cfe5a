import gc
import signal
import sys

import pytest
import setuptools  # noqa: F401  # torch's compiler imports it, which has failed after tests that change how modules are found
import torch

from shoestring.cli import commands


def pytest_collection_finish():
    """Leave what the imports of all tests have made out of garbage collections: it is most of their time."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True, scope="session")
def stop_signals():
    """Processes of tests inherit no ignored signal, as in a shell's background job (SIGINT) or under nohup (SIGHUP)."""
    for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, handler)


@pytest.fixture(autouse=True, scope="session")
def one_thread():
    """A sum over threads rounds by their number; with one, sessions in other processes are comparable."""
    torch.set_num_threads(1)


@pytest.fixture(autouse=True, scope="session")
def backward_before_fake_devices():
    """Compute a gradient before any test does with fake tensors of CUDA.

    At the first backward, a build with CUDA starts a thread for each device, and forbids a backward in forked processes
    from then on. After such a test a fake device would count.
    """
    torch.zeros(1, requires_grad=True).sum().backward()


@pytest.fixture(autouse=True, scope="session")
def trusted_files(tmp_path_factory):
    """The recipe files that tests have trained with are not those of the person who runs the tests."""
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield


@pytest.fixture(autouse=True, scope="session")
def no_probes():
    """Plans are not measured before tests train with them: that takes seconds. Tests of probes ask for them."""
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("SHOESTRING_PROBE", "0")
        yield


@pytest.fixture
def run_command(monkeypatch, capsys):
    """A function that runs the command line in this process and returns (status, stdout, stderr)."""

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["shoestring", *map(str, arguments)])
        with pytest.raises(SystemExit) as exit_info:
            commands.main()
        output = capsys.readouterr()
        return exit_info.value.code or 0, output.out, output.err

    return run
