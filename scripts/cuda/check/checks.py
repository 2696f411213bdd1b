"""The list of checks: the machine's facts, tests, whole runs, and what is measured."""

import importlib.util
import json
import pathlib
import statistics
import sys

from runner import Check, answers

HERE = pathlib.Path(__file__).resolve().parent

FACTS = {
    "nvidia-smi": "nvidia-smi --query-gpu=name,driver_version,memory.total,compute_mode,"
    "clocks.sm,clocks.max.sm,clocks.mem,power.limit,ecc.mode.current,mig.mode.current --format=csv; "
    "nvidia-smi -q | head -c 16000",
    "system": "uname -a; cat /etc/os-release | head -4; nproc; free -m; ldd --version | head -1; id -u",
    "shared memory": "df -m /dev/shm /tmp; ulimit -a",
    "loopback": "cat /sys/class/net/lo/operstate /sys/class/net/lo/flags; ls /sys/class/net",
    "home": 'echo "$HOME"; touch "$HOME/.written" && rm "$HOME/.written" && echo writable; '
    'ls -d "$HOME/.nv" "$HOME/.cache"',
    "tools": "for tool in ncu compute-sanitizer nvcc cuda-gdb nsys cuobjdump gcc cargo; do "
    'echo "$tool: $(command -v $tool)"; done',
    "devices": "ls -l /dev/nvidia*; cat /proc/driver/nvidia/version; cat /proc/cmdline",
}


def facts():
    def output(status, text):
        return status, {"output": text}

    yield Check("fact versions", [sys.executable, HERE / "versions.py"], 20, read=output)
    for name, command in FACTS.items():
        yield Check(f"fact {name}", ["sh", "-c", f"{command}; true"], 30, read=output)


# The test programs, and for each the words of which a test's name has one.
TESTS = {"gpu": [], "ops": ["composites", "on_a_gpu"], "conformance": ["nccl"]}
# The tests with several ranks, by the beginnings of their names, the most telling ones first. Those of `conformance`
# all have.
RANKS = [
    "ranks::", "graphs::replayed_steps", "sparse::two_ranks", "announced::", "precision::", "failed_device::",
    "sparse::three_ranks", "graphs::a_batch_that_is_not_finite", "graphs::a_recorded_step_weighs",
    "graphs::a_step_with_an_exchange",
]  # fmt: skip
# Several ranks on one GPU take turns of milliseconds, and a test of `conformance` starts up to 15 worlds of them, each
# in 3 seconds.
SECONDS, SECONDS_OF_RANKS = 40, 90


def lists(programs):
    """The checks that list the tests of each program."""
    for program, words in TESTS.items():
        command = [programs / program, "--list", "--format", "terse", *words]

        def read(status, text, program=program):
            names = [line.removesuffix(": test") for line in text.splitlines() if line.endswith(": test")]
            # The programs of ranks are no tests.
            return status, {"tests": [(program, name) for name in names if not name.endswith("main")]}

        yield Check(f"list {program}", command, 30, read=read)


def tests(programs, listed):
    """The tests of one process, and those of several ranks. Each is a process of its own: an error of CUDA spoils a
    whole process, and a test that captures a graph must not meet another one that waits for the device."""

    def place(test):
        program, name = test
        starts = (i for i, start in enumerate(RANKS) if name.startswith(start))
        return next(starts, len(RANKS) if program == "conformance" else None)

    def check(kind, test, seconds):
        # Without `--nocapture` the words of a test that is killed would be lost.
        words = [test[1], "--exact", "--nocapture", "--test-threads=1"]
        return Check(f"{kind} {' '.join(test)}", [programs / test[0], *words], seconds, read=read)

    def read(status, text):
        if status == "ok" and "1 passed" not in text[-2_000:]:
            status = "left out: ignored" if "1 ignored" in text[-2_000:] else "failed"
        return status, {}

    singles = [test for test in listed if place(test) is None]
    ranks = sorted((test for test in listed if place(test) is not None), key=place)
    return (
        [check("test", test, SECONDS) for test in singles],
        [check("ranks", test, SECONDS_OF_RANKS) for test in ranks],
    )


