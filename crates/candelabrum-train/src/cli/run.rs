//! The life of a training program: it starts the ranks or joins them, and ends with one clear line.

use std::any::Any;
use std::error::Error as StdError;
use std::io::{self, IsTerminal, Write};
use std::path::Path;
use std::process::ExitCode;
use std::sync::{Once, OnceLock};
use std::thread;
use std::time::Duration;

use candelabrum_datasets::Error as DataError;
use candelabrum_dist::launch::{
    self, DeviceChoice, EndRequest, Job, JobEnd, Launch, Launcher, Outcome, RankEnvironment,
    RankEvent, Scheduler, StopRequest, interrupted_by,
};
use candelabrum_dist::{Error as DistError, World, note, of_rank};
use candelabrum_kvstore::{Error as StoreError, Server};
use signal_hook::iterator::Signals;

use super::{TrainArgs, interrupt};
use crate::checkpoint::newest_checkpoint;
use crate::{Error, Interrupt, Result, Timeline, default_threads, set_threads};

/// Any error of a program that [`run`] runs.
type ProgramError = Box<dyn StdError + Send + Sync>;

/// The error of a program, with the type that it had.
fn failure<E: Into<ProgramError> + 'static>(error: E) -> ProgramError {
    let mut error = Some(error);
    let hidden = (&mut error as &mut dyn Any).downcast_mut::<Option<anyhow::Error>>();
    match (hidden.and_then(Option::take), error) {
        // anyhow's own conversion hides the type.
        (Some(hidden), _) => hidden.reallocate_into_boxed_dyn_error_without_backtrace(),
        (None, Some(error)) => error.into(),
        (None, None) => "the program failed".into(),
    }
}

/// Runs `program` on every rank that `args` or the launcher define.
///
/// With `--workers N` this process starts `N` ranks, and further ones as servers of the key-value
/// store, and watches them. Otherwise it is a rank, either alone or started by mpiexec, srun,
/// torchrun or MXNet's tracker. The tracker's scheduler only waits until the ranks have ended. An
/// error ends all ranks, prints one line on standard error that names its cause, and sets the exit
/// code 1, or 2 if an option or the environment cannot be used. Where a signal has ended the training before
/// it was complete, the exit code is 128 plus the signal's number.
pub fn run<E: Into<ProgramError> + 'static>(
    args: &TrainArgs,
    program: impl FnOnce(&World) -> std::result::Result<(), E>,
) -> ExitCode {
    let path = args.timeline.as_deref();
    match args.check() {
        Ok(()) => {
            let wanted = RanksToStart {
                workers: args.workers,
                servers: match (args.kvstore, args.servers) {
                    (None, _) => ServerCount::Are(0),
                    (Some(_), Some(servers)) => ServerCount::Are(servers),
                    (Some(_), None) => ServerCount::LaunchersOr(1),
                },
                threads: args.threads,
                interface: args.interface.as_deref(),
                device: args.device,
                saves: args.checkpoints.checkpoint_dir.is_some(),
                grace: args.grace,
            };
            run_wanted(&wanted, |world| {
                program_or_server(world, |world| {
                    args.precision.check(world.device())?;
                    recorded(path, world, program)
                })?;
                // A training has refused them before its first step.
                for (name, value, how) in args.unread().filter(|_| world.is_root()) {
                    note(&format!(
                        "{name} {value} had no effect: this program does not read it ({how})"
                    ));
                }
                Ok::<_, ProgramError>(())
            })
        }
        Err(error) => tell(&one_line(&error), false, UNUSABLE),
    }
}

/// [`run`] for a program with its own options: `workers` ranks, or as many as the launcher started,
/// each with `threads` compute threads, or with its share of this machine's cores, on `device`, or on
/// the one that the environment names.
pub fn run_ranks<E: Into<ProgramError> + 'static>(
    workers: Option<usize>,
    threads: Option<usize>,
    device: Option<DeviceChoice>,
    program: impl FnOnce(&World) -> std::result::Result<(), E>,
) -> ExitCode {
    run_with_servers(workers, None, threads, device, program)
}

