//! Random programs of several workers, whose messages arrive in random order, against a model that is
//! checked after every single message.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use candelabrum_testkit::RandomChoices;
use parking_lot::Mutex;
use proptest::prelude::*;

use super::{ask, init, push, shard};
use crate::config::StoreKind;
use crate::shard::ServerShard;
use crate::wire::{MessageHeader, MessageKind, WireMessage, numbers};

#[derive(Clone, Copy, Debug)]
struct Setting {
    kind: StoreKind,
    bound: Option<u64>,
    workers: usize,
    keys: usize,
    rounds: usize,
    /// The worker that leaves in the middle of its program.
    leaves: Option<usize>,
    seed: u64,
}

/// An update, as the updater saw it: the key and the received sum.
type Updates = Arc<Mutex<Vec<(u32, [f32; 2])>>>;

/// The model of a key.
#[derive(Clone, Default)]
struct Model {
    /// By worker: the pushes that have arrived and were not refused.
    arrived: Vec<Vec<f32>>,
    /// By worker: those that are part of the value.
    applied: Vec<usize>,
    value: f32,
    version: u64,
}

/// A pull that is not answered: its worker, its ticket, its key, and the own pushes before it.
#[derive(Debug)]
struct WaitingPull {
    worker: usize,
    ticket: u64,
    key: u32,
    after: usize,
}

struct Run {
    setting: Setting,
    shard: ServerShard,
    updates: Updates,
    seen: usize,
    /// By key.
    models: Vec<Model>,
    here: Vec<bool>,
    waiting: Vec<WaitingPull>,
    staleness: BTreeMap<usize, u64>,
    max_lead: u64,
}

/// Sums of these are exact, and each says which worker pushed it in which round.
fn number(worker: usize, round: usize) -> f32 {
    (round * 16 + worker) as f32 + 1.0
}

impl Run {
    fn new(setting: Setting) -> Self {
        let Setting { kind, bound, workers, keys, .. } = setting;
        let mut shard = shard(kind, bound, workers);
        let updates = Updates::default();
        let log = Arc::clone(&updates);
        shard.set_updater(Box::new(move |key, sum, stored| {
            let crate::key::Key::Int(number) = key else { panic!("{key} is no number") };
            log.lock().push((*number as u32, [sum[0], sum[1]]));
            stored.copy_from_slice(sum);
        }));
        for key in 0..keys {
            for worker in 0..workers {
                drop(shard.handle(worker, init(key as u32, 1, worker, 2)));
            }
        }
        let model = Model {
            arrived: vec![Vec::new(); workers],
            applied: vec![0; workers],
            ..Model::default()
        };
        Self {
            setting,
            shard,
            updates,
            seen: 0,
            models: vec![model; keys],
            here: vec![true; workers],
            waiting: Vec::new(),
            staleness: BTreeMap::new(),
            max_lead: 0,
        }
    }

    /// Delivers a message, and checks everything that has changed.
    fn deliver(&mut self, worker: usize, message: WireMessage) -> Result<(), TestCaseError> {
        let &MessageHeader { ticket, key, version, .. } = message.header();
        let op = message.op();
        let value = numbers::<f32>(message.data()).first().copied();
        let model = &mut self.models[key as usize];
        let mut is_refused = false;
        match op {
            MessageKind::Push | MessageKind::PushPull => {
                is_refused =
                    model.blocker(&self.here).is_some() && self.setting.kind == StoreKind::DistSync;
                if !is_refused {
                    model.arrived[worker].push(value.expect("a value"));
                }
            }
            MessageKind::Goodbye => {
                self.here[worker] = false;
                self.waiting.retain(|waiting| waiting.worker != worker);
            }
            _ => {}
        }
        if op == MessageKind::Pull || (op == MessageKind::PushPull && !is_refused) {
            let after = model.arrived[worker].len();
            self.waiting.push(WaitingPull { worker, ticket, key, after });
        }
        let answers = self.shard.handle(worker, message);
        self.check_updates(key, version)?;
        self.check_complete()?;
        for (to, answer) in answers {
            let place = self.waiting.iter().position(|waiting| {
                (waiting.worker, waiting.ticket) == (to, answer.header().ticket)
            });
            if let Some(place) = place {
                let WaitingPull { key, after, .. } = self.waiting.swap_remove(place);
                let model = &self.models[key as usize];
                let is_done = model.applied[to] >= after;
                prop_assert_eq!(
                    answer.op(),
                    if is_done { MessageKind::Answer } else { MessageKind::Refusal }
                );
                if is_done {
                    let got = numbers::<f32>(answer.data()).into_owned();
                    prop_assert_eq!(got, vec![model.value; 2]);
                    prop_assert_eq!(answer.header().version, model.version);
                } else {
                    prop_assert!(model.blocker(&self.here).is_some());
                }
                continue;
            }
            // The answer of a goodbye, or the refusal of a push.
            let expected = match op {
                MessageKind::Goodbye => MessageKind::Answer,
                _ => MessageKind::Refusal,
            };
            prop_assert_eq!((to, answer.header().ticket, answer.op()), (worker, ticket, expected));
            prop_assert!(op == MessageKind::Goodbye || is_refused);
        }
        self.check_waits()
    }

