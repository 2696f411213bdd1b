//! SIGINT, SIGTERM and SIGHUP: the run saves its state once and ends, and continues with the same bits.
//!
//! `CANDELABRUM_SIGNALS=20 cargo test --test jobs every_signal -- --nocapture` tries each way of starting with each
//! way of a signal, number of ranks and moment so many times, with steps of 1, 15 and 100 ms, and prints a table.
//! `CANDELABRUM_TESTS=all` does so once.

use std::collections::BTreeMap;
use std::fs;
use std::num::NonZero;
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use candelabrum::dist::launch::AGAIN;
use candelabrum_testkit::{runs_all, split_mix};
use rustix::process::Signal;

use super::job::{LIMIT, Place};
use super::phases;
use super::ways::{Ended, Job, Sent, TRIES, Way};

const INT: Signal = Signal::INT;
const TERM: Signal = Signal::TERM;

/// What the run does when the signal arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Moment {
    /// A step.
    Step,
    /// An evaluation in the middle of an epoch. It has several batches.
    Evaluation,
    /// The evaluation of an epoch.
    EpochEnd,
    /// A checkpoint is being written, and the steps go on.
    Writing,
}

/// A run that a signal ends.
#[derive(Clone, Copy, Debug)]
struct Case {
    way: Way,
    ranks: usize,
    sent: Sent,
    moment: Moment,
    /// The milliseconds of a step.
    step: u64,
}

impl Case {
    /// A run with as many epochs as this, and the options for the moment.
    fn place(&self, epochs: usize) -> Place {
        let more = match self.moment {
            Moment::Step => "",
            Moment::Evaluation => "--evaluate-every 3 --slow-evaluation 10",
            Moment::EpochEnd => "--slow-evaluation 10",
            Moment::Writing => "--checkpoint-every 3 --slow-write 100",
        };
        let step = self.step;
        Place::new(&format!("--batch-size 12 --threads 1 --epochs {epochs} --slow {step} {more}"))
    }

    /// Waits until the run does what the case wants.
    #[track_caller]
    fn wait(&self, job: &mut Job, place: &Place) {
        job.wait(|| match self.moment {
            Moment::Step => steps_seen(place) >= 3,
            Moment::Evaluation | Moment::EpochEnd => is_in_phase(place, "evaluate"),
            Moment::Writing => is_in_phase(place, "write"),
        });
    }

    /// Runs the case in a place. `pause` is the time between the moment and the signal. `None` if this machine
    /// cannot start it.
    #[track_caller]
    fn run(&self, place: &Place, pause: Duration, more: &str) -> Option<Ended> {
        let mut job = Job::start(self.way, self.ranks, place, more)?;
        self.wait(&mut job, place);
        thread::sleep(pause);
        job.send(self.sent);
        Some(job.finish())
    }

    /// What is wrong with the end.
    fn complaint(&self, place: &Place, ended: &Ended) -> Option<String> {
        let signal = self.sent.signal();
        let is_right = match (self.way, ended.code) {
            (Way::Mpiexec, code) => code != Some(0),
            (_, code) => code == Some(128 + signal.as_raw()),
        };
        if !is_right {
            return Some(format!("the exit code is {:?}", ended.code));
        }
        let (names, steps) = (place.steps(), steps_seen(place));
        let expected = format!("step-{steps:08}");
        if names.first() != Some(&expected) {
            return Some(format!("{names:?} after step {steps}"));
        }
        if names.len() != 1 && self.moment != Moment::Writing {
            return Some(format!("saved more than once: {names:?}"));
        }
        let left = fs::read_dir(place.checkpoints()).unwrap();
        let mut left = left.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        if let Some(left) = left.find(|name| name.contains("partial")) {
            return Some(format!("{left} is left"));
        }
        let name = match signal {
            Signal::INT => "SIGINT",
            Signal::HUP => "SIGHUP",
            _ => "SIGTERM",
        };
        let line = format!("error: interrupted by {name}");
        let count = ended.text.matches(&line).count();
        // A closed terminal shows nothing, and mpiexec does not pass every signal on as it is.
        if self.sent != Sent::HangUp && self.way != Way::Mpiexec && count != 1 {
            return Some(format!("the line `{line}` is there {count} times"));
        }
        None
    }
}

/// The number of steps that rank 0 has taken.
fn steps_seen(place: &Place) -> usize {
    let text = fs::read_to_string(place.notes().join("seen-0"));
    text.map_or(0, |text| text.lines().count())
}

fn is_in_phase(place: &Place, phase: &str) -> bool {
    phases::last(&place.notes(), 0) == phase
}