def memcheck(failed):
    """What NVIDIA's checker of memory says of a test that failed."""
    tool = "compute-sanitizer"
    options = ["--tool", "memcheck", "--target-processes", "all", "--error-exitcode", "86"]

    def read(status, text):
        lines = [line for line in text.splitlines() if line.startswith("=====")]
        return status, {"memcheck": "\n".join(lines[:30])}

    return Check(f"memcheck {failed.name}", [tool, *options, *failed.command], 60, needs=tool, read=read)


def of_ranks(command, ranks, job, device="cuda:0"):
    """The command that starts a program as so many ranks on one device and fails if one of them does, and its
    variables. NCCL accepts ranks on one GPU if each has a host of its own."""
    # The shell would give `/dev/null` to a program in the background.
    rank = f"NCCL_HOSTID=host-$rank CANDELABRUM_RANK=$rank {command} <&3 & all=\"$all $!\""
    numbers = " ".join(map(str, reversed(range(ranks))))
    wait = "for one in $all; do wait $one || failed=1; done; exit ${failed:-0}"
    variables = {"CANDELABRUM_DEVICE": device, "CANDELABRUM_WORLD_SIZE": str(ranks), "CANDELABRUM_JOB": job}
    script = f"exec 3<&0; for rank in {numbers}; do {rank}; done; {wait}"
    return ["sh", "-c", script], variables | {"CANDELABRUM_TIMEOUT": "40"}


def all_reduces(programs, out):
    """The seconds of all-reduces of two ranks on one GPU, with NCCL's own log."""
    command = f"'{programs / 'conformance'}' rank_main --exact --nocapture --test-threads=1"
    command, variables = of_ranks(command, 2, "gpu-check")
    variables |= {"CANDELABRUM_CONFORMANCE_CASE": "bench", "NCCL_DEBUG": "INFO"}
    variables |= {"NCCL_DEBUG_SUBSYS": "INIT,NET", "NCCL_DEBUG_FILE": f"{out}/nccl.%p.txt"}
    return Check("seconds of all-reduces", command, 40, variables)


SHORT = "--epochs 2 --epoch-size 6400 --threads 2"
ADAMW = f"{SHORT} --optimizer adamw --lr 0.001"
# Whole runs of `mnist_dist`, where features meet: the ranks, the options, and the run whose parameters are equal. The
# runs with checkpoints follow each other, and the last one ends as the run without a break.
RUNS = {
    "digits": (1, "--epochs 3", None),
    "digits, graphs": (1, "--epochs 3 --graph", "digits"),
    "one rank": (1, ADAMW, None),
    "nothing sharded": (2, ADAMW, None),
    "sharded state": (2, f"{ADAMW} --shard optimizer", "nothing sharded"),
    "sharded state, graphs": (2, f"{ADAMW} --shard optimizer --graph", "nothing sharded"),
    "sharded state, bf16": (2, f"{ADAMW} --shard optimizer --precision bf16", None),
    "sharded state, first part": (2, f"{ADAMW} --shard optimizer --max-steps 60 --checkpoint-dir CHECKPOINTS", None),
    "continued by one rank": (1, f"{ADAMW} --checkpoint-dir CHECKPOINTS", None),
    "8-bit state, sharded": (2, f"{SHORT} --optimizer adamw8bit --lr 0.001 --shard optimizer", None),
    "state in bf16": (2, f"{ADAMW} --optimizer-state bf16", None),
    "muon": (2, f"{SHORT} --optimizer muon --lr 0.002", None),
    "adafactor": (2, f"{SHORT} --optimizer adafactor --lr 0.001", None),
    "average, sparse exchange": (2, f"{ADAMW} --ema 0.98 --dist-option sparseTopK", None),
}


