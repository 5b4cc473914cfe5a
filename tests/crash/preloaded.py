"""A server that has imported the slow packages and forks a process for each command, which starts four times faster.

It reads one request per line. `{"command": [MODULE, ARGUMENT, ...], "environment", "output", "errors"}` runs
`python -m MODULE ARGUMENT ...` in a session of its own and responds with the process id; without a file for errors,
stderr is closed. `{"poll": PID}` responds with the exit status as `subprocess` has it, or null while the process runs,
and `{"ready": true}` with true. It ends with its standard input.

    python -m tests.crash.preloaded MODULE [MODULE ...]
"""

import importlib
import json
import os
import runpy
import subprocess
import sys
import tempfile


class Preloaded:
    """The server, as the machine of faults uses it."""

    def __init__(self, modules, environment):
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.crash.preloaded", *modules],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment,
        )  # fmt: skip
        self.pid = self._process.pid

    def wait(self):
        """Wait until the packages are imported."""
        self._respond({"ready": True})

    def start(self, command, environment, output, errors):
        errors = str(errors) if errors else None
        request = {"command": command, "environment": environment, "output": str(output), "errors": errors}
        return Forked(self._respond(request), self)

    def poll(self, pid):
        return self._respond({"poll": pid})

    def _respond(self, request):
        print(json.dumps(request), file=self._process.stdin, flush=True)
        return json.loads(self._process.stdout.readline())

    def close(self):
        self._process.stdin.close()
        self._process.wait(60)
        self._process.stdout.close()


class Forked:
    """A process of the server, with the part of `subprocess.Popen` that the machine uses."""

    def __init__(self, pid, server):
        self.pid, self._server, self.returncode = pid, server, None

    def poll(self):
        if self.returncode is None:
            self.returncode = self._server.poll(self.pid)
        return self.returncode


def serve():
    """Respond to requests; return the request of a command in the child that is forked for it, None at the end."""
    for line in sys.stdin:
        request = json.loads(line)
        if "ready" in request:
            response = True
        elif "poll" in request:
            pid, status = os.waitpid(request["poll"], os.WNOHANG)
            response = os.waitstatus_to_exitcode(status) if pid else None
        else:
            response = os.fork()
            if response == 0:
                return request
        sys.stdout.write(f"{json.dumps(response)}\n")
        sys.stdout.flush()
    return None


def become(command, environment, output, errors):
    """Make this process one that runs `command`. Exceptions end it as they end any Python process."""
    os.setsid()
    files = [(0, os.devnull, os.O_RDONLY), (1, output, os.O_WRONLY), (2, errors, os.O_WRONLY)]
    for descriptor, path, mode in files:
        if path is None:
            os.close(descriptor)
            continue
        file = os.open(path, mode | os.O_APPEND | os.O_CREAT, 0o644)
        os.dup2(file, descriptor)
        os.close(file)
    os.environ.clear()
    os.environ.update(environment)
    tempfile.tempdir = None  # another TMPDIR
    sys.argv = command
    supervised = command[0] == "shoestring"
    if supervised:  # this process has torch, but belongs to the command: it gets a supervisor
        sys.modules["shoestring.cli.commands.training"]._is_own_process = lambda: True
    try:
        runpy.run_module(command[0], run_name="__main__", alter_sys=True)
    except SystemExit as end:
        if supervised:  # a real supervisor has no torch, with which leaving Python takes seconds
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(end.code or 0)
        raise


if __name__ == "__main__":
    for module in sys.argv[1:]:
        importlib.import_module(module)
    command_request = serve()
    if command_request:
        become(**command_request)