/// Calls `f` with each item, on as many threads as this machine has cores.
fn for_each<T: Send>(items: impl IntoIterator<Item = T, IntoIter: Send>, f: impl Fn(T) + Sync) {
    let items = Mutex::new(items.into_iter());
    let next = || items.lock().unwrap().next();
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, NonZero::get) {
            scope.spawn(|| {
                while let Some(item) = next() {
                    f(item);
                }
            });
        }
    });
}

#[test]
fn a_signal_saves_the_state_once_and_ends_the_run() {
    use Moment::{EpochEnd, Evaluation, Step, Writing};
    use Way::{Alone, Command, Mpiexec, Script, Workers};
    let cases = [
        (Alone, 1, Sent::Key, Step, 15),
        (Alone, 1, Sent::HangUp, Step, 1),
        (Alone, 1, Sent::Launcher(TERM), Evaluation, 1),
        (Alone, 1, Sent::Launcher(INT), Writing, 15),
        (Workers, 2, Sent::Key, Step, 1),
        (Workers, 2, Sent::Key, Step, 15),
        (Workers, 2, Sent::Key, Step, 100),
        (Workers, 2, Sent::Key, Evaluation, 1),
        (Workers, 2, Sent::Key, Writing, 15),
        (Workers, 2, Sent::HangUp, Step, 15),
        (Workers, 2, Sent::Launcher(TERM), Step, 15),
        (Workers, 2, Sent::Group(TERM), Evaluation, 15),
        (Workers, 2, Sent::All(TERM), Step, 15),
        (Workers, 2, Sent::Rank(TERM), Step, 15),
        (Workers, 3, Sent::Key, Step, 15),
        (Workers, 3, Sent::All(TERM), EpochEnd, 1),
        (Workers, 3, Sent::Rank(INT), EpochEnd, 1),
        (Command, 1, Sent::Key, Step, 15),
        (Command, 2, Sent::Key, Step, 15),
        (Command, 2, Sent::HangUp, Step, 15),
        (Command, 2, Sent::All(TERM), Step, 15),
        (Command, 2, Sent::Rank(TERM), Step, 15),
        (Command, 3, Sent::Key, Evaluation, 1),
        (Command, 3, Sent::Launcher(TERM), Writing, 15),
        (Script, 2, Sent::Launcher(TERM), Step, 15),
        (Script, 2, Sent::Key, Step, 15),
        (Mpiexec, 2, Sent::Key, Step, 15),
        (Mpiexec, 2, Sent::All(TERM), EpochEnd, 1),
        (Mpiexec, 3, Sent::Rank(TERM), Step, 15),
    ];
    let complaints = Mutex::new(Vec::new());
    for_each(cases, |(way, ranks, sent, moment, step)| {
        let case = Case { way, ranks, sent, moment, step };
        let place = case.place(1000);
        let Some(ended) = case.run(&place, Duration::ZERO, "") else {
            println!("left out, because there is no mpiexec here: {case:?}");
            return;
        };
        if let Some(complaint) = case.complaint(&place, &ended) {
            complaints.lock().unwrap().push(format!("{case:?}: {complaint}\n{}", ended.text));
        }
    });
    let complaints = complaints.into_inner().unwrap();
    assert!(complaints.is_empty(), "{} cases:\n{}", complaints.len(), complaints.join("\n"));
}

#[test]
fn workers_of_a_store_save_their_state_with_its_servers() {
    let kinds = ["dist_sync", "dist_async"].into_iter();
    let cases = kinds.flat_map(|kind| {
        let sent = [(kind, Sent::Key), (kind, Sent::Rank(TERM))].into_iter();
        sent.flat_map(|(kind, sent)| [(kind, sent, Moment::Step), (kind, sent, Moment::EpochEnd)])
    });
    for_each(cases, |(kind, sent, moment)| {
        let case = Case { way: Way::Workers, ranks: 2, sent, moment, step: 15 };
        let place = case.place(1000);
        let store = format!("--kvstore {kind} --servers 1");
        let ended = case.run(&place, Duration::ZERO, &store).unwrap();
        let complaint = case.complaint(&place, &ended);
        assert_eq!(complaint, None, "{kind} {case:?}: {:?}", errors(&ended.text));
        let ended = place.run(&format!("{store} --workers 2 --epochs 2"));
        let text = &ended.err;
        assert!(ended.succeeded() && text.contains("note: continues "), "{case:?}: {text}");
    });
}

