//! The faults of ranks over NCCL, which by itself neither names a rank nor ends a wait. These tests
//! need a GPU and do nothing without one.

use std::time::Duration;

use crate::faults::{
    ALL, DISAGREEMENTS, IN_GROUPS, RANKS, a_late_rank_fails_with_the_others, fails, late,
    one_rank_fails_by_itself, one_rank_refuses,
};
use crate::harness::{Backend, EndedProgram, Group, has_gpu};

fn nccl(case: &str, failing: &[usize], parts: &[&str]) -> EndedProgram {
    fails(Backend::Nccl, case, failing, parts)
}

#[test]
fn over_nccl_ranks_that_disagree_are_told_who_differs() {
    if !has_gpu() {
        return;
    }
    for (case, parts) in DISAGREEMENTS {
        nccl(case, ALL, parts);
    }
    for (case, failing, parts) in IN_GROUPS {
        let ended = nccl(case, failing, parts);
        let output = ended.output();
        assert!(output.matches("in the group").count() <= RANKS, "doubled words: {output}");
    }
    nccl("message length", &[1], &["recv", "3 elements", "2 are needed"]);
    nccl("message type", &[1], &["i32", "f32"]);
}

#[test]
fn over_nccl_a_rank_that_refuses_or_fails_ends_the_operation_on_all_at_once() {
    if has_gpu() {
        one_rank_refuses(Backend::Nccl);
        one_rank_fails_by_itself(Backend::Nccl);
    }
}

#[test]
fn over_nccl_a_rank_that_ends_is_named_with_the_operation() {
    if !has_gpu() {
        return;
    }
    let words = "rank 1 has finished while rank";
    nccl("early", &[0, 2], &[words, "is in all_reduce(sum) number 2 of 500000 × f32"]);
    nccl("label of a wait", &[0, 2], &[words, "number 2 of 10 × f32 (bucket 2: conv1.weight)"]);
    nccl("no message", &[0, 2], &[words, "recv(from 1)"]);
    nccl("panic", &[0, 2], &["rank 1: panicked"]);
}

#[test]
fn over_nccl_a_killed_rank_is_named_within_a_second() {
    if !has_gpu() {
        return;
    }
    for case in ["killed", "killed in a long slice"] {
        let ended = nccl(case, &[0, 2], &["rank 1 died while rank", "all_reduce(sum) number"]);
        assert_eq!(ended.ranks[1].signal, Some(9));
        ended.assert_noticed(2, 1000);
    }
    let ended = nccl("group killed", &[1, 2], &["rank 0 died while rank", "group of ranks 1, 2"]);
    ended.assert_noticed(1, 1400);
}

#[test]
fn over_nccl_a_passed_deadline_names_operation_and_rank() {
    if !has_gpu() {
        return;
    }
    let stopped = "stopped for a while";
    for (case, size) in [("deadline", 2), ("deadline", 3), ("deadline", 4), (stopped, 3)] {
        let number = if case == stopped { 3 } else { 2 };
        let part = format!("s in all_reduce(sum) number {number} of 10 × f32 for rank(s) 1");
        let ended = late(Backend::Nccl, case, size);
        for rank in (0..size).filter(|&rank| rank != 1) {
            let output = &ended.ranks[rank].text;
            assert!(ended.failed(rank), "{case}: {output}");
            let timeout = output.contains(&part);
            // A slower rank may receive the failure of another rank first.
            let echo = output.contains("rank(s) 1; deadlines are set with CANDELABRUM_TIMEOUT");
            assert!(timeout || echo, "{case}: {output}");
        }
        assert!(ended.output().contains(&part), "{}", ended.output());
        assert!(ended.failed(1), "the late rank is told: {}", ended.output());
        ended.assert_nothing_is_left();
    }
}

#[test]
fn over_nccl_a_late_rank_fails_with_the_others() {
    if has_gpu() {
        a_late_rank_fails_with_the_others(Backend::Nccl);
    }
}

