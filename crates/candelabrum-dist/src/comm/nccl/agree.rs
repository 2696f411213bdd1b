//! The agreement of the ranks on the next operation, before NCCL is called.
//!
//! NCCL does not compare what its ranks call. Ranks that call different operations would wait
//! without end, or add numbers that do not belong together. So the ranks exchange headers over the
//! control first. Where a rank has announced its next operations, the header of the first one
//! travels with a digest of all their headers. If all ranks have the same digest, they agree on the
//! list, and the rest of the list needs no exchange. Otherwise each operation has its own exchange,
//! whose error names the first difference.
//!
//! **Invariant (list)** From an agreement on a list until the end of the list, this rank gives NCCL
//! the operations of the list in their order, and nothing else. So no operation of NCCL combines
//! numbers of different steps or buckets. A rank that is asked for anything else gives nothing to
//! NCCL any more and reports a failure, because the other ranks may wait for it in NCCL.

use super::NcclTransport;
use super::control::in_operation;
use crate::comm::collective::{CollectiveHeader, check_agreement};
use crate::{Error, Result};

impl NcclTransport {
    /// All ranks' headers, after a check that they agree, and whether all ranks have their numbers
    /// on the host.
    pub(super) fn agree(
        &mut self,
        header: CollectiveHeader,
        on_device: bool,
    ) -> Result<(Vec<CollectiveHeader>, bool)> {
        if let Some(expected) = self.list.take() {
            self.job.failures.check().map_err(|error| in_operation(error, &header))?;
            if !on_device || header != expected {
                return Err(self.not_announced(header, on_device, expected));
            }
            return Ok((vec![header; self.ranks.len()], false));
        }
        let digest = self.list.offer(header, on_device);
        let all = self.exchange(header, on_device, digest)?;
        let headers: Vec<_> = all.iter().map(|row| row.header).collect();
        check_agreement(&headers, &self.ranks)?;
        self.list.close(digest != 0 && all.iter().all(|row| row.digest == digest));
        let all_on_host = all.iter().all(|row| !row.on_device);
        Ok((headers.into_iter().filter_map(CollectiveHeader::decode).collect(), all_on_host))
    }

    /// Gathers all ranks' headers and digests.
    fn exchange(
        &self,
        header: CollectiveHeader,
        on_device: bool,
        digest: u64,
    ) -> Result<Vec<AgreementRow>> {
        let _span = tracing::debug_span!(
            target: "candelabrum::comm", "agree", op = header.op.name()
        )
        .entered();
        let [sequence, what, len, tag] = header.encode();
        let words = [sequence, what, len, tag, u64::from(on_device), digest];
        let words = words.map(|word| word as i64);
        let all = self.control.run(&header, |group| group.all_gather(&words))?;
        let (all, _) = all.as_chunks::<{ CollectiveHeader::WORDS + 2 }>();
        let row = |words: &[i64; CollectiveHeader::WORDS + 2]| {
            let [a, b, c, d, on_device, digest] = words.map(|word| word as u64);
            AgreementRow { header: [a, b, c, d], on_device: on_device != 0, digest }
        };
        Ok(all.iter().map(row).collect())
    }

    /// The error of a rank that is asked for another operation than `expected`. The other ranks get
    /// it at once. A rank that refuses an operation sends its reason instead.
    fn not_announced(
        &self,
        header: CollectiveHeader,
        on_device: bool,
        expected: CollectiveHeader,
    ) -> Error {
        let (mut what, expected) = (format!("calls {header}"), expected.to_string());
        if what.ends_with(&expected) {
            what.push_str(if on_device { " with another label" } else { " on the host" });
        }
        let error = Error::NotAnnounced { rank: self.ranks[self.rank], what, expected };
        if header.refused.is_none() {
            self.job.failures.tell(&error);
        }
        error
    }

    /// Reports that this rank leaves the group before the end of its list, and why. A failure that
    /// the other ranks know is not reported again.
    pub(super) fn leave_list(&mut self) {
        let Some(expected) = self.list.take() else { return };
        let failures = &self.job.failures;
        if failures.check().is_ok() {
            let (what, expected) = ("leaves the group".to_owned(), expected.to_string());
            let leaves = Error::NotAnnounced { rank: self.ranks[self.rank], what, expected };
            failures.tell(&failures.returned().unwrap_or(leaves));
        }
    }
}

/// A rank's message in an exchange.
struct AgreementRow {
    header: [u64; CollectiveHeader::WORDS],
    on_device: bool,
    /// See [`List::offer`](super::list::List::offer).
    digest: u64,
}
