//! `--interface`: ranks start over an existing interface. A name without an interface is an error
//! that lists the existing ones.

mod common;

use std::process::{Command, Output};
use std::time::Duration;

use candelabrum::dist::launch::limit_threads;
use candelabrum_testkit::ranks::mpiexec;
use common::{Running, assert_one_line_error, example, mnist_dist, wait_for_ranks};

const SMALL: [&str; 6] = ["--dataset", "synthetic", "--epochs", "1", "--batch-size", "1000"];

const LIMIT: Duration = Duration::from_secs(120);

fn assert_trained(output: &Output) {
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    let stdout = String::from_utf8_lossy(&output.stdout);
    assert!(stdout.contains("Evaluation accuracy"), "{stdout} {stderr}");
}

#[test]
fn an_interface_that_is_not_there_is_answered_with_those_that_are() {
    for workers in ["1", "2"] {
        let command = mnist_dist(&["--workers", workers, "--interface", "wire7"]);
        let (output, _) = Running::start(command).finish(LIMIT);
        assert_one_line_error(&output, &["`wire7`", "lo (127.0.0.1)"]);
        let mut command = mnist_dist(&["--workers", workers]);
        command.env("CANDELABRUM_INTERFACE", "wire7");
        let (output, _) = Running::start(command).finish(LIMIT);
        assert_one_line_error(&output, &["`wire7`", "lo (127.0.0.1)"]);
    }
}

#[test]
fn every_rank_gets_what_its_libraries_read() {
    let mut command = mnist_dist(&["--dataset", "synthetic", "--epochs", "1000"]);
    command.args(["--workers", "2", "--interface", "lo"]).env("NCCL_SOCKET_IFNAME", "mine");
    command.env_remove("OMPI_MCA_btl_tcp_if_include");
    let running = Running::start(command);
    for (rank, pid) in wait_for_ranks(&running, 2) {
        let environment = std::fs::read(format!("/proc/{pid}/environ")).expect("its environment");
        let variables: Vec<_> = environment.split(|&byte| byte == 0).collect();
        for expected in [
            "CANDELABRUM_INTERFACE=lo",
            "OMPI_MCA_btl_tcp_if_include=lo",
            "FI_TCP_IFACE=lo",
            "NCCL_SOCKET_IFNAME=mine",
        ] {
            assert!(variables.contains(&expected.as_bytes()), "rank {rank} has no {expected}");
        }
    }
}

#[test]
fn ranks_train_by_an_interface_that_is_there() {
    let mut command = mnist_dist(&SMALL);
    command.args(["--workers", "2", "--interface", "lo"]);
    assert_trained(&Running::start(command).finish(LIMIT).0);
}

#[test]
fn ranks_under_mpiexec_train_by_an_interface_that_is_there() {
    let Some(mut command) = mpiexec(2) else {
        println!("left out: there is no mpiexec here");
        return;
    };
    command.arg(example("mnist_dist")).args(SMALL).args(["--threads", "1", "--interface", "lo"]);
    assert_trained(&Running::start(command).finish(LIMIT).0);

    let mut command = mpiexec(2).expect("it was there a moment ago");
    command.arg(example("mnist_dist")).args(SMALL).args(["--interface", "wire7"]);
    let (output, _) = Running::start(command).finish(LIMIT);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && stderr.contains("`wire7`"), "{stderr}");
}

const TWO_CALLS: &str = "CANDELABRUM_TEST_TWO_CALLS";

#[test]
fn two_calls_that_disagree_about_the_threads_are_an_error() {
    if std::env::var_os(TWO_CALLS).is_some() {
        // The first call starts this program again, which then comes here again.
        limit_threads(2).expect("it is the first call");
        limit_threads(2).expect("it asks for the same");
        let error = limit_threads(1).expect_err("it asks for something else");
        assert!(error.to_string().contains("started again"), "{error}");
        let error = limit_threads(0).expect_err("nothing can compute");
        assert!(error.to_string().contains("at least one"), "{error}");
        return;
    }
    let mut command = Command::new(std::env::current_exe().expect("a test knows its own program"));
    command.args(["--exact", "two_calls_that_disagree_about_the_threads_are_an_error"]);
    command.env(TWO_CALLS, "1").env("RAYON_NUM_THREADS", "1").env_remove("CANDLE_NUM_THREADS");
    let (output, _) = Running::start(command).finish(LIMIT);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    assert!(String::from_utf8_lossy(&output.stdout).contains("1 passed"));
}
