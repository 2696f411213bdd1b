//! Long collectives in pieces. Every rank owns a part of the numbers. Each piece of a part is sent
//! *up* to its owner, which reduces it, and the result is sent *down* to the ranks that need it.
//! Some pieces go up while others come down.
//!
//! For every piece each rank sends one message to the owner and gets one back. A message without
//! numbers is empty. A rank sends its next piece when one of its last pieces has come back. So
//! receives are posted before messages arrive, and no messages pile up at a slow rank.

use std::ops::Range;

use candelabrum_memory::reduce::reduce_onto;

use super::MpiTransport;
use super::pace::PipelineSizes;
use super::raw::{MessageTag, RequestBatch, RequestKind};
use crate::Result;
use crate::comm::collective::CollectiveHeader;
use crate::comm::wait::BackoffWait;
use crate::comm::{ElementType, Payload, ReduceOp};

/// The numbers that a collective sends up and down.
#[derive(Clone, Copy, Debug)]
pub(super) struct PipelineRoute {
    /// The reduction of all ranks' numbers. With `None` the root's numbers are the result.
    pub(super) op: Option<ReduceOp>,
    /// The rank that has the numbers of a broadcast, or gets the result of a reduce.
    pub(super) root: Option<usize>,
    /// Whether all ranks get the result.
    pub(super) to_all: bool,
}

/// A long collective under way.
struct Pipeline {
    own: usize,
    element: ElementType,
    route: PipelineRoute,
    pace: PipelineSizes,
    /// The bytes that each rank owns.
    parts: Vec<Range<usize>>,
    /// By rank.
    with: Vec<PieceProgress>,
    /// The number of pieces of this rank's own part whose results have been sent.
    reduced: usize,
    /// The numbers, and memory for the pieces that come up.
    batch: RequestBatch,
}

/// The progress between this rank and another one, in pieces.
#[derive(Clone, Copy, Debug, Default)]
struct PieceProgress {
    /// This and the next two count pieces of the other rank's part.
    sent_up: usize,
    awaited_down: usize,
    got_down: usize,
    /// This and the next count pieces of this rank's own part.
    awaited_up: usize,
    got_up: usize,
}

impl MpiTransport {
    /// Passes the numbers in `buffer` along the route. `parts` returns the bytes that a rank owns.
    pub(super) fn pipeline(
        &mut self,
        header: CollectiveHeader,
        buffer: Payload,
        route: PipelineRoute,
        parts: impl Fn(usize) -> Range<usize>,
    ) -> Result<Payload> {
        let (n, own, pace) = (self.world_size(), self.rank, self.pace);
        let parts: Vec<_> = (0..n).map(parts).collect();
        let scratch = match route.op {
            Some(_) => {
                let pieces = pace.window.min(parts[own].len().div_ceil(pace.piece));
                self.take_scratch(pieces * (n - 1) * pace.piece)
            }
            None => Payload::empty(),
        };
        self.call(header, &[], |_| 0..0)?;
        let (element, with) = (header.element, vec![PieceProgress::default(); n]);
        let batch = RequestBatch::new(&self.group, [buffer, scratch]);
        let mut pipeline = Pipeline { own, element, route, pace, parts, with, reduced: 0, batch };
        // Pieces do not wait for the headers: ranks that disagree fail before they use a piece.
        let (mut agreed, mut wait) = (false, BackoffWait::begin());
        while !agreed || !pipeline.is_done() {
            let mut moved = false;
            for other in self.others() {
                moved |= pipeline.pass(other)?;
            }
            if agreed {
                moved |= pipeline.reduce()?;
            } else if self.have_all_spoken(header)? {
                self.agree(header)?;
                (agreed, moved) = (true, true);
            }
            if moved {
                wait = BackoffWait::begin();
            } else if agreed {
                self.pause(&mut wait, header, |_| pipeline.batch.missing())?;
            } else {
                self.pause(&mut wait, header, Self::silent)?;
            }
        }
        for other in self.others() {
            self.peers[other].next(&self.group, other)?;
        }
        let [buffer, scratch] = self.wait_for(pipeline.batch, header)?;
        if route.op.is_some() {
            self.scratch = scratch;
        }
        Ok(buffer)
    }
}

