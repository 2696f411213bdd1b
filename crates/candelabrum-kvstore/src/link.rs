//! The way from a worker to the shards: messages between ranks, or a shard in this process.

use std::collections::VecDeque;
use std::fmt;
use std::ops::Range;
use std::time::Duration;

use candelabrum_dist::{Collective, ElementType, Group, Payload, Pending, World};

use crate::shard::{ServerShard, Updater};
use crate::wire::{MessageMemory, WireMessage};
use crate::{Error, Result};

/// The shards of a store, as a worker sees them.
pub(crate) trait ShardLink: fmt::Debug + Send {
    /// The number of shards.
    fn servers(&self) -> usize;

    /// The rank of a server.
    fn rank_of(&self, server: usize) -> usize;

    /// Whether messages take time, so that a worker should not send all of them at once.
    fn is_remote(&self) -> bool;

    fn send(&mut self, server: usize, message: WireMessage) -> Result<()>;

    /// The next answer of any server, if one arrives within `limit`.
    fn receive(&mut self, limit: Duration) -> Result<Option<(usize, WireMessage)>>;

    /// Waits until all messages have been given to the network.
    fn finish(&mut self) -> Result<()>;

    /// Sets the updater of a shard in this process. False if the shards are in other processes.
    fn set_updater(&mut self, updater: Updater) -> bool;
}

/// A shard in this process.
#[derive(Debug)]
pub(crate) struct InProcess {
    rank: usize,
    shard: ServerShard,
    answers: VecDeque<WireMessage>,
}

impl InProcess {
    pub(crate) fn new(rank: usize) -> Self {
        let shard = ServerShard::new(
            rank,
            (0, 1),
            vec![rank],
            Duration::MAX,
            None,
            MessageMemory::default(),
        );
        Self { rank, shard, answers: VecDeque::new() }
    }
}

impl ShardLink for InProcess {
    fn servers(&self) -> usize {
        1
    }

    fn rank_of(&self, _server: usize) -> usize {
        self.rank
    }

    fn is_remote(&self) -> bool {
        false
    }

    fn send(&mut self, _server: usize, message: WireMessage) -> Result<()> {
        let answers = self.shard.handle(0, message);
        self.answers.extend(answers.into_iter().map(|(_, answer)| answer));
        Ok(())
    }

    fn receive(&mut self, _limit: Duration) -> Result<Option<(usize, WireMessage)>> {
        Ok(self.answers.pop_front().map(|answer| (0, answer)))
    }

    fn finish(&mut self) -> Result<()> {
        Ok(())
    }

    fn set_updater(&mut self, updater: Updater) -> bool {
        self.shard.set_updater(updater);
        true
    }
}

/// Servers that are other ranks of a group.
pub(crate) struct RemoteServers {
    mail: GroupMail,
    servers: Range<usize>,
}

impl RemoteServers {
    pub(crate) fn new(group: Group, servers: Range<usize>) -> Self {
        Self { mail: GroupMail::new(group), servers }
    }
}

impl ShardLink for RemoteServers {
    fn servers(&self) -> usize {
        self.servers.len()
    }

    fn rank_of(&self, server: usize) -> usize {
        self.servers.start + server
    }

    fn is_remote(&self) -> bool {
        true
    }

    fn send(&mut self, server: usize, message: WireMessage) -> Result<()> {
        self.mail.send(self.servers.start + server, message)
    }

    fn receive(&mut self, limit: Duration) -> Result<Option<(usize, WireMessage)>> {
        let Some((from, message)) = self.mail.receive(limit)? else { return Ok(None) };
        if !self.servers.contains(&from) {
            let what = "it is an answer, and its sender is no server".to_owned();
            return Err(Error::Message { from, what });
        }
        Ok(Some((from - self.servers.start, message)))
    }

    fn finish(&mut self) -> Result<()> {
        self.mail.finish()
    }

    fn set_updater(&mut self, _updater: Updater) -> bool {
        false
    }
}

impl fmt::Debug for RemoteServers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Ranks({:?})", self.servers)
    }
}

/// Two groups of all processes: for the messages of a store, and for the steps of its workers. All processes call it
/// together.
pub(crate) fn groups_of(world: &World) -> Result<[Group; 2]> {
    let lost = || Error::Roles { what: "a group has lost its member".to_owned() };
    let group = || world.everyone().split(Some(0), 0)?.ok_or_else(lost);
    Ok([group()?, group()?])
}

/// Messages of a group: those of this rank under way, and the next one of any other rank.
pub(crate) struct GroupMail {
    group: Group,
    inbox: Option<Pending>,
    sent: VecDeque<Pending>,
}

impl GroupMail {
    pub(crate) fn new(group: Group) -> Self {
        Self { group, inbox: None, sent: VecDeque::new() }
    }

    pub(crate) fn send(&mut self, to: usize, message: WireMessage) -> Result<()> {
        self.sent.push_back(self.group.start(Collective::Send { to }, message.into_payload()));
        while let Some(mut first) = self.sent.pop_front() {
            if !first.is_complete() {
                self.sent.push_front(first);
                break;
            }
            first.wait()?;
        }
        Ok(())
    }

    /// The next message of any rank, if one arrives within `limit`.
    pub(crate) fn receive(&mut self, limit: Duration) -> Result<Option<(usize, WireMessage)>> {
        let mut inbox = self.inbox.take().unwrap_or_else(|| {
            self.group.start(Collective::RecvAny, Payload::zeros(ElementType::U8, 0))
        });
        if !inbox.wait_for(limit) {
            self.inbox = Some(inbox);
            return Ok(None);
        }
        let payload = inbox.wait()?;
        let from = payload.source().unwrap_or_default();
        Ok(Some((from, WireMessage::read(payload, from)?)))
    }

    pub(crate) fn finish(&mut self) -> Result<()> {
        self.sent.drain(..).try_for_each(|sent| sent.wait().map(drop))?;
        Ok(())
    }
}
