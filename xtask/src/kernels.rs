//! `cargo xtask kernels`: compiles our kernels for several GPUs, which needs no GPU, and refuses those that need more of
//! a GPU than they should: registers that do not fit go to memory, which is slow, and no other test shows it.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use fs_err as fs;

use crate::checkout::{repo_root, target_folder};
use crate::shell::{output, run as run_command};

/// NVIDIA's compiler of kernels at run time.
pub(crate) const NVRTC: &str = "libnvrtc.so.13";

/// The architectures, oldest first: T4, A100, H100 and B200.
pub(crate) const ARCHITECTURES: [&str; 4] = ["75", "80", "90", "100"];

/// The architectures of which the others are between, for a check that has little time.
pub(crate) const FIRST_AND_LAST: [&str; 2] = ["75", "100"];

/// The most registers of a thread. With 256 threads in a block, two blocks fit on a multiprocessor.
const MOST_REGISTERS: u64 = 128;

/// The most static shared memory of a block, in bytes. A GPU accepts no more.
const MOST_SHARED: u64 = 48 << 10;

/// The folder with NVRTC, which is downloaded the first time.
pub(crate) fn nvrtc() -> Result<PathBuf> {
    let mut toolkit = Command::new(repo_root().join("scripts/cuda/toolkit.sh"));
    let folder = output(toolkit.arg("--nvrtc").arg(target_folder().join("cuda-toolkit")));
    folder.map(PathBuf::from).context("scripts/cuda/toolkit.sh --nvrtc cannot install NVRTC")
}

/// Compiles all kernels by the NVRTC in this folder, prints the greatest needs, and writes all to a file.
///
/// # Errors
/// A kernel does not compile, or exceeds a limit.
pub(crate) fn check(nvrtc: &Path, architectures: &[&str]) -> Result<()> {
    let said = target_folder().join("kernels.ptxas");
    let mut command = Command::new("python3");
    command.arg("scripts/cuda/compile_kernels.py").arg(nvrtc.join(NVRTC)).arg(".");
    command.arg("--ptxas").arg(&said).arg("--architecture").args(architectures);
    run_command(command.env("LD_LIBRARY_PATH", nvrtc).current_dir(repo_root()))?;
    let kernels = parse(&fs::read_to_string(&said)?)?;
    let file = target_folder().join("kernels.txt");
    fs::write(&file, table(&kernels))?;
    print!("{}", greatest(&kernels));
    println!("all of them: {}", file.display());
    let excesses: Vec<String> = kernels.iter().filter_map(excess).collect();
    ensure!(excesses.is_empty(), "kernels exceed a limit:\n  {}", excesses.join("\n  "));
    Ok(())
}

/// A kernel for one architecture, and what it needs of a GPU.
#[derive(Debug, Default, PartialEq, Eq)]
struct Kernel {
    /// The file with its text, and the type of numbers.
    source: String,
    name: String,
    architecture: String,
    /// Of a thread.
    registers: u64,
    /// The bytes of registers that are written to memory, and read from there.
    spills: [u64; 2],
    /// The bytes of a thread's own memory.
    stack: u64,
    /// The bytes of a block's static shared memory.
    shared: u64,
}

/// Reads what `compile_kernels.py --ptxas` has written.
fn parse(said: &str) -> Result<Vec<Kernel>> {
    let mut kernels: Vec<Kernel> = Vec::new();
    let mut source = "";
    for line in said.lines() {
        if let Some(heading) = line.strip_prefix("== ") {
            source = heading.rsplit_once(' ').context("a heading without an architecture")?.0;
        } else if let Some((_, entry)) = line.split_once("Compiling entry function '") {
            let parts: Vec<&str> = entry.split('\'').collect();
            let [name, _, architecture, ..] = parts[..] else { continue };
            let [source, name, architecture] = [source, name, architecture].map(str::to_owned);
            kernels.push(Kernel { source, name, architecture, ..Kernel::default() });
        } else if let Some(kernel) = kernels.last_mut() {
            kernel.read(line);
        }
    }
    ensure!(!kernels.is_empty(), "ptxas has named no kernel");
    // Each kernel uses some, so its line was not understood.
    let unknown = kernels.iter().find(|kernel| kernel.registers == 0);
    ensure!(unknown.is_none(), "ptxas has given no registers: {unknown:?}");
    Ok(kernels)
}

impl Kernel {
    /// Takes the numbers of a line. A function that the kernel calls has lines of its own, which count too.
    fn read(&mut self, line: &str) {
        let number = |what: &str| -> Option<u64> {
            line.split_once(what)?.0.split_whitespace().next_back()?.parse().ok()
        };
        let max = |own: &mut u64, what: &str| *own = (*own).max(number(what).unwrap_or(0));
        max(&mut self.registers, " registers");
        max(&mut self.stack, " bytes stack frame");
        max(&mut self.shared, " bytes smem");
        max(&mut self.spills[0], " bytes spill stores");
        max(&mut self.spills[1], " bytes spill loads");
    }
}

/// The limit that a kernel exceeds, in words.
fn excess(kernel: &Kernel) -> Option<String> {
    let Kernel { source, name, architecture, registers, spills: [stores, loads], shared, .. } =
        kernel;
    let what = if *stores + *loads > 0 {
        format!("writes {stores} bytes of registers to memory and reads {loads}")
    } else if *registers > MOST_REGISTERS {
        format!("uses {registers} registers, more than {MOST_REGISTERS}")
    } else if *shared > MOST_SHARED {
        format!("uses {shared} bytes of shared memory, more than {MOST_SHARED}")
    } else {
        return None;
    };
    Some(format!("{name} ({source}) for {architecture} {what}"))
}