/// [`run_ranks`] with `servers` further ranks as servers of a key-value store. Of ranks that a
/// launcher has started, these are the last ones. `None` stands for the number that the launcher
/// says, or for no servers.
pub fn run_with_servers<E: Into<ProgramError> + 'static>(
    workers: Option<usize>,
    servers: Option<usize>,
    threads: Option<usize>,
    device: Option<DeviceChoice>,
    program: impl FnOnce(&World) -> std::result::Result<(), E>,
) -> ExitCode {
    let servers = servers.map_or(ServerCount::LaunchersOr(0), ServerCount::Are);
    let (interface, saves, grace) = (None, false, None);
    let wanted = RanksToStart { workers, servers, threads, interface, device, saves, grace };
    run_wanted(&wanted, |world| program_or_server(world, program))
}

/// The ranks to start, and the settings of each.
struct RanksToStart<'a> {
    /// Without the servers.
    workers: Option<usize>,
    servers: ServerCount,
    threads: Option<usize>,
    interface: Option<&'a str>,
    /// `None`: the environment decides.
    device: Option<DeviceChoice>,
    /// Whether the training saves its state when a signal ends it.
    saves: bool,
    /// The time to save it. `None`: the environment decides.
    grace: Option<Duration>,
}

/// The number of ranks that are servers of the key-value store.
#[derive(Clone, Copy)]
enum ServerCount {
    Are(usize),
    /// The number that the launcher says, or this one if it says none.
    LaunchersOr(usize),
}

fn run_wanted<E: Into<ProgramError> + 'static>(
    wanted: &RanksToStart<'_>,
    program: impl FnOnce(&World) -> std::result::Result<(), E>,
) -> ExitCode {
    match start(wanted) {
        Ok(ProgramRole::Rank(launch)) => rank(launch, wanted.device, program),
        Ok(ProgramRole::Scheduler(scheduler)) => schedule(&scheduler),
        Ok(ProgramRole::Launcher(ended)) => match ended.outcome {
            Outcome::Success => ExitCode::SUCCESS,
            Outcome::Interrupted { signal, message } => {
                complain(&message);
                exit_code_of(signal)
            }
            Outcome::Failed(message) => {
                complain(&message);
                ExitCode::from(if ended.code == i32::from(UNUSABLE) { UNUSABLE } else { FAILED })
            }
            other => {
                complain(&format!("the job ended with {other:?}"));
                ExitCode::from(FAILED)
            }
        },
        // No rank has begun, so what the environment says is at fault.
        Err(error @ Error::Dist(DistError::Launch { .. })) => {
            tell(&one_line(&error), false, UNUSABLE)
        }
        Err(error) => fail(&error.into()),
    }
}

/// Runs `program`, and records a timeline if there is a `path`.
fn recorded<E: Into<ProgramError> + 'static>(
    path: Option<&Path>,
    world: &World,
    program: impl FnOnce(&World) -> std::result::Result<(), E>,
) -> std::result::Result<(), ProgramError> {
    let Some(path) = path else { return program(world).map_err(failure) };
    let timeline = Timeline::start(path, world)?;
    // A launcher ends its ranks by a signal first. That is the time to write the timeline's part.
    drop(LAST_WORDS.set(Box::new(timeline.last_words())));
    program(world).map_err(failure)?;
    Ok(timeline.finish(world)?)
}

/// The work to do before a signal ends this process.
static LAST_WORDS: OnceLock<Box<dyn Fn() + Send + Sync>> = OnceLock::new();

/// Runs `program` on a worker. A server of the key-value store serves the workers instead.
fn program_or_server<E: Into<ProgramError> + 'static>(
    world: &World,
    program: impl FnOnce(&World) -> std::result::Result<(), E>,
) -> std::result::Result<(), ProgramError> {
    if world.is_server() {
        Server::new().run(world)?;
        return Ok(());
    }
    program(world).map_err(failure)
}

