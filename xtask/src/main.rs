//! The tasks of this repository, one file each: `cargo xtask <command>`.
#![forbid(unsafe_code)]
#![expect(clippy::print_stdout, reason = "a command-line program talks to its user")]
#![expect(clippy::print_stderr, reason = "a command-line program says what failed")]

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use self::interrupt::Interrupted;
use self::test::TestPart;
use self::test::build::TestBuild;

mod bench;
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

#[derive(Debug, Parser)]
#[command(name = "xtask", bin_name = "cargo xtask", about = "The tasks of this repository")]
struct TaskCommand {
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
    /// Measure training and communication, against other libraries and other commits
    #[command(subcommand)]
    Bench(bench::cli::BenchCommand),
}

fn main() -> ExitCode {
    let command = TaskCommand::parse_from(bench::with_new_names(std::env::args())).command;
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
            test::run_part(&TestBuild::of_this_machine()?, TestPart::OnGpu, true)?.finish(true)
        }
        Command::Softgpu(args) => softgpu::run(&args),
        Command::Portable => portable::run(&TestBuild::of_this_machine()?),
        Command::Tidy => tidy::run(),
        Command::Interface => interface::write(),
        Command::Bench(bench) => bench.run(),
    }
}
