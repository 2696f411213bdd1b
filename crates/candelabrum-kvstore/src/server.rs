//! A server: it takes requests of all workers in turn until the last worker has left.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use candelabrum_dist::{Error as DistError, Group, StepServer, World};

use crate::link::{GroupMail, groups_of};
use crate::roles::{ProcessRole, RoleAssignment};
use crate::shard::{ServerShard, Updater};
use crate::wire::{MessageKind, MessageMemory, WireMessage};
use crate::{Error, Key, Result, ServerStats};

/// The time between two looks at the clock.
const LOOK: Duration = Duration::from_millis(250);

/// The time for which refusals are held after a goodbye.
const GRACE: Duration = Duration::from_secs(1);

/// The most requests that are taken from the network before the next one is served. Workers that send
/// without a break could otherwise keep the server from serving.
const AT_ONCE: usize = 1024;

/// A server to be run on this rank.
#[derive(Default)]
pub struct Server {
    updater: Option<Updater>,
}

impl Server {
    /// A server that updates by the optimizer that the workers set, or assigns what they push.
    pub fn new() -> Self {
        Self::default()
    }

    /// Updates values by `updater`, which gets the key, the received sum and the stored value, as long
    /// as the workers have set no optimizer. Each server has an updater of its own, in the program that
    /// all ranks run. No code travels between ranks.
    #[must_use]
    pub fn updater(
        mut self,
        updater: impl FnMut(&Key, &[f32], &mut [f32]) + Send + 'static,
    ) -> Self {
        self.updater = Some(Box::new(updater));
        self
    }

    /// Serves the workers of `world` until all of them have left. Every server calls it when the
    /// workers create their store. Returns what the server has counted.
    ///
    /// All work on keys is done on this thread. The steps of a training in dist_sync have another thread. Requests that are there at the same time are served in turn by
    /// worker, so a worker with many requests does not delay the others by more than one.
    ///
    /// # Errors
    /// A rank that is no server. The failure of any rank.
    pub fn run(self, world: &World) -> Result<ServerStats> {
        let roles = RoleAssignment::new(world)?;
        let ProcessRole::Server(number) = roles.role() else {
            let rank = world.rank();
            let what = format!("rank {rank} is a worker, and only a server can serve");
            return Err(Error::Roles { what });
        };
        let [all, steps] = groups_of(world)?;
        let mut steps = StepServer::new(steps, roles.workers().len(), world.device().clone());
        let (calls, next) = mpsc::channel::<String>();
        let served = thread::scope(|scope| {
            let steps = scope.spawn(move || next.iter().try_for_each(|call| steps.answer(&call)));
            let served = self.serve(world, &roles, number, &all, &calls);
            // The thread ends after the last call.
            drop(calls);
            let steps = steps.join().unwrap_or(Err(DistError::Stopped { rank: world.rank() }));
            // What ends a step ends the messages, too.
            steps?;
            served
        });
        served.inspect_err(|error| {
            // Before this rank leaves the group, which the others would take for the end of its part.
            if !matches!(error, Error::Dist(_)) {
                all.fail(&DistError::Protocol { what: error.to_string() });
            }
        })
    }

    fn serve(
        self,
        world: &World,
        roles: &RoleAssignment,
        number: usize,
        all: &Group,
        calls: &mpsc::Sender<String>,
    ) -> Result<ServerStats> {
        let place = (number, roles.servers().len());
        let workers: Vec<usize> = roles.workers().collect();
        let mut queues: Vec<VecDeque<WireMessage>> =
            workers.iter().map(|_| VecDeque::new()).collect();
        let deadline = world.deadline()?;
        let rank = roles.servers().start + number;
        let mut shard =
            ServerShard::new(rank, place, workers, deadline, self.updater, MessageMemory::new(all));
        let mut mail = GroupMail::new(Arc::clone(all));
        let mut turn = WorkerTurn::default();
        let mut outbox = AnswerQueue::default();
        let (mut goodbyes, mut looked) = (0, Instant::now());
        while !shard.is_over() {
            let is_idle = queues.iter().all(VecDeque::is_empty);
            let mut limit = if is_idle { LOOK } else { Duration::ZERO };
            let mut taken = 0;
            // After the last goodbye nothing arrives any more.
            while goodbyes < queues.len()
                && taken < AT_ONCE
                && let Some((from, message)) = mail.receive(limit)?
            {
                taken += 1;
                let what = || "it is a request, and its sender is no worker".to_owned();
                let queue = queues.get_mut(from);
                let queue = queue.ok_or_else(|| Error::Message { from, what: what() })?;
                if message.op() == MessageKind::Train {
                    // A thread that has ended has had an error, which its workers have got, too.
                    drop(calls.send(message.text_of().into_owned()));
                    continue;
                }
                goodbyes += usize::from(message.op() == MessageKind::Goodbye);
                queue.push_back(message);
                limit = Duration::ZERO;
            }
            if let Some((worker, message)) = turn.next(&mut queues) {
                let longest = &mut shard.stats_mut().longest_run;
                *longest = turn.run.max(*longest);
                if message.op() == MessageKind::Goodbye {
                    outbox.record_goodbye(worker);
                }
                outbox.send(shard.handle(worker, message), &mut mail)?;
            }
            if looked.elapsed() > LOOK {
                looked = Instant::now();
                outbox.send(shard.look_at_the_clock(looked), &mut mail)?;
            }
            outbox.send_held(&mut mail)?;
        }
        mail.finish()?;
        Ok(shard.counts())
    }
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server").field("updater", &self.updater.is_some()).finish()
    }
}

