//! The order of operations: those of all threads of a rank run one at a time, in the order of their
//! start.
//!
//! Operations work on a *resource*, the transports of a rank. The thread that holds the resource *has
//! the turn*. A thread that waits for its operation runs the operation itself, because two changes of
//! threads take longer than a short operation. The communication thread runs the operations that were
//! started in the background.
//!
//! **Invariant** Tasks begin in the order in which they were given, each after the end of the one
//! before it.
//!
//! **Invariant** A thread that ends its turn wakes the threads that wait for the turn. A thread that puts
//! a task into the queue or ends its turn wakes the communication thread if there is work for it
//! ([`QueueState::must_wake`]). So no task stays in the queue while the thread that needs it sleeps. While no
//! thread has the turn, the communication thread does not sleep without a limit beside a task.

use std::collections::VecDeque;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use crate::{Error, Result};

/// The longest time without progress of a resource's background work while no task is given.
const PROGRESS_INTERVAL: Duration = Duration::from_micros(100);

/// The time after which the communication thread runs a task that was left to a waiting thread.
const LEFT_ALONE: Duration = Duration::from_millis(10);

/// The time at which a task that was begun is carried out, and the thread that does it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TaskTime {
    /// At once, by the communication thread.
    Soon,
    /// By the thread that waits for it: the task takes less time than waking a thread, or no core is free
    /// for another one. A task that no thread waits for is carried out after [`LEFT_ALONE`].
    WaitedFor,
}

/// The object that all operations of a rank work on.
pub(super) trait Resource: Send + 'static {
    /// Whether every thread may work on it. If not, only the thread that made it works on it.
    fn any_thread(&self) -> bool;

    /// Advances the work in the background. Returns whether some of it is left.
    fn progress(&mut self) -> bool;

    /// Ends the resource, after the last task.
    fn finish(&mut self);
}

/// The turns of a rank, for a thread that waits for its task.
pub(super) trait TurnQueue: Send + Sync {
    /// Carries out tasks until `is_over`, unless another thread does.
    fn work_until(&self, is_over: &dyn Fn() -> bool);
}

/// The queue of tasks and the communication thread. Its drop waits until both have ended.
pub(super) struct CommQueue<R: Resource> {
    shared: Arc<QueueShared<R>>,
    /// `Some` until the drop.
    thread: Option<JoinHandle<()>>,
}

struct QueueShared<R> {
    /// This process's rank, for the error of a task that cannot be carried out any more.
    rank: usize,
    any_thread: bool,
    queue: Mutex<QueueState<R>>,
    /// Wakes the communication thread.
    due: Condvar,
    /// Wakes the threads that wait for an answer while another thread has the turn.
    returned: Condvar,
}

struct QueueState<R> {
    tasks: VecDeque<QueuedTask<R>>,
    /// `None` while a thread has the turn.
    resource: Option<R>,
    /// Threads that sleep until the turn is given back.
    waiting: usize,
    /// Whether the resource has work in the background.
    background: bool,
    /// Whether a task was begun since the communication thread last looked.
    busy: bool,
    /// Whether the communication thread sleeps until it is woken.
    dozing: bool,
    /// Whether the queue takes no more tasks.
    closed: bool,
}

struct QueuedTask<R> {
    when: TaskTime,
    given: Instant,
    work: Box<dyn FnOnce(&mut R) + Send>,
}