#[test]
fn over_nccl_memory_that_is_not_there_is_an_error() {
    if has_gpu() {
        for case in ["no room", "no number of bytes"] {
            nccl(case, ALL, &["bytes of memory"]);
        }
    }
}

/// NCCL does not wait for the other ranks when a rank leaves, so ranks that need nothing more end in order.
#[test]
fn over_nccl_ranks_that_have_left_end_in_order_whatever_comes_later() {
    if !has_gpu() {
        return;
    }
    let ended = Group::new(Backend::Nccl, RANKS, "last words").limit(Duration::from_secs(40)).run();
    for rank in [0, 2] {
        let output = &ended.ranks[rank].text;
        assert_eq!(ended.ranks[rank].code, Some(0), "rank {rank}: {output}");
        assert!(output.contains("left in order"), "{output}");
    }
    assert_eq!(ended.ranks[1].signal, Some(9), "{}", ended.output());
    ended.assert_nothing_is_left();
}

#[test]
fn over_nccl_ranks_leave_groups_in_any_order() {
    if has_gpu() {
        let any = Group::new(Backend::Nccl, RANKS, "any order").limit(Duration::from_secs(30));
        let ended = any.run();
        assert!(ended.all_succeeded(), "{}", ended.output());
    }
}

#[test]
fn over_nccl_a_slow_start_does_not_count_for_the_deadline() {
    if has_gpu() {
        let slow = Group::new(Backend::Nccl, RANKS, "any order").limit(Duration::from_secs(60));
        let slow = slow.variable("SOFTGPU_NCCL_START_MS", "3000");
        let ended = slow.variable("CANDELABRUM_TIMEOUT", "2").run();
        assert!(ended.all_succeeded(), "{}", ended.output());
    }
}

#[test]
fn over_nccl_operations_on_device_memory_give_the_results_of_the_host() {
    if !has_gpu() {
        return;
    }
    for (size, case) in (1..=4).flat_map(|size| [(size, "device"), (size, "device untracked")]) {
        let ended = Group::new(Backend::Nccl, size, case).limit(Duration::from_secs(100)).run();
        assert!(ended.all_succeeded(), "{case} of {size} ranks: {}", ended.output());
    }
}

#[test]
fn over_nccl_an_operation_waits_for_the_work_before_it_and_for_nothing_else() {
    if has_gpu() {
        let ended = Group::new(Backend::Nccl, 2, "device overlap").run();
        assert!(ended.all_succeeded(), "{}", ended.output());
        println!("{}", ended.output());
    }
}

#[test]
fn over_nccl_faults_are_named_while_the_device_works() {
    if !has_gpu() {
        return;
    }
    let operation = "all_reduce(sum) number 5 of 10 × f32 (bucket 2: conv1.weight)";
    let died = "rank 1 died while rank";
    for case in ["device killed", "device killed on stream"] {
        let ended = nccl(case, &[0, 2], &[died, operation]);
        assert_eq!(ended.ranks[1].signal, Some(9));
        // Rank 1 waits 200 ms, then 100 ms until it is killed.
        ended.assert_noticed(2, 1300);
    }
    let unseen = Group::new(Backend::Nccl, RANKS, "device killed unseen").run();
    for rank in [0, 2] {
        let output = &unseen.ranks[rank].text;
        assert_eq!(unseen.ranks[rank].code, Some(1), "rank {rank}: {output}");
        assert!(output.contains(died) && output.contains(operation), "{output}");
    }
    nccl("device fails", ALL, &["a fault on purpose"]);
    let ended = late(Backend::Nccl, "device deadline", RANKS);
    for rank in ALL {
        let output = &ended.ranks[*rank].text;
        assert!(ended.failed(*rank), "{output}");
        let words = format!("waited 1 s in {operation} for rank(s) unknown to NCCL");
        assert!(output.contains(&words), "{output}");
    }
}

