//! Whose turn it is: operations of several threads, one at a time, in the order in which they came.
//!
//! What operations work on (a *subject*: the transports of a rank) belongs to whoever has the turn.
//! That is the communication thread for operations that were started in the background; a thread
//! that has nothing else to do carries out an operation itself, because two changes of threads take
//! longer than a short operation does.
//!
//! **Invariant** Tasks begin in the order in which they were given, each after the one before ended.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crate::{Error, Result};

/// How long background work of a subject may lie still while nothing is requested.
const PROGRESS_INTERVAL: Duration = Duration::from_micros(100);

/// How long a task may lie there that was left to whoever waits for it.
const LEFT_ALONE: Duration = Duration::from_millis(10);

/// When a task that was begun is to be carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum When {
    /// At once, by the communication thread.
    Soon,
    /// By who waits for it: it takes less time than waking a thread does. Where nobody waits, a
    /// little later by the communication thread.
    WhenWaitedFor,
}

/// What operations work on.
pub(super) trait Subject: Send + 'static {
    /// Whether every thread may work on it. Where not, only the thread that made it does.
    fn any_thread(&self) -> bool;

    /// Moves on what goes on in the background; whether something still does.
    fn progress(&mut self) -> bool;

    /// After the last task.
    fn finish(&mut self);
}

/// The queue, and the thread that works it off. Dropping it waits for both.
pub(super) struct Engine<S: Subject> {
    shared: Arc<Shared<S>>,
    /// `Some` until the drop.
    thread: Option<JoinHandle<()>>,
}

struct Shared<S> {
    /// For the error of what cannot be carried out any more.
    rank: usize,
    any_thread: bool,
    queue: Mutex<Queue<S>>,
    /// What the communication thread sleeps on.
    changed: Condvar,
    /// Locked by who has the turn, so nobody waits for the lock. Poisoned by a panic.
    subject: Mutex<S>,
}

struct Queue<S> {
    tasks: VecDeque<Task<S>>,
    /// Whether somebody has the turn.
    taken: bool,
    /// Whether the communication thread sleeps and has not been woken.
    asleep: bool,
    /// Whether it will look again by itself, after [`LEFT_ALONE`].
    watching: bool,
    /// Whether tasks have been left to who waits for them since it looked.
    left_alone: bool,
    /// Counts tasks that were begun: where it moves on, somebody looks after those that are left.
    begun: u64,
    /// Whether the subject has work in the background.
    background: bool,
    /// Whether nothing comes any more.
    closed: bool,
}

type Task<S> = Box<dyn FnOnce(&mut S) + Send>;

impl<S: Subject> Engine<S> {
    /// Starts the communication thread, which first makes the subject; `make` also gives this
    /// process's rank, and what the caller is to know.
    pub(super) fn start<K: Send + 'static>(
        make: impl FnOnce() -> Result<(S, usize, K)> + Send + 'static,
    ) -> Result<(Self, K)> {
        let (hello, made) = std::sync::mpsc::channel();
        let body = move || match make() {
            Err(error) => drop(hello.send(Err(error))),
            Ok((subject, rank, known)) => {
                let shared = Arc::new(Shared::new(subject, rank));
                let started = hello.send(Ok((Arc::clone(&shared), known))).is_ok();
                if !started {
                    lock(&shared.queue).closed = true;
                }
                shared.serve();
            }
        };
        let thread = thread::Builder::new()
            .name("candelabrum-comm".to_owned())
            .spawn(body)
            .map_err(|error| Error::io("start the communication thread", error))?;
        let (shared, known) = made.recv().map_err(|_| Error::Stopped { rank: 0 })??;
        Ok((Self { shared, thread: Some(thread) }, known))
    }

    /// Carries out `work` after everything that was given before, on this thread if it can be now.
    pub(super) fn run<R: Send + 'static>(
        &self,
        work: impl FnOnce(&mut S) -> Result<R> + Send + 'static,
    ) -> Result<R> {
        if self.shared.take_turn_if_idle() {
            return self.shared.work(work).unwrap_or_else(|| self.shared.stopped());
        }
        self.begin(When::Soon, work).wait()
    }

    /// Lets `work` be carried out after everything that was given before.
    pub(super) fn begin<R: Send + 'static>(
        &self,
        when: When,
        work: impl FnOnce(&mut S) -> Result<R> + Send + 'static,
    ) -> Ticket<S, R> {
        let slot = Arc::new(Slot { answer: Mutex::new(None), given: Condvar::new() });
        let reply = Reply { slot: Arc::clone(&slot), rank: self.shared.rank };
        self.shared.push(when, Box::new(move |subject| reply.give(work(subject))));
        Ticket { shared: Arc::clone(&self.shared), slot }
    }
}

impl<S: Subject> Drop for Engine<S> {
    fn drop(&mut self) {
        let mut queue = lock(&self.shared.queue);
        queue.closed = true;
        self.shared.wake(queue);
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has been answered with `Stopped` where it mattered.
            drop(thread.join());
        }
    }
}