def runs(programs, work):
    """The log gets the losses, the accuracy and the digest of the parameters."""
    digests = {}
    for number, (name, (ranks, options, equal)) in enumerate(RUNS.items()):
        report = work / f"run-{number}.json"
        # The same global batches, whoever computes them.
        words = f"--dataset synthetic --batch-size {128 // ranks} {options} --report '{report}'"
        words = words.replace("CHECKPOINTS", f"'{work}/checkpoints'")
        command, variables = of_ranks(f"'{programs / 'mnist_dist'}' {words}", ranks, f"gpu-check-{number}")

        def read(status, _, name=name, report=report, equal=equal):
            if status != "ok":
                return status, {}
            found = json.loads(report.read_text())
            keep = ("train_loss", "eval_loss", "eval_accuracy", "images_per_second", "strategy")
            epochs = [{key: epoch.get(key) for key in keep} for epoch in found["epochs"]]
            digests[name] = found["parameters_sha256"][0]
            if digests.get(equal, digests[name]) != digests[name]:
                status = f"failed: not the parameters of '{equal}'"
            accuracy = epochs[-1]["eval_accuracy"]
            short = f"accuracy {accuracy}, digest {digests[name][:8]}"
            return status, {"epochs": epochs, "digests": found["parameters_sha256"], "short": short}

        yield Check(f"run {name}", command, 60, variables, read=read)


# The blocks and the batch of the GPT whose memory is measured.
BLOCKS, BATCH = 24, 16
WATCH = """
smi="nvidia-smi --query-gpu=memory.used --format=csv,noheader,nounits --id=0"
$smi > {used}
while $smi; do sleep 0.1; done >> {used} &
watch=$!
{program} || failed=1
kill $watch
echo "{{\\"mib\\": $(($(sort -n {used} | tail -1) - $(head -1 {used})))}}"
exit ${{failed:-0}}
"""


def memory(programs, work):
    """The GPU memory of training, as the driver counts it, with and without blocks that are computed again."""

    def read(status, text):
        found = {key: value for answer in answers(text) for key, value in answer.items()}
        fields = {"mib": found.get("mib")}
        if status == "ok":
            fields["examples_per_second"] = BATCH * found["steps"] / found["seconds"]
        return status, fields | {"short": json.dumps(fields)}

    for precision in ("f32", "bf16"):
        for recompute in ("none", "half", "all"):
            for graph in ("", " --graph"):
                options = f"--precision {precision} --recompute {recompute}{graph}"
                program = f"'{programs / 'bench-player'}' train --network gpt --blocks {BLOCKS} --adamw {options}"
                program += f" --batch-size {BATCH} --warm-up 6 --threads 2"
                command = WATCH.format(used=f"'{work}/used'", program=program)
                yield Check(
                    f"memory {options}", ["sh", "-c", command], 30, {"CANDELABRUM_DEVICE": "cuda"},
                    '{"steps": 10}\n', "nvidia-smi", read,
                )  # fmt: skip


def steps_per_second(text):
    """The samples of a program."""
    return [answer["steps"] / answer["seconds"] for answer in answers(text) if "steps" in answer]


# Networks on the processor, with the batch of a rank.
ON_CORES = [("cnn", 64), ("resnet18-224", 8), ("gpt", 8)]
SAMPLES_ON_CORES = 3


