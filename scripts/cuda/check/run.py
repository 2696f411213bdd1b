#!/usr/bin/env python3
"""Checks and measures everything on a machine with a GPU, by a bundle of `cargo xtask gpu-bundle`.

    python3 run.py --part a --out FOLDER [--seconds 230]
    python3 run.py --part b --out FOLDER [--seconds 380] [--previous FOLDER-OF-A/log.jsonl]

It needs Python 3, a driver, and CUDA's libraries: those of a PyTorch for CUDA are found by
themselves, others by LD_LIBRARY_PATH. Part a asks what is true of this machine and runs each test
of one process. Part b repeats what failed, runs the tests of several ranks and whole runs, and measures
the memory of training, and its speed beside PyTorch's. Each item is a line of FOLDER/log.jsonl as soon as it has ended. An item that fails,
dies or hangs does not end the others. What has no time is left out, the least telling items first.
"""

import argparse
import json
import pathlib
import shutil
import signal
import sys
import tarfile
import threading
from concurrent.futures import ThreadPoolExecutor

import gpu_memory
import machine
import speed
import two_ranks
from journal import Journal, failed_items, ok_items
from runner import Child, Clock, last_json, run
from tests import SECONDS_OF_RANKS, Tests, divided
from two_ranks import command_of_ranks, variables_of_ranks

CONTRACT_SECONDS = 15
# The driver compiles candle's kernels for minutes of a core.
SLOW_CONTRACTS = {"candle's kernels": 100}
CONTRACTS_AT_A_TIME = 6
# From when on nothing but what part b measures is on the GPU: memory, and then speeds.
MEASURED_FROM = 190


