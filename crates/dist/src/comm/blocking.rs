//! The blocking form of every operation, on slices.

use super::{Collective, Communicator, Element, Payload, ReduceOp};
use crate::{Error, Result};

/// The blocking form of every operation, on slices.
impl dyn Communicator + '_ {
    /// Whether this process is rank 0 of the world, which prints and writes for all.
    pub fn is_world_root(&self) -> bool {
        self.ranks().get(self.rank()) == Some(&0)
    }

    /// Replaces `values` on every rank by their reduction over all ranks.
    ///
    /// # Errors
    /// See [`Error`]: a rank that died or disagrees, a passed deadline.
    pub fn all_reduce<T: Element>(&self, values: &mut [T], op: ReduceOp) -> Result<()> {
        self.run_in_place(Collective::AllReduce(op), values.into())
    }

    /// Replaces `values` on every rank by `root`'s.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn broadcast<T: Element>(&self, values: &mut [T], root: usize) -> Result<()> {
        self.run_in_place(Collective::Broadcast { root }, values.into())
    }

    /// All ranks' `values`, in rank order. Every rank gives equally many.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn all_gather<T: Element>(&self, values: &[T]) -> Result<Vec<T>> {
        self.run(Collective::AllGather, Payload::from_slice(values))?.to_vec()
    }

    /// Part `rank` of the reduction of `values` over all ranks; the length must divide by the
    /// number of ranks.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn reduce_scatter<T: Element>(&self, values: &[T], op: ReduceOp) -> Result<Vec<T>> {
        self.run(Collective::ReduceScatter(op), Payload::from_slice(values))?.to_vec()
    }

    /// On `root` all ranks' `values`, in rank order; nothing elsewhere.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn gather<T: Element>(&self, values: &[T], root: usize) -> Result<Vec<T>> {
        self.run(Collective::Gather { root }, Payload::from_slice(values))?.to_vec()
    }

    /// Part `rank` of `root`'s `values`; what the other ranks pass is not looked at.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn scatter<T: Element>(&self, values: &[T], root: usize) -> Result<Vec<T>> {
        self.run(Collective::Scatter { root }, Payload::from_slice(values))?.to_vec()
    }

    /// On `root` the reduction of all ranks' `values`; nothing elsewhere.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn reduce<T: Element>(&self, values: &[T], op: ReduceOp, root: usize) -> Result<Vec<T>> {
        self.run(Collective::Reduce { op, root }, Payload::from_slice(values))?.to_vec()
    }

    /// Each rank's `values`, in rank order; they may have different lengths.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn all_gather_v<T: Element>(&self, values: &[T]) -> Result<Vec<Vec<T>>> {
        in_parts(&self.run(Collective::AllGatherV, Payload::from_slice(values))?)
    }

    /// Part `r` of `values`, which are cut into as many equal parts as ranks, goes to rank `r`;
    /// gives what came from the ranks, in their order.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn all_to_all<T: Element>(&self, values: &[T]) -> Result<Vec<T>> {
        self.run(Collective::AllToAll, Payload::from_slice(values))?.to_vec()
    }

    /// `parts[r]` goes to rank `r`; gives what came from each rank.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn all_to_all_v<T: Element>(&self, parts: &[Vec<T>]) -> Result<Vec<Vec<T>>> {
        let lens: Vec<usize> = parts.iter().map(Vec::len).collect();
        let payload = Payload::from_slice(&parts.concat()).with_parts(lens)?;
        in_parts(&self.run(Collective::AllToAllV, payload)?)
    }

    /// Returns when every rank has called it.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn barrier(&self) -> Result<()> {
        self.run(Collective::Barrier, Payload::empty()).map(|_| ())
    }

    /// Sends `values` to rank `to`.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn send<T: Element>(&self, values: &[T], to: usize) -> Result<()> {
        self.run(Collective::Send { to }, Payload::from_slice(values)).map(|_| ())
    }

    /// Fills `values` with what rank `from` sends; it must send exactly as many of the same type.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn recv<T: Element>(&self, values: &mut [T], from: usize) -> Result<()> {
        self.run_in_place(Collective::Recv { from }, values.into())
    }

    /// The next message of any rank: who sent it, and what. Messages of one rank keep their order.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn recv_any<T: Element>(&self) -> Result<(usize, Vec<T>)> {
        let message = self.run(Collective::RecvAny, Payload::zeros(T::TYPE, 0))?;
        let what = || "a message without a sender".to_owned();
        let source = message.source().ok_or_else(|| Error::Protocol { what: what() })?;
        Ok((source, message.to_vec()?))
    }

    /// All ranks' texts, in rank order. They may have different lengths.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn all_gather_text(&self, text: &str) -> Result<Vec<String>> {
        length_of(text)?;
        let texts = self.all_gather_v(text.as_bytes())?;
        Ok(texts.iter().map(|bytes| String::from_utf8_lossy(bytes).into_owned()).collect())
    }

    /// `root`'s text, on every rank.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn broadcast_text(&self, text: &str, root: usize) -> Result<String> {
        let mut length = [length_of(text)?];
        self.broadcast(&mut length, root)?;
        let mut bytes = text.as_bytes().to_vec();
        bytes.resize(usize::try_from(length[0]).unwrap_or_default(), 0);
        self.broadcast(&mut bytes, root)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }
}

/// The length of a text in bytes, which must fit the message that carries it.
fn length_of(text: &str) -> Result<i32> {
    i32::try_from(text.len())
        .map_err(|_| Error::Unsupported { what: format!("a text of {} bytes", text.len()) })
}

/// The parts of a result whose ranks send different amounts.
fn in_parts<T: Element>(payload: &Payload) -> Result<Vec<Vec<T>>> {
    let mut rest = payload.as_slice::<T>()?;
    let mut parts = Vec::new();
    for &len in payload.parts().unwrap_or_default() {
        let (part, tail) = rest.split_at(len);
        parts.push(part.to_vec());
        rest = tail;
    }
    Ok(parts)
}