/// The exit code of an option, or of an environment, that cannot be used. Starting the program again would not help, so
/// `candelabrum run` does not, and a wrong command line has this code, too.
const UNUSABLE: u8 = 2;

/// The exit code of every other error.
const FAILED: u8 = 1;

/// The exit code for an error.
fn code_of(error: &(dyn StdError + 'static)) -> u8 {
    let is_setting = |error: &DistError| {
        matches!(error, DistError::Setting { .. } | DistError::StrategyOption { .. })
    };
    let is_unusable = |error: &(dyn StdError + 'static)| match error.downcast_ref::<Error>() {
        Some(Error::Option { .. } | Error::NoWorkers { .. }) => true,
        Some(Error::Dist(inner)) => is_setting(inner),
        Some(Error::Store(StoreError::Setting { .. } | StoreError::Kind { .. })) => true,
        Some(Error::Data(DataError::Argument { .. })) => true,
        _ => {
            error.downcast_ref::<DistError>().is_some_and(is_setting)
                || matches!(error.downcast_ref(), Some(DataError::Argument { .. }))
        }
    };
    if chain(error).any(is_unusable) { UNUSABLE } else { FAILED }
}

/// An error and its sources.
fn chain<'e>(
    error: &'e (dyn StdError + 'static),
) -> impl Iterator<Item = &'e (dyn StdError + 'static)> {
    std::iter::successors(Some(error), |error| (**error).source())
}

enum ProgramRole {
    Rank(Launch),
    Launcher(JobEnd),
    Scheduler(Scheduler),
}

fn start(wanted: &RanksToStart<'_>) -> Result<ProgramRole> {
    if let Some(scheduler) = Scheduler::from_env()? {
        return Ok(ProgramRole::Scheduler(scheduler));
    }
    let &RanksToStart { workers, servers, threads, interface, .. } = wanted;
    let launch = Launch::detect_for(workers)?;
    let servers = match servers {
        ServerCount::LaunchersOr(_) if launch.servers > 0 => launch.servers,
        ServerCount::LaunchersOr(servers) | ServerCount::Are(servers) => servers,
    };
    let bound = |threads| RankEnvironment::new(threads).interface(interface).servers(servers);
    match workers.map(|workers| (workers, workers.saturating_add(servers))) {
        // A launcher of one process has started nothing that would contradict the option.
        Some((_, ranks)) if ranks > 1 && launch.world_size == 1 => {
            let threads = threads.unwrap_or_else(|| default_threads(ranks));
            let job = Job::of_this_program()?.ranks(ranks, &bound(threads)).grace(wanted.grace);
            Ok(ProgramRole::Launcher(job.run(&mut launch::Signals::for_jobs()?)?))
        }
        Some((workers, ranks)) if ranks != launch.world_size => {
            let all = launch.world_size;
            let with =
                if servers > 0 { format!(" beside {servers} servers") } else { String::new() };
            let range = format!("left out: the launcher has already started {all}");
            Err(Error::option("--workers", &format_args!("{workers}{with}"), range))
        }
        _ if servers >= launch.world_size => {
            Err(Error::NoWorkers { servers, ranks: launch.world_size })
        }
        _ => {
            // All ranks learn of a contradiction before they wait for each other.
            let launch = launch.with_servers(servers)?;
            let threads = threads.unwrap_or_else(|| launch.default_threads());
            launch::prepare(&bound(threads))?;
            set_threads(threads)?;
            if wanted.saves {
                // From now on a signal is for the training. ServerCount end when their workers do.
                interrupt::interrupt();
            }
            hear_signals(launch.rank == 0);
            Ok(ProgramRole::Rank(launch))
        }
    }
}

