"""Programs with a time limit. One that hangs, dies or prints without end ends nothing but itself."""

import contextlib
import json
import os
import pathlib
import queue
import re
import signal
import subprocess
import sys
import threading
import time

# Of what a program prints, so many bytes of the beginning and of the end are kept.
HEAD, TAIL = 20_000, 20_000
LONGEST_LINE = 4_000
CUDA_ERROR = re.compile(
    rb"CUDA_ERROR_\w+|CUBLAS_STATUS_(?!SUCCESS)\w+|CUDNN_STATUS_(?!SUCCESS)\w+|NVRTC_ERROR_\w+"
    rb"|cudaError\w+|CUDA error|nccl(System|Unhandled\w*|Internal|Remote|Invalid\w+)Error|NCCL error"
)
# The first lines of these kinds, each with so many lines in all, which a long backtrace would push
# out of the end: the launches before an error, the two sides of an assertion.
MARKS = {"cuda_error": (CUDA_ERROR, 20), "panic": (re.compile(rb"panicked at"), 6)}


class Clock:
    """The time that is left for the whole run, and for the part of it that is under way."""

    def __init__(self, seconds, scale=1.0):
        self.start, self.scale = time.monotonic(), scale
        self.end = self.part_end = self.start + seconds

    def part(self, until):
        """A part that ends so many seconds after the start, or with the run."""
        self.part_end = min(self.end, self.start + until * self.scale)

    def left(self):
        return min(self.end, self.part_end) - time.monotonic()

    def is_over(self):
        return self.end <= time.monotonic()

    def passed(self):
        return time.monotonic() - self.start

    def stop(self):
        self.end = self.part_end = self.start


class Output:
    """What a pipe gives, read by a thread, so that a program never waits for a reader."""

    def __init__(self, pipe, lines=None):
        self.head, self.tail, self.size = b"", bytearray(), 0
        self.lines, self.started = lines, b""
        self.marked = {name: [] for name in MARKS}
        self.thread = threading.Thread(target=self.read, args=(pipe,), daemon=True)
        self.thread.start()

    def read(self, pipe):
        with contextlib.suppress(OSError, ValueError):
            while block := os.read(pipe.fileno(), 1 << 16):
                self.add(block)
        if self.started:
            self.add(b"\n")
        if self.lines is not None:
            self.lines.put(None)

    def add(self, block):
        room = HEAD - len(self.head)
        self.head += block[:room] if room > 0 else b""
        self.tail += block
        self.size += len(block)
        if len(self.tail) > 8 * TAIL:
            del self.tail[:-TAIL]
        *whole, self.started = (self.started + block).split(b"\n")
        self.started = self.started[-LONGEST_LINE:]
        for line in whole:
            for name, (mark, most) in MARKS.items():
                found = self.marked[name]
                if (found and len(found) < most) or (not found and mark.search(line)):
                    found.append(line[:600].decode(errors="replace").rstrip())
            # A reader of lines reads few of them.
            if self.lines is not None and self.lines.qsize() < 1000:
                self.lines.put(line.decode(errors="replace"))

    def marks(self):
        """What the log has of the first error of CUDA and the first panic."""
        fields = {}
        if error := self.marked["cuda_error"]:
            fields["cuda_error"] = error[0].strip()
            fields["cuda_error_lines"] = "\n".join(error)
        if panic := self.marked["panic"]:
            fields["panic"] = "\n".join(panic)
        return fields

    def text(self, most):
        """The end of what was printed."""
        return bytes(self.tail[-most:]).decode(errors="replace").strip()

    def whole(self):
        """All of it, or its beginning and its end."""
        head = self.head.decode(errors="replace")
        if self.size <= HEAD:
            return head
        rest = min(self.size - HEAD, TAIL)
        gap = f"\n... {self.size - HEAD - rest} bytes ...\n" if self.size > HEAD + rest else ""
        return head + gap + bytes(self.tail[-rest:]).decode(errors="replace")


