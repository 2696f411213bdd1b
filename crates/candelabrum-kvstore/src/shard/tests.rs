//! A shard under messages in any order, and under messages that no worker of ours would send.

mod fuzz;
mod schedule;

use std::time::{Duration, Instant};

use bytemuck::cast_slice;
use candelabrum_optim::{Lamb, Recipe, Sgd};

use super::{KeyInit, OptimizerSettings, RowInit, ServerShard, StoreSettings, WorkerAnswer};
use crate::config::StoreKind;
use crate::key::Key;
use crate::stats::peak_memory;
use crate::wire::{MOST_AHEAD, MessageHeader, MessageKind, MessageMemory, WireMessage};

/// A shard of these workers, which have said hello.
fn shard(kind: StoreKind, bound: Option<u64>, workers: usize) -> ServerShard {
    let ranks = (0..workers).collect();
    let mut shard = ServerShard::new(
        workers,
        (0, 1),
        ranks,
        Duration::from_secs(5),
        None,
        MessageMemory::default(),
    );
    for worker in 0..workers {
        let hello = StoreSettings {
            kind,
            staleness_bound: bound,
            big_array_bound: 100,
            version: "1".to_owned(),
        };
        let message = WireMessage::json(
            MessageHeader { ticket: 1, ..MessageHeader::new(MessageKind::Hello) },
            &hello,
            0,
        );
        let answers = shard.handle(worker, message);
        assert_eq!(answers[0].1.op(), MessageKind::Answer);
    }
    shard
}

fn message(header: MessageHeader, values: &[f32]) -> WireMessage {
    let mut message = WireMessage::new(header, "", size_of_val(values));
    message.data_mut().copy_from_slice(cast_slice(values));
    message
}

/// A dense key of `len` zeros.
fn init(number: u32, ticket: u64, worker: usize, len: usize) -> WireMessage {
    let values = vec![0.0_f32; if worker == 0 { len } else { 0 }];
    let header = MessageHeader {
        ticket,
        key: number,
        elements: values.len() as u64,
        ..MessageHeader::new(MessageKind::Init)
    };
    let key = Key::Int(number.into());
    let init = KeyInit { key, dims: vec![len], part: 0..len, rows: None };
    let mut message = WireMessage::json(header, &init, size_of_val(&values[..]));
    message.data_mut().copy_from_slice(cast_slice(&values));
    message
}

fn with_key(kind: StoreKind, bound: Option<u64>, workers: usize) -> ServerShard {
    let mut shard = shard(kind, bound, workers);
    (0..workers).for_each(|worker| drop(shard.handle(worker, init(0, 2, worker, 2))));
    shard
}

fn push(ticket: u64, key: u32, version: u64, values: &[f32]) -> WireMessage {
    let elements = values.len() as u64;
    message(
        MessageHeader { ticket, key, version, elements, ..MessageHeader::new(MessageKind::Push) },
        values,
    )
}

fn ask(op: MessageKind, ticket: u64, key: u32) -> WireMessage {
    WireMessage::text(MessageHeader { ticket, key, ..MessageHeader::new(op) }, "")
}

/// The answers: worker, ticket, and the refusal's text.
fn heard(answers: &[WorkerAnswer]) -> Vec<(usize, u64, Option<String>)> {
    let refusal = |message: &WireMessage| {
        (message.op() == MessageKind::Refusal).then(|| message.text_of().into_owned())
    };
    answers
        .iter()
        .map(|(worker, message)| (*worker, message.header().ticket, refusal(message)))
        .collect()
}

#[track_caller]
fn assert_refused(answers: &[WorkerAnswer], expected: &[(usize, u64)], parts: &[&str]) {
    let heard = heard(answers);
    let asked: Vec<(usize, u64)> =
        heard.iter().map(|(worker, ticket, _)| (*worker, *ticket)).collect();
    assert_eq!(asked, expected, "{heard:?}");
    for (_, _, text) in &heard {
        let text = text.as_ref().expect("a refusal");
        assert!(parts.iter().all(|part| text.contains(part)), "{text}");
    }
}

