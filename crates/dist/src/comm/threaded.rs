//! A [`Communicator`] out of a blocking [`Transport`]: one communication thread carries out what
//! is started, in order, while the caller goes on computing.

use std::fmt;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender, TryRecvError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::collective::Header;
use super::pending::Started;
use super::stats::Counters;
use super::transport::{Abort, Transport};
use super::{Buffer, Collective, CommStats, Communicator, ElementType, Group, Pending};
use crate::{Error, Result};

/// How long background work of a transport may lie still while nothing is requested.
const PROGRESS_INTERVAL: Duration = Duration::from_micros(100);

/// The handle; dropping it finishes what was started and leaves the job in order.
pub(crate) struct Threaded {
    backend: &'static str,
    rank: usize,
    world_size: usize,
    ranks: Vec<usize>,
    counters: Arc<Counters>,
    abort: Arc<dyn Abort>,
    /// Both are `Some` until the drop.
    requests: Option<Sender<Request>>,
    thread: Option<JoinHandle<()>>,
}

struct Request {
    work: Work,
    reply: Sender<Result<Buffer>>,
}

enum Work {
    Start(Collective, Buffer),
    Alloc(ElementType, usize),
}

/// What a transport tells about itself once it is connected.
pub(crate) struct Connected<T> {
    pub(crate) transport: T,
    pub(crate) rank: usize,
    pub(crate) world_size: usize,
    pub(crate) abort: Arc<dyn Abort>,
}

impl Threaded {
    /// Starts the communication thread, which first calls `connect` and from then on owns its
    /// transport.
    pub(crate) fn start<T: Transport + 'static>(
        connect: impl FnOnce() -> Result<Connected<T>> + Send + 'static,
    ) -> Result<Self> {
        let (requests, queue) = mpsc::channel();
        let (hello, connected) = mpsc::channel();
        let counters = Arc::<Counters>::default();
        let shared = Arc::clone(&counters);
        let body = move || match connect() {
            Err(error) => drop(hello.send(Err(error))),
            Ok(Connected { mut transport, rank, world_size, abort }) => {
                let backend = transport.backend();
                if hello.send(Ok((backend, rank, world_size, abort))).is_ok() {
                    serve(&mut transport, rank, world_size, &queue, &shared);
                }
                transport.finish();
            }
        };
        let thread = thread::Builder::new()
            .name("candelabrum-comm".to_owned())
            .spawn(body)
            .map_err(|error| Error::io("start the communication thread", error))?;
        let hello = connected.recv().map_err(|_| Error::Stopped { rank: 0 })?;
        let (backend, rank, world_size, abort) = hello?;
        let (requests, thread) = (Some(requests), Some(thread));
        let ranks = (0..world_size).collect();
        Ok(Self { backend, rank, world_size, ranks, counters, abort, requests, thread })
    }

    fn request(&self, work: Work) -> Pending {
        let (reply, answer) = mpsc::channel();
        let sent = match &self.requests {
            Some(requests) => requests.send(Request { work, reply }).is_ok(),
            None => false,
        };
        if !sent {
            return Pending::ready(Err(Error::Stopped { rank: self.rank }));
        }
        let (rank, counters) = (self.rank, Arc::clone(&self.counters));
        Pending::new(Answer { rank, counters, answer, arrived: None })
    }
}

/// What the communication thread will answer.
struct Answer {
    rank: usize,
    counters: Arc<Counters>,
    answer: Receiver<Result<Buffer>>,
    arrived: Option<Result<Buffer>>,
}

impl Started for Answer {
    fn is_complete(&mut self) -> bool {
        if self.arrived.is_none() {
            self.arrived = match self.answer.try_recv() {
                Ok(result) => Some(result),
                Err(TryRecvError::Empty) => None,
                Err(TryRecvError::Disconnected) => Some(Err(Error::Stopped { rank: self.rank })),
            };
        }
        self.arrived.is_some()
    }

    fn wait(mut self: Box<Self>) -> Result<Buffer> {
        if let Some(result) = self.arrived.take() {
            return result;
        }
        let start = Instant::now();
        let result = self.answer.recv().unwrap_or(Err(Error::Stopped { rank: self.rank }));
        self.counters.count_exposed(start.elapsed());
        result
    }
}

/// Carries out requests until the handle is dropped. After the first failure every request gets
/// the same error: the ranks no longer agree on where they are.
fn serve(
    transport: &mut impl Transport,
    rank: usize,
    world_size: usize,
    queue: &Receiver<Request>,
    counters: &Counters,
) {
    let mut sequence = 0;
    let mut failed: Option<Error> = None;
    while let Some(Request { work, reply }) = next(transport, queue) {
        let result = match (&failed, work) {
            (Some(error), _) => Err(error.clone()),
            (None, Work::Alloc(element, len)) => {
                sequence += 1;
                transport.alloc(sequence, element, len)
            }
            (None, Work::Start(op, buffer)) => {
                sequence += u64::from(op.is_collective());
                let header =
                    Header { sequence, op, element: buffer.element_type(), len: buffer.len() };
                let input_bytes = buffer.bytes().len();
                let start = Instant::now();
                let result = transport.execute(header, buffer);
                if let Ok(output) = &result {
                    let bytes = match op {
                        Collective::Scatter { .. } => output.bytes().len(),
                        _ => input_bytes,
                    };
                    counters.count(op, bytes, rank, world_size, start.elapsed());
                }
                result
            }
        };
        if let Err(error) = &result {
            failed = Some(error.clone());
        }
        // Nobody waits for it: that is the caller's right.
        drop(reply.send(result));
    }
}

/// The next request, once there is one; meanwhile the transport's background work goes on. `None`
/// when the handle has been dropped.
fn next(transport: &mut impl Transport, queue: &Receiver<Request>) -> Option<Request> {
    while transport.progress() {
        match queue.recv_timeout(PROGRESS_INTERVAL) {
            Ok(request) => return Some(request),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return None,
        }
    }
    queue.recv().ok()
}

impl Communicator for Threaded {
    fn backend(&self) -> &'static str {
        self.backend
    }

    fn rank(&self) -> usize {
        self.rank
    }

    fn world_size(&self) -> usize {
        self.world_size
    }

    fn alloc(&self, element: ElementType, len: usize) -> Result<Buffer> {
        self.request(Work::Alloc(element, len)).wait()
    }

    fn start(&self, op: Collective, buffer: Buffer) -> Pending {
        match op.check(&buffer, self.rank, self.world_size) {
            Ok(()) => self.request(Work::Start(op, buffer)),
            Err(error) => Pending::ready(Err(error)),
        }
    }

    fn ranks(&self) -> &[usize] {
        &self.ranks
    }

    fn split(&self, _colour: Option<u64>, _key: i64) -> Result<Option<Group>> {
        Err(Error::Unsupported { what: "splitting".to_owned() })
    }

    fn stats(&self) -> CommStats {
        self.counters.snapshot()
    }

    fn abort(&self, message: &str) {
        self.abort.abort(message);
    }

    fn tell(&self, message: &str) {
        self.abort.tell(message);
    }
}

impl Drop for Threaded {
    fn drop(&mut self) {
        if thread::panicking() {
            self.abort.abort("panicked");
        }
        drop(self.requests.take());
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has been answered with `Stopped` where it mattered.
            drop(thread.join());
        }
    }
}

impl fmt::Debug for Threaded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Communicator({}, rank {} of {})", self.backend, self.rank, self.world_size)
    }
}