impl<R: Resource> CommQueue<R> {
    /// Starts the communication thread, which first makes the resource. `make` also returns this
    /// process's rank, and facts on the resource for the caller.
    pub(super) fn start<K: Send + 'static>(
        make: impl FnOnce() -> Result<(R, usize, K)> + Send + 'static,
    ) -> Result<(Self, K)> {
        let (hello, made) = oneshot::channel();
        let body = move || match make() {
            Err(error) => drop(hello.send(Err(error))),
            Ok((resource, rank, known)) => {
                let shared = Arc::new(QueueShared::new(resource, rank));
                let started = hello.send(Ok((Arc::clone(&shared), known))).is_ok();
                shared.queue.lock().closed |= !started;
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

    /// Carries out `work` on this thread if no task is before it and this thread may work on the
    /// resource; `None` otherwise. The work can borrow the caller's data.
    pub(super) fn run_if_idle<T>(&self, work: impl FnOnce(&mut R) -> T) -> Option<T> {
        let mut turn = self.shared.turn_if_idle()?;
        Some(turn.work(work))
    }

    /// Carries out `work` after all earlier tasks, on this thread if no other task is before it.
    pub(super) fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut R) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        match self.shared.turn_if_idle() {
            Some(mut turn) => turn.work(work),
            None => self.begin(TaskTime::WaitedFor, work).wait(),
        }
    }

    /// Puts `work` behind all earlier tasks.
    pub(super) fn begin<T: Send + 'static>(
        &self,
        when: TaskTime,
        work: impl FnOnce(&mut R) -> Result<T> + Send + 'static,
    ) -> TaskHandle<T> {
        let (reply, answer) = oneshot::channel();
        let when = if self.shared.any_thread { when } else { TaskTime::Soon };
        // An answer that nobody waits for is dropped.
        self.shared.push(when, Box::new(move |resource| drop(reply.send(work(resource)))));
        let turns: Arc<dyn TurnQueue> = self.shared.clone();
        TaskHandle { turns, rank: self.shared.rank, answer, when }
    }
}

impl<R: Resource> Drop for CommQueue<R> {
    fn drop(&mut self) {
        self.shared.queue.lock().closed = true;
        self.shared.due.notify_one();
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has been answered with `Stopped` where it mattered.
            drop(thread.join());
        }
    }
}

impl<R> QueueState<R> {
    /// Whether the communication thread must carry out a task.
    fn is_due(&self) -> bool {
        let waited_long = |task: &QueuedTask<R>| task.given.elapsed() >= LEFT_ALONE;
        self.tasks.iter().any(|task| task.when == TaskTime::Soon)
            || self.tasks.front().is_some_and(|task| self.closed || waited_long(task))
    }

    /// Whether the communication thread must be woken when nobody has the turn: it has work, or it sleeps
    /// without a limit although a task will be due.
    fn must_wake(&self) -> bool {
        let is_forgotten = self.dozing && !self.tasks.is_empty();
        self.background || self.closed || is_forgotten || self.is_due()
    }

    /// Closes the queue. Returns the tasks that will not be carried out.
    fn stops(&mut self) -> VecDeque<QueuedTask<R>> {
        self.closed = true;
        std::mem::take(&mut self.tasks)
    }
}

impl<R: Resource> QueueShared<R> {
    fn new(resource: R, rank: usize) -> Self {
        let any_thread = resource.any_thread();
        let queue = QueueState {
            tasks: VecDeque::new(),
            resource: Some(resource),
            waiting: 0,
            background: false,
            busy: false,
            dozing: false,
            closed: false,
        };
        let (due, returned) = (Condvar::new(), Condvar::new());
        Self { rank, any_thread, queue: Mutex::new(queue), due, returned }
    }

    fn push(&self, when: TaskTime, work: Box<dyn FnOnce(&mut R) + Send>) {
        let mut queue = self.queue.lock();
        if queue.closed {
            return; // the drop of the work answers it
        }
        queue.tasks.push_back(QueuedTask { when, given: Instant::now(), work });
        queue.busy = true;
        // A thread that has the turn looks at the queue when it gives the turn back.
        if queue.resource.is_some() && queue.must_wake() {
            self.due.notify_one();
        }
    }

    /// Takes the turn for this thread if nothing is before it.
    fn turn_if_idle(&self) -> Option<ResourceTurn<'_, R>> {
        let mut queue = self.queue.lock();
        if !self.any_thread || queue.closed || !queue.tasks.is_empty() {
            return None;
        }
        queue.busy = true;
        self.turn(&mut queue)
    }

    fn turn(&self, queue: &mut QueueState<R>) -> Option<ResourceTurn<'_, R>> {
        let resource = queue.resource.take()?;
        Some(ResourceTurn { shared: self, resource: Some(resource), background: false })
    }

    /// The communication thread.
    fn serve(&self) {
        let mut queue = self.queue.lock();
        loop {
            let due = queue.is_due();
            if due && let Some(mut turn) = self.turn(&mut queue) {
                let task = queue.tasks.pop_front();
                drop(queue);
                task.into_iter().for_each(|task| turn.work(task.work));
                drop(turn);
                queue = self.queue.lock();
                continue;
            }
            if queue.closed
                && let Some(mut resource) = queue.resource.take()
            {
                drop(queue);
                resource.finish();
                return;
            }
            if queue.background && queue.resource.is_some() {
                let slept = self.due.wait_for(&mut queue, PROGRESS_INTERVAL);
                let idle = queue.background && queue.tasks.is_empty() && slept.timed_out();
                if idle && let Some(mut turn) = self.turn(&mut queue) {
                    drop(queue);
                    turn.work(|_| ());
                    drop(turn);
                    queue = self.queue.lock();
                }
            } else if std::mem::take(&mut queue.busy) || !queue.tasks.is_empty() {
                self.due.wait_for(&mut queue, LEFT_ALONE);
            } else {
                queue.dozing = true;
                self.due.wait(&mut queue);
                queue.dozing = false;
            }
        }
    }
}

