//! A training program in which one rank can stay in a phase: the rank announces the phase in a file
//! and stays there until a signal ends it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use candelabrum::dist::{Error, Result, check_consistency, parameters_sha256};
use candelabrum::prelude::*;
use candelabrum::train::cli::run_ranks;
use rustix::time::{ClockId, clock_gettime};

/// The case of a process, from its environment.
#[derive(Clone, Debug)]
pub(crate) struct Case {
    /// The phase in which the rank stays, or its difference from the other ranks.
    pub(crate) what: String,
    pub(crate) rank: usize,
    /// The directory of the files that ranks write for the test.
    pub(crate) dir: PathBuf,
    /// The number of ranks that our launcher starts; `None` under mpiexec.
    pub(crate) workers: Option<usize>,
}

/// The rank that does not call the all-reduce in the phase of this name.
pub(crate) const LATE: usize = 2;

/// The delay of a rank that starts late.
const LATENESS: Duration = Duration::from_secs(1);

const STEPS: usize = 3;

impl Case {
    const WHAT: &str = "FAULT_WHAT";
    const RANK: &str = "FAULT_RANK";
    const DIR: &str = "FAULT_DIR";
    const WORKERS: &str = "FAULT_WORKERS";

    pub(crate) fn variables(&self) -> Vec<(&'static str, String)> {
        let mut variables = vec![
            (Self::WHAT, self.what.clone()),
            (Self::RANK, self.rank.to_string()),
            (Self::DIR, self.dir.display().to_string()),
        ];
        variables.extend(self.workers.map(|workers| (Self::WORKERS, workers.to_string())));
        variables
    }

    pub(crate) fn of_process() -> Option<Self> {
        let get = |name| std::env::var(name).ok();
        let (what, dir) = (get(Self::WHAT)?, get(Self::DIR)?.into());
        let rank = get(Self::RANK)?.parse().ok()?;
        Some(Self { what, rank, dir, workers: get(Self::WORKERS).and_then(|n| n.parse().ok()) })
    }

    fn is(&self, rank: usize, what: &str) -> bool {
        self.rank == rank && self.what == what
    }

    /// Stays here if the case names this rank and this phase.
    fn phase(&self, rank: usize, what: &str) {
        if self.is(rank, what) {
            self.arrive();
            stay();
        }
    }

    /// Writes the numbers of this process and this thread for the test.
    fn arrive(&self) {
        let thread = rustix::thread::gettid().as_raw_nonzero();
        leave_word(&self.dir, "arrived", &format!("{} {thread}", std::process::id()));
    }
}

/// Writes a file that exists either completely or not at all.
fn leave_word(dir: &Path, name: &str, text: &str) {
    let temporary = dir.join(format!("{name}.{}", std::process::id()));
    fs::write(&temporary, text).expect("the test's directory");
    fs::rename(temporary, dir.join(name)).expect("the test's directory");
}

fn stay() -> ! {
    loop {
        std::thread::sleep(Duration::from_secs(1));
    }
}

/// Nanoseconds of the clock that all processes share.
pub(crate) fn now() -> i64 {
    let time = clock_gettime(ClockId::Monotonic);
    time.tv_sec * 1_000_000_000 + time.tv_nsec
}

/// Runs the launcher or a rank.
pub(crate) fn run(case: &Case) -> ! {
    let rank = std::env::var("CANDELABRUM_RANK").ok().and_then(|rank| rank.parse().ok());
    if let Some(rank) = rank {
        case.phase(rank, "start-up");
        if case.is(rank, "late") {
            std::thread::sleep(LATENESS);
        }
    }
    let exit = run_ranks(case.workers, Some(1), None, |world| {
        let result = train(case, world);
        if let Err(error) = &result {
            let text = format!("{} {error}", now());
            leave_word(&case.dir, &format!("noticed-{}", world.rank()), &text);
        }
        result
    });
    if rank.is_none() && case.what == "interrupted later" {
        let own = rustix::process::getpid();
        rustix::process::kill_process(own, rustix::process::Signal::INT).expect("an interrupt");
        std::thread::sleep(Duration::from_secs(1));
    }
    // libtest would exit with a success if this test returned.
    std::process::exit(i32::from(exit != ExitCode::SUCCESS));
}

fn train(case: &Case, world: &World) -> Result<()> {
    let rank = world.rank();
    let version = if case.is(rank, "version") { "9.9.9" } else { "0.1.0" };
    check_consistency(world.comm(), &[("the version".to_owned(), version.to_owned())])?;

    let width = if case.is(rank, "model") { 48 } else { 64 };
    let dtype = if case.is(rank, "precision") { DType::BF16 } else { DType::F32 };
    let params = Params::on(0, dtype, &Device::Cpu);
    let (scope, xs) = (params.root(), Tensor::ones((8, 32), dtype, &Device::Cpu)?);
    let hidden = Linear::new(&scope.pp("hidden"), width).activation(Activation::Relu);
    let out = Linear::new(&scope.pp("out"), if case.what == "large" { 200_000 } else { 10 });
    let ys = Tensor::zeros(8, DType::U32, &Device::Cpu)?;
    out.forward(&hidden.forward(&xs)?)?; // creates the parameters
    let mut opt = DistOpt::new(Sgd::new(0.01), &params, world)?;

    let strategy = match case.is(rank, "strategy") {
        true => DistOption::Fp16,
        false => DistOption::Fp32,
    };
    for epoch in 0..2 {
        let steps = if case.is(rank, "steps") && epoch == 1 { STEPS - 1 } else { STEPS };
        for step in 0..steps {
            let middle = epoch == 1 && step == 1;
            if middle {
                case.phase(rank, "forward");
            }
            let loss = candelabrum::nn::ops::softmax_cross_entropy(
                &out.forward(&hidden.forward(&xs)?)?,
                &ys,
            )?;
            if middle && case.what == "all-reduce" {
                match rank {
                    LATE => stay(),
                    rank if rank == case.rank => case.arrive(),
                    _ => {}
                }
            }
            opt.backward_and_update_with(&loss, strategy, 0.05)?;
        }
        if case.is(rank, "steps") && epoch == 1 {
            return Ok(());
        }
        case.phase(rank, "evaluation");
        let mut right = [1_f32];
        world.comm().all_reduce(&mut right, ReduceOp::Sum)?;
    }
    let digest = parameters_sha256(&params)?;
    leave_word(&case.dir, &format!("finished-{rank}"), &digest);
    Ok::<(), Error>(())
}
