//! Long collectives, in pieces: every rank owns a part of the numbers, and each piece of a part goes
//! up to its owner, who reduces it, and down again to those who need it. Many pieces are under way at
//! a time, so one piece goes up beside another that comes down.
//!
//! For every piece each rank sends its owner one message and gets one back, which is empty where there
//! is nothing to say. A rank sends its next piece when one of the last [`Pace::window`] has come back:
//! so the receives for all messages are posted before the messages come, and nothing piles up at a
//! slow rank.

use std::ops::Range;

use candelabrum_memory::reduce::reduce_onto;

use super::Mpi;
use super::raw::{Batch, Kind, Tag};
use crate::comm::collective::Header;
use crate::comm::wait::Wait;
use crate::comm::{ElementType, Payload, ReduceOp};
use crate::Result;

/// How many bytes a piece has, and how many pieces are under way between two ranks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    piece: usize,
    window: usize,
}

impl Pace {
    pub(super) fn new(one_host: bool) -> Self {
        let get = |name: &str, or: usize| {
            std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(or)
        };
        let _ = one_host;
        Self { piece: get("CB_PIECE", if one_host {1<<20} else {60 << 10}), window: get("CB_WINDOW", if one_host {1} else {16}) }
    }
}

/// What a pipeline does with the pieces.
#[derive(Clone, Copy, Debug)]
pub(super) struct Route {
    /// How the numbers of all ranks become one; where there is none, the root's are taken.
    pub(super) op: Option<ReduceOp>,
    /// The rank that gives the numbers, or gets them.
    pub(super) root: Option<usize>,
    /// Whether the results go to all ranks.
    pub(super) to_all: bool,
}

/// How far a rank is with another one; all are numbers of pieces.
#[derive(Clone, Copy, Debug, Default)]
struct Progress {
    /// Of the other rank's part.
    sent_up: usize,
    awaited_down: usize,
    got_down: usize,
    /// Of our own part.
    awaited_up: usize,
    got_up: usize,
}

impl Mpi {
    /// Passes the numbers in `buffer` along the route, where `parts` are what the ranks own (bytes).
    pub(super) fn pipeline(
        &mut self,
        header: Header,
        buffer: Payload,
        route: Route,
        parts: impl Fn(usize) -> Range<usize>,
    ) -> Result<Payload> {
        let (n, own) = (self.world_size(), self.rank);
        let Pace { piece, window } = self.pace;
        // Whole words, so that every contribution is aligned for every element type.
        let piece = piece / 8 * 8;
        let parts: Vec<Range<usize>> = (0..n).map(parts).collect();
        let counts: Vec<usize> = parts.iter().map(|part| part.len().div_ceil(piece)).collect();
        let at = |owner: usize, k: usize| {
            let Range { start, end } = parts[owner];
            start + k * piece..end.min(start + (k + 1) * piece)
        };
        // What goes from a rank to the owner of a piece, and from the owner to a rank.
        let up = |from: usize, owner: usize, k: usize| {
            let all = at(owner, k);
            if route.op.is_some() || route.root == Some(from) { all } else { 0..0 }
        };
        let down = |owner: usize, to: usize, k: usize| {
            let all = at(owner, k);
            let gave = route.op.is_none() && route.root == Some(to);
            let takes = route.to_all || route.root == Some(to);
            if takes && !gave { all } else { 0..0 }
        };
        let slots = window.min(counts[own]) * (n - 1);
        let mut scratch = std::mem::replace(&mut self.scratch, Payload::empty());
        if route.op.is_some() && scratch.len() < slots * piece {
            scratch = Payload::zeros(ElementType::U8, slots * piece);
        }
        let slot = |from: usize, k: usize, len: usize| {
            let start = ((k % window) * (n - 1) + from - usize::from(from > own)) * piece;
            start..start + len
        };

        self.call(header, &[], |_| 0..0)?;
        let mut batch = Batch::new(self.comm, [buffer, scratch]);
        let mut with = vec![Progress::default(); n];
        let slack = std::env::var("CB_SLACK").map_or(window, |t| t.parse().unwrap_or(0));
        let (mut reduced, mut heard) = (0, false);
        let mut wait = Wait::begin();
        loop {
            let mut moved = false;
            for other in self.others() {
                let kind = |tag, receives| Kind { tag, peer: other, receives };
                let at = &mut with[other];
                while at.awaited_up < counts[own].min(reduced + window) {
                    let range = up(other, own, at.awaited_up);
                    let (part, range) = match route.op {
                        Some(_) => (1, slot(other, at.awaited_up, range.len())),
                        None => (0, range),
                    };
                    batch.start(kind(Tag::Up, true), part, range)?;
                    at.awaited_up += 1;
                }
                let limit = match reduced < counts[own] {
                    true => (reduced + window).min(at.got_down + window + slack),
                    false => at.got_down + window,
                };
                while at.sent_up < counts[other].min(limit) {
                    let range = up(own, other, at.sent_up);
                    batch.start(kind(Tag::Up, false), 0, range)?;
                    at.sent_up += 1;
                }
                // The result is received where the contribution was.
                while at.awaited_down < at.sent_up && batch.complete_first(kind(Tag::Up, false))? {
                    let range = down(other, own, at.awaited_down);
                    batch.start(kind(Tag::Down, true), 0, range)?;
                    at.awaited_down += 1;
                }
                while batch.complete_first(kind(Tag::Up, true))? {
                    at.got_up += 1;
                    moved = true;
                }
                while batch.complete_first(kind(Tag::Down, true))? {
                    at.got_down += 1;
                    moved = true;
                }
            }
            if !heard {
                heard = self.have_all_spoken(header)?;
                if heard {
                    self.agree(header)?;
                    for other in self.others() {
                        self.peers[other].next(self.comm, other)?;
                    }
                    moved = true;
                }
            }
            let others = || (0..n).filter(|&other| other != own);
            while heard && reduced < counts[own] && others().all(|other| with[other].got_up > reduced)
            {
                if let Some(op) = route.op {
                    let all = at(own, reduced);
                    let len = all.len();
                    let slots = others().map(|other| slot(other, reduced, len));
                    let (sum, others) = batch.idle(all, slots);
                    reduce_onto(header.element, op, own, sum, &others, None);
                }
                for other in others() {
                    let kind = Kind { tag: Tag::Down, peer: other, receives: false };
                    // So many are known to have come, or to be about to.
                    if reduced >= window {
                        batch.complete_first(kind)?;
                    }
                    batch.start(kind, 0, down(own, other, reduced))?;
                }
                reduced += 1;
                moved = true;
            }
            let done = |other: usize| with[other].got_down == counts[other];
            if heard && reduced == counts[own] && others().all(done) {
                break;
            }
            if moved {
                wait = Wait::begin();
                continue;
            }
            self.pause(&mut wait, header, |this| match heard {
                true => batch.missing(),
                false => this.silent(),
            })?;
        }
        let [buffer, scratch] = self.wait_for(batch, header)?;
        self.scratch = scratch;
        Ok(buffer)
    }
}
