"""The tests of a GPU, each in a process of its own: an error of CUDA spoils a whole process, and a test
that captures a graph must not meet another one that waits for the device."""

import shutil
from concurrent.futures import ThreadPoolExecutor

from runner import run

# The test programs, and for each the words of which a test's name has one.
PROGRAMS = {"gpu": [], "ops": ["composites", "on_a_gpu"], "conformance": ["nccl"]}
AT_A_TIME = 8
SECONDS = 25
# Several ranks on one GPU take turns of milliseconds, and a test of `conformance` starts up to 15 worlds of them, each
# in 3 seconds.
SECONDS_OF_RANKS = 90
# How often a failure is looked at with NVIDIA's checker, which is slow.
MOST_CHECKS = 4
LINES_OF_A_CHECK = 30

# The tests with several ranks, by the beginnings of their names. Those of `conformance` all have.
RANKS = [
    "ranks::", "announced::", "precision::", "failed_device::", "sparse::two_ranks", "sparse::three_ranks",
    "graphs::replayed_steps", "graphs::a_batch_that_is_not_finite", "graphs::a_recorded_step_weighs",
    "graphs::a_step_with_an_exchange",
]  # fmt: skip
# The first ones: two ranks, and a rank that is killed.
FIRST = [
    "gpu ranks::every_strategy", "conformance nccl::over_nccl_a_killed_rank",
    "gpu graphs::replayed_steps", "gpu sparse::two_ranks",
    "conformance nccl::over_nccl_operations_on_device_memory",
]  # fmt: skip


class Tests:
    def __init__(self, programs, journal, clock, variables):
        self.programs, self.journal, self.clock = programs, journal, clock
        self.variables, self.checks = variables, 0

    def listed(self):
        """All tests, as pairs of a program and a name, in the order of their programs."""

        def of(item):
            program, words = item
            command = [self.programs / program, "--list", "--format", "terse", *words]
            result = run(command, 30, self.clock, self.variables)
            if result.status != "ok":
                self.journal.result(f"list {program}", result, self.variables)
            lines = result.whole().splitlines()
            names = [line.removesuffix(": test") for line in lines if line.endswith(": test")]
            # The programs of ranks are no tests.
            return [(program, name) for name in names if not name.endswith("main")]

        with ThreadPoolExecutor(len(PROGRAMS)) as pool:
            return [test for tests in pool.map(of, PROGRAMS.items()) for test in tests]

    def one(self, test, limit, kind="test", variables=None):
        """Runs a test and writes its outcome."""
        (program, name), variables = test, variables or self.variables
        # Without `--nocapture` the words of a test that is killed would be lost.
        words = ["--exact", "--nocapture", "--test-threads=1"]
        command = [self.programs / program, name, *words]
        result = run(command, limit, self.clock, variables)
        if result.status == "ok" and "1 passed" not in result.tail():
            result.status = "left out: ignored" if "1 ignored" in result.tail() else "failed"
        most = 400 if result.status == "ok" else 2_000
        self.journal.result(f"{kind} {program} {name}", result, variables, most)
        if result.status != "ok" and "cuda_error" in result.fields():
            self.check(program, name, command, variables)

    def check(self, program, name, command, variables):
        """Asks NVIDIA's checker of memory what a failed test does wrong."""
        checker = shutil.which("compute-sanitizer", path=variables.get("PATH"))
        if checker is None or self.checks >= MOST_CHECKS:
            return
        self.checks += 1
        options = ["--tool", "memcheck", "--target-processes", "all", "--error-exitcode", "86"]
        result = run([checker, *options, *command], 60, self.clock, variables)
        lines = [line for line in result.whole().splitlines() if line.startswith("=====")]
        report = "\n".join(lines[:LINES_OF_A_CHECK])
        self.journal.result(f"memcheck {program} {name}", result, variables, memcheck=report)

    def singles(self, tests):
        """The tests of one process, several at a time."""
        with ThreadPoolExecutor(AT_A_TIME) as pool:
            list(pool.map(lambda test: self.one(test, SECONDS), tests))

    def ranks(self, tests, limit, kind="ranks", variables=None):
        """The tests of several ranks, one after the other."""
        for test in tests:
            self.one(test, limit, kind, variables)


def divided(tests):
    """The tests of one process, and those of several ranks with the most telling ones first."""

    def is_of_ranks(test):
        program, name = test
        return program == "conformance" or any(name.startswith(start) for start in RANKS)

    def place(test):
        name = " ".join(test)
        return next((i for i, start in enumerate(FIRST) if name.startswith(start)), len(FIRST))

    singles = [test for test in tests if not is_of_ranks(test)]
    return singles, sorted(filter(is_of_ranks, tests), key=place)