#[test]
fn staleness_is_the_number_of_updates_since_the_pull() {
    let mut shard = with_key(StoreKind::DistAsync, None, 3);
    // By worker and version that it has pulled: the versions before the updates are 0, 1, 2, ...
    for (step, (worker, version)) in
        [(0, 0), (1, 0), (2, 0), (0, 1), (0, 1), (1, 5), (2, 3)].into_iter().enumerate()
    {
        drop(shard.handle(worker, push(10 + step as u64, 0, version, &[1.0, 2.0])));
    }
    let of = |worker: usize| {
        let staleness = shard.counts().staleness[worker];
        (staleness.count, staleness.sum, staleness.max)
    };
    assert_eq!([of(0), of(1), of(2)], [(3, 5, 3), (2, 1, 1), (2, 5, 3)]);
    assert_eq!(shard.counts().updates, 7);
}

/// A worker does not pull the version of a server on which its batch has no rows.
#[test]
fn a_push_without_rows_is_not_stale() {
    let mut shard = shard(StoreKind::DistSync, None, 1);
    let table =
        KeyInit { key: Key::Int(0), dims: vec![5, 1], part: 0..5, rows: Some(RowInit::Zeros) };
    drop(shard.handle(
        0,
        WireMessage::json(
            MessageHeader { ticket: 2, ..MessageHeader::new(MessageKind::Init) },
            &table,
            0,
        ),
    ));
    for ticket in 3..6 {
        let header = MessageHeader { ticket, ..MessageHeader::new(MessageKind::PushRows) };
        assert!(shard.handle(0, message(header, &[])).is_empty());
    }
    let header = MessageHeader {
        ticket: 6,
        version: 1,
        elements: 1,
        ..MessageHeader::new(MessageKind::PushRows)
    };
    assert!(shard.handle(0, message(header, &[f32::from_bits(4), 1.0])).is_empty());
    let (counts, staleness) = (shard.counts(), shard.counts().staleness[0]);
    assert_eq!((counts.updates, staleness.count, staleness.sum), (4, 1, 2));
}

#[test]
fn a_worker_that_is_far_ahead_gets_room_when_a_round_is_complete() {
    let kept = |answers: &[WorkerAnswer]| -> Vec<u64> {
        answers.iter().map(|(_, message)| message.header().elements).collect()
    };
    let mut shard = with_key(StoreKind::DistSync, None, 2);
    for ticket in 0..MOST_AHEAD {
        let answers = shard.handle(0, ask(MessageKind::Room, 1000 + ticket, 0));
        assert_eq!(heard(&answers), [(0, 1000 + ticket, None)]);
        assert_eq!(kept(&answers), [ticket]);
        assert!(shard.handle(0, push(10 + ticket, 0, 0, &[1.0, 1.0])).is_empty());
    }
    assert!(shard.handle(0, ask(MessageKind::Room, 90, 0)).is_empty(), "there is no room");
    // A push all the same is no part of a round.
    assert_refused(&shard.handle(0, push(91, 0, 0, &[9.0, 9.0])), &[(0, 91)], &["32", "ahead"]);
    let answers = shard.handle(1, push(10, 0, 0, &[1.0, 1.0]));
    assert_eq!((heard(&answers), kept(&answers)), (vec![(0, 90, None)], vec![MOST_AHEAD - 1]));
    assert!(shard.handle(0, push(92, 0, 0, &[1.0, 1.0])).is_empty());
    assert!(shard.handle(0, ask(MessageKind::Room, 93, 0)).is_empty());
    let late = shard.look_at_the_clock(Instant::now() + Duration::from_secs(9));
    assert_refused(&late, &[(0, 93)], &["rank(s) 1", "`0`"]);
    assert!(shard.handle(0, ask(MessageKind::Room, 94, 0)).is_empty());
    let mut answers = shard.handle(1, ask(MessageKind::Goodbye, 20, 0));
    answers.retain(|(worker, _)| *worker == 0);
    assert_refused(&answers, &[(0, 94)], &["rank 1 has left"]);
    assert_eq!(shard.counts().updates, 1);
}

