//! Requests that every worker makes, and that are answered when all have made them.

#[derive(Debug)]
pub(super) struct Gathering {
    /// By worker.
    tickets: Vec<Option<u64>>,
    first: Option<usize>,
}

impl Gathering {
    pub(super) fn new(workers: usize) -> Self {
        Self { tickets: vec![None; workers], first: None }
    }

    pub(super) fn add(&mut self, worker: usize, ticket: u64) {
        self.tickets[worker] = Some(ticket);
        self.first.get_or_insert(worker);
    }

    /// The first worker that made the request.
    pub(super) fn first(&self) -> Option<usize> {
        self.first
    }

    /// The tickets of all workers, if all have made the request.
    pub(super) fn complete(&self) -> Option<Vec<u64>> {
        self.tickets.iter().copied().collect()
    }
}
