//! Requests that every worker makes, and that are answered when all have made them.
//!
//! If one of them does not fit the others, all workers are told, whoever comes later included. So no
//! worker waits for one that has got an error.

use std::time::{Duration, Instant};

use crate::Error;

#[derive(Debug)]
pub(super) struct Gathering {
    /// By worker: its request that waits for the others.
    waiting: Vec<Option<WaitingGather>>,
    /// By worker: whether it has made the request.
    made: Vec<bool>,
    first: Option<usize>,
    failure: Option<Error>,
}

#[derive(Clone, Copy, Debug)]
struct WaitingGather {
    ticket: u64,
    since: Instant,
}

/// A worker and its ticket.
pub(super) type Requester = (usize, u64);

/// The state of a gathering after a request.
pub(super) enum GatheringState {
    /// Others are missing.
    InPart,
    /// All have made the request. These wait for the answer.
    All(Vec<Requester>),
    /// It cannot succeed any more. These wait for the answer.
    Failed(Error, Vec<Requester>),
}

impl Gathering {
    pub(super) fn new(workers: usize) -> Self {
        let (waiting, made) = (vec![None; workers], vec![false; workers]);
        Self { waiting, made, first: None, failure: None }
    }

    /// Adds a worker's request, and what is wrong with it.
    pub(super) fn add(
        &mut self,
        worker: usize,
        ticket: u64,
        problem: Option<Error>,
    ) -> GatheringState {
        self.waiting[worker] = Some(WaitingGather { ticket, since: Instant::now() });
        self.made[worker] = true;
        self.first.get_or_insert(worker);
        self.failure = self.failure.take().or(problem);
        match self.failure.clone() {
            Some(failure) => GatheringState::Failed(failure, self.give_up()),
            None if self.is_whole() => GatheringState::All(self.give_up()),
            None => GatheringState::InPart,
        }
    }

    /// The first worker that made the request.
    pub(super) fn first(&self) -> Option<usize> {
        self.first
    }

    /// Whether this worker has made the request.
    pub(super) fn has(&self, worker: usize) -> bool {
        self.made[worker]
    }

    /// Whether all workers have made the request.
    pub(super) fn is_whole(&self) -> bool {
        self.made.iter().all(|made| *made)
    }

    /// The workers that have not made the request.
    pub(super) fn missing(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.made.len()).filter(|worker| !self.made[*worker])
    }

    /// The requests that have waited longer than the deadline, each with the time. They wait no longer.
    pub(super) fn late(&mut self, now: Instant, deadline: Duration) -> Vec<(Requester, Duration)> {
        let waited = |waiting: &WaitingGather| now.saturating_duration_since(waiting.since);
        let times: Vec<_> = self.waiting.iter().map(|place| place.as_ref().map(waited)).collect();
        let late = self.take(|waiting| waited(waiting) > deadline);
        late.into_iter().map(|asked| (asked, times[asked.0].unwrap_or_default())).collect()
    }

    /// A worker waits no longer.
    pub(super) fn forget(&mut self, worker: usize) {
        self.waiting[worker] = None;
    }

    /// Removes all requests that wait.
    pub(super) fn give_up(&mut self) -> Vec<Requester> {
        self.take(|_| true)
    }

    fn take(&mut self, condition: impl Fn(&WaitingGather) -> bool) -> Vec<Requester> {
        let places = self.waiting.iter_mut().enumerate();
        places
            .filter_map(|(worker, place)| Some((worker, place.take_if(|w| condition(w))?.ticket)))
            .collect()
    }
}
