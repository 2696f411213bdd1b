//! The scheduler of MXNet's tracker: the process for whose end the tracker waits.
//!
//! The tracker starts the program once more, as a scheduler, and ends with that process. Our ranks
//! need no scheduler. So this process only has to live as long as they do: each rank connects to it
//! when the rank joins its world, and the system closes the connection when the rank ends, however
//! it ends. Nothing is sent.

use std::fmt;
use std::io::{ErrorKind, Read};
use std::net::{TcpListener, TcpStream};
use std::sync::{Once, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use super::detect::{Launch, timeout};
use super::dmlc;
use super::launchers::Launcher;
use super::variables::Variables;
use crate::{Error, Result};

/// The time between two checks of the connections, and between two attempts to connect.
const LOOK: Duration = Duration::from_millis(50);

/// A rank tries so long to reach the scheduler.
const TO_CONNECT: Duration = Duration::from_secs(10);

/// If a rank ends before the others have come, the scheduler waits so long for them.
const TO_COME: Duration = Duration::from_secs(10);

/// The scheduler of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scheduler {
    host: String,
    port: u16,
    /// The number of workers and servers.
    ranks: usize,
    deadline: Duration,
    to_come: Duration,
}

impl Scheduler {
    /// The scheduler that this process is, according to its environment, or `None`. A program asks
    /// this before it joins a world.
    ///
    /// # Errors
    /// An environment without the scheduler's address, or with numbers that are none.
    pub fn from_env() -> Result<Option<Self>> {
        let env = Variables::of_process();
        if !dmlc::is_scheduler(&env) {
            return Ok(None);
        }
        let (host, port) = dmlc::root(&env)?;
        let (ranks, deadline) = (dmlc::ranks(&env)?, timeout()?);
        Ok(Some(Self { host, port, ranks, deadline, to_come: TO_COME }))
    }

    /// Waits until the job's ranks have come and ended. The job may take any time, so only the wait
    /// for the first rank has a deadline.
    ///
    /// # Errors
    /// An address at which this process cannot listen, or no rank before the deadline.
    pub fn run(&self) -> Result<()> {
        let listener = TcpListener::bind((&*self.host, self.port))
            .map_err(|error| Error::io(format!("listen for the job's ranks as {self}"), error))?;
        self.attend(&listener)
    }

    fn attend(&self, listener: &TcpListener) -> Result<()> {
        let failed = |error| Error::io(format!("listen for the job's ranks as {self}"), error);
        listener.set_nonblocking(true).map_err(failed)?;
        let (mut running, mut came): (Vec<TcpStream>, usize) = (Vec::new(), 0);
        let mut last = Instant::now();
        loop {
            // A connection that fails in `accept` is no rank's: a rank tries again.
            while let Ok((stream, _)) = listener.accept() {
                stream.set_nonblocking(true).map_err(failed)?;
                running.push(stream);
                came += 1;
            }
            running.retain_mut(is_open);
            if !running.is_empty() {
                last = Instant::now();
            } else if came >= self.ranks || (came > 0 && last.elapsed() >= self.to_come) {
                return Ok(());
            } else if came == 0 && last.elapsed() >= self.deadline {
                let seconds = self.deadline.as_secs();
                let what = format!(
                    "no rank of the job has come to {self} within {seconds} s: did all of them \
                     fail at their start?"
                );
                return Err(Error::Launch { what });
            }
            thread::sleep(LOOK);
        }
    }
}

impl fmt::Display for Scheduler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { host, port, ranks, .. } = self;
        write!(f, "the scheduler of {ranks} ranks at {host} port {port}")
    }
}

fn is_open(stream: &mut TcpStream) -> bool {
    match stream.read(&mut [0; 64]) {
        Ok(count) => count > 0,
        Err(error) => matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted),
    }
}

/// Keeps the scheduler of this rank's job running until this process ends. The connection is made
/// in the background. A job without a scheduler is no error.
pub(crate) fn keep_scheduler(launch: &Launch) {
    static ONCE: Once = Once::new();
    /// Open until the process ends.
    static CONNECTION: OnceLock<TcpStream> = OnceLock::new();
    if launch.launcher != Launcher::Dmlc {
        return;
    }
    let Ok(address) = dmlc::root(&Variables::of_process()) else { return };
    ONCE.call_once(|| {
        let connect = move || {
            let end = Instant::now() + TO_CONNECT;
            while Instant::now() < end {
                if let Ok(stream) = TcpStream::connect((&*address.0, address.1)) {
                    // This thread runs once, so the cell is empty.
                    drop(CONNECTION.set(stream));
                    return;
                }
                thread::sleep(LOOK);
            }
        };
        // Without the thread the scheduler may end too early, but the job itself can go on.
        drop(thread::Builder::new().name("candelabrum-scheduler".to_owned()).spawn(connect));
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A scheduler of this test, and the address at which it listens.
    fn start(
        ranks: usize,
        to_come: Duration,
    ) -> (thread::JoinHandle<Result<()>>, std::net::SocketAddr) {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
        let address = listener.local_addr().expect("an address");
        let (host, port) = (address.ip().to_string(), address.port());
        let scheduler = Scheduler { host, port, ranks, deadline: Duration::from_secs(1), to_come };
        (thread::spawn(move || scheduler.attend(&listener)), address)
    }

    #[test]
    fn the_scheduler_ends_with_the_last_rank() -> Result<()> {
        let (scheduler, address) = start(2, Duration::from_secs(600));
        let connect = || TcpStream::connect(address).expect("it listens");
        // A rank that ends before the other one comes does not end the scheduler.
        drop(connect());
        thread::sleep(8 * LOOK);
        let second = connect();
        thread::sleep(8 * LOOK);
        assert!(!scheduler.is_finished());
        drop(second);
        scheduler.join().expect("no panic")
    }

    #[test]
    fn a_rank_that_never_comes_is_not_waited_for_when_the_others_have_ended() -> Result<()> {
        let (scheduler, address) = start(3, 4 * LOOK);
        drop(TcpStream::connect(address).expect("it listens"));
        scheduler.join().expect("no panic")
    }

    #[test]
    fn a_job_of_which_nobody_comes_is_an_error() {
        let (scheduler, address) = start(3, Duration::ZERO);
        let error = scheduler.join().expect("no panic").unwrap_err().to_string();
        let port = address.port().to_string();
        assert!(error.contains("3 ranks") && error.contains(&port), "{error}");
        assert!(error.contains("within 1 s"), "{error}");
    }
}