/// The turn of a thread, with the resource.
struct ResourceTurn<'a, R: Resource> {
    shared: &'a QueueShared<R>,
    /// `Some` until the drop.
    resource: Option<R>,
    background: bool,
}

impl<R: Resource> ResourceTurn<'_, R> {
    fn work<T>(&mut self, work: impl FnOnce(&mut R) -> T) -> T {
        let resource = self.resource.as_mut().expect("the turn has it until it is dropped");
        let result = work(resource);
        self.background = resource.progress();
        result
    }
}

/// Ends the turn. After a panic no further task is carried out.
impl<R: Resource> Drop for ResourceTurn<'_, R> {
    fn drop(&mut self) {
        if thread::panicking() {
            let unanswered = self.shared.queue.lock().stops();
            drop(unanswered); // a task that is dropped answers
        }
        let mut queue = self.shared.queue.lock();
        queue.resource = self.resource.take();
        queue.background = self.background;
        if queue.waiting > 0 {
            self.shared.returned.notify_all();
        }
        if queue.must_wake() {
            self.shared.due.notify_one();
        }
    }
}

impl<R: Resource> TurnQueue for QueueShared<R> {
    fn work_until(&self, is_over: &dyn Fn() -> bool) {
        let mut queue = self.queue.lock();
        while !is_over() {
            let turn = if self.any_thread { self.turn(&mut queue) } else { None };
            let Some(mut turn) = turn else {
                queue.waiting += 1;
                self.returned.wait(&mut queue);
                queue.waiting -= 1;
                continue;
            };
            let task = queue.tasks.pop_front();
            queue.busy = true;
            drop(queue);
            task.into_iter().for_each(|task| turn.work(task.work));
            drop(turn);
            queue = self.queue.lock();
        }
    }
}

/// A task that was given to the queue.
pub(super) struct TaskHandle<T> {
    turns: Arc<dyn TurnQueue>,
    rank: usize,
    answer: oneshot::Receiver<Result<T>>,
    when: TaskTime,
}

impl<T> TaskHandle<T> {
    /// When the task is carried out.
    pub(super) fn when(&self) -> TaskTime {
        self.when
    }

    /// Whether `wait` would not block.
    pub(super) fn is_complete(&self) -> bool {
        self.answer.is_closed() || self.answer.has_message()
    }

    /// The answer, if it is there. An answer is given once.
    pub(super) fn take_if_complete(&mut self) -> Option<Result<T>> {
        self.is_complete().then(|| self.answer())
    }

    /// Waits for the answer. Meanwhile this thread carries out the earlier tasks and the task itself,
    /// unless another thread does.
    pub(super) fn wait(self) -> Result<T> {
        self.turns.work_until(&|| self.is_complete());
        self.answer()
    }

    fn answer(&self) -> Result<T> {
        self.answer.try_recv().unwrap_or(Err(Error::Stopped { rank: self.rank }))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    /// Remembers what was done, and by which thread.
    struct TaskLog {
        any_thread: bool,
        entries: Vec<(u32, thread::ThreadId)>,
    }

    impl Resource for TaskLog {
        fn any_thread(&self) -> bool {
            self.any_thread
        }
        fn progress(&mut self) -> bool {
            false
        }
        fn finish(&mut self) {}
    }

    fn queue(any_thread: bool) -> Result<CommQueue<TaskLog>> {
        let make = move || Ok((TaskLog { any_thread, entries: Vec::new() }, 3, ()));
        CommQueue::start(make).map(|(queue, ())| queue)
    }

    fn enter(number: u32) -> impl FnOnce(&mut TaskLog) -> Result<()> + Send + 'static {
        move |log| {
            log.entries.push((number, thread::current().id()));
            Ok(())
        }
    }