/// For each architecture the number of kernels and the greatest needs, with the kernels that have them.
fn greatest(kernels: &[Kernel]) -> String {
    let mut text = String::new();
    for architecture in ARCHITECTURES.map(|number| format!("sm_{number}")) {
        let here = || kernels.iter().filter(|kernel| kernel.architecture == architecture);
        let worst = |need: fn(&Kernel) -> u64| {
            let worst = here().max_by_key(|kernel| need(kernel));
            worst.map_or("none".to_owned(), |kernel| match need(kernel) {
                0 => "0".to_owned(),
                most => format!("{most} ({})", kernel.name),
            })
        };
        let _ = writeln!(
            text,
            "  {architecture:<7} {} kernels: at most {} registers, {} bytes spilled, {} bytes of stack, {} bytes of \
             shared memory",
            here().count(),
            worst(|kernel| kernel.registers),
            worst(|kernel| kernel.spills.iter().sum()),
            worst(|kernel| kernel.stack),
            worst(|kernel| kernel.shared),
        );
    }
    text
}

/// A line for each kernel, with its needs on each architecture.
fn table(kernels: &[Kernel]) -> String {
    let mut lines: BTreeMap<_, Vec<String>> = BTreeMap::new();
    for kernel in kernels {
        let Kernel { registers, spills: [stores, loads], stack, shared, .. } = kernel;
        let cell = format!("{registers}/{stores}/{loads}/{stack}/{shared}");
        lines.entry((&kernel.source, &kernel.name)).or_default().push(cell);
    }
    let heads = ARCHITECTURES.map(|number| format!("{:<18}", format!("sm_{number}"))).concat();
    let mut text = format!(
        "registers/spill stores/spill loads/stack/shared memory, in bytes\n{heads}kernel\n"
    );
    for ((source, name), cells) in lines {
        let cells: String = cells.iter().map(|cell| format!("{cell:<18}")).collect();
        let _ = writeln!(text, "{cells}{name} ({source})");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The words of ptxas 13.0. The second kernel calls a function.
    const SAID: &str = "\
== crates/candelabrum-nn/src/ops/softmax/gpu.rs float sm_90
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'softmax' for 'sm_90'
ptxas info    : Function properties for softmax
ptxas         .     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 24 registers, used 1 barriers, 2048 bytes smem, 376 bytes cmem[0]
ptxas info    : Compile time = 20.102 ms
ptxas info    : Compiling entry function 'softmax_back' for 'sm_90'
ptxas info    : Function properties for softmax_back
ptxas         .     64 bytes stack frame, 4 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 129 registers, used 0 barriers, 64 bytes cumulative stack size
ptxas info    : Function properties for helper
ptxas         .     8 bytes stack frame, 0 bytes spill stores, 12 bytes spill loads
== crates/candelabrum-nn/src/ops/softmax/gpu.rs f16_t sm_100
ptxas info    : Compiling entry function 'softmax' for 'sm_100'
ptxas         .     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 129 registers, used 1 barriers, 49152 bytes smem
";

    #[test]
    fn the_words_of_ptxas_are_understood() {
        let kernels = parse(SAID).unwrap();
        let softmax = |number: &str, name: &str| Kernel {
            source: format!("crates/candelabrum-nn/src/ops/softmax/gpu.rs {number}"),
            name: name.to_owned(),
            architecture: "sm_90".to_owned(),
            ..Kernel::default()
        };
        let expected = [
            Kernel { registers: 24, shared: 2048, ..softmax("float", "softmax") },
            Kernel {
                registers: 129,
                spills: [4, 12],
                stack: 64,
                ..softmax("float", "softmax_back")
            },
            Kernel {
                architecture: "sm_100".to_owned(),
                registers: 129,
                shared: 49152,
                ..softmax("f16_t", "softmax")
            },
        ];
        assert_eq!(kernels, expected);
        let table = table(&kernels);
        assert!(table.contains("\n129/4/12/64/0     softmax_back (crates/"), "{table}");
        let greatest = greatest(&kernels);
        assert!(greatest.contains("sm_90   2 kernels: at most 129 (softmax_back) registers, 16"));
    }

    #[test]
    fn each_limit_is_one() {
        let kernel = || Kernel { registers: 128, shared: 49152, stack: 64, ..Kernel::default() };
        assert_eq!(excess(&kernel()), None);
        for (kernel, what) in [
            (Kernel { registers: 129, ..kernel() }, "uses 129 registers, more than 128"),
            (Kernel { shared: 49153, ..kernel() }, "uses 49153 bytes of shared memory"),
            (Kernel { spills: [4, 0], ..kernel() }, "writes 4 bytes of registers to memory"),
            (Kernel { spills: [0, 4], ..kernel() }, "and reads 4"),
        ] {
            let excess = excess(&kernel).unwrap();
            assert!(excess.contains(what), "{excess}");
        }
    }

    #[test]
    fn words_of_another_ptxas_are_an_error() {
        assert!(parse("").is_err());
        let other = SAID.replace(" registers", " regs");
        assert!(parse(&other).unwrap_err().to_string().contains("no registers"));
    }
}