#[test]
fn a_signal_to_a_run_that_is_complete_changes_nothing() {
    for_each([(Way::Alone, 1), (Way::Workers, 2), (Way::Command, 2)], |(way, ranks)| {
        let place = Place::new("--epochs 1 --batch-size 12 --threads 1");
        // The last checkpoint is being written.
        let mut job = Job::start(way, ranks, &place, "--slow-write 300").unwrap();
        job.wait(|| is_in_phase(&place, "write"));
        job.send(Sent::Key);
        let ended = job.finish();
        assert_eq!(ended.code, Some(0), "{way:?}: {}", ended.text);
        assert!(!ended.text.contains("interrupted"), "{way:?}: {}", ended.text);
        assert_eq!(place.steps().len(), 1, "{way:?}");
    });
}

#[test]
fn ctrl_c_again_some_seconds_later_ends_a_run_at_once_and_says_what_is_lost() {
    for_each([(Way::Alone, 1), (Way::Workers, 2)], |(way, ranks)| {
        let place = Place::new("--batch-size 12 --threads 1");
        place.succeed(&format!("--epochs 1 --workers {ranks}"));
        let saved = steps_seen(&place);
        let mut job = Job::start(way, ranks, &place, "--epochs 2 --slow 60000").unwrap();
        job.wait(|| steps_seen(&place) > saved);
        let begin = Instant::now();
        while job.runs() {
            assert!(begin.elapsed() < LIMIT);
            job.send(Sent::Key);
            thread::sleep(Duration::from_millis(50));
        }
        assert!(begin.elapsed() >= AGAIN, "{way:?}");
        let Ended { code, text } = job.finish();
        let killed = match way {
            Way::Alone => "",
            _ => "rank 0, rank 1 did not end in time and had to be killed: ",
        };
        let line =
            format!("error: interrupted by SIGINT; {killed}nothing was saved since step {saved}");
        assert_eq!((code, errors(&text)), (Some(130), vec![line]), "{way:?}");
    });
}

#[test]
fn ranks_have_as_long_to_save_their_state_as_the_user_says() {
    let place = Place::new("--epochs 1000 --batch-size 12 --threads 1");
    let mut job = Job::start(Way::Workers, 2, &place, "--slow 60000 --grace 0.5").unwrap();
    job.wait(|| steps_seen(&place) >= 1);
    job.send(Sent::Launcher(TERM));
    let Ended { code, text } = job.finish();
    let line = "error: interrupted by SIGTERM; rank 0, rank 1 did not end in time and had to be killed: \
                nothing was saved since step 0";
    assert_eq!((code, errors(&text)), (Some(143), vec![line.to_owned()]));
}

#[test]
fn ranks_that_need_seconds_to_save_their_state_have_them() {
    for_each([Way::Workers, Way::Command], |way| {
        let place = Place::new("--epochs 1000 --batch-size 12 --threads 1");
        // A step that lasts longer than launchers usually wait, but not as long as `--grace` allows.
        let mut job = Job::start(way, 2, &place, "--slow 5000").unwrap();
        job.wait(|| steps_seen(&place) >= 1);
        job.send(Sent::Launcher(TERM));
        let Ended { code, text } = job.finish();
        assert_eq!((code, place.steps().len()), (Some(143), 1), "{way:?}: {text}");
    });
}

#[test]
fn a_run_without_checkpoints_ends_soon_with_a_clear_line() {
    let cases = [
        (Way::Alone, 1, Sent::Key, "SIGINT"),
        (Way::Workers, 2, Sent::Key, "SIGINT"),
        (Way::Workers, 2, Sent::All(TERM), "SIGTERM"),
        (Way::Workers, 2, Sent::Rank(TERM), "SIGTERM"),
        (Way::Command, 2, Sent::Key, "SIGINT"),
        (Way::Command, 2, Sent::Rank(TERM), "SIGTERM"),
    ];
    for_each(cases, |(way, ranks, sent, name)| {
        let place = Place::new("--epochs 1000 --batch-size 12 --threads 1");
        let place = place.without_checkpoints();
        let mut job = Job::start(way, ranks, &place, "--slow 15").unwrap();
        job.wait(|| steps_seen(&place) >= 3);
        job.send(sent);
        let Ended { code, text } = job.finish();
        assert_eq!(code, Some(128 + sent.signal().as_raw()), "{way:?} {sent:?}: {text}");
        assert_eq!(errors(&text), [format!("error: interrupted by {name}")], "{way:?} {sent:?}");
    });
}