/// The answers on their way to workers.
///
/// A worker that fails drops its store before its program can report why. To the server this looks as if
/// the worker had ended. So for a while after a goodbye, refusals are held: if the news of a failure
/// comes in this time, the other workers get the cause and not a consequence.
#[derive(Debug, Default)]
struct AnswerQueue {
    last_goodbye: Option<Instant>,
    held: Vec<(usize, WireMessage)>,
}

impl AnswerQueue {
    /// Notes that a worker takes no more answers.
    fn record_goodbye(&mut self, worker: usize) {
        self.held.retain(|(to, _)| *to != worker);
        self.last_goodbye = Some(Instant::now());
    }

    fn holds(&self) -> bool {
        self.last_goodbye.is_some_and(|at| at.elapsed() < GRACE)
    }

    fn send(&mut self, answers: Vec<(usize, WireMessage)>, mail: &mut GroupMail) -> Result<()> {
        for (to, answer) in answers {
            if answer.op() == MessageKind::Refusal && self.holds() {
                self.held.push((to, answer));
            } else {
                mail.send(to, answer)?;
            }
        }
        Ok(())
    }

    fn send_held(&mut self, mail: &mut GroupMail) -> Result<()> {
        if self.holds() {
            return Ok(());
        }
        self.held.drain(..).try_for_each(|(to, answer)| mail.send(to, answer))
    }
}

/// Whose request is served next.
#[derive(Debug, Default)]
struct WorkerTurn {
    last: usize,
    /// The requests of the last worker that were served one after the other although another worker
    /// had one.
    run: u64,
}

impl WorkerTurn {
    /// The next request: that of the first worker after the last one that has any.
    fn next(&mut self, queues: &mut [VecDeque<WireMessage>]) -> Option<(usize, WireMessage)> {
        let workers = queues.len();
        let order = (1..=workers).map(|step| (self.last + step) % workers);
        let worker = order.into_iter().find(|worker| !queues[*worker].is_empty())?;
        let is_wanted =
            |(other, queue): (usize, &VecDeque<_>)| other != worker && !queue.is_empty();
        let contested = queues.iter().enumerate().any(is_wanted);
        self.run = match contested {
            false => 0,
            true if worker == self.last => self.run + 1,
            true => 1,
        };
        self.last = worker;
        Some((worker, queues[worker].pop_front()?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::MessageHeader;

    #[test]
    fn a_worker_with_many_requests_delays_the_others_by_one() {
        let request = || WireMessage::text(MessageHeader::new(MessageKind::Flush), "");
        let mut queues: Vec<VecDeque<WireMessage>> = vec![VecDeque::new(); 3]
            .into_iter()
            .zip([50, 3, 0])
            .map(|(_, count): (VecDeque<()>, _)| (0..count).map(|_| request()).collect())
            .collect();
        let mut turn = WorkerTurn::default();
        let mut order = Vec::new();
        while let Some((worker, _)) = turn.next(&mut queues) {
            order.push(worker);
            assert!(turn.run <= 1, "{order:?}");
        }
        assert_eq!(order[..7], [1, 0, 1, 0, 1, 0, 0]);
        assert_eq!(order.len(), 53);
    }
}