class Check:
    """What all parts need."""

    def __init__(self, args):
        self.out, self.previous = args.out, args.previous
        self.clock = Clock(args.seconds, args.scale)
        self.journal = Journal(args.out, args.part, self.clock)
        self.work = pathlib.Path(machine.work_folder())
        self.kernels = machine.Kernels(machine.HERE / "kernels", self.work)
        self.variables = machine.environment(self.kernels)
        self.journal.variables = self.variables
        self.programs = args.programs or machine.unpack(machine.HERE / "programs", self.work)
        self.tests = Tests(self.programs, self.journal, self.clock, self.variables)
        self.listed, self.tf32, self.ahead = None, False, None

    def facts(self):
        built = machine.HERE / "BUILT"
        commit = built.read_text().strip() if built.exists() else "not known"
        self.journal.write("bundle", "ok", built=commit, libraries=machine.libraries())
        machine.warm(self.clock, self.variables)
        machine.facts(self.journal, self.clock, self.variables)

    def probe(self, contracts=None):
        """Asks what the libraries promise nowhere: each contract in a process of its own."""
        program = self.programs / "gpu_probe"
        variables = dict(self.variables, CUDA_LAUNCH_BLOCKING="1")
        # Part b asks the slow ones.
        others = ["costs"] if contracts else ["costs", *SLOW_CONTRACTS]
        if contracts is None:
            listed = run([program], 10, self.clock, variables)
            if listed.status != "ok":
                self.journal.result("probe", listed, variables)
            contracts = listed.whole().split("\n") if listed.status == "ok" else []

        def ask(contract):
            command = [program, contract, self.kernels.folder]
            limit = SLOW_CONTRACTS.get(contract, CONTRACT_SECONDS)
            result = run(command, limit, self.clock, variables)
            self.contract(contract, result, variables)

        with ThreadPoolExecutor(CONTRACTS_AT_A_TIME) as pool:
            list(pool.map(ask, [name for name in contracts if name and name not in others]))

    def costs(self):
        """What the parts of a step cost, with nothing else on the GPU."""
        command = [self.programs / "gpu_probe", "costs", self.kernels.folder]
        result = run(command, 20, self.clock, self.variables)
        self.contract("costs", result, self.variables)

    def contract(self, name, result, variables):
        text = result.whole()
        found = last_json(text)
        self.journal.result(f"probe {name}", result, variables, found=found, output=text)

    def speed_of_ours(self):
        ways = ["f32", "f32 graph", "bf16", "bf16 graph"]
        if speed.knows_tf32(self.programs, self.clock, self.variables):
            ways += ["tf32", "tf32 graph"]
        found = []
        for network, batch in [("cnn", 64), ("resnet18", 512), ("resnet18", 64), ("gpt", 8)]:
            found += speed.group(self.programs, network, batch, ways, [])
        self.measure(found, rounds=2)

    def speed_of_pytorch(self):
        found = []
        for network, batch in [("cnn", 64), ("resnet18", 512), ("resnet18", 64), ("gpt", 8)]:
            found += speed.group(self.programs, network, batch, [], ["f32", "tf32"])
        self.measure(found, rounds=2)

    def measure(self, contenders, rounds):
        speed.measure(contenders, rounds, self.journal, self.clock, self.variables)

    def kernel_times(self):
        if shutil.which("ncu", path=self.variables.get("PATH")) is None:
            self.journal.write("kernel times", "left out: no ncu here")
            return
        for network, batch in [("resnet18", 512), ("gpt", 8)]:
            speed.kernel_times(
                self.programs, network, batch, self.out, self.journal, self.clock, self.variables
            )

    def single_tests(self):
        self.listed = self.tests.listed()
        self.tests.singles(divided(self.listed)[0])

    def ranks(self, limit, and_times=True):
        """The tests of several ranks, alone on the machine. NCCL's own log goes to a file."""
        logs = self.work / "nccl"
        logs.mkdir(exist_ok=True)
        variables = dict(
            self.variables, NCCL_DEBUG="INFO", NCCL_DEBUG_SUBSYS="INIT,NET,COLL",
            NCCL_DEBUG_FILE=f"{logs}/nccl.%p.txt",
        )  # fmt: skip
        tests = divided(self.listed or self.tests.listed())[1]
        # What is not known to work comes first.
        known = ok_items(self.previous) if self.previous else set()
        tests.sort(key=lambda test: f"ranks {' '.join(test)}" in known)
        self.tests.ranks(tests[:1], limit, variables=variables)
        if and_times:
            self.all_reduces(variables)
        self.tests.ranks(tests[1:], limit)
        self.keep(logs)

    def all_reduces(self, variables):
        """The seconds of all-reduces of two ranks on one GPU."""
        program = self.programs / "conformance"
        command = f"'{program}' rank_main --exact --nocapture --test-threads=1"
        variables = variables_of_ranks(variables, "gpu-check")
        variables["CANDELABRUM_CONFORMANCE_CASE"] = "bench"
        result = run(command_of_ranks(command), 40, self.clock, variables)
        self.journal.result("seconds of all-reduces", result, variables)

    def keep(self, logs):
        """Puts the beginnings of NCCL's logs into the results."""
        with tarfile.open(self.out / "nccl.tar.gz", "w:gz") as archive:
            for file in sorted(logs.glob("*"))[:40]:
                with open(file, "rb") as source:
                    start = source.read(1 << 20)
                short = logs / f"{file.name}.part"
                short.write_bytes(start)
                archive.add(short, file.name)

    def failed_before(self):
        """What failed in part a, again."""
        if self.previous is None:
            self.journal.write("what failed before", "left out: no --previous")
            return
        try:
            names = failed_items(self.previous)
        except OSError as error:
            self.journal.write("what failed before", "failed", tail=str(error))
            return
        failed = [name.removeprefix("probe ") for name in names if name.startswith("probe ")]
        self.probe(sorted({*failed, *SLOW_CONTRACTS}))
        self.listed = self.tests.listed()
        failed = [test for test in self.listed if f"test {' '.join(test)}" in names]
        self.tests.singles(failed)

    def accuracy(self):
        """The accuracy on synthetic digits. With CUDA graphs the digest must be the same."""
        digests = []
        for options in ([], ["--graph"]):
            report = self.work / f"accuracy{len(digests)}.json"
            command = [self.programs / "mnist_dist", "--device", "cuda", "--dataset", "synthetic"]
            command += ["--epochs", "3", "--report", report, *options]
            result = run(command, 60, self.clock, self.variables)
            fields = {}
            if report.exists() and result.status == "ok":
                found = json.loads(report.read_text())
                keep = ["eval_accuracy", "train_loss", "images_per_second"]
                fields["epochs"] = [
                    {key: epoch.get(key) for key in keep} | {"strategy": epoch.get("strategy")}
                    for epoch in found["epochs"]
                ]
                fields["digest"] = found["parameters_sha256"][0]
            digests.append(fields.get("digest"))
            name = " ".join(["accuracy", *options])
            self.journal.result(name, result, self.variables, **fields)
        if None not in digests:
            same = digests[0] == digests[1]
            self.journal.write("accuracy: one digest", "ok" if same else "failed")

    def runs_of_two_ranks(self):
        two_ranks.runs(self.programs, self.work, self.journal, self.clock, self.variables)

    def memory(self):
        self.stop_compiling()
        gpu_memory.measure(self.programs, self.journal, self.clock, self.variables)

    def compile_ahead(self, until):
        """Lets PyTorch compile networks in the background: what it makes it keeps on the disk. It must
        not go on while speeds are measured."""
        groups = speed_table(self.programs, self.tf32)
        contenders = [contender for group in groups for contender in group if "compile" in contender[0]]
        clock = Clock(until * self.clock.scale - self.clock.passed(), self.clock.scale)

        def work():
            for name, command, _, limit in contenders[:4]:
                command = ["nice", *map(str, command)]
                command[command.index("20")] = "1"
                if self.clock.is_over():
                    return
                result = run(command, limit, clock, self.variables)
                self.journal.result(f"compile ahead {name}", result, self.variables)

        self.ahead = clock, threading.Thread(target=work, daemon=True)
        self.ahead[1].start()

    def stop_compiling(self):
        """Ends what `compile_ahead` has begun."""
        if self.ahead:
            (clock, thread), self.ahead = self.ahead, None
            clock.stop()
            Child.kill_all()
            thread.join(10)

    def speed_table(self):
        self.stop_compiling()
        for group in speed_table(self.programs, self.tf32):
            self.measure(group, rounds=5)

    def end(self):
        self.journal.write("kernels", "ok", **self.kernels.fields())
        self.journal.close()
        Child.kill_all()
        shutil.rmtree(self.work, ignore_errors=True)