fn schedule(scheduler: &Scheduler) -> ExitCode {
    note(&format!("this process is {scheduler}; it only waits until they have ended"));
    scheduler.run().map_or_else(|error| fail(&error.into()), |()| ExitCode::SUCCESS)
}

fn rank<E: Into<ProgramError> + 'static>(
    launch: Launch,
    device: Option<DeviceChoice>,
    program: impl FnOnce(&World) -> std::result::Result<(), E>,
) -> ExitCode {
    let device = device.map_or_else(DeviceChoice::from_env, Ok);
    let world = match device.and_then(|device| World::launched(launch, device)) {
        Ok(world) => world,
        Err(error) => return fail(&error.into()),
    };
    if let Some(why) = world.why_no_gpu().filter(|_| world.is_root()) {
        note(&format!("{why}; this run computes on the CPU"));
    }
    let Err(error) = program(&world) else { return ended(&world) };
    let error = failure(error);
    let message = one_line(&*error);
    // A program may have made an error of its own of what the communicator has said.
    let has_failed_peer = || world.everyone().failure().is_some_and(|failure| failure.is_echo());
    if is_echo(&*error) || has_failed_peer() {
        return tell(&message, true, FAILED); // it names the failed rank
    }
    let code = code_of(&*error);
    let exit = match world.launcher() {
        Launcher::Alone | Launcher::Candelabrum => tell(&message, false, code),
        _ => {
            complain(&of_rank(world.everyone().rank(), &message));
            ExitCode::from(code)
        }
    };
    world.abort(&message);
    exit
}

/// The end of a program that has succeeded, unless a signal has ended its training before it was complete.
fn ended(world: &World) -> ExitCode {
    let Some(signal) = interrupt::interrupted() else {
        launch::report(RankEvent::Complete);
        return ExitCode::SUCCESS;
    };
    say_interrupted(signal, world.everyone().rank() == 0, "");
    exit_code_of(signal)
}

/// Reports the failure to the launcher, or to the user if there is none.
fn fail(error: &ProgramError) -> ExitCode {
    tell(&one_line(&**error), is_echo(&**error), code_of(&**error))
}

fn tell(message: &str, echo: bool, code: u8) -> ExitCode {
    if !launch::report(RankEvent::Failed { message: message.to_owned(), echo }) {
        complain(message);
    }
    ExitCode::from(code)
}

/// The one place where a program's error is printed.
fn complain(message: &str) {
    // On a terminal a progress bar may be in this line: return to its start and clear it.
    let clear = if io::stderr().is_terminal() { "\r\x1b[2K" } else { "" };
    // After SIGHUP the terminal may be gone.
    drop(writeln!(io::stderr(), "{clear}error: {message}"));
}

/// Tells the launcher that a signal ends this rank, or the user, if this is the rank that prints. `lost` says what
/// is lost.
fn say_interrupted(signal: i32, prints: bool, lost: &str) {
    if !launch::report(RankEvent::Interrupted(signal)) && prints {
        complain(&format!("{}{lost}", interrupted_by(signal)));
    }
}

fn exit_code_of(signal: i32) -> ExitCode {
    ExitCode::from(u8::try_from(128 + signal).unwrap_or(1))
}

/// Lets SIGINT, SIGTERM and SIGHUP end a training of a program that does without [`run`], in order: the training
/// takes what is returned as [`FitConfig::interrupt`](crate::FitConfig::interrupt), saves its state after its
/// present step, and returns. A SIGINT 2 seconds or more after the first signal ends the process at once.
pub fn watch_signals() -> Interrupt {
    let interrupt = interrupt::interrupt();
    hear_signals(Launch::detect().map_or(true, |launch| launch.rank == 0));
    interrupt
}

/// Ends the process after a signal. A training that looks for one saves its state first. `prints`: this rank prints
/// the reason if there is no launcher to do it.
fn hear_signals(prints: bool) {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| wait_for_signals(prints));
}

