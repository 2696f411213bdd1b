//! Faults of ranks. The error names the rank and the operation, no rank waits without end, each
//! rank that the fault affects exits with a failure, and nothing is left behind.
//!
//! Over MPI the failure of one rank ends the job, possibly before another rank has printed the same
//! error. So the tests over MPI search the output of all ranks together.

use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use candelabrum_dist::{
    Collective, Communicator, Error, Mesh, Payload, ReduceOp, Result, World, synchronize_batch_norm,
};
use candelabrum_nn::Params;
use candelabrum_nn::layers::BatchNorm2d;
use candle_core::{DType, Device, Module, Tensor};
use rustix::process::Signal;

use crate::harness::{self, Backend, EndedProgram, Group, leave_note, wait_for_notes};

/// Ranks of every case here.
pub(crate) const RANKS: usize = 3;

/// Ranks of a job that is large for one host.
const MANY: usize = 64;

pub(crate) fn run(case: &str, world: &World) -> Result<()> {
    let (comm, rank) = (world.comm(), world.rank());
    // The fault is in the second operation. In a build with CUDA, ranks on the CPU have already
    // compared their devices.
    if comm.stats().bytes_sent == 0 {
        comm.barrier()?;
    }
    match case {
        "length" => sum(comm, if rank == 1 { 11 } else { 10 }),
        "long length" => sum(comm, if rank == 1 { 400_001 } else { 400_000 }),
        "element type" if rank == 1 => comm.all_reduce(&mut [0_i32; 10], ReduceOp::Sum),
        "element type" => sum(comm, 10),
        "reduce op" if rank == 2 => comm.all_reduce(&mut [0_f32; 10], ReduceOp::Max),
        "reduce op" => sum(comm, 10),
        "order" if rank == 2 => comm.broadcast(&mut [0_f32; 10], 1).and_then(|()| sum(comm, 10)),
        "order" => sum(comm, 10).and_then(|()| comm.broadcast(&mut [0_f32; 10], 1)),
        "refused" => {
            let values = vec![0_f32; if rank == 1 { 4 } else { 6 }];
            refused(rank, || comm.reduce_scatter(&values, ReduceOp::Sum).map(drop))
        }
        "refused by layers" => {
            let layered = comm.hierarchical(&Mesh::new(vec![0, 0, 1]))?;
            // All ranks have the groups before one of them refuses.
            comm.barrier()?;
            thread::sleep(Duration::from_millis(100));
            refused(rank, || match rank {
                1 => layered.all_reduce(&mut [1_i32; 3], ReduceOp::Mean),
                _ => layered.all_reduce(&mut [1_f32; 3], ReduceOp::Mean),
            })
        }
        "fails alone" => refused(rank, || match rank {
            1 => fails_alone(comm),
            _ => sum(comm, 10),
        }),
        "fails alone, group" => {
            let group = comm.split((rank != 1).then_some(0), 0)?;
            refused(rank, || match (rank, &group) {
                (0, Some(group)) => sum(&**group, 100_000),
                (2, _) => comm.recv(&mut [0_u8], 1),
                _ => fails_alone(comm),
            })
        }
        "layers" => normalisations(world, rank == 1),
        "allocation" => comm.alloc(candelabrum_dist::ElementType::F32, 10 + rank).map(drop),
        "message length" => message(comm, &[1_i32, 2], &mut [0_i32; 3]),
        "message type" => message(comm, &[1_i32, 2], &mut [0_f32; 2]),
        "no message" if rank == 1 => Ok(()),
        "no message" => comm.recv(&mut [0_u8], 1),
        "early" if rank == 1 => Ok(()),
        "early" => until_it_fails(comm),
        "panic" if rank == 1 => panic!("a fault on purpose"),
        "panic" => until_it_fails(comm),
        "killed" | "killed in a long slice" => {
            if rank == 1 {
                thread::spawn(kill_soon);
            }
            if case == "killed" {
                until_it_fails(comm)
            } else {
                long_until_it_fails(comm, 10_000_000)
            }
        }
        "killed of many" => {
            if rank == MANY / 2 {
                let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970");
                println!("killed at {} ms", now.as_millis());
                thread::spawn(kill_now);
            }
            loop {
                sum(comm, 1000)?;
            }
        }
        "deadline" => {
            if rank == 1 {
                // Until the others have ended.
                thread::sleep(Duration::from_secs(2));
            }
            sum(comm, 10)
        }
        late if late.starts_with("late ") => everybody_is_told(comm, late),
        "stopped" => {
            if rank == 1 {
                let own = rustix::process::getpid();
                rustix::process::kill_process(own, Signal::STOP).expect("stop");
                // Another thread may receive the signal first.
                thread::sleep(Duration::from_secs(4));
            }
            sum(comm, 10)
        }
        "stopped for a while" => {
            let own = rustix::process::getpid().as_raw_nonzero().get();
            let pids = comm.all_gather(&[own])?;
            let stopped = rustix::process::Pid::from_raw(pids[1]).expect("a rank of this test");
            if rank == 1 {
                rustix::process::kill_process(stopped, Signal::STOP).expect("stop");
                thread::sleep(Duration::from_millis(500));
            }
            let result = sum(comm, 10);
            if rank == 0 {
                rustix::process::kill_process(stopped, Signal::CONT).expect("continue");
            }
            result
        }
        "exit" if rank == 1 => std::process::exit(0),
        "exit" => until_it_fails(comm),
        "swallowed" => {
            let error = sum(comm, 10 + rank).expect_err("lengths differ");
            println!("swallowed: {error}");
            Ok(())
        }
        "label" => labelled(comm, if rank == 1 { 11 } else { 10 }),
        "label of a wait" if rank == 1 => Ok(()),
        "label of a wait" => labelled(comm, 10),
        "last words" => {
            // The others have no further operation and leave.
            if rank == 1 {
                thread::sleep(Duration::from_millis(300));
                kill_now();
            }
            Ok(())
        }
        "any order" => {
            let groups = [comm.split(Some(0), 0)?, comm.split(Some(1), 0)?];
            let [first, second] = groups.map(|group| group.expect("a colour was given"));
            sum(&*first, 10)?;
            sum(&*second, 100_000)?;
            if rank == 1 {
                drop(second);
                drop(first);
            } else {
                drop(first);
                drop(second);
            }
            Ok(())
        }
        "no room" => comm.alloc(candelabrum_dist::ElementType::U8, 1 << 62).map(drop),
        "no number of bytes" => comm.alloc(candelabrum_dist::ElementType::F64, 1 << 62).map(drop),
        group if group.starts_with("group ") => in_a_group(group, comm),
        other => panic!("there is no case `{other}`"),
    }
}

