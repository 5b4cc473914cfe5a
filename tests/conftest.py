import sys

import pytest
import torch

from shoestring import cli


@pytest.fixture(autouse=True, scope="session")
def one_thread():
    """A sum over threads rounds by their number; with one, sessions in other processes are comparable."""
    torch.set_num_threads(1)


@pytest.fixture
def run_command(monkeypatch, capsys):
    """A function that runs the command line in this process and returns (status, stdout, stderr)."""

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["shoestring", *map(str, arguments)])
        with pytest.raises(SystemExit) as exit_info:
            cli.main()
        output = capsys.readouterr()
        return exit_info.value.code or 0, output.out, output.err

    return run
