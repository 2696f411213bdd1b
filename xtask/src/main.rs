//! The tasks of this repository, one file each: `cargo xtask <command>`.
#![forbid(unsafe_code)]
#![expect(clippy::print_stdout, reason = "a command-line program talks to its user")]
#![expect(clippy::print_stderr, reason = "a command-line program says what failed")]

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use self::bench::run::Cli;
use self::benches::{
    allreduce, checkpoint, ddp, finetune, kvstore, memory, overlap, scaling, shard, step, zoo,
};
use self::interrupt::Interrupted;
use self::test::Part;
use self::test::build::Build;

mod bench;
mod benches;
mod checkout;
mod ci;
mod gpu_bundle;
mod interface;
mod interrupt;
mod kernels;
mod machine;
mod portable;
mod rebuild;
mod setup;
mod shell;
mod softgpu;
mod test;
mod tidy;
mod timeline;

#[derive(Debug, Parser)]
#[command(name = "xtask", bin_name = "cargo xtask", about = "The tasks of this repository")]
struct Tasks {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run every test that this machine can run, and say what was left out and why
    Test(test::Args),
    /// Install what `test --all` needs (Debian and its relatives)
    Setup(setup::SetupArgs),
    /// Run what continuous integration runs: fmt, tidy, clippy, defaults, portable, doc, ptxas, test --all with gpu-test, gpu-check, publish, deny
    Ci,
    /// Build the GPU bundle and, where there is a GPU, run it (docs/gpu-check.md)
    GpuCheck,
    /// Build a folder that checks and measures everything on another machine with a GPU
    GpuBundle,
    /// Compile our kernels for several GPUs, and refuse those that need too much of one
    Kernels,
    /// Run the GPU tests on the software GPU (docs/software-gpu.md)
    GpuTest,
    /// Run any command with the software GPU: `cargo xtask softgpu -- COMMAND...`
    Softgpu(softgpu::SoftgpuArgs),
    /// Lint, test and run the build for systems other than Linux, on Linux
    Portable,
    /// Check the project's rules that neither rustc nor clippy checks
    Tidy,
    /// Write the listing of the public interface (docs/interface), after a change of it that is meant
    Interface,
    /// Measure training steps against raw candle and, if it is installed, PyTorch
    BenchStep(Cli<step::Step>),
    /// Train every network for some steps beside PyTorch: losses, accuracies, times and memory
    Zoo(Cli<zoo::Zoo>),
    /// Measure training steps of a pretrained language model and its adapters against PyTorch with PEFT
    BenchFinetune(Cli<finetune::Finetune>),
    /// Measure training steps of a deep model, and their memory, with and without recomputation
    BenchMemory(Cli<memory::Memory>),
    /// Measure ranks that share the optimizer's state and gradients, and their memory
    BenchShard(Cli<shard::Shard>),
    /// Measure several workers against one, and against PyTorch's DDP
    BenchDdp(Cli<ddp::Ddp>),
    /// Measure how training speeds up with more ranks, by strategy, model and backend
    BenchScaling(Cli<scaling::Scaling>),
    /// Measure sums over all ranks against MPI from C and Gloo, and against the memory
    BenchAllreduce(Cli<allreduce::AllReduce>),
    /// Measure how much of the communication overlap hides, between two hosts made on this machine
    BenchOverlap(Cli<overlap::Overlap>),
    /// Measure the cost of checkpoints
    BenchCheckpoint(Cli<checkpoint::Checkpoint>),
    /// Measure the key-value store against an all-reduce, also where one worker is slower
    BenchKvstore(Cli<kvstore::KvStore>),
    /// Draw one step of the timeline that a training program wrote with --timeline
    Timeline(timeline::TimelineArgs),
}

fn main() -> ExitCode {
    let command = Tasks::parse().command;
    let entered = checkout::enter().and_then(|other| other.map_or(Ok(()), rebuild::rebuild));
    let Err(error) = entered.and_then(|()| run(command)) else { return ExitCode::SUCCESS };
    // On one line and without the backtrace that RUST_BACKTRACE would add: another program failed,
    // and its own output is above.
    eprintln!("error: {error:#}");
    error.downcast_ref::<Interrupted>().map_or(ExitCode::FAILURE, Interrupted::exit_code)
}

fn run(command: Command) -> anyhow::Result<()> {
    match command {
        Command::Test(args) => test::run(&args),
        Command::Setup(args) => setup::run(&args),
        Command::Ci => ci::run(),
        Command::GpuCheck => gpu_bundle::check(),
        Command::GpuBundle => gpu_bundle::build().map(drop),
        Command::Kernels => kernels::check(&kernels::nvrtc()?, &kernels::ARCHITECTURES),
        Command::GpuTest => {
            test::run_part(&Build::of_this_machine()?, Part::OnGpu, true)?.finish(true)
        }
        Command::Softgpu(args) => softgpu::run(&args),
        Command::Portable => portable::run(),
        Command::Tidy => tidy::run(),
        Command::Interface => interface::write(),
        Command::BenchStep(args) => step::run(&args),
        Command::Zoo(args) => zoo::run(&args),
        Command::BenchFinetune(args) => bench::run::run(&args),
        Command::BenchMemory(args) => bench::run::run(&args),
        Command::BenchShard(args) => bench::run::run(&args),
        Command::BenchDdp(args) => bench::run::run(&args),
        Command::BenchScaling(args) => bench::run::run(&args),
        Command::BenchAllreduce(args) => allreduce::run(args),
        Command::BenchOverlap(args) => bench::run::run(&args),
        Command::BenchCheckpoint(args) => bench::run::run(&args),
        Command::BenchKvstore(args) => bench::run::run(&args),
        Command::Timeline(args) => timeline::run(&args),
    }
}