    #[test]
    fn tasks_are_carried_out_in_order_whoever_does_it() -> Result<()> {
        let queue = queue(true)?;
        let mut handles = Vec::new();
        for number in 0..1_000 {
            if number % 3 == 0 {
                queue.run(enter(number))?;
            } else {
                let when = [TaskTime::Soon, TaskTime::WaitedFor][number as usize % 2];
                handles.push(queue.begin(when, enter(number)));
            }
        }
        handles.into_iter().rev().try_for_each(TaskHandle::wait)?;
        let numbers = queue
            .run(|log| Ok(log.entries.iter().map(|&(number, _)| number).collect::<Vec<_>>()))?;
        assert_eq!(numbers, (0..1_000).collect::<Vec<_>>());
        Ok(())
    }

    #[test]
    fn a_caller_runs_its_task_itself_where_every_thread_may() -> Result<()> {
        for any_thread in [true, false] {
            let queue = queue(any_thread)?;
            queue.run(enter(1))?;
            let by = queue.run(|log| Ok(log.entries[0].1))?;
            assert_eq!(by == thread::current().id(), any_thread);
        }
        Ok(())
    }

    #[test]
    fn a_task_is_left_to_a_wait_only_where_every_thread_may_work() -> Result<()> {
        for (any_thread, when) in [(true, TaskTime::WaitedFor), (false, TaskTime::Soon)] {
            let queue = queue(any_thread)?;
            let [light, heavy] =
                [TaskTime::WaitedFor, TaskTime::Soon].map(|when| queue.begin(when, enter(1)));
            assert_eq!([light.when(), heavy.when()], [when, TaskTime::Soon]);
            light.wait().and(heavy.wait())?;
        }
        Ok(())
    }

    #[test]
    fn an_idle_queue_lends_its_resource_to_work_that_borrows() -> Result<()> {
        let queue = queue(true)?;
        let mut borrowed = vec![1, 2];
        queue.run_if_idle(|log| {
            borrowed.push(3);
            log.entries.push((borrowed.len() as u32, thread::current().id()));
        });
        assert_eq!(borrowed, [1, 2, 3]);
        let later = queue.begin(TaskTime::WaitedFor, enter(4));
        assert!(queue.run_if_idle(|_| ()).is_none(), "a task is before it");
        later.wait()?;
        assert_eq!(queue.run(|log| Ok(log.entries.len()))?, 2);
        assert!(self::queue(false)?.run_if_idle(|_| ()).is_none(), "another thread's resource");
        Ok(())
    }

    /// Runs `meanwhile` while another thread has the turn, which keeps it for `held` after `meanwhile` has released
    /// it.
    fn while_another_has_the_turn<R>(
        queue: &CommQueue<TaskLog>,
        held: Duration,
        meanwhile: impl FnOnce(mpsc::Sender<()>) -> R,
    ) -> R {
        let (begun, has_begun) = mpsc::channel();
        let (release, released) = mpsc::channel();
        thread::scope(|scope| {
            scope.spawn(move || {
                queue.run_if_idle(|_| {
                    begun.send(()).expect("the test waits");
                    released.recv().expect("the test goes on");
                    thread::sleep(held);
                })
            });
            has_begun.recv().expect("the other thread");
            meanwhile(release)
        })
    }

    /// Which thread carries out two tasks that were given while another thread had the turn, and which
    /// gave them.
    fn worker_and_giver() -> Result<(thread::ThreadId, thread::ThreadId)> {
        let queue = &queue(true)?;
        while_another_has_the_turn(queue, Duration::ZERO, |release| {
            thread::scope(|scope| {
                let second = scope.spawn(|| {
                    let light = queue.begin(TaskTime::WaitedFor, enter(1));
                    queue.run(enter(2))?;
                    light.wait().map(|()| thread::current().id())
                });
                // Until the second thread sleeps, or nearly.
                thread::sleep(Duration::from_millis(3));
                release.send(()).expect("the first thread waits");
                let giver = second.join().expect("no panic")?;
                let entries = queue.run(|log| Ok(log.entries.clone()))?;
                assert_eq!(entries.iter().map(|&(number, _)| number).collect::<Vec<_>>(), [1, 2]);
                Ok((entries[1].1, giver))
            })
        })
    }

