//! The meeting of the ranks over sockets of any kind: one rank listens, and the other ranks call
//! it.
//!
//! The first bytes of a caller are its [`HelloMessage`]. Rank 0 waits until all other ranks have called.
//! Then it answers all of them that the meeting is complete, or why it failed. A caller that is not
//! a rank of this job changes nothing: rank 0 reads the hellos of all callers at the same time,
//! gives each caller the time [`callers::TO_SPEAK`] for its hello, and turns strangers away. A rank
//! of this job with another version of the protocol, or another number of ranks, ends the meeting
//! on every rank.

mod callers;
mod hello;

use std::cell::Cell;
use std::io;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};

pub(super) use self::callers::Callers;
use self::callers::{RETRY, wait};
pub(super) use self::hello::HelloMessage;
use self::hello::VERSION;
use super::member::JobMember;
use crate::note::note;
use crate::{Error, Result};

/// The time in which rank 0 still answers late callers after the meeting has failed.
const TO_TURN_AWAY: Duration = Duration::from_millis(300);

/// The time by which the other ranks wait longer than rank 0, so that they receive from rank 0
/// which rank is missing.
pub(super) const TO_HEAR_WHY: Duration = Duration::from_secs(2);

/// A rank that has waited so long says for whom, once.
const TO_SAY: Duration = Duration::from_secs(10);

/// The answer to a caller with another job id.
const ANOTHER_JOB: &str = "another job meets here: ranks of one job have the same MASTER_PORT, run id, CANDELABRUM_JOB \
                           and CANDELABRUM_SECRET";

/// The longest reason that is read.
const LONGEST_REASON: usize = 4096;

/// The first byte of an answer: the meeting is complete.
const WELCOME: u8 = 0;
/// The first byte of an answer: the meeting has failed, and the reason follows.
const REFUSED: u8 = 1;

/// The reason to turn a caller away.
enum Refusal {
    /// The caller is not a rank of this job.
    Stranger(String),
    /// The caller is a rank of this job, and the job cannot begin with it.
    Misfit(Error),
}

/// One rank's part in the meeting of its job.
pub(super) struct Rendezvous {
    member: JobMember,
    start: Instant,
    /// Where this rank listens, in words.
    place: String,
    /// Whether the user knows that this rank waits.
    has_said: Cell<bool>,
    /// Whether the user knows that a rank of another job calls this one.
    has_met_others: Cell<bool>,
}

impl Rendezvous {
    /// Begins the meeting, and with it the time until the deadline.
    pub(super) fn begin(member: JobMember) -> Self {
        let (has_said, has_met_others) = (Cell::new(false), Cell::new(false));
        let (start, place) = (Instant::now(), String::new());
        Self { member, start, place, has_said, has_met_others }
    }

    /// Says in messages that this rank listens at `place`.
    pub(super) fn listening_at(self, place: String) -> Self {
        Self { place, ..self }
    }

    pub(super) fn hello(&self) -> HelloMessage {
        let JobMember { job, rank, world_size, .. } = self.member;
        HelloMessage { job, version: VERSION, rank: rank as u32, world_size: world_size as u32 }
    }

    /// The time that is left until the deadline.
    pub(super) fn left(&self) -> Duration {
        self.member.deadline.saturating_sub(self.start.elapsed())
    }

    /// The time until this rank says that it waits. It is zero from then on.
    fn until_said(&self) -> Duration {
        TO_SAY.saturating_sub(self.start.elapsed())
    }

    /// Says once, after some time, for what this rank waits.
    pub(super) fn say_what_is_awaited(&self, what: impl FnOnce() -> String) {
        if self.until_said().is_zero() && !self.has_said.replace(true) {
            let JobMember { rank, world_size, deadline, .. } = self.member;
            note(&format!(
                "rank {rank} of {world_size} waits for {}; it gives up after {} s (CANDELABRUM_TIMEOUT)",
                what(),
                deadline.as_secs()
            ));
        }
    }

    /// The error of a deadline that has passed without `peer`.
    pub(super) fn missed(&self, peer: usize) -> Error {
        let JobMember { rank, world_size, .. } = self.member;
        Error::Rendezvous { rank, world_size, peer, waited: self.start.elapsed() }
    }

    /// Rank 0's part: waits for the calls of all other ranks, and answers them with the end of the
    /// meeting. Returns the connections by rank.
    pub(super) fn hear_all(&self, callers: &mut Callers<'_>) -> Result<Vec<Option<OwnedFd>>> {
        let mut sockets = self.unconnected();
        let gathered = self.gather(callers, 1..self.member.world_size, &mut sockets);
        let reason = gathered.as_ref().err().map(ToString::to_string);
        for socket in sockets.iter().flatten() {
            answer(socket, reason.as_deref());
        }
        if let Some(reason) = &reason {
            // A rank that calls a moment too late gets the reason, too.
            let start = Instant::now();
            while let Some((_, socket)) = callers.next(TO_TURN_AWAY.saturating_sub(start.elapsed()))
            {
                answer(&socket, Some(reason));
            }
        }
        gathered.map(|()| sockets)
    }

    /// The connections by rank, before there are any.
    pub(super) fn unconnected(&self) -> Vec<Option<OwnedFd>> {
        (0..self.member.world_size).map(|_| None).collect()
    }