#[test]
fn over_nccl_announced_operations_give_the_same_results_with_one_exchange() {
    if !has_gpu() {
        return;
    }
    for size in 1..=4 {
        let ended = Group::new(Backend::Nccl, size, "announced").run();
        assert!(ended.all_succeeded(), "{size} ranks: {}", ended.output());
    }
}

#[test]
fn over_nccl_announcements_that_differ_cost_exchanges_and_nothing_else() {
    if !has_gpu() {
        return;
    }
    let ended = Group::new(Backend::Nccl, RANKS, "announced differently").run();
    assert!(ended.all_succeeded(), "{}", ended.output());
    let disagreements = [
        ("another length", "calls all_reduce(sum) number 3 of 999 × f32"),
        ("another type", "calls all_reduce(sum) number 3 of 1000 × i32"),
        ("another order", "calls all_reduce(sum) number 3 of 30000 × i32"),
        ("another label", "calls all_reduce(sum) number 3 of 1000 × f32 with another label"),
        ("fewer operations", "calls barrier number 3"),
    ];
    for (case, part) in disagreements {
        nccl(&format!("announced with {case}"), ALL, &[&format!("rank 1 {part}")]);
    }
}

#[test]
fn over_nccl_a_rank_that_leaves_an_announced_list_is_named_at_once() {
    if !has_gpu() {
        return;
    }
    let expected = "where it has announced all_reduce(sum) number";
    // Rank 1 waits 200 ms.
    let at_once = |ended: &EndedProgram, ranks: usize| {
        ended.assert_noticed(ranks, 1200);
    };
    let words = [
        ("skips a bucket", "calls all_reduce(sum) number 4 of 1000 × f32 with another label"),
        ("another operation", "calls barrier number 4 of 0 × u8"),
        ("on the host", "calls all_reduce(sum) number 4 of 1000 × f32 on the host"),
    ];
    for (case, part) in words {
        let part = format!("rank 1 {part} {expected} 4 of 1000 × f32");
        let ended = nccl(&format!("announced, {case}"), ALL, &[&part]);
        at_once(&ended, RANKS);
    }
    let in_a_group = Group::new(Backend::Nccl, RANKS, "announced, another operation in a group");
    let ended = in_a_group.run();
    for rank in [1, 2] {
        let part = format!("rank 1 calls barrier number 2 of 0 × u8 {expected} 2 of 1000 × f32");
        assert!(ended.ranks[rank].text.contains(&part), "{}", ended.output());
    }
    at_once(&ended, 2);

    let ended = nccl("announced, refuses", ALL, &["4 elements do not divide by 3 ranks"]);
    at_once(&ended, RANKS);

    at_once(&nccl("announced, fails", ALL, &["a fault on purpose is not supported"]), RANKS);
    at_once(&nccl("announced, panics", &[0, 2], &["rank 1: panicked"]), 2);

    let part = format!("rank 1 leaves the group {expected} 4");
    let ended = nccl("announced, leaves", &[0, 2], &[&part]);
    at_once(&ended, 2);
    assert_eq!(ended.ranks[1].code, Some(1), "{}", ended.ranks[1].text);
    assert!(ended.ranks[1].text.contains(&part), "{}", ended.ranks[1].text);

    // Rank 1 and rank 2 find the disagreement at the same time, and either may be the first to tell.
    let part = "rank 2 calls all_reduce(sum) number 1 of 0 × u8 where rank 1 calls barrier";
    at_once(&nccl("announced, fails elsewhere", &[0], &[part]), 1);

    let operation = "all_reduce(sum) number 4 of 1000 × f32 (bucket 1)";
    let ended = nccl("announced, killed", &[0, 2], &["rank 1 died while rank", operation]);
    at_once(&ended, 2);

    let ended = late(Backend::Nccl, "announced, stopped", RANKS);
    for rank in [0, 2] {
        let output = &ended.ranks[rank].text;
        let part = format!("waited 1 s in {operation} for rank(s) unknown to NCCL");
        assert!(ended.failed(rank) && output.contains(&part), "{output}");
    }
    assert!(ended.failed(1), "the stopped rank is told: {}", ended.output());
}