class Child:
    """A program in a process group of its own."""

    live = set()
    # A signal's handler may interrupt a thread that has it.
    lock = threading.RLock()

    def __init__(self, command, variables, talks=False):
        self.start = time.monotonic()
        self.lines = queue.Queue() if talks else None
        self.killed, self.threads = False, None
        # No session of its own, where that can be had: whoever ends this program's session ends it too.
        group = {"process_group": 0} if sys.version_info >= (3, 11) else {"start_new_session": True}
        self.process = subprocess.Popen(
            [str(word) for word in command], env=variables, **group,
            stdin=subprocess.PIPE if talks else subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE if talks else subprocess.STDOUT,
        )  # fmt: skip
        self.printed = Output(self.process.stdout, self.lines)
        # The errors of a program that talks are apart from its answers.
        self.output = Output(self.process.stderr) if talks else self.printed
        with Child.lock:
            Child.live.add(self)

    def ends_within(self, seconds):
        try:
            self.process.wait(max(seconds, 0.01))
            return True
        except subprocess.TimeoutExpired:
            return False

    def line(self, seconds):
        """The next line of what it prints. None at the end of its output, and at the limit."""
        try:
            return self.lines.get(timeout=max(seconds, 0.01))
        except queue.Empty:
            self.stop()
            return None

    def say(self, text):
        with contextlib.suppress(OSError):
            self.process.stdin.write(text.encode() + b"\n")
            self.process.stdin.flush()

    def stop(self):
        """Kills the group at the limit, and keeps what its threads did."""
        if self.process.poll() is None:
            self.killed, self.threads = True, states(self.process.pid)
        self.kill()

    def kill(self):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)

    def end(self):
        """Ends the whole group and waits for it, also after the program itself has ended."""
        self.kill()
        # A process that waits in the kernel, for a driver say, may never end.
        is_gone = self.ends_within(5)
        self.printed.thread.join(1)
        self.output.thread.join(1)
        with contextlib.suppress(OSError):
            if self.process.stdin:
                self.process.stdin.close()
        with Child.lock:
            Child.live.discard(self)
        return is_gone

    def status(self):
        code = self.process.poll()
        if self.killed or code is None:
            return "timeout"
        if code < 0:
            return f"signal {-code}"
        return "ok" if code == 0 else "failed"

    @classmethod
    def kill_all(cls):
        with cls.lock:
            children = list(cls.live)
        for child in children:
            child.stop()


def states(group):
    """Where the threads of a process group wait, as /proc tells it."""
    found = []
    for folder in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            if os.getpgid(int(folder.name)) != group:
                continue
            for thread in sorted(folder.glob("task/*"))[:40]:
                words = [(thread / name).read_text().strip() for name in ("comm", "wchan")]
                state = (thread / "stat").read_text().rsplit(")", 1)[1].split()[0]
                found.append(f"{folder.name} {words[0]} {state} {words[1]}")
        except OSError:
            continue
    return found[:80]


class Result:
    """How a program ended."""

    def __init__(self, status, seconds=0.0, code=None, output=None, threads=None, text=None):
        self.status, self.seconds, self.code = status, round(seconds, 2), code
        self.output, self.threads, self.printed = output, threads, text

    def tail(self, most=2_000):
        return self.output.text(most) if self.output else self.printed or ""

    def whole(self):
        return self.output.whole() if self.output else self.printed or ""

    def fields(self, most=2_000):
        """What the log has of it."""
        fields = {"exit": self.code, "tail": self.tail(most)}
        if self.output:
            fields |= self.output.marks()
        if self.threads:
            fields["threads"] = self.threads
        return fields


NO_TIME = "left out: no time"


def run(command, limit, clock, variables):
    """Runs the program, for at most `limit` seconds and as long as the part has time."""
    limit = min(limit * clock.scale, clock.left())
    if limit < 1:
        return Result(NO_TIME)
    try:
        child = Child(command, variables)
    except OSError as error:
        return Result("failed", text=f"cannot start {command[0]}: {error}")
    if not child.ends_within(limit):
        child.stop()
    seconds = time.monotonic() - child.start
    is_gone = child.end()
    code = child.process.returncode
    result = Result(child.status(), seconds, code, child.output, child.threads)
    if not is_gone:
        result.status = "timeout, and SIGKILL did not end it"
    return result


def last_json(text):
    """The last line that is an object of JSON."""
    for line in reversed(text.splitlines()):
        with contextlib.suppress(ValueError):
            found = json.loads(line)
            if isinstance(found, dict):
                return found
    return None