def speed_table(programs, tf32):
    """The groups of the table, the most telling ones first."""
    f32 = ["f32", "f32 graph"] + (["tf32", "tf32 graph"] if tf32 else [])
    torch = ["f32", "tf32", "tf32 compile", "tf32 graphs"]
    bf16, torch_bf16 = ["bf16", "bf16 graph"], ["bf16", "bf16 compile", "bf16 graphs"]
    networks = [
        ("resnet18", 512, f32 + bf16, torch + torch_bf16),
        ("gpt", 8, f32 + bf16, torch + torch_bf16),
        ("cnn", 64, f32, torch),
        ("resnet18", 64, f32, torch),
        ("cnn", 1024, f32 + bf16, torch + torch_bf16),
        ("mlp", 64, f32, torch),
        ("gru", 64, f32, torch),
    ]
    return [speed.group(programs, *network) for network in networks]


def part_a(check):
    """Pairs of what is done and the seconds after the start at which it ends."""
    return [
        (check.facts, 15),
        (check.probe, 38),
        (check.costs, 46),
        (check.speed_of_ours, 84),
        (check.speed_of_pytorch, 110),
        (check.kernel_times, 130),
        (check.single_tests, 188),
        (lambda: check.ranks(40), 226),
    ]


def part_b(check):
    check.tf32 = speed.knows_tf32(check.programs, check.clock, check.variables)
    return [
        (lambda: check.compile_ahead(MEASURED_FROM - 3), 1),
        (check.failed_before, 50),
        (lambda: check.ranks(SECONDS_OF_RANKS), MEASURED_FROM - 60),
        (check.accuracy, MEASURED_FROM - 45),
        (check.runs_of_two_ranks, MEASURED_FROM),
        (check.memory, MEASURED_FROM + 30),
        (check.speed_table, 376),
    ]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--part", choices=["a", "b"], required=True)
    parser.add_argument("--out", type=pathlib.Path, required=True, help="a folder for the results")
    parser.add_argument("--seconds", type=float, help="the time of the run (a: 230, b: 380)")
    parser.add_argument("--previous", type=pathlib.Path, help="the log of part a, for part b")
    parser.add_argument("--programs", type=pathlib.Path, help="a folder with unpacked programs")
    parser.add_argument("--scale", type=float, default=1.0, help="a factor of all limits")
    args = parser.parse_args()
    args.seconds = args.seconds or {"a": 230, "b": 380}[args.part]
    check = Check(args)

    def stop(*_):
        check.clock.stop()
        Child.kill_all()

    # It ends with what it has.
    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    for step, until in {"a": part_a, "b": part_b}[args.part](check):
        check.clock.part(until)
        try:
            step()
        except Exception as error:
            # A mistake of this program ends one step only.
            check.journal.write("step", "failed", tail=repr(error))
    check.end()


if __name__ == "__main__":
    sys.exit(main())