    /// Everything that waits has to wait.
    fn check_waits(&self) -> Result<(), TestCaseError> {
        for WaitingPull { worker, key, after, .. } in &self.waiting {
            let model = &self.models[*key as usize];
            prop_assert!(model.applied[*worker] < *after);
            let is_sync = self.setting.kind == StoreKind::DistSync;
            prop_assert!(!is_sync || model.blocker(&self.here).is_none());
        }
        Ok(())
    }

    /// Enters the updates that the shard has made since the last message into the model.
    fn check_updates(&mut self, key: u32, pulled: u64) -> Result<(), TestCaseError> {
        let updates = self.updates.lock().clone();
        for (of, sum) in &updates[self.seen..] {
            prop_assert_eq!(sum[0], sum[1]);
            let model = &mut self.models[*of as usize];
            if self.setting.kind == StoreKind::DistSync {
                let round = model.applied[0];
                let all: Option<Vec<f32>> =
                    model.arrived.iter().map(|arrived| arrived.get(round).copied()).collect();
                let all = all.ok_or_else(|| TestCaseError::fail("an update without a push"))?;
                prop_assert_eq!(sum[0], all.iter().sum::<f32>());
                model.applied.iter_mut().for_each(|applied| *applied += 1);
            } else {
                let worker = (sum[0] as usize - 1) % 16;
                let next = model.arrived[worker].get(model.applied[worker]);
                prop_assert_eq!(next, Some(&sum[0]), "pushes of a worker in their order");
                if *of == key && self.setting.bound.is_none() {
                    *self.staleness.entry(worker).or_default() +=
                        model.version - pulled.min(model.version);
                }
                model.applied[worker] += 1;
                let lead = model.lead(&self.here);
                self.max_lead = self.max_lead.max(lead);
                prop_assert!(self.setting.bound.is_none_or(|bound| lead <= bound), "{lead}");
            }
            model.value = sum[0];
            model.version += 1;
        }
        self.seen = updates.len();
        Ok(())
    }

    /// No update that could have been made is missing.
    fn check_complete(&self) -> Result<(), TestCaseError> {
        for model in &self.models {
            let left = |worker: &usize| model.arrived[*worker].len() - model.applied[*worker];
            let mut held = (0..self.setting.workers).filter(|worker| left(worker) > 0);
            match (self.setting.kind, self.setting.bound) {
                (StoreKind::DistSync, _) => prop_assert!(held.count() < self.setting.workers),
                (_, None) => prop_assert_eq!(held.next(), None),
                (_, Some(bound)) => {
                    for worker in held {
                        let ahead = (model.applied[worker] + 1) as u64;
                        prop_assert!(ahead.saturating_sub(model.slowest(&self.here)) > bound);
                    }
                }
            }
        }
        Ok(())
    }
}

impl Model {
    fn blocker(&self, here: &[bool]) -> Option<usize> {
        (0..here.len())
            .find(|worker| !here[*worker] && self.arrived[*worker].len() == self.applied[*worker])
    }

    fn slowest(&self, here: &[bool]) -> u64 {
        let applied = self.applied.iter().zip(here).filter(|(_, here)| **here);
        applied.map(|(applied, _)| *applied as u64).min().unwrap_or(u64::MAX)
    }