/// Faults in the group of all ranks but one. In one case the group's order is reversed.
fn in_a_group(case: &str, comm: &(dyn Communicator + 'static)) -> Result<()> {
    let rank = comm.rank();
    let (out, sign) = if case == "group length" { (1, -1) } else { (0, 1) };
    let group = comm.split((rank != out).then_some(0), sign * rank as i64)?;
    let Some(group) = group else {
        if case == "group killed" || case == "group busy" {
            thread::sleep(Duration::from_millis(300));
            kill_soon();
        }
        return comm.barrier();
    };
    match case {
        "group length" => {
            let error = sum(&*group, 10 + rank).expect_err("lengths differ");
            let again = comm.barrier().expect_err("one group's failure is that of all");
            assert_eq!(again.to_string(), error.to_string());
            Err(error)
        }
        "group order" if rank == 2 => group.barrier(),
        "group order" => sum(&*group, 10),
        "group left" if rank == 2 => {
            drop(group);
            comm.barrier()
        }
        "group left" => sum(&*group, 10),
        "group late" | "group killed" if rank == 2 => {
            thread::sleep(Duration::from_secs(3));
            sum(&*group, 10)
        }
        "group late" | "group killed" => {
            let start = Instant::now();
            let result = sum(&*group, 10);
            println!("noticed within {} ms", start.elapsed().as_millis());
            result
        }
        // Neither rank waits long, and the dead rank takes part in none of their operations.
        "group busy" => loop {
            sum(&*group, 10)?;
        },
        other => panic!("there is no case `{other}`"),
    }
}

/// Rank 1 runs its second operation when the deadline has passed on the others, which are still there.
fn everybody_is_told(comm: &(dyn Communicator + 'static), case: &str) -> Result<()> {
    let rank = comm.rank();
    if rank == 1 {
        wait_for_notes(&[0, 2]);
    }
    let start = Instant::now();
    let result = match case {
        "late barrier" => comm.barrier(),
        "late gather" => comm.all_gather(&[rank as i32]).map(drop),
        "late sum" => sum(comm, 10),
        "late long sum" => sum(comm, 400_000),
        "late start" => {
            let numbers = Payload::from_slice(&[0_f32; 10]);
            comm.start(Collective::AllReduce(ReduceOp::Sum), numbers).wait().map(drop)
        }
        "late group" => comm.split(Some(0), 0).map(drop),
        "late message" if rank == 1 => comm.barrier(),
        "late message" => comm.recv(&mut [0_u8], 1),
        other => panic!("there is no case `{other}`"),
    };
    println!("noticed within {} ms", start.elapsed().as_millis());
    leave_note(rank);
    wait_for_notes(ALL);
    result
}

fn labelled(comm: &(dyn Communicator + 'static), len: usize) -> Result<()> {
    let buffer = Payload::from_slice(&vec![0_f32; len]).labelled("bucket 2: conv1.weight");
    comm.run(Collective::AllReduce(ReduceOp::Sum), buffer).map(drop)
}

/// Runs two normalisations with equally many channels, in reversed order if `reversed`.
fn normalisations(world: &World, reversed: bool) -> Result<()> {
    let params = Params::new(0);
    synchronize_batch_norm(&params, &world.group());
    let mut names = ["norm1", "norm2"];
    if reversed {
        names.reverse();
    }
    let xs = Tensor::ones((2, 3), DType::F32, &Device::Cpu)?;
    for name in names {
        BatchNorm2d::new(&params.root().pp(name)).forward(&xs)?;
    }
    Ok(())
}

fn sum(comm: &(dyn Communicator + 'static), len: usize) -> Result<()> {
    comm.all_reduce(&mut vec![0_f32; len], ReduceOp::Sum)
}

/// Rank 0 sends a message that rank 1 does not expect.
fn message<A: candelabrum_dist::Element, B: candelabrum_dist::Element>(
    comm: &(dyn Communicator + 'static),
    sent: &[A],
    expected: &mut [B],
) -> Result<()> {
    match comm.rank() {
        0 => comm.send(sent, 1)?,
        1 => comm.recv(expected, 0)?,
        _ => {}
    }
    comm.barrier()
}

/// Repeats an all-reduce of a long buffer until it fails. Prints the time of the failed one.
fn until_it_fails(comm: &(dyn Communicator + 'static)) -> Result<()> {
    long_until_it_fails(comm, 500_000)
}

fn long_until_it_fails(comm: &(dyn Communicator + 'static), len: usize) -> Result<()> {
    let mut values = vec![1_f32; len];
    loop {
        values.fill(1.0);
        let start = Instant::now();
        if let Err(error) = comm.all_reduce(&mut values, ReduceOp::Sum) {
            println!("noticed within {} ms", start.elapsed().as_millis());
            return Err(error);
        }
    }
}

/// Runs an operation that fails on rank 1. Rank 1 then waits until the other ranks have noticed, which must not
/// learn of the error from its end.
fn refused(rank: usize, operation: impl FnOnce() -> Result<()>) -> Result<()> {
    let start = Instant::now();
    let result = operation();
    println!("noticed within {} ms", start.elapsed().as_millis());
    leave_note(rank);
    if rank == 1 {
        wait_for_notes(ALL);
    }
    result
}

/// Reports an error of this rank, as a user's strategy may. The other ranks wait meanwhile.
fn fails_alone(comm: &(dyn Communicator + 'static)) -> Result<()> {
    thread::sleep(Duration::from_millis(200));
    let error = Error::Unsupported { what: "a fault on purpose".to_owned() };
    comm.fail(&error);
    Err(error)
}

pub(crate) fn kill_soon() {
    thread::sleep(Duration::from_millis(100));
    kill_now();
}

fn kill_now() {
    let own = rustix::process::getpid();
    rustix::process::kill_process(own, Signal::KILL).expect("kill this process");
}

/// Runs a case whose deadline of 1 s passes.
pub(crate) fn late(backend: Backend, case: &str, size: usize) -> EndedProgram {
    let late = Group::new(backend, size, case).variable("CANDELABRUM_TIMEOUT", "1");
    late.limit(Duration::from_secs(40)).run()
}

pub(crate) fn group(backend: Backend, case: &str) -> EndedProgram {
    Group::new(backend, RANKS, case).limit(Duration::from_secs(30)).run()
}

/// Runs a case over the local backend: the ranks `failing` must print an error with all `parts`.
fn local(case: &str, failing: &[usize], parts: &[&str]) -> EndedProgram {
    fails(Backend::Local, case, failing, parts)
}

pub(crate) fn fails(
    backend: Backend,
    case: &str,
    failing: &[usize],
    parts: &[&str],
) -> EndedProgram {
    let ended = group(backend, case);
    for &rank in failing {
        assert!(ended.failed(rank), "{case}: rank {rank} must fail: {}", ended.output());
        for part in parts {
            let output = &ended.ranks[rank].text;
            assert!(output.contains(part), "{case}: no `{part}` from rank {rank}: {output}");
        }
    }
    ended.assert_nothing_is_left();
    ended
}

/// Runs a case under mpiexec: the job must fail, and its output must contain all `parts`.
fn mpi(case: &str, parts: &[&str]) -> EndedProgram {
    let ended = group(Backend::Mpi, case);
    let output = ended.output();
    assert!(!ended.all_succeeded(), "{case} must fail: {output}");
    for part in parts {
        assert!(output.contains(part), "{case}: no `{part}`: {output}");
    }
    ended.assert_nothing_is_left();
    ended
}

pub(crate) const ALL: &[usize] = &[0, 1, 2];

/// Cases in which every rank reads all headers, and parts of the error of every rank.
pub(crate) const DISAGREEMENTS: &[(&str, &[&str])] = &[
    ("length", &["rank 1 calls all_reduce(sum) number 2 of 11 × f32", "number 2 of 10 × f32"]),
    ("long length", &["rank 1 calls all_reduce(sum) number 2 of 400001", "of 400000 × f32"]),
    ("element type", &["rank 1 calls", "10 × i32 where rank 0 calls", "10 × f32"]),
    ("reduce op", &["rank 2 calls all_reduce(max)", "rank 0 calls all_reduce(sum)"]),
    ("order", &["rank 2 calls broadcast(root 1) number 2", "rank 0 calls all_reduce(sum)"]),
    ("allocation", &["rank 1 calls", "11 × f32", "10 × f32"]),
    ("layers", &["rank 1 calls all_gather number 2", "with another label", "(statistics of `norm"]),
    ("label", &["rank 1 calls all_reduce(sum) number 2", " × f32 (bucket 2: conv1.weight)"]),
];

/// Cases in groups: case, failing ranks, parts of the error, which names ranks as in the world.
pub(crate) const IN_GROUPS: &[(&str, &[usize], &[&str])] = &[
    // The group's first rank is the world's last.
    (
        "group length",
        &[0, 2],
        &["rank 0 calls all_reduce(sum) number 1 of 10", "rank 2 calls", "group of ranks 2, 0"],
    ),
    ("group order", &[1, 2], &["rank 2 calls barrier number 1", "rank 1 calls all_reduce(sum)"]),
    ("group left", &[1], &["rank 2 has finished while rank 1", "in the group of ranks 1, 2"]),
    ("group busy", &[1, 2], &["rank 0 died while rank", "in the group of ranks 1, 2"]),
];

#[test]
fn ranks_that_disagree_are_told_who_differs() {
    for (case, parts) in DISAGREEMENTS {
        local(case, ALL, parts);
    }
}

/// The program of the refusing rank reports the error when the others have noticed it.
#[test]
fn a_request_that_one_rank_refuses_ends_it_on_all_at_once() {
    for backend in [Backend::Local, Backend::Tcp] {
        one_rank_refuses(backend);
    }
    if harness::has_mpiexec() {
        mpi("refused", &["reduce_scatter"]);
    }
}

pub(crate) fn one_rank_refuses(backend: Backend) {
    let check = |ended: &EndedProgram, own: &str| {
        for rank in ALL {
            let output = &ended.ranks[*rank].text;
            assert!(ended.failed(*rank), "{output}");
            assert!(
                output.contains(own) || (*rank != 1 && output.contains("rank 1: ")),
                "{output}"
            );
        }
        ended.assert_noticed(3, 1000);
    };
    let ended = group(backend, "refused");
    check(&ended, "reduce_scatter: 4 elements do not divide by 3 ranks");
    check(&group(backend, "refused by layers"), "all_reduce(mean) of i32 is not supported");
}

/// The program of the failing rank ends when the others have noticed its failure.
#[test]
fn a_rank_that_fails_by_itself_is_heard_at_once_whatever_the_others_wait_for() {
    let has_mpi = harness::has_mpi();
    for backend in [Backend::Local, Backend::Tcp, Backend::Mpi] {
        if backend != Backend::Mpi || has_mpi {
            one_rank_fails_by_itself(backend);
        }
    }
}

pub(crate) fn one_rank_fails_by_itself(backend: Backend) {
    for case in ["fails alone", "fails alone, group"] {
        let ended = group(backend, case);
        let output = ended.output();
        for rank in [0, 2] {
            let heard = format!("error of rank {rank}: rank 1: a fault on purpose");
            assert!(output.contains(&heard), "{backend:?}, {case}: {output}");
        }
        assert!(!ended.all_succeeded(), "{output}");
        ended.assert_noticed(3, 1000);
        ended.assert_nothing_is_left();
    }
}

#[test]
fn faults_in_a_group_name_ranks_of_the_world() {
    for (case, failing, parts) in IN_GROUPS {
        local(case, failing, parts);
    }
}

#[test]
fn a_wait_says_what_is_in_its_buffer() {
    let parts = ["rank 1 has finished while rank", "number 2 of 10 × f32 (bucket 2: conv1.weight)"];
    local("label of a wait", &[0, 2], &parts);
}

#[test]
fn memory_that_is_not_there_is_an_error_on_every_rank() {
    local("no room", ALL, &["bytes of shared memory"]);
    fails(Backend::Tcp, "no room", ALL, &["allocate 4611686018427387904 bytes of memory"]);
    for backend in [Backend::Local, Backend::Tcp] {
        fails(backend, "no number of bytes", ALL, &["bytes of memory"]);
    }
    if harness::has_mpi() {
        mpi("no room", &["bytes of memory"]);
    }
}

#[test]
fn a_rank_that_is_alone_gets_an_error_for_memory_that_is_not_there() {
    let world = World::single();
    for len in [1 << 62, usize::MAX] {
        let refused = world.comm().alloc(candelabrum_dist::ElementType::F64, len);
        let message = refused.expect_err("there is no such memory").to_string();
        assert!(message.contains("bytes of memory"), "{message}");
    }
}

#[test]
fn a_rank_that_is_killed_is_noticed_in_a_group_that_it_does_not_belong_to() {
    let ended = local("group killed", &[1, 2], &["rank 0 died while rank", "group of ranks 1, 2"]);
    assert_eq!(ended.ranks[0].signal, Some(9));
    // Rank 0 waits 300 ms, then 100 ms until it is killed.
    ended.assert_noticed(1, 1400);
}

#[test]
fn a_deadline_that_passes_in_a_group_names_the_worlds_rank() {
    let ended = late(Backend::Local, "group late", RANKS);
    let output = &ended.ranks[1].text;
    let part = "number 1 of 10 × f32 in the group of ranks 1, 2 for rank(s) 2";
    // The deadline of rank 0's barrier passes at the same time. Rank 1 may get that error first.
    assert!(output.contains(part) || output.contains("for rank(s) 1, 2"), "{output}");
    assert!(ended.failed(1) && ended.failed(2), "{}", ended.output());
}

#[test]
fn a_message_that_does_not_fit_is_an_error_that_names_both() {
    local("message length", &[1], &["recv", "3 elements", "2 are needed"]);
    local("message type", &[1], &["i32", "f32"]);
    local("no message", &[0, 2], &["rank 1 has finished", "recv(from 1)"]);
}

#[test]
fn a_rank_that_finishes_early_is_named() {
    let ended = local("early", &[0, 2], &["rank 1 has finished while rank", "number 2"]);
    assert!(ended.ranks[1].succeeded(), "{}", ended.output());
}

#[test]
fn a_panic_ends_all_ranks() {
    let ended = local("panic", &[0, 2], &["rank 1: panicked"]);
    assert_eq!(ended.ranks[1].code, Some(101), "{}", ended.output());
    assert!(ended.ranks[1].text.contains("a fault on purpose"));
}

#[test]
fn a_killed_rank_is_named_within_a_second() {
    let ended = local("killed", &[0, 2], &["rank 1 died while rank", "all_reduce(sum) number"]);
    assert_eq!(ended.ranks[1].signal, Some(9));
    ended.assert_noticed(2, 1000);
}

#[test]
fn a_rank_that_dies_in_the_middle_of_a_long_slice_is_named_within_a_second() {
    let ended =
        local("killed in a long slice", &[0, 2], &["rank 1 died while rank", "of 10000000 × f32"]);
    assert_eq!(ended.ranks[1].signal, Some(9));
    ended.assert_noticed(2, 1000);
}

#[test]
fn one_of_many_ranks_is_killed_and_all_others_end_within_a_second() {
    let ended = Group::new(Backend::Local, MANY, "killed of many").run();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_millis();
    let victim = MANY / 2;
    assert_eq!(ended.ranks[victim].signal, Some(9), "{}", ended.ranks[victim].text);
    for rank in (0..MANY).filter(|&rank| rank != victim) {
        assert!(ended.failed(rank), "{}", ended.ranks[rank].text);
        let part = format!("rank {victim} died while rank {rank} was in all_reduce(sum)");
        assert!(ended.ranks[rank].text.contains(&part), "{}", ended.ranks[rank].text);
    }
    let words = ended.ranks[victim].text.split("killed at ").nth(1);
    let killed = words.and_then(|words| words.split(' ').next()?.parse::<u128>().ok());
    let took = now - killed.expect("it said when");
    println!("{} ranks ended {took} ms after one of them was killed", MANY - 1);
    assert!(took < 1000, "{took} ms");
    ended.assert_nothing_is_left();
}

#[test]
fn a_passed_deadline_names_operation_and_rank() {
    let ended = late(Backend::Local, "deadline", RANKS);
    for rank in [0, 2] {
        let output = &ended.ranks[rank].text;
        assert!(ended.failed(rank), "{output}");
        let timeout = output.contains("s in all_reduce(sum) number 2 of 10 × f32 for rank(s) 1");
        // The slower of the two ranks may receive the other's failure first.
        let echo = output.contains("rank(s) 1; deadlines are set with CANDELABRUM_TIMEOUT");
        assert!(timeout || echo, "{output}");
    }
    assert!(ended.failed(1), "the late rank is told: {}", ended.output());
    ended.assert_nothing_is_left();
}

/// A rank that comes when the others have given up must not succeed alone, and learns why at once.
pub(crate) fn a_late_rank_fails_with_the_others(backend: Backend) {
    for case in [
        "late barrier",
        "late gather",
        "late sum",
        "late long sum",
        "late start",
        "late group",
        "late message",
    ] {
        let ended = late(backend, case, RANKS);
        let output = ended.output();
        assert!(!ended.all_succeeded(), "{backend:?}, {case}: {output}");
        let errors = output.lines().filter(|line| line.starts_with("error of rank"));
        let errors: Vec<&str> = errors.collect();
        let of = |rank: usize| {
            let start = format!("error of rank {rank}: ");
            errors.iter().find_map(|line| line.strip_prefix(&start))
        };
        let [Some(first), Some(late), Some(last)] = [0, 1, 2].map(of) else {
            panic!("{backend:?}, {case}: not all ranks fail: {output}")
        };
        for error in [first, late, last] {
            assert!(error.contains("for rank(s) 1;"), "{backend:?}, {case}: {error}");
        }
        assert!(late.starts_with("rank 0 waited") || late.starts_with("rank 2 waited"), "{late}");
        // Two ranks wait for the deadline. The late one waits for nobody.
        let at_once = ended.noticed_ms().into_iter().filter(|&ms| ms < 500).count();
        assert!(at_once >= 1, "{backend:?}, {case}: {output}");
        ended.assert_nothing_is_left();
    }
}

#[test]
fn on_one_host_a_late_rank_fails_with_the_others() {
    a_late_rank_fails_with_the_others(Backend::Local);
}

#[test]
fn over_tcp_a_late_rank_fails_with_the_others() {
    a_late_rank_fails_with_the_others(Backend::Tcp);
}

#[test]
fn under_mpiexec_a_late_rank_fails_with_the_others() {
    if harness::has_mpi() {
        a_late_rank_fails_with_the_others(Backend::Mpi);
    }
}

#[test]
fn over_tcp_faults_are_named_as_on_one_host() {
    for (case, parts) in DISAGREEMENTS {
        fails(Backend::Tcp, case, ALL, parts);
    }
    fails(Backend::Tcp, "message length", &[1], &["recv", "3 elements", "2 are needed"]);
    fails(Backend::Tcp, "message type", &[1], &["i32", "f32"]);
    fails(Backend::Tcp, "no message", &[0, 2], &["rank 1 has finished", "recv(from 1)"]);
    fails(Backend::Tcp, "early", &[0, 2], &["rank 1 has finished while rank", "number 2"]);
    fails(Backend::Tcp, "panic", &[0, 2], &["rank 1: panicked"]);
    let ended = fails(Backend::Tcp, "killed", &[0, 2], &["rank 1 died while rank"]);
    ended.assert_noticed(2, 2000);
}

#[test]
fn over_tcp_a_passed_deadline_names_the_rank() {
    let ended = late(Backend::Tcp, "deadline", RANKS);
    for rank in ALL {
        assert!(ended.failed(*rank), "{}", ended.output());
        assert!(ended.ranks[*rank].text.contains("rank(s) 1; deadlines"), "{}", ended.output());
    }
}

#[test]
fn under_mpiexec_disagreements_and_bad_messages_end_the_job() {
    if !harness::has_mpiexec() {
        return;
    }
    for (case, parts) in DISAGREEMENTS {
        mpi(case, parts);
    }
    mpi("message length", &["recv", "3 elements", "2 are needed"]);
    mpi("message type", &["i32", "f32"]);
    mpi("no message", &["rank 1 has finished", "recv(from 1)"]);
}

#[test]
fn under_mpiexec_a_rank_that_ends_ends_the_job() {
    if !harness::has_mpiexec() {
        return;
    }
    // A line that a rank prints after it has left the job is not lost.
    let last_words = "rank 1 finished: left in order";
    mpi("early", &["rank 1 has finished while rank", "number 2", last_words]);
    mpi("panic", &["a fault on purpose"]);
    let ended = mpi("killed", &[]);
    assert!(ended.took() < Duration::from_secs(15), "{:?}", ended.took());
}

#[test]
fn under_mpiexec_a_passed_deadline_names_operation_and_rank() {
    if !harness::has_mpiexec() {
        return;
    }
    let ended = late(Backend::Mpi, "deadline", RANKS);
    let output = ended.output();
    assert!(!ended.all_succeeded(), "{output}");
    let part = "s in all_reduce(sum) number 2 of 10 × f32 for rank(s) 1";
    assert!(output.contains(part), "{output}");
    ended.assert_nothing_is_left();
}

/// The launcher does not notice that a rank hangs.
#[test]
fn under_mpiexec_a_stopped_rank_is_named_when_the_deadline_passes() {
    if !harness::has_mpi() {
        return;
    }
    let ended = late(Backend::Mpi, "stopped", RANKS);
    let output = ended.output();
    assert!(!ended.all_succeeded(), "{output}");
    let part = "s in all_reduce(sum) number 2 of 10 × f32 for rank(s) 1";
    assert!(output.contains(part), "{output}");
    ended.assert_nothing_is_left();
}

#[test]
fn under_mpiexec_a_failed_rank_does_not_look_like_a_success() {
    // Only the MPI backend makes a failure of an exit in mid-job or after a hidden error.
    if !harness::has_mpi() {
        return;
    }
    mpi("exit", &[]);
    mpi("swallowed", &["swallowed: rank 1 calls"]);
}

#[test]
fn a_launcher_of_another_mpi_is_recognised() {
    if !harness::has_mpi() {
        return;
    }
    // A program that is built with Open MPI but started by Hydra: the launcher's variables say two
    // ranks, the library finds one.
    let group = Group::new(Backend::Alone, 2, "deadline");
    let ended = group.variable("PMI_RANK", "0").variable("PMI_SIZE", "2").run();
    let output = ended.output();
    assert!(ended.failed(0), "{output}");
    for part in ["the launcher started 2 ranks, but MPI sees 1", "built with", "MPICC"] {
        assert!(output.contains(part), "no `{part}`: {output}");
    }
}