def cores(programs, count):
    """Training steps on so many cores of the processor: threads, ranks of one thread, ranks of several threads, and
    strangers, which are as many ranks that exchange nothing."""
    powers = [1 << i for i in range(count.bit_length())]
    ways = [("ranks", 1, 1)]
    for number in powers[1:]:
        ways += [("strangers", number, 1), ("ranks", 1, number), ("ranks", number, 1)]
    ways += [("ranks", ranks, powers[-1] // ranks) for ranks in powers[1:-1]]
    for network, batch in ON_CORES:
        speeds = {}
        for kind, ranks, threads in ways:
            program = f"'{programs / 'bench-player'}' train --contender ours --network {network} --batch-size {batch}"
            program += f" --threads {threads} --warm-up 2{' --strangers' * (kind == 'strangers')}"

            def read(status, text, way=(kind, ranks, threads), batch=batch, speeds=speeds):
                samples = steps_per_second(text)
                if len(samples) != SAMPLES_ON_CORES:
                    return status if status != "ok" else "failed: too few samples", {}
                _, ranks, threads = way
                speed = speeds[way] = statistics.median(samples) * batch * ranks
                short = {"images_per_second": speed}
                for name, bound in (("of_strangers", ("strangers", ranks * threads, 1)), ("times_one", ("ranks", 1, 1))):
                    if bound in speeds and bound != way:
                        short[name] = speed / speeds[bound]
                return status, {"steps_per_second": samples, "short": json.dumps(short)} | short

            job = f"cores-{network}-{kind}-{ranks}-{threads}"
            command, variables = of_ranks(program, ranks, job, "cpu")
            requests = '{"seconds": 0.4}\n' * SAMPLES_ON_CORES
            name = f"cores {network} {batch} {kind} {ranks} threads {threads}"
            yield Check(name, command, 20, variables, requests, read=read)


NETWORKS = [("resnet18", 512), ("gpt", 8), ("cnn", 64), ("resnet18", 64)]
OURS = ["f32", "f32 graph", "tf32", "tf32 graph", "bf16", "bf16 graph"]
PYTORCH = ["f32", "tf32", "tf32 compile", "tf32 graphs", "bf16", "bf16 compile", "bf16 graphs"]
SAMPLES = 5


def ours(programs, network, batch, way):
    """`way` is the precision, and `graph` where recorded steps are repeated."""
    precision, *graph = way.split()
    command = [programs / "bench-player", "train", "--contender", "ours", *common(network, batch)]
    return [*command, "--precision", precision, *(f"--{word}" for word in graph)]


def pytorch(network, batch, way):
    precision, *kind = way.split()
    kind = {"compile": "pytorch-compile", "graphs": "pytorch-cuda-graphs"}.get("".join(kind), "pytorch")
    command = [sys.executable, HERE / "bench_step.py", "--device", "cuda", *common(network, batch)]
    options = ["--tf32"] if precision == "tf32" else ["--precision", precision]
    return [*command, "--contender", kind, *options]


def common(network, batch):
    return ["--network", network, "--batch-size", batch, "--threads", 4, "--warm-up", 20]


def speeds(programs):
    """Training steps: ours, and PyTorch's where it is installed. A program answers each line by a sample
    (benches/player/src/serve.rs), and the median counts."""
    has_torch = importlib.util.find_spec("torch") is not None
    for network, batch in NETWORKS:
        contenders = [(f"ours {way}", ours(programs, network, batch, way)) for way in OURS]
        contenders += [(f"pytorch {way}", pytorch(network, batch, way)) for way in PYTORCH if has_torch]
        for name, command in contenders:

            def read(status, text, batch=batch):
                found = answers(text)
                losses = [answer["warm_up_losses"][:5] for answer in found if "warm_up_losses" in answer]
                samples = steps_per_second(text)
                fields = {"losses": losses, "steps_per_second": samples}
                if samples:
                    fields["images_per_second"] = statistics.median(samples) * batch
                    fields["short"] = f"{fields['images_per_second']:.0f} per second"
                is_whole = status != "ok" or len(samples) == SAMPLES
                return status if is_whole else "failed: too few samples", fields

            limit = 100 if "compile" in name or "graphs" in name else 40
            requests = '{"seconds": 0.4}\n' * SAMPLES
            variables = {"CANDELABRUM_DEVICE": "cuda"}
            yield Check(f"speed {network} {batch} {name}", command, limit, variables, requests, read=read)


def kernel_times(programs, out):
    """The time of each kernel of a step, by NVIDIA's profiler, as a table in the results."""
    for network, batch in NETWORKS[:2]:
        profile = "ncu --clock-control none --target-processes all --metrics gpu__time_duration.sum --csv --log-file"
        command = [*profile.split(), out / f"kernels-{network}-{batch}.csv", *ours(programs, network, batch, "f32")]
        command[command.index(20)] = 1
        variables, request = {"CANDELABRUM_DEVICE": "cuda"}, '{"steps": 1}\n'
        yield Check(f"kernel times {network} {batch}", command, 40, variables, request, "ncu")
