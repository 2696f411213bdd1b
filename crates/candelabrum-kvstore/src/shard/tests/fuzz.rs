//! Messages of a foreign or broken sender: an error that names it, no panic, no endless memory.

use bytemuck::bytes_of;
use candelabrum_dist::Payload;
use candelabrum_optim::Sgd;
use proptest::prelude::*;

use super::{init, message, shard};
use crate::config::StoreKind;
use crate::key::Key;
use crate::shard::{KeyInit, OptimizerSettings, RowInit, ServerShard, StoreSettings};
use crate::stats::peak_memory;
use crate::wire::{MessageHeader, MessageKind, WireMessage};

/// More than the cases need together, and much less than the lengths in their headers.
pub(super) const MEMORY: u64 = 1 << 30;

/// A place of which there is no directory.
pub(super) const NOWHERE: &str = "/proc/nowhere";

/// Numbers on both sides of every limit.
fn number() -> impl Strategy<Value = u64> {
    prop_oneof![
        0..20_u64,
        Just(63),
        Just(64),
        Just(1 << 20),
        Just(u64::from(u32::MAX)),
        Just(1 << 40),
        Just(1 << 62),
        Just(u64::MAX),
        any::<u64>(),
    ]
}

fn header() -> impl Strategy<Value = MessageHeader> {
    let small = prop_oneof![0..4_u32, Just(5), Just(u32::MAX), any::<u32>()];
    let ops = 0..20_u32;
    (ops, small.clone(), 0..8_u32, number(), number(), number(), any::<f32>(), 0..3_u32).prop_map(
        |(op, key, codec, ticket, version, elements, setting, receipt)| MessageHeader {
            op,
            key,
            codec,
            ticket,
            version,
            elements,
            setting,
            receipt,
            ..MessageHeader::new(MessageKind::Push)
        },
    )
}

fn text() -> impl Strategy<Value = String> {
    let dims = prop::collection::vec(number().prop_map(|n| n as usize), 0..4);
    let rows = prop_oneof![
        Just(None),
        Just(Some(RowInit::Zeros)),
        (any::<f32>(), any::<u64>()).prop_map(|(std, seed)| Some(RowInit::Normal { std, seed })),
    ];
    let key = prop_oneof![(0..3_i64).prop_map(Key::Int), ".{0,5}".prop_map(Key::Name)];
    let init = (key, dims, number(), number(), rows).prop_map(|(key, dims, start, end, rows)| {
        let init = KeyInit { key, dims, part: start as usize..end as usize, rows };
        serde_json::to_string(&init).expect("a text")
    });
    let settings = any::<f32>().prop_map(|divide_by| {
        let settings = OptimizerSettings { recipe: Sgd::new(0.1).into(), divide_by };
        serde_json::to_string(&settings).expect("a text")
    });
    let hello = (any::<Option<u64>>(), any::<usize>()).prop_map(|(staleness_bound, bound)| {
        let (kind, version) = (StoreKind::DistAsync, String::new());
        let hello = StoreSettings { kind, staleness_bound, big_array_bound: bound, version };
        serde_json::to_string(&hello).expect("a text")
    });
    prop_oneof![4 => init, 1 => settings, 1 => hello, 1 => ".{0,20}", 1 => Just(String::new())]
}

/// A message whose lengths are right, with whatever else.
fn plausible() -> impl Strategy<Value = Vec<u8>> {
    (header(), text(), prop::collection::vec(any::<u8>(), 0..120)).prop_map(
        |(header, text, data)| {
            let writes =
                [MessageKind::Save, MessageKind::Load].map(|op| op as u32).contains(&header.op);
            let text = if writes { NOWHERE } else { &text };
            let mut message = WireMessage::new(header, text, data.len());
            message.data_mut().copy_from_slice(&data);
            message.into_payload().bytes().to_vec()
        },
    )
}

