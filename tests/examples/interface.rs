//! `--interface`: ranks start over an existing interface. A name without an interface is an error
//! that lists the existing ones.

use candelabrum::dist::launch::limit_threads;
use candelabrum_testkit::{EndedProgram, Program};

use crate::run::example;

const SMALL: [&str; 6] = ["--dataset", "synthetic", "--epochs", "1", "--batch-size", "1000"];

fn mnist_dist(options: &[&str]) -> Program {
    example("mnist_dist").args(options)
}

fn assert_trained(ended: EndedProgram) {
    let ended = ended.success();
    assert!(ended.out.contains("Evaluation accuracy"), "{}", ended.text);
}

#[test]
fn an_interface_that_is_not_there_is_answered_with_those_that_are() {
    for workers in ["1", "2"] {
        let program = mnist_dist(&["--workers", workers]);
        program.args(["--interface", "wire7"]).run().fails(["`wire7`", "lo (127.0.0.1)"]);
        let program = mnist_dist(&["--workers", workers]).env("CANDELABRUM_INTERFACE", "wire7");
        program.run().fails(["`wire7`", "lo (127.0.0.1)"]);
    }
}

#[test]
fn every_rank_gets_what_its_libraries_read() {
    let running = mnist_dist(&["--dataset", "synthetic", "--epochs", "1000"])
        .args(["--workers", "2", "--interface", "lo"])
        .env("NCCL_SOCKET_IFNAME", "mine")
        .env_remove("OMPI_MCA_btl_tcp_if_include")
        .start();
    for (rank, process) in running.ranks(2).into_iter().enumerate() {
        let file = format!("/proc/{}/environ", process.as_raw_nonzero());
        let environment = std::fs::read(file).expect("its environment");
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
    assert_trained(mnist_dist(&SMALL).args(["--workers", "2", "--interface", "lo"]).run());
}

#[test]
fn ranks_under_mpiexec_train_by_an_interface_that_is_there() {
    let by = |name| mnist_dist(&SMALL).args(["--threads", "1", "--interface", name]);
    let Some(program) = by("lo").under_mpiexec(2) else { return };
    assert_trained(program.run());
    let ended = by("wire7").under_mpiexec(2).expect("it was there a moment ago").run();
    assert!(!ended.succeeded() && ended.err.contains("`wire7`"), "{}", ended.err);
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
    let this = Program::from_test(two_calls_that_disagree_about_the_threads_are_an_error);
    let this = this.env(TWO_CALLS, "1").env("RAYON_NUM_THREADS", "1");
    let ended = this.env_remove("CANDLE_NUM_THREADS").run().success();
    assert!(ended.out.contains("1 passed"), "{}", ended.text);
}