#[test]
fn a_worker_that_leaves_releases_or_refuses_every_wait() {
    // It leaves before, or after the others wait.
    for is_before in [true, false] {
        let mut shard = with_key(StoreKind::DistSync, None, 3);
        let mut answers = Vec::new();
        if is_before {
            answers.extend(shard.handle(1, ask(MessageKind::Goodbye, 9, 0)));
        }
        answers.extend(shard.handle(0, push(10, 0, 0, &[1.0, 1.0])));
        answers.extend(shard.handle(0, ask(MessageKind::Pull, 11, 0)));
        if !is_before {
            answers.extend(shard.handle(1, ask(MessageKind::Goodbye, 9, 0)));
        }
        let mut heard = heard(&answers);
        heard.retain(|(worker, ..)| *worker == 0);
        let expected = "rank 1 has left, so the round of `0` for which rank 0 waits";
        assert!(heard.iter().any(|(.., text)| text.as_ref().is_some_and(|t| t.contains(expected))));
        if is_before {
            // The push was refused, so the pull has nothing to wait for.
            assert_eq!(heard.len(), 2, "{heard:?}");
        }
    }
    // It has pushed a round ahead, and blocks the second round only.
    let mut shard = with_key(StoreKind::DistSync, None, 3);
    assert!(shard.handle(1, push(10, 0, 0, &[1.0, 1.0])).is_empty());
    assert_eq!(heard(&shard.handle(1, ask(MessageKind::Goodbye, 11, 0))), [(1, 11, None)]);
    for ticket in [10, 11] {
        assert!(shard.handle(0, push(ticket, 0, 0, &[1.0, 1.0])).is_empty());
    }
    assert!(shard.handle(0, ask(MessageKind::Pull, 12, 0)).is_empty());
    let answers = shard.handle(2, push(10, 0, 0, &[1.0, 1.0]));
    assert_refused(&answers, &[(0, 12)], &["rank 1 has left", "`0`", "rank 0"]);
    // Of two that have left, the one that blocks is named.
    let mut shard = with_key(StoreKind::DistSync, None, 3);
    assert!(shard.handle(0, push(10, 0, 0, &[1.0, 1.0])).is_empty());
    assert_eq!(shard.handle(0, ask(MessageKind::Goodbye, 11, 0)).len(), 1);
    assert!(shard.handle(2, ask(MessageKind::Pull, 20, 0)).len() == 1, "it has pushed nothing");
    assert!(shard.handle(2, push(21, 0, 0, &[1.0, 1.0])).is_empty());
    assert!(shard.handle(2, ask(MessageKind::Pull, 22, 0)).is_empty());
    let answers = shard.handle(1, ask(MessageKind::Goodbye, 12, 0));
    assert_refused(&answers[..1], &[(2, 22)], &["rank 1 has left"]);
}

/// An answer to a worker that has left would fail on its server.
#[test]
fn a_worker_that_has_left_gets_no_answer() {
    let mut shard = with_key(StoreKind::DistAsync, Some(1), 2);
    for ticket in 10..13 {
        drop(shard.handle(0, push(ticket, 0, 0, &[1.0, 1.0])));
    }
    assert!(shard.handle(0, ask(MessageKind::Pull, 13, 0)).is_empty(), "it is two rounds ahead");
    assert_eq!(heard(&shard.handle(0, ask(MessageKind::Goodbye, 14, 0))), [(0, 14, None)]);
    // Its pushes count nevertheless.
    for ticket in 20..22 {
        assert!(shard.handle(1, push(ticket, 0, 0, &[1.0, 1.0])).is_empty());
    }
    assert_eq!(shard.counts().updates, 5);
}