    #[test]
    fn a_turn_that_is_given_back_is_taken_by_the_thread_that_waits_for_it() -> Result<()> {
        for _ in 0..20 {
            let (worker, giver) = worker_and_giver()?;
            // On a busy machine the communication thread may come first.
            if worker == giver {
                return Ok(());
            }
        }
        panic!("the waiting thread sleeps while its task lies there")
    }

    #[test]
    fn a_task_that_nobody_waits_for_is_carried_out_all_the_same() -> Result<()> {
        let queue = queue(true)?;
        for number in 0..5 {
            let handle = queue.begin(TaskTime::WaitedFor, enter(number));
            wait_until(&format!("task {number} is complete"), || handle.is_complete());
        }
        Ok(())
    }

    /// Waits until `holds`, for at most 20 s.
    fn wait_until(what: &str, holds: impl Fn() -> bool) {
        let deadline = Instant::now() + Duration::from_secs(20);
        while !holds() {
            assert!(Instant::now() < deadline, "still not: {what}");
            thread::sleep(Duration::from_micros(200));
        }
    }

    #[test]
    fn a_task_begun_while_another_thread_has_the_turn_is_not_forgotten() -> Result<()> {
        // Shorter turns, and one after which the task is due at once.
        for held in [0, 1, 3, 5, 30].map(Duration::from_millis) {
            let queue = queue(true)?;
            wait_until("the communication thread sleeps", || queue.shared.queue.lock().dozing);
            while_another_has_the_turn(&queue, held, |release| {
                let handle = queue.begin(TaskTime::WaitedFor, enter(1));
                release.send(()).expect("the other thread waits");
                wait_until("the task is complete", || handle.is_complete());
            });
        }
        Ok(())
    }

    /// `cargo test -p candelabrum-dist --release --lib -- --ignored --nocapture latency`
    #[test]
    #[ignore = "a measurement, not a test"]
    fn latency_of_two_threads_that_share_the_turn() -> Result<()> {
        const ROUNDS: usize = 20_000;
        let queue = queue(true)?;
        let work = |_: &mut TaskLog| {
            let start = Instant::now();
            while start.elapsed() < Duration::from_micros(20) {}
            Ok(())
        };
        let measure = |operation: &dyn Fn() -> Result<()>| -> Result<Vec<Duration>> {
            let mut times = Vec::with_capacity(ROUNDS);
            for _ in 0..ROUNDS {
                let start = Instant::now();
                operation()?;
                times.push(start.elapsed());
            }
            times.sort();
            Ok(times)
        };
        let [begun, run] = thread::scope(|scope| {
            let begun = scope.spawn(|| measure(&|| queue.begin(TaskTime::WaitedFor, work).wait()));
            let run = scope.spawn(|| measure(&|| queue.run(work)));
            [begun, run].map(|thread| thread.join().expect("no panic"))
        });
        for (name, times) in [("begin, wait", begun?), ("run", run?)] {
            let [median, high, most] =
                [ROUNDS / 2, ROUNDS * 999 / 1000, ROUNDS - 1].map(|i| times[i]);
            let late = times.iter().filter(|&&time| time >= LEFT_ALONE / 2).count();
            println!(
                "{name}: median {median:?}, 99.9 % below {high:?}, most {most:?}, {late} of {ROUNDS} above {:?}",
                LEFT_ALONE / 2
            );
        }
        Ok(())
    }

    #[test]
    fn after_a_panic_everything_is_answered() -> Result<()> {
        let queue = queue(false)?;
        let panics = queue.begin(TaskTime::Soon, |_| -> Result<()> { panic!("on purpose") });
        let after = queue.begin(TaskTime::Soon, enter(1));
        for handle in [panics, after, queue.begin(TaskTime::WaitedFor, enter(2))] {
            assert!(matches!(handle.wait(), Err(Error::Stopped { rank: 3 })));
        }
        Ok(())
    }
}