    fn lead(&self, here: &[bool]) -> u64 {
        let applied = self.applied.iter().zip(here).filter(|(_, here)| **here);
        let fastest = applied.map(|(applied, _)| *applied as u64).max().unwrap_or(0);
        fastest.saturating_sub(self.slowest(here))
    }
}

/// A worker's messages: each key once in a round, as a push, a pushpull, or a push and a pull.
fn program(setting: &Setting, worker: usize, dice: &mut RandomChoices) -> VecDeque<WireMessage> {
    let mut messages = VecDeque::new();
    let mut ticket = 10;
    let mut next = || {
        ticket += 1;
        ticket
    };
    for round in 0..setting.rounds {
        for key in dice.order(setting.keys) {
            let key = key as u32;
            let values = [number(worker, round); 2];
            let version = dice.below(1 + round * setting.workers) as u64;
            let kind = dice.below(4);
            if kind == 0 {
                messages.push_back(ask(MessageKind::Pull, next(), key));
            }
            let pushed = push(next(), key, version, &values);
            let header = MessageHeader { op: MessageKind::PushPull as u32, ..*pushed.header() };
            messages.push_back(if kind == 1 { super::message(header, &values) } else { pushed });
            if kind >= 2 {
                messages.push_back(ask(MessageKind::Pull, next(), key));
            }
        }
    }
    if setting.leaves == Some(worker) {
        messages.truncate(dice.below(messages.len() + 1));
        messages.push_back(ask(MessageKind::Goodbye, next(), 0));
    }
    messages
}

/// Runs all messages in a random order that keeps that of each worker. Returns the greatest lead.
fn run(setting: Setting) -> Result<u64, TestCaseError> {
    let mut dice = RandomChoices(setting.seed);
    let mut run = Run::new(setting);
    let mut programs: Vec<VecDeque<WireMessage>> =
        (0..setting.workers).map(|worker| program(&setting, worker, &mut dice)).collect();
    while programs.iter().any(|program| !program.is_empty()) {
        let worker = dice.below(setting.workers);
        // Some workers are faster than others.
        for _ in 0..dice.below(2 + 3 * worker) {
            if let Some(message) = programs[worker].pop_front() {
                run.deliver(worker, message)?;
            }
        }
    }
    // Of the workers that stay, each has pushed each key equally often. A pull is left only where
    // there is a bound, and one that has left was slower when it left: it counts no more.
    prop_assert!(run.waiting.is_empty(), "{:?}", run.waiting);
    let counts = run.shard.counts();
    prop_assert_eq!(counts.updates, run.models.iter().map(|model| model.version).sum::<u64>());
    if setting.kind == StoreKind::DistAsync {
        prop_assert_eq!(counts.max_lead, run.max_lead);
        if setting.bound.is_none() {
            for (worker, staleness) in counts.staleness.iter().enumerate() {
                prop_assert_eq!(staleness.sum, run.staleness.get(&worker).copied().unwrap_or(0));
            }
        }
    }
    Ok(run.max_lead)
}

fn settings() -> impl Strategy<Value = Setting> {
    let kind = prop_oneof![
        Just((StoreKind::DistSync, None)),
        Just((StoreKind::DistAsync, None)),
        (1..4_u64).prop_map(|bound| (StoreKind::DistAsync, Some(bound))),
    ];
    let leaves = prop_oneof![2 => Just(None), 1 => (0..4_usize).prop_map(Some)];
    (kind, 1..5_usize, 1..6_usize, 1..6_usize, leaves, any::<u64>()).prop_map(
        |((kind, bound), workers, keys, rounds, leaves, seed)| {
            let leaves = leaves.filter(|leaves| *leaves < workers);
            Setting { kind, bound, workers, keys, rounds, leaves, seed }
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]

    #[test]
    fn every_order_of_messages_gives_the_updates_of_the_model(setting in settings()) {
        run(setting)?;
    }
}

#[test]
fn with_a_bound_a_fast_worker_really_is_that_far_ahead() {
    for bound in 1..5 {
        let setting = Setting {
            kind: StoreKind::DistAsync,
            bound: Some(bound),
            workers: 3,
            keys: 2,
            rounds: 12,
            leaves: None,
            seed: bound,
        };
        assert_eq!(run(setting).expect("as in the model"), bound);
    }
}
