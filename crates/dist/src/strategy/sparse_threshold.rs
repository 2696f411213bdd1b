//! sparseThreshold: of u = g + r each rank sends every element of magnitude `spars` or more.
//!
//! Two rounds (Strom, "Scalable Distributed DNN Training Using Commodity GPU Cloud Computing",
//! Interspeech 2015, has the idea): ranks count first, then gather messages as long as the longest,
//! or, where that takes as many bytes, all of the unit.

use super::select::Selector;
use super::sparse_exchange::Dense;
use super::{Memory, Message, Strategy, Unit, sparse_exchange};
use crate::comm::{Collective, Communicator, Payload};
use crate::{Error, Result};

/// Sends what is large enough.
#[derive(Debug)]
pub(super) struct SparseThreshold {
    memory: Option<Memory>,
    selector: Selector,
    /// Where each unit is in its exchange.
    rounds: Vec<Round>,
    notice: Option<String>,
    dense: Dense,
    /// Messages without an element before the first that had any.
    silent: Option<u32>,
}

/// So many messages without an element are worth a word.
const SILENCE: u32 = 100;

#[derive(Debug, Default)]
enum Round {
    #[default]
    Idle,
    /// The ranks tell how many elements they have; these are ours.
    Counting { positions: Vec<u32>, sent: Vec<f32> },
    /// Messages of the longest count travel.
    Gathering { counts: Vec<usize>, room: usize },
}

impl SparseThreshold {
    pub(super) fn new(corr: bool) -> Self {
        Self {
            memory: corr.then(Memory::default),
            selector: Selector::default(),
            rounds: Vec::new(),
            notice: None,
            dense: Dense::default(),
            silent: Some(0),
        }
    }

    /// A threshold above everything trains nothing: better said than found out.
    fn count_silence(&mut self, unit: &Unit<'_>) {
        if let Some(silent) = &mut self.silent {
            *silent += 1;
            if *silent == SILENCE {
                let spars = unit.spars;
                self.notice = Some(format!(
                    "sparseThreshold has found no element of magnitude {spars} or more in its first \
                     {SILENCE} messages: nothing is trained"
                ));
            }
        }
    }

    fn round(&mut self, unit: &Unit<'_>) -> &mut Round {
        if self.rounds.len() <= unit.index {
            self.rounds.resize_with(unit.index + 1, Round::default);
        }
        &mut self.rounds[unit.index]
    }

    /// All ranks know all counts: what travels now?
    fn after_counting(
        &mut self,
        unit: &Unit<'_>,
        counts: Vec<usize>,
        positions: &[u32],
        sent: &[f32],
        values: &mut [f32],
    ) -> Result<Option<Message>> {
        let most = counts.iter().copied().max().unwrap_or(0);
        if most == 0 {
            self.count_silence(unit);
            values.fill(0.0);
            return Ok(None);
        }
        self.silent = None;
        if sparse_exchange::pays(unit, most) {
            let buffer = sparse_exchange::pack(positions, sent, most)?;
            *self.round(unit) = Round::Gathering { counts, room: most };
            return Ok(Some(Message::new(Collective::AllGather, buffer)));
        }
        // Everything is sent after all: what was taken out goes back, nothing is kept.
        for (&at, &value) in positions.iter().zip(sent) {
            values[at as usize] = value;
        }
        self.update(unit, None);
        Ok(Some(self.dense.message("sparseThreshold", unit, most, &mut self.notice)))
    }
}

impl Strategy for SparseThreshold {
    fn describe(&self) -> String {
        format!("sparseThreshold corr={}", self.memory.is_some())
    }

    fn check_spars(&self, spars: f32) -> Result<()> {
        if spars > 0.0 && spars.is_finite() {
            return Ok(());
        }
        let range = "above 0 (the least magnitude that sparseThreshold sends)";
        Err(Error::Setting { setting: "spars", value: spars.to_string(), range })
    }

    fn prepare(&mut self, units: &[Unit<'_>], _comm: &dyn Communicator) -> Result<()> {
        sparse_exchange::check(units)
    }

    fn memory(&mut self) -> Option<&mut Memory> {
        self.memory.as_mut()
    }

    fn compress(&mut self, unit: &Unit<'_>, values: &mut [f32]) -> Result<Message> {
        let mut positions = Vec::new();
        self.selector.at_least(values, unit.spars, &mut positions);
        let sent = sparse_exchange::take_out(&positions, values);
        let count = positions.len() as i32; // of 31 bits, as checked
        *self.round(unit) = Round::Counting { positions, sent };
        Ok(Message::new(Collective::AllGather, Payload::from_slice(&[count])))
    }

    fn aggregate(
        &mut self,
        unit: &Unit<'_>,
        received: Vec<Payload>,
        values: &mut [f32],
    ) -> Result<Option<Message>> {
        let round = std::mem::take(self.round(unit));
        let Some(gathered) = received.first() else { return Ok(None) };
        match round {
            Round::Counting { positions, sent } => {
                let counts = gathered.as_slice::<i32>()?;
                let counts = counts.iter().map(|&count| usize::try_from(count).unwrap_or(0));
                self.after_counting(unit, counts.collect(), &positions, &sent, values)
            }
            Round::Gathering { counts, room } => {
                sparse_exchange::average(unit, gathered, room, &counts, values)?;
                Ok(None)
            }
            Round::Idle => {
                let what = format!("a message for {unit}, which sent none");
                Err(Error::Protocol { what })
            }
        }
    }

    fn notice(&mut self) -> Option<String> {
        self.notice.take()
    }
}