#[test]
fn who_differs_in_a_call_of_all_is_named_to_all() {
    let other = |ticket, worker| init(7, ticket, worker, 4);
    let mut shard = shard(StoreKind::DistSync, None, 3);
    assert!(shard.handle(1, init(7, 30, 1, 3)).is_empty());
    let parts = ["key number 7", "rank 1 has `7` of shape [3]", "rank 0 has `7` of shape [4]"];
    assert_refused(&shard.handle(0, other(31, 0)), &[(0, 31), (1, 30)], &parts);
    // The third one comes later, and does not wait.
    assert_refused(&shard.handle(2, init(7, 32, 2, 3)), &[(2, 32)], &parts);
    assert_refused(&shard.handle(0, push(40, 7, 0, &[1.0; 4])), &[(0, 40)], &["not initialised"]);
}

#[test]
fn who_is_late_or_has_left_in_a_call_of_all_is_named() {
    let mut shard = shard(StoreKind::DistAsync, None, 3);
    assert!(shard.handle(2, init(0, 30, 2, 3)).is_empty());
    let now = Instant::now();
    assert!(shard.look_at_the_clock(now).is_empty());
    let answers = shard.look_at_the_clock(now + Duration::from_secs(6));
    let parts = ["rank 2 waited", "init of `0`", "rank(s) 0, 1 did not call"];
    assert_refused(&answers, &[(2, 30)], &parts);
    assert!(shard.handle(0, init(1, 31, 0, 3)).is_empty());
    let answers = shard.handle(1, ask(MessageKind::Goodbye, 40, 0));
    let parts = ["rank 1 has left, without init of `1`", "rank 0 waits"];
    assert_refused(&answers[..1], &[(0, 31)], &parts);
    assert_refused(&shard.handle(2, init(1, 32, 2, 3)), &[(2, 32)], &["rank 1 has left", "rank 2"]);
}

#[test]
fn after_a_refusal_a_worker_may_set_another_optimizer_before_the_others_are_refused() {
    let mut shard = with_key(StoreKind::DistSync, None, 2);
    let rows = Some(RowInit::Zeros);
    for worker in 0..2 {
        let table = KeyInit { key: Key::Int(1), dims: vec![5, 2], part: 0..5, rows };
        let header = MessageHeader { ticket: 3, key: 1, ..MessageHeader::new(MessageKind::Init) };
        drop(shard.handle(worker, WireMessage::json(header, &table, 0)));
    }
    let set = |ticket, recipe: Recipe| {
        let settings = OptimizerSettings { recipe, divide_by: 1.0 };
        WireMessage::json(
            MessageHeader { ticket, ..MessageHeader::new(MessageKind::SetOptimizer) },
            &settings,
            0,
        )
    };
    let parts = ["Lamb", "`1` is a table"];
    assert_refused(&shard.handle(0, set(10, Lamb::new(0.1).into())), &[(0, 10)], &parts);
    assert!(shard.handle(0, set(11, Sgd::new(0.1).into())).is_empty());
    assert_refused(&shard.handle(1, set(20, Lamb::new(0.1).into())), &[(1, 20)], &parts);
    let answers = shard.handle(1, set(21, Sgd::new(0.1).into()));
    assert_eq!(heard(&answers), [(0, 11, None), (1, 21, None)]);
}

#[test]
fn a_save_that_cannot_be_written_touches_no_memory_of_a_large_value() {
    const LEN: usize = 1 << 30;
    let mut shard = shard(StoreKind::DistSync, None, 1);
    let init = KeyInit { key: Key::Int(0), dims: vec![LEN], part: 0..LEN, rows: None };
    let header = MessageHeader { ticket: 2, ..MessageHeader::new(MessageKind::Init) };
    drop(shard.handle(0, WireMessage::json(header, &init, 0)));
    let before = peak_memory();
    let header = MessageHeader { ticket: 3, ..MessageHeader::new(MessageKind::Save) };
    let answers = shard.handle(0, WireMessage::text(header, fuzz::NOWHERE));
    assert_refused(&answers, &[(0, 3)], &["cannot be written"]);
    assert!(peak_memory().saturating_sub(before) < fuzz::MEMORY);
}
