"""Runs the command line in processes of their own, without importing torch for each.

A server imports the package once and forks for every command. The child goes back to the top level
and ends there, so that exit functions, exit status and tracebacks are those of a process that was
started by itself. Only what comes after the last exit function is cut short: it costs half a second.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import NamedTuple

_SERVER = """
import atexit, json, os, sys

status = None

def end():
    if status is not None:
        for stream in (sys.__stdout__, sys.__stderr__):
            if not stream.closed:
                stream.flush()
        os._exit(status)

atexit.register(end)  # the first to be registered is the last to run
import safemodule._cli

requests, replies = os.fdopen(int(sys.argv[1])), os.fdopen(int(sys.argv[2]), "w")
for line in requests:
    request = json.loads(line)
    child = os.fork()
    if child == 0:
        break
    _, ended = os.waitpid(child, 0)
    print(os.waitstatus_to_exitcode(ended), file=replies, flush=True)
else:
    os._exit(0)
requests.close(), replies.close()
for number, name in enumerate(("stdin", "stdout", "stderr")):
    flags = os.O_RDONLY if number == 0 else os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    os.dup2(os.open(request[name], flags), number)
os.chdir(request["cwd"])
os.environ.update(request["env"])
sys.argv = ["safemodule", *request["argv"]]
try:
    sys.exit(safemodule._cli.main())
except SystemExit as stop:
    known = stop.code is None or isinstance(stop.code, int)
    status = int(stop.code or 0) if known else 1
    raise
except Exception:
    status = 1
    raise
"""


class Done(NamedTuple):
    """What a process that has ended left behind."""

    returncode: int
    stdout: str
    stderr: str

    @property
    def told(self) -> str:
        """What the command line said after the program had ended."""
        return self.stderr.partition(_HEAD)[2]

    @property
    def own(self) -> str:
        """What the program wrote to stderr."""
        return self.stderr.partition(_HEAD)[0]


_HEAD = "\nsafemodule: input mutations\n"


class Launcher:
    """Starts the server at the first command."""

    def __init__(self, folder):
        self._folder = folder
        self._server = None

    def __call__(self, *argv, cwd, stdin="", **env):
        """Run `safemodule argv...` and return what it left behind."""
        if self._server is None:
            self._start()
        files = {name: str(self._folder / name) for name in ("stdin", "stdout", "stderr")}
        (self._folder / "stdin").write_text(stdin)
        request = {"argv": list(map(str, argv)), "cwd": str(cwd), "env": env, **files}
        print(json.dumps(request), file=self._requests, flush=True)
        code = int(self._replies.readline())
        outputs = [(self._folder / name).read_text() for name in ("stdout", "stderr")]
        return Done(code, *outputs)

    def _start(self):
        request_out, request_in = os.pipe()
        reply_out, reply_in = os.pipe()
        command = [sys.executable, "-W", "error", "-c", _SERVER, str(request_out), str(reply_in)]
        self._server = subprocess.Popen(command, pass_fds=(request_out, reply_in), cwd=self._folder)
        os.close(request_out)
        os.close(reply_in)
        self._requests, self._replies = os.fdopen(request_in, "w"), os.fdopen(reply_out)

    def close(self):
        """End the server."""
        if self._server is not None:
            self._requests.close()
            self._replies.close()
            self._server.wait(timeout=60)


def plain(*argv, cwd, stdin=""):
    """Run Python itself and return what it left behind."""
    done = subprocess.run(
        [sys.executable, *map(str, argv)],
        cwd=cwd,
        input=stdin,
        capture_output=True,
        text=True,
        check=False,
    )
    return Done(done.returncode, done.stdout, done.stderr)