impl<S: Subject> Shared<S> {
    fn new(subject: S, rank: usize) -> Self {
        let tasks = VecDeque::new();
        let queue = Queue {
            tasks,
            taken: false,
            asleep: false,
            watching: false,
            left_alone: false,
            begun: 0,
            background: false,
            closed: false,
        };
        let any_thread = subject.any_thread();
        let (queue, subject) = (Mutex::new(queue), Mutex::new(subject));
        Self { rank, any_thread, queue, changed: Condvar::new(), subject }
    }

    fn push(&self, when: When, task: Task<S>) {
        let mut queue = lock(&self.queue);
        if queue.closed {
            return; // the drop of the task answers it
        }
        queue.tasks.push_back(task);
        let leave_alone = when == When::WhenWaitedFor && self.any_thread;
        queue.left_alone |= leave_alone;
        // Who has the turn looks at the queue when it gives it back.
        let will_be_seen = queue.taken || (leave_alone && queue.watching);
        if !will_be_seen {
            self.wake(queue);
        }
    }

    /// Wakes the communication thread, with a call to the system only where it sleeps.
    fn wake(&self, mut queue: MutexGuard<'_, Queue<S>>) {
        if std::mem::take(&mut queue.asleep) {
            drop(queue);
            self.changed.notify_one();
        }
    }

    /// Takes the turn for this thread if nothing is before it.
    fn take_turn_if_idle(&self) -> bool {
        if !self.any_thread {
            return false;
        }
        let mut queue = lock(&self.queue);
        let idle = !queue.taken && queue.tasks.is_empty() && !queue.closed;
        queue.taken |= idle;
        queue.begun += u64::from(idle);
        idle
    }

    /// Takes the turn for this thread and the first task, if there is one and nobody is at work.
    fn take_task(&self) -> Option<Task<S>> {
        let mut queue = lock(&self.queue);
        if !self.any_thread || queue.taken {
            return None;
        }
        let task = queue.tasks.pop_front();
        queue.taken = task.is_some();
        queue.begun += u64::from(queue.taken);
        task
    }

    /// Carries out `work` for a thread that has taken the turn, and gives the turn back. `None`
    /// where an earlier task panicked.
    fn work<R>(&self, work: impl FnOnce(&mut S) -> R) -> Option<R> {
        let mut turn = Turn { shared: self, background: false };
        let mut subject = self.subject.lock().ok()?;
        let result = work(&mut subject);
        turn.background = subject.progress();
        Some(result)
    }

    /// The communication thread.
    fn serve(&self) {
        let _closing = Closing(self);
        while let Some(task) = self.next() {
            self.work(task);
        }
        let mut subject = self.subject.lock().unwrap_or_else(PoisonError::into_inner);
        subject.finish();
    }

    /// The next task, with the turn; background work counts as one. `None` when all is done.
    fn next(&self) -> Option<Task<S>> {
        let mut queue = lock(&self.queue);
        let mut leave = false;
        loop {
            let is_mine = !queue.taken && (!leave || queue.closed);
            if is_mine && let Some(task) = queue.tasks.pop_front() {
                queue.taken = true;
                queue.begun += 1;
                return Some(task);
            }
            leave = false;
            if !queue.taken && queue.closed {
                return None;
            }
            queue.asleep = true;
            if queue.background && !queue.taken {
                let slept = self.changed.wait_timeout(queue, PROGRESS_INTERVAL);
                queue = slept.unwrap_or_else(PoisonError::into_inner).0;
                queue.asleep = false;
                if queue.background && !queue.taken && queue.tasks.is_empty() {
                    queue.taken = true;
                    return Some(Box::new(|_| ()));
                }
            } else if std::mem::take(&mut queue.left_alone) {
                queue.watching = true;
                let begun = queue.begun;
                let slept = self.changed.wait_timeout(queue, LEFT_ALONE);
                let (woken, timeout) = slept.unwrap_or_else(PoisonError::into_inner);
                queue = woken;
                (queue.asleep, queue.watching) = (false, false);
                leave = timeout.timed_out() && queue.begun != begun;
                queue.left_alone |= leave;
            } else {
                queue = self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
                queue.asleep = false;
            }
        }
    }

    fn stopped<R>(&self) -> Result<R> {
        Err(Error::Stopped { rank: self.rank })
    }
}

/// Gives the turn back, also where the work panics.
struct Turn<'a, S: Subject> {
    shared: &'a Shared<S>,
    background: bool,
}

impl<S: Subject> Drop for Turn<'_, S> {
    fn drop(&mut self) {
        let mut queue = lock(&self.shared.queue);
        queue.taken = false;
        queue.background = self.background;
        let waits = !queue.tasks.is_empty() && !queue.watching;
        if waits || queue.background || queue.closed {
            self.shared.wake(queue);
        }
    }
}