impl Pipeline {
    /// Starts the due sends and receives with one other rank. Returns whether a piece has arrived.
    fn pass(&mut self, other: usize) -> Result<bool> {
        let kind = |tag, receives| RequestKind { tag, peer: other, receives };
        let (own, window) = (self.own, self.pace.window);
        let mut at = self.with[other];
        let before = at.got_up + at.got_down;
        while at.awaited_up < self.pieces(own).min(self.reduced + window) {
            let range = self.up(other, own, at.awaited_up);
            let (buffer, range) = match self.route.op {
                Some(_) => (1, self.slot(other, at.awaited_up, range.len())),
                None => (0, range),
            };
            self.batch.start(kind(MessageTag::Up, true), buffer, range)?;
            at.awaited_up += 1;
        }
        // A rank that has pieces of its own to reduce sends one up after each reduction. Then all
        // ranks copy, or reduce, at the same time.
        let limit = match self.reduced < self.pieces(own) {
            true => window + self.reduced.min(at.got_down + window),
            false => window + at.got_down,
        };
        while at.sent_up < self.pieces(other).min(limit) {
            let range = self.up(own, other, at.sent_up);
            self.batch.start(kind(MessageTag::Up, false), 0, range)?;
            at.sent_up += 1;
        }
        // The result replaces the contribution, which must have been sent before.
        while at.awaited_down < at.sent_up
            && self.batch.complete_first(kind(MessageTag::Up, false))?
        {
            let range = self.down(other, own, at.awaited_down);
            self.batch.start(kind(MessageTag::Down, true), 0, range)?;
            at.awaited_down += 1;
        }
        while self.batch.complete_first(kind(MessageTag::Up, true))? {
            at.got_up += 1;
        }
        while self.batch.complete_first(kind(MessageTag::Down, true))? {
            at.got_down += 1;
        }
        self.with[other] = at;
        Ok(at.got_up + at.got_down > before)
    }

    /// Reduces the pieces that all ranks have sent up, and sends the results down. Returns whether
    /// there were any.
    fn reduce(&mut self) -> Result<bool> {
        let (own, before) = (self.own, self.reduced);
        let others: Vec<usize> = (0..self.parts.len()).filter(|&other| other != own).collect();
        let got_up = others.iter().map(|&other| self.with[other].got_up).min();
        while self.reduced < got_up.unwrap_or(0) {
            let k = self.reduced;
            if let Some(op) = self.route.op {
                let all = self.piece(own, k);
                let slots: Vec<_> =
                    others.iter().map(|&other| self.slot(other, k, all.len())).collect();
                let (sum, others) = self.batch.idle(all, &slots);
                reduce_onto(self.element, op, own, sum, &others);
            }
            for &other in &others {
                let kind = RequestKind { tag: MessageTag::Down, peer: other, receives: false };
                // Removes one complete send for every new one.
                self.batch.complete_first(kind)?;
                self.batch.start(kind, 0, self.down(own, other, k))?;
            }
            self.reduced += 1;
        }
        Ok(self.reduced > before)
    }

    /// Whether all pieces have been received and all results have been sent.
    fn is_done(&self) -> bool {
        let has_come = |(other, at): (usize, &PieceProgress)| {
            other == self.own || at.got_down == self.pieces(other)
        };
        self.reduced == self.pieces(self.own) && self.with.iter().enumerate().all(has_come)
    }

    /// The number of pieces of a rank's part.
    fn pieces(&self, owner: usize) -> usize {
        self.parts[owner].len().div_ceil(self.pace.piece)
    }

    /// A piece of a rank's part (bytes).
    fn piece(&self, owner: usize, k: usize) -> Range<usize> {
        let (Range { start, end }, piece) = (self.parts[owner].clone(), self.pace.piece);
        start + k * piece..end.min(start + (k + 1) * piece)
    }

    /// The bytes that a rank sends to the owner of a piece.
    fn up(&self, from: usize, owner: usize, k: usize) -> Range<usize> {
        let gives = self.route.op.is_some() || self.route.root == Some(from);
        if gives { self.piece(owner, k) } else { 0..0 }
    }

    /// The bytes that the owner of a piece sends to a rank.
    fn down(&self, owner: usize, to: usize, k: usize) -> Range<usize> {
        let is_root = self.route.root == Some(to);
        let needs = if is_root { self.route.op.is_some() } else { self.route.to_all };
        if needs { self.piece(owner, k) } else { 0..0 }
    }

    /// The bytes of the second buffer that receive a rank's contribution to a piece of ours.
    fn slot(&self, from: usize, k: usize, len: usize) -> Range<usize> {
        let PipelineSizes { piece, window } = self.pace;
        let place = from - usize::from(from > self.own);
        let start = (k % window * (self.parts.len() - 1) + place) * piece;
        start..start + len
    }
}