    /// Waits until all `ranks` are among the callers, and keeps their connections.
    pub(super) fn gather(
        &self,
        callers: &mut Callers<'_>,
        ranks: Range<usize>,
        sockets: &mut [Option<OwnedFd>],
    ) -> Result<()> {
        while let Some(missing) = ranks.clone().find(|&rank| sockets[rank].is_none()) {
            let left = self.left();
            let limit = if self.has_said.get() { left } else { left.min(self.until_said()) };
            let Some((hello, socket)) = callers.next(limit) else {
                if self.left().is_zero() {
                    return Err(self.missed(missing));
                }
                self.say_what_is_awaited(|| {
                    let missing = ranks.clone().filter(|&rank| sockets[rank].is_none());
                    let missing: Vec<String> = missing.map(|rank| rank.to_string()).collect();
                    format!("rank(s) {}{}{}", missing.join(", "), self.place, callers.trouble())
                });
                continue;
            };
            let rank = hello.rank as usize;
            match self.judge(&hello, ranks.contains(&rank) && sockets[rank].is_none()) {
                Ok(()) => sockets[rank] = Some(socket),
                Err(Refusal::Stranger(what)) => {
                    if !self.has_met_others.replace(true) {
                        let own = self.member.rank;
                        note(&format!(
                            "rank {own} turned a caller away that says it is rank {rank}: {what}"
                        ));
                    }
                    answer(&socket, Some(&what));
                }
                Err(Refusal::Misfit(error)) => {
                    answer(&socket, Some(&error.to_string()));
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    /// Compares a caller with this rank. The job is compared first, so that no rank of another job
    /// can end the meeting.
    fn judge(&self, hello: &HelloMessage, is_awaited: bool) -> std::result::Result<(), Refusal> {
        let own = self.hello();
        let differs = |what: &str, expected: u32, got: u32| {
            Refusal::Misfit(Error::Inconsistent {
                what: what.to_owned(),
                expected: expected.to_string(),
                ranks: hello.rank.to_string(),
                got: got.to_string(),
            })
        };
        if hello.job != own.job {
            Err(Refusal::Stranger(ANOTHER_JOB.to_owned()))
        } else if hello.version != own.version {
            Err(differs("the version of the protocol", own.version, hello.version))
        } else if hello.world_size != own.world_size {
            Err(differs("the number of ranks", own.world_size, hello.world_size))
        } else if !is_awaited {
            let what = format!("two processes of this job say that they are rank {}", hello.rank);
            Err(Refusal::Misfit(Error::Launch { what }))
        } else {
            Ok(())
        }
    }

    /// Sends this rank's hello to the rank that it has called. A new connection has room for it, so
    /// this does not wait.
    pub(super) fn introduce(&self, socket: &OwnedFd) -> io::Result<()> {
        send(socket, &self.hello().encode(), SendFlags::NOSIGNAL)?;
        Ok(())
    }

    /// Waits for rank 0's answer. It is `None` if the meeting is complete, otherwise the reason of
    /// its failure.
    ///
    /// # Errors
    /// The connection ended, or the deadline passed ([`io::ErrorKind::TimedOut`]).
    pub(super) fn await_answer(&self, socket: &OwnedFd) -> io::Result<Option<String>> {
        let patience = self.left().saturating_add(TO_HEAR_WHY);
        let mut first = [0];
        if receive(socket, &mut first, patience)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if first == [WELCOME] {
            return Ok(None);
        }
        let (mut reason, mut room) = (Vec::new(), [0; LONGEST_REASON]);
        let start = Instant::now();
        // An incomplete reason is better than none.
        while let Ok(count @ 1..) =
            receive(socket, &mut room, TO_HEAR_WHY.saturating_sub(start.elapsed()))
        {
            reason.extend(&room[..count]);
            if reason.len() >= LONGEST_REASON {
                break;
            }
        }
        Ok(Some(String::from_utf8_lossy(&reason).into_owned()))
    }
}

/// Repeats an attempt until it returns a value; `None` when `limit` has passed. An attempt returns
/// `None` if a later one may succeed.
pub(super) fn retry<T>(
    limit: Duration,
    mut attempt: impl FnMut() -> Result<Option<T>>,
) -> Result<Option<T>> {
    let start = Instant::now();
    loop {
        if let Some(success) = attempt()? {
            return Ok(Some(success));
        }
        if start.elapsed() >= limit {
            return Ok(None);
        }
        thread::sleep(RETRY);
    }
}

/// Answers a caller that the meeting is complete, or why it failed. Errors are ignored, because the
/// caller may have gone.
fn answer(socket: &OwnedFd, reason: Option<&str>) {
    let bytes = match reason {
        None => vec![WELCOME],
        Some(reason) => [&[REFUSED], reason.as_bytes()].concat(),
    };
    let _ = send(socket, &bytes, SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
}

/// Reads at least one byte within the time `patience`; 0 bytes at the end of the stream.
fn receive(socket: &OwnedFd, bytes: &mut [u8], patience: Duration) -> io::Result<usize> {
    let start = Instant::now();
    loop {
        match recv(socket, &mut *bytes, RecvFlags::DONTWAIT) {
            Ok((_, count)) => return Ok(count),
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let left = patience.saturating_sub(start.elapsed());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        wait(&mut [PollFd::new(socket, PollFlags::IN)], left);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rank_says_once_for_whom_it_waits_and_not_at_once() {
        let member =
            JobMember { job: [7; 32], rank: 1, world_size: 2, deadline: Duration::from_secs(300) };
        let mut meeting = Rendezvous::begin(member);
        meeting.say_what_is_awaited(|| panic!("a rank may come a little later"));
        let start = Instant::now().checked_sub(TO_SAY).expect("the system runs for longer");
        meeting.start = start;
        let said = Cell::new(0);
        for _ in 0..3 {
            meeting.say_what_is_awaited(|| {
                said.set(said.get() + 1);
                "nobody (this is a test)".to_owned()
            });
        }
        assert_eq!(said.get(), 1);
    }
}