fn wait_for_signals(prints: bool) {
    // Without handlers, the system's defaults end the process too.
    let Ok(mut signals) = Signals::new(launch::ending_signals()) else { return };
    let wait = move || {
        let mut request = EndRequest::default();
        for signal in signals.forever() {
            let lost = match request.hear(signal) {
                StopRequest::First if interrupt::request(signal) => continue,
                StopRequest::First => String::new(),
                StopRequest::Same => continue,
                StopRequest::AtOnce => what_is_lost(),
            };
            if let Some(last_words) = LAST_WORDS.get() {
                last_words();
            }
            say_interrupted(signal, prints, &lost);
            launch::exit_at_once(128 + signal);
        }
    };
    drop(thread::Builder::new().name("candelabrum-signals".to_owned()).spawn(wait));
}

/// What a training loses that looks for signals and does not end in order.
fn what_is_lost() -> String {
    match newest_checkpoint() {
        Some(step) => format!("; nothing was saved since step {step}"),
        None => "; nothing was saved".to_owned(),
    }
}

/// The error and its sources in one line. A source that its parent already quotes is left out.
fn one_line(error: &(dyn StdError + 'static)) -> String {
    let mut line = error.to_string();
    for text in chain(error).skip(1).map(ToString::to_string) {
        if !line.contains(&text) {
            line = format!("{line}: {text}");
        }
    }
    // If RUST_BACKTRACE is set, candle appends a backtrace to its errors.
    let line = line.lines().next().unwrap_or_default();
    // The system's own words have no place: a program that wrote to a full standard output gives them as they are.
    if line.contains(" (os error ") && !line.contains(": ") {
        return format!("a file or stream of this program, such as standard output: {line}");
    }
    line.to_owned()
}

/// Whether the error only reports the failure of another rank.
fn is_echo(error: &(dyn StdError + 'static)) -> bool {
    let echo = |error: &(dyn StdError + 'static)| match error.downcast_ref::<Error>() {
        Some(Error::Dist(inner)) => Some(inner.is_echo()),
        Some(Error::Store(inner)) => Some(inner.is_echo()),
        _ => {
            let of_store = || error.downcast_ref::<StoreError>().map(StoreError::is_echo);
            error.downcast_ref::<DistError>().map(DistError::is_echo).or_else(of_store)
        }
    };
    chain(error).find_map(echo).unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_of_the_system_alone_gets_a_place() {
        let full = io::Error::from_raw_os_error(28);
        assert!(one_line(&full).starts_with("a file or stream of this program, such as standard"));
        let named = Error::write("timeline", Path::new("t.json"))(full);
        assert!(one_line(&named).starts_with("cannot write the timeline t.json: No space left"));
    }

    #[test]
    fn what_no_restart_can_mend_has_its_own_exit_code() {
        let setting = || DistError::Setting { setting: "x", value: String::new(), range: "y" };
        let option = Error::option("--ema", &"1.5", "below 1");
        let launch = DistError::Launch { what: "a port in use".to_owned() };
        assert_eq!(code_of(&option), UNUSABLE);
        assert_eq!(code_of(&Error::from(setting())), UNUSABLE);
        assert_eq!(code_of(&setting()), UNUSABLE);
        let hidden = anyhow::Error::from(option).context("the options");
        assert_eq!(code_of(&*failure(hidden)), UNUSABLE);
        assert_eq!(code_of(&Error::from(launch)), FAILED);
    }

    #[test]
    fn an_echo_is_recognised_through_wrappers() {
        let echo = DistError::PeerDied { peer: 1, rank: 0, during: "all_reduce".to_owned() };
        let own = DistError::NotFinite { what: "the loss".to_owned(), rank: 0 };
        assert!(is_echo(&*failure(anyhow::Error::from(Error::from(echo.clone())))));
        assert!(is_echo(&echo) && !is_echo(&own));
        assert!(is_echo(&Error::from(echo)) && !is_echo(&Error::from(own)));
    }
}