#[test]
fn a_state_that_cannot_be_saved_is_named_with_the_signal() {
    for_each([(Way::Alone, 1), (Way::Workers, 2)], |(way, ranks)| {
        let place = Place::new("--epochs 1000 --batch-size 12 --threads 1");
        let mut job = Job::start(way, ranks, &place, "--slow 15").unwrap();
        job.wait(|| steps_seen(&place) >= 3);
        // A file takes the place of the directory.
        fs::remove_dir_all(place.checkpoints()).unwrap();
        fs::write(place.checkpoints(), "").unwrap();
        job.send(Sent::Key);
        let Ended { code, text } = job.finish();
        let errors = errors(&text);
        assert_eq!(errors.len(), 1, "{way:?}: {text}");
        assert!(errors[0].contains("has not the last checkpoint"), "{way:?}: {text}");
        let begin = "error: interrupted by SIGINT; ";
        assert!(way == Way::Alone || errors[0].starts_with(begin), "{way:?}: {text}");
        assert_eq!(code, Some(if way == Way::Alone { 1 } else { 130 }), "{way:?}: {text}");
    });
}

#[test]
fn nothing_is_left_of_a_job_whose_launcher_is_killed() {
    for_each([Way::Workers, Way::Command, Way::Script], |way| {
        let place = Place::new("--epochs 1000 --batch-size 12 --threads 1");
        let mut job = Job::start(way, 2, &place, "--slow 15").unwrap();
        job.wait(|| steps_seen(&place) >= 3);
        job.send(Sent::Launcher(Signal::KILL));
        assert_eq!(job.finish().code, None, "{way:?}");
    });
}

/// The lines of errors on a terminal.
fn errors(text: &str) -> Vec<String> {
    let lines = text.lines().filter_map(|line| line.find("error: ").map(|begin| &line[begin..]));
    lines.map(|line| line.trim_end().to_owned()).collect()
}

#[test]
fn every_signal_in_every_way_of_starting_saves_the_state_once() {
    let wanted: Option<u64> = std::env::var(TRIES).ok().and_then(|text| text.parse().ok());
    let Some(tries) = wanted.or(runs_all().then_some(1)) else {
        println!("left out: {TRIES} has no number of tries, and CANDELABRUM_TESTS is not all");
        return;
    };
    let counts = Mutex::new(BTreeMap::<(Way, usize, String, Moment), u64>::new());
    let moments = [Moment::Step, Moment::Evaluation, Moment::EpochEnd, Moment::Writing];
    for_each(0..tries, |number| {
        for (way, ranks, sent) in all() {
            for (index, moment) in moments.into_iter().enumerate() {
                let step = [1, 15, 100][(number as usize + index) % 3];
                let case = Case { way, ranks, sent, moment, step };
                let random = split_mix(number * 1000 + ranks as u64 * 10 + index as u64);
                let place = case.place(1000);
                let pause = Duration::from_micros(random % 60_000);
                let Some(ended) = case.run(&place, pause, "") else { continue };
                let complaint = case.complaint(&place, &ended);
                if let Some(complaint) = &complaint {
                    println!("{case:?} after {pause:?}: {complaint}\n{}", ended.text);
                }
                let key = (way, ranks, format!("{sent:?}"), moment);
                *counts.lock().unwrap().entry(key).or_default() += u64::from(complaint.is_none());
            }
        }
    });
    println!("\nsaved once, of {tries} tries\n");
    println!("| way | ranks | signal | step | evaluation | end of an epoch | writing |");
    println!("|---|---|---|---|---|---|---|");
    let counts = counts.into_inner().unwrap();
    for (way, ranks, sent) in all() {
        let of = |moment| counts.get(&(way, ranks, format!("{sent:?}"), moment)).copied();
        let row: Vec<String> = moments
            .into_iter()
            .map(|moment| of(moment).map_or("-".to_owned(), |count| count.to_string()))
            .collect();
        println!("| {way:?} | {ranks} | {sent:?} | {} |", row.join(" | "));
    }
    assert!(counts.values().all(|&count| count == tries));
}

/// The ways of starting, with the ways of a signal.
fn all() -> Vec<(Way, usize, Sent)> {
    let mut all = Vec::new();
    let ways = [(Way::Alone, 1), (Way::Workers, 2), (Way::Workers, 3)];
    let ways = ways.into_iter().chain([1, 2, 3].map(|ranks| (Way::Command, ranks)));
    for (way, ranks) in ways.chain([1, 2, 3].map(|ranks| (Way::Mpiexec, ranks))) {
        let hang_up = if way == Way::Mpiexec { Sent::Launcher(INT) } else { Sent::HangUp };
        let sent = [Sent::Key, Sent::Launcher(TERM), hang_up, Sent::Group(TERM), Sent::All(TERM)];
        all.extend(sent.map(|sent| (way, ranks, sent)));
        all.push((way, ranks, Sent::Rank(TERM)));
    }
    all
}