/// Answers what is left where the communication thread ends, also by a panic.
struct Closing<'a, S: Subject>(&'a Shared<S>);

impl<S: Subject> Drop for Closing<'_, S> {
    fn drop(&mut self) {
        let mut queue = lock(&self.0.queue);
        queue.closed = true;
        let left = std::mem::take(&mut queue.tasks);
        drop(queue);
        drop(left); // a task that is dropped answers
    }
}

/// The answer to a task, once there is one.
struct Slot<R> {
    answer: Mutex<Option<Result<R>>>,
    given: Condvar,
}

/// Answers a task exactly once.
struct Reply<R> {
    slot: Arc<Slot<R>>,
    rank: usize,
}

impl<R> Reply<R> {
    fn give(self, result: Result<R>) {
        *lock(&self.slot.answer) = Some(result);
    }
}

impl<R> Drop for Reply<R> {
    fn drop(&mut self) {
        // Not carried out: the task panicked, or the thread that should have done it did.
        lock(&self.slot.answer).get_or_insert(Err(Error::Stopped { rank: self.rank }));
        self.slot.given.notify_all();
    }
}

/// A task that was given to the engine.
pub(super) struct Ticket<S: Subject, R> {
    shared: Arc<Shared<S>>,
    slot: Arc<Slot<R>>,
}

impl<S: Subject, R> Ticket<S, R> {
    /// Whether `wait` would not block.
    pub(super) fn is_complete(&self) -> bool {
        lock(&self.slot.answer).is_some()
    }

    /// Waits for the answer; meanwhile this thread does what is to be done before.
    pub(super) fn wait(self) -> Result<R> {
        while !self.is_complete() {
            let Some(task) = self.shared.take_task() else { break };
            self.shared.work(task);
        }
        let mut answer = lock(&self.slot.answer);
        loop {
            if let Some(result) = answer.take() {
                return result;
            }
            answer = self.slot.given.wait(answer).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// What the locks protect is whole between any two statements, so a panic elsewhere does no harm.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Remembers what was done, and by which thread.
    struct Journal {
        any_thread: bool,
        entries: Vec<(u32, thread::ThreadId)>,
    }

    impl Subject for Journal {
        fn any_thread(&self) -> bool {
            self.any_thread
        }
        fn progress(&mut self) -> bool {
            false
        }
        fn finish(&mut self) {}
    }

    fn engine(any_thread: bool) -> Result<Engine<Journal>> {
        let make = move || Ok((Journal { any_thread, entries: Vec::new() }, 3, ()));
        Engine::start(make).map(|(engine, ())| engine)
    }

    fn enter(number: u32) -> impl FnOnce(&mut Journal) -> Result<()> + Send + 'static {
        move |journal| {
            journal.entries.push((number, thread::current().id()));
            Ok(())
        }
    }

    #[test]
    fn tasks_are_carried_out_in_order_whoever_does_it() -> Result<()> {
        let engine = engine(true)?;
        let mut tickets = Vec::new();
        for number in 0..1_000 {
            if number % 3 == 0 {
                engine.run(enter(number))?;
            } else {
                let when = [When::Soon, When::WhenWaitedFor][number as usize % 2];
                tickets.push(engine.begin(when, enter(number)));
            }
        }
        tickets.into_iter().rev().try_for_each(Ticket::wait)?;
        let numbers = engine.run(|journal| {
            Ok(journal.entries.iter().map(|&(number, _)| number).collect::<Vec<_>>())
        })?;
        assert_eq!(numbers, (0..1_000).collect::<Vec<_>>());
        Ok(())
    }

    #[test]
    fn a_caller_runs_its_task_itself_where_every_thread_may() -> Result<()> {
        for any_thread in [true, false] {
            let engine = engine(any_thread)?;
            engine.run(enter(1))?;
            let by = engine.run(|journal| Ok(journal.entries[0].1))?;
            assert_eq!(by == thread::current().id(), any_thread);
        }
        Ok(())
    }

    #[test]
    fn a_task_that_nobody_waits_for_is_carried_out_all_the_same() -> Result<()> {
        let engine = engine(true)?;
        for number in 0..5 {
            let ticket = engine.begin(When::WhenWaitedFor, enter(number));
            let deadline = std::time::Instant::now() + Duration::from_secs(20);
            while !ticket.is_complete() {
                assert!(std::time::Instant::now() < deadline, "task {number} still lies there");
                thread::sleep(Duration::from_millis(1));
            }
        }
        Ok(())
    }

    #[test]
    fn after_a_panic_everything_is_answered() -> Result<()> {
        let engine = engine(false)?;
        let panics = engine.begin(When::Soon, |_| -> Result<()> { panic!("on purpose") });
        let after = engine.begin(When::Soon, enter(1));
        for ticket in [panics, after, engine.begin(When::WhenWaitedFor, enter(2))] {
            assert!(matches!(ticket.wait(), Err(Error::Stopped { rank: 3 })));
        }
        Ok(())
    }
}