/// A request for the dense key or the table whose lengths are right, with any positions and numbers.
fn fitting() -> impl Strategy<Value = Vec<u8>> {
    let ops = prop_oneof![
        Just(MessageKind::Push),
        Just(MessageKind::PushPull),
        Just(MessageKind::PushRows),
        Just(MessageKind::Pull),
        Just(MessageKind::PullRows)
    ];
    let word = prop_oneof![3 => 0..12_u32, 1 => Just(u32::MAX), 1 => any::<u32>()];
    let words = prop::collection::vec(word, 36);
    (ops, 0..3_u32, 0..6_u32, 0..7_usize, header(), words).prop_map(
        |(op, key, codec, count, header, words)| {
            // The dense key has 10 elements, a row of the table has 2.
            let (elements, len) = match op {
                MessageKind::PushRows => (count, 12 * count),
                MessageKind::PullRows => (count, 4 * count),
                _ => (10, [40, 20, 20, 3, 2, 8 * count][codec as usize]),
            };
            let (op, elements) = (op as u32, elements as u64);
            let header = MessageHeader { op, key, codec, elements, ..header };
            let mut message = WireMessage::new(header, "", len);
            let bytes: &[u8] = bytemuck::cast_slice(&words);
            message.data_mut().copy_from_slice(&bytes[..len]);
            message.into_payload().bytes().to_vec()
        },
    )
}

/// Bytes that begin as a message does.
fn broken() -> impl Strategy<Value = Vec<u8>> {
    let bytes = || prop::collection::vec(any::<u8>(), 0..200);
    prop_oneof![
        bytes(),
        (header(), number(), number(), bytes()).prop_map(|(header, text_len, data_len, rest)| {
            let header = MessageHeader { text_len, data_len, ..header };
            let readable =
                [MessageKind::Save, MessageKind::Load].map(|op| op as u32).contains(&header.op);
            let header = if readable {
                MessageHeader { op: MessageKind::Push as u32, ..header }
            } else {
                header
            };
            [bytes_of(&header), &rest].concat()
        }),
    ]
}

/// Two workers, a dense key, a table, and a key that one worker has initialised.
fn prepared() -> ServerShard {
    let mut shard = shard(StoreKind::DistSync, None, 2);
    for worker in 0..2 {
        drop(shard.handle(worker, init(0, 2, worker, 10)));
        let header = MessageHeader { ticket: 3, key: 1, ..MessageHeader::new(MessageKind::Init) };
        let rows = Some(RowInit::Normal { std: 1.0, seed: 1 });
        let table = KeyInit { key: Key::Int(1), dims: vec![5, 2], part: 0..5, rows };
        drop(shard.handle(worker, WireMessage::json(header, &table, 0)));
    }
    drop(shard.handle(1, init(2, 4, 1, 10)));
    shard
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn whatever_arrives_is_answered_or_refused(
        messages in prop::collection::vec(
            (0..2_usize, prop_oneof![3 => plausible(), 3 => fitting(), 1 => broken()]), 1..25),
    ) {
        let mut shard = prepared();
        let before = peak_memory();
        for (worker, bytes) in messages {
            match WireMessage::read(Payload::from_slice(&bytes), worker + 3) {
                Err(error) => {
                    let (text, sender) = (error.to_string(), format!("rank {}", worker + 3));
                    prop_assert!(text.contains(&sender), "{}", text);
                }
                Ok(message) => {
                    for (to, answer) in shard.handle(worker, message) {
                        prop_assert!(to < 2);
                        let is_answer = [MessageKind::Answer, MessageKind::Refusal].contains(&answer.op());
                        prop_assert!(is_answer);
                        prop_assert!(WireMessage::read(answer.into_payload(), 2).is_ok());
                    }
                }
            }
            drop(shard.look_at_the_clock(std::time::Instant::now()));
        }
        // The kernel's figure is not exact, so it can fall.
        prop_assert!(peak_memory().saturating_sub(before) < MEMORY);
        // It still serves: a new round of a key, unless its worker has said goodbye.
        for worker in 0..2 {
            let header = MessageHeader { ticket: 900, ..MessageHeader::new(MessageKind::Flush) };
            let answers = shard.handle(worker, message(header, &[]));
            let own = answers.iter().find(|(to, _)| *to == worker);
            prop_assert!(own.is_some_and(|(_, answer)| answer.op() == MessageKind::Answer));
        }
    }
}
