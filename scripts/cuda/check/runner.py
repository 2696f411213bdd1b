"""Runs checks: programs with a time limit. One that hangs, dies or prints without end ends nothing but itself."""

import contextlib
import dataclasses
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Callable

# A program that has printed more bytes is ended.
MOST_OUTPUT = 16 << 20
CUDA_ERROR = re.compile(
    r"CUDA_ERROR_\w+|CUBLAS_STATUS_(?!SUCCESS)\w+|CUDNN_STATUS_(?!SUCCESS)\w+|NVRTC_ERROR_\w+"
    r"|cudaError\w+|CUDA error|nccl(System|Unhandled\w*|Internal|Remote|Invalid\w+)Error|NCCL error"
)


@dataclasses.dataclass
class Check:
    """An item of the log: a program, its limit, and how its end is read."""

    name: str
    command: list
    seconds: float
    # The variables that it has beside the common ones.
    variables: dict = dataclasses.field(default_factory=dict)
    stdin: str = ""
    # A tool without which the check is left out.
    needs: str = ""
    # Gets how the program ended and what it printed. Returns the status of the item, and its fields.
    read: Callable = lambda status, text: (status, {})


class Runner:
    """Runs checks until the time is over. `ended` are the names of those that ended well in an earlier run, and `only` is
    the beginning of those that run."""

    def __init__(self, journal, variables, work, limits, ended=(), only=""):
        self.journal, self.variables, self.work, self.ended, self.only = journal, variables, work, ended, only
        seconds, self.scale = limits
        self.end, self.stopped = time.monotonic() + seconds, threading.Event()

    def all(self, checks, at_a_time=1):
        with ThreadPoolExecutor(at_a_time) as pool:
            return list(pool.map(self.one, checks))

    def one(self, check):
        """Runs a check and writes its item. Returns the status and the fields; None for what ended well before, or is not asked."""
        if check.name in self.ended or not check.name.startswith(self.only):
            return None
        start, variables = time.monotonic(), self.variables | check.variables
        if check.needs and shutil.which(check.needs, path=variables.get("PATH")) is None:
            status, fields = f"left out: no {check.needs} here", {}
        else:
            status, fields = self.run(check, variables)
        seconds = time.monotonic() - start
        self.journal.write(check.name, status, seconds, variables, **fields)
        return status, fields

    def run(self, check, variables):
        limit = min(check.seconds * self.scale, self.end - time.monotonic())
        if limit < 1 or self.stopped.is_set():
            return "left out: no time", {}
        with tempfile.TemporaryFile(dir=self.work) as said, tempfile.TemporaryFile(dir=self.work) as asked:
            asked.write(check.stdin.encode())
            asked.seek(0)
            try:
                process = subprocess.Popen(
                    [str(word) for word in check.command], env=variables, stdin=asked, stdout=said,
                    stderr=subprocess.STDOUT, start_new_session=True,
                )  # fmt: skip
            except OSError as error:
                return "failed", {"tail": f"cannot start {check.command[0]}: {error}"}
            status, fields = self.wait(process, said, limit)
            said.seek(0)
            text = said.read(MOST_OUTPUT).decode(errors="replace")
        try:
            status, read = check.read(status, text)
        except (ValueError, KeyError, TypeError, OSError, ZeroDivisionError) as error:
            status, read = "failed", {"unread": repr(error)}
        fields |= {"exit": process.returncode, "tail": text[-400 if status == "ok" else -2_000 :]}
        return status, fields | marks(text) | read

    def wait(self, process, said, limit):
        """Ends the whole group of the program, at the limit or when the program itself has ended."""
        end, fields, status = time.monotonic() + limit, {}, None
        while status is None and process.poll() is None:
            if self.stopped.is_set() or time.monotonic() > end:
                status, fields["threads"] = "timeout", threads(process.pid)
            elif os.fstat(said.fileno()).st_size > MOST_OUTPUT:
                status = "failed"
            else:
                time.sleep(0.02)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        try:
            # A process that waits in the kernel, for a driver say, may never end.
            code = process.wait(5)
        except subprocess.TimeoutExpired:
            return "timeout, and SIGKILL did not end it", fields
        ended = "ok" if code == 0 else "failed" if code > 0 else f"signal {-code}"
        return status or ended, fields


def marks(text):
    """The first error of CUDA and the first panic with the lines behind them, which a backtrace would push out of the
    end: the launches before an error, the two sides of an assertion."""
    lines, fields = [line[:600].strip() for line in text.splitlines()], {}
    errors = next((i for i, line in enumerate(lines) if CUDA_ERROR.search(line)), None)
    panic = next((i for i, line in enumerate(lines) if "panicked at" in line), None)
    if errors is not None:
        fields = {"cuda_error": lines[errors], "cuda_error_lines": "\n".join(lines[errors : errors + 20])}
    if panic is not None:
        fields["panic"] = "\n".join(lines[panic : panic + 6])
    return fields


def threads(group):
    """Where the threads of a process group wait, as /proc tells it."""
    found = []
    for folder in pathlib.Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if os.getpgid(int(folder.name)) != group:
                continue
            for thread in sorted(folder.glob("task/*"))[:40]:
                name, waits = ((thread / name).read_text().strip() for name in ("comm", "wchan"))
                state = (thread / "stat").read_text().rsplit(")", 1)[1].split()[0]
                found.append(f"{folder.name} {name} {state} {waits}")
    return found[:80]


def answers(text):
    """The lines that are objects of JSON."""
    found = []
    for line in text.splitlines():
        with contextlib.suppress(ValueError):
            found.append(json.loads(line))
    return [answer for answer in found if isinstance(answer, dict)]
