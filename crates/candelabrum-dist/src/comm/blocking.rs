//! Blocking operations on slices.

use super::{Collective, Communicator, Element, Payload, ReduceOp};
use crate::{Error, Result};

/// The blocking form of every operation, on slices.
impl dyn Communicator + '_ {
    /// Whether this process is rank 0 of the world, which prints and writes files for all ranks.
    pub fn is_world_root(&self) -> bool {
        self.ranks().get(self.rank()) == Some(&0)
    }

    /// Replaces `values` on every rank by their reduction over all ranks.
    ///
    /// # Errors
    /// A failure of another rank, a passed deadline or a disagreement between ranks.
    pub fn all_reduce<T: Element>(&self, values: &mut [T], op: ReduceOp) -> Result<()> {
        self.run_in_place(Collective::AllReduce(op), values.into())
    }

    /// Replaces `values` on every rank by the values of `root`.
    ///
    /// # Errors
    /// A failure of another rank, a passed deadline or a disagreement between ranks.
    pub fn broadcast<T: Element>(&self, values: &mut [T], root: usize) -> Result<()> {
        self.run_in_place(Collective::Broadcast { root }, values.into())
    }

    /// Returns all ranks' `values`, in rank order. All ranks must pass equally many.
    ///
    /// # Errors
    /// A failure of another rank, a passed deadline or a disagreement between ranks.
    pub fn all_gather<T: Element>(&self, values: &[T]) -> Result<Vec<T>> {
        self.run(Collective::AllGather, Payload::from_slice(values))?.to_vec()
    }

    /// Reduces `values` over all ranks, cuts the result into one equal part per rank and returns
    /// part `rank`.
    ///
    /// # Errors
    /// A length that does not divide by the number of ranks, or a failure (see [`Error`]).
    pub fn reduce_scatter<T: Element>(&self, values: &[T], op: ReduceOp) -> Result<Vec<T>> {
        self.run(Collective::ReduceScatter(op), Payload::from_slice(values))?.to_vec()
    }

    /// As `reduce_scatter`, with parts of any lengths: part `r` has `parts[r]` values.
    ///
    /// # Errors
    /// Lengths that do not add up to that of `values`, or that differ between the ranks, or a failure (see
    /// [`Error`]).
    pub fn reduce_scatter_v<T: Element>(
        &self,
        values: &[T],
        parts: &[usize],
        op: ReduceOp,
    ) -> Result<Vec<T>> {
        let payload = Payload::from_slice(values).with_parts(parts)?;
        let result = self.run(Collective::ReduceScatterV(op), payload)?;
        let start = parts[..self.rank()].iter().sum::<usize>();
        Ok(result.as_slice()?[start..start + parts[self.rank()]].to_vec())
    }

    /// Sends this rank's part of `values` to the same place in all ranks' `values`. Part `r` has `parts[r]` values.
    ///
    /// # Errors
    /// Lengths that do not add up to that of `values`, or that differ between the ranks, or a failure (see
    /// [`Error`]).
    pub fn all_gather_in_place<T: Element>(&self, values: &mut [T], parts: &[usize]) -> Result<()> {
        let payload = Payload::from_slice(values).with_parts(parts)?;
        let result = self.run(Collective::AllGatherInPlace, payload)?;
        values.copy_from_slice(result.as_slice()?);
        Ok(())
    }

    /// Returns all ranks' `values` in rank order on `root`, nothing elsewhere. All ranks must pass
    /// equally many.
    ///
    /// # Errors
    /// A failure of another rank, a passed deadline or a disagreement between ranks.
    pub fn gather<T: Element>(&self, values: &[T], root: usize) -> Result<Vec<T>> {
        self.run(Collective::Gather { root }, Payload::from_slice(values))?.to_vec()
    }

    /// Cuts `root`'s `values` into one equal part per rank and returns part `rank`. The `values` of
    /// the other ranks are ignored.
    ///
    /// # Errors
    /// A length on `root` that does not divide by the number of ranks, or a failure ([`Error`]).
    pub fn scatter<T: Element>(&self, values: &[T], root: usize) -> Result<Vec<T>> {
        self.run(Collective::Scatter { root }, Payload::from_slice(values))?.to_vec()
    }

    /// Returns the reduction of all ranks' `values` on `root`, and nothing on the other ranks.
    ///
    /// # Errors
    /// A failure of another rank, a passed deadline or a disagreement between ranks.
    pub fn reduce<T: Element>(&self, values: &[T], op: ReduceOp, root: usize) -> Result<Vec<T>> {
        self.run(Collective::Reduce { op, root }, Payload::from_slice(values))?.to_vec()
    }

    /// Returns each rank's `values`, in rank order. The lengths may differ.
    ///
    /// # Errors
    /// A failure of another rank, a passed deadline or a disagreement between ranks.
    pub fn all_gather_v<T: Element>(&self, values: &[T]) -> Result<Vec<Vec<T>>> {
        in_parts(&self.run(Collective::AllGatherV, Payload::from_slice(values))?)
    }

    /// Cuts `values` into one equal part per rank and sends part `r` to rank `r`. Returns the
    /// received parts in rank order.
    ///
    /// # Errors
    /// A length that does not divide by the number of ranks, or a failure (see [`Error`]).
    pub fn all_to_all<T: Element>(&self, values: &[T]) -> Result<Vec<T>> {
        self.run(Collective::AllToAll, Payload::from_slice(values))?.to_vec()
    }

    /// Sends `parts[r]`, of any length, to rank `r`. Returns the part received from each rank.
    ///
    /// # Errors
    /// A number of parts other than the number of ranks, or a failure (see [`Error`]).
    pub fn all_to_all_v<T: Element>(&self, parts: &[Vec<T>]) -> Result<Vec<Vec<T>>> {
        let lens: Vec<usize> = parts.iter().map(Vec::len).collect();
        let payload = Payload::from_slice(&parts.concat()).with_parts(lens)?;
        in_parts(&self.run(Collective::AllToAllV, payload)?)
    }

    /// Returns when every rank has called this method.
    ///
    /// # Errors
    /// A failure of another rank, a passed deadline or a disagreement between ranks.
    pub fn barrier(&self) -> Result<()> {
        self.run(Collective::Barrier, Payload::empty()).map(|_| ())
    }

    /// Sends `values` to rank `to`.
    ///
    /// # Errors
    /// A failure of another rank or a passed deadline.
    pub fn send<T: Element>(&self, values: &[T], to: usize) -> Result<()> {
        self.run(Collective::Send { to }, Payload::from_slice(values)).map(|_| ())
    }

    /// Replaces `values` by the next message of rank `from`, of the same type and length.
    ///
    /// # Errors
    /// A message of another type or length, or a failure (see [`Error`]).
    pub fn recv<T: Element>(&self, values: &mut [T], from: usize) -> Result<()> {
        self.run_in_place(Collective::Recv { from }, values.into())
    }

    /// Receives the next message of any rank. Returns the sender and the values. Messages of one
    /// rank keep their order.
    ///
    /// # Errors
    /// A message of another type, or a failure (see [`Error`]).
    pub fn recv_any<T: Element>(&self) -> Result<(usize, Vec<T>)> {
        let message = self.run(Collective::RecvAny, Payload::zeros(T::TYPE, 0))?;
        let what = || "a message without a sender".to_owned();
        let source = message.source().ok_or_else(|| Error::Protocol { what: what() })?;
        Ok((source, message.to_vec()?))
    }

    /// Returns all ranks' texts, in rank order. The lengths may differ.
    ///
    /// # Errors
    /// A text of more than `i32::MAX` bytes, or a failure (see [`Error`]).
    pub fn all_gather_text(&self, text: &str) -> Result<Vec<String>> {
        length_of(text)?;
        let texts = self.all_gather_v(text.as_bytes())?;
        Ok(texts.iter().map(|bytes| String::from_utf8_lossy(bytes).into_owned()).collect())
    }

    /// Returns `root`'s text on every rank.
    ///
    /// # Errors
    /// A text of more than `i32::MAX` bytes, or a failure (see [`Error`]).
    pub fn broadcast_text(&self, text: &str, root: usize) -> Result<String> {
        let mut length = [length_of(text)?];
        self.broadcast(&mut length, root)?;
        let mut bytes = text.as_bytes().to_vec();
        bytes.resize(usize::try_from(length[0]).unwrap_or_default(), 0);
        self.broadcast(&mut bytes, root)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }
}

/// The length of a text in bytes, or an error if it is more than [`i32::MAX`].
fn length_of(text: &str) -> Result<i32> {
    i32::try_from(text.len())
        .map_err(|_| Error::Unsupported { what: format!("a text of {} bytes", text.len()) })
}

/// The parts of a result, one per rank.
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
