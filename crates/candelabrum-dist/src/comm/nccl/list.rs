//! The list of operations that a rank has announced. [`agree`](super::agree) describes its purpose.

use std::collections::VecDeque;

use sha2::{Digest, Sha256};

use crate::comm::collective::CollectiveHeader;

/// The operations that this rank has announced and not begun yet. All are all-reduces of numbers
/// on the device.
#[derive(Debug, Default)]
pub(super) struct AnnouncedOperations {
    headers: VecDeque<CollectiveHeader>,
    /// Whether all ranks have announced these operations.
    agreed: bool,
}

impl AnnouncedOperations {
    /// Announces these operations instead of the earlier ones. A list that the ranks agree on stays.
    pub(super) fn announce(&mut self, headers: Vec<CollectiveHeader>) {
        if self.headers.is_empty() || !self.agreed {
            *self = Self { headers: headers.into(), agreed: false };
        }
    }

    /// Takes the only operation that this rank may begin, if the ranks agree on the list.
    pub(super) fn take(&mut self) -> Option<CollectiveHeader> {
        if self.agreed { self.headers.pop_front() } else { None }
    }

    /// The digest of the list, if `header` is its first operation, which is taken out. Otherwise the
    /// list is dropped, and the digest is 0.
    pub(super) fn offer(&mut self, header: CollectiveHeader, on_device: bool) -> u64 {
        self.agreed = false;
        if !on_device || self.headers.front() != Some(&header) {
            self.headers.clear();
            return 0;
        }
        let mut digest = Sha256::new();
        for header in &self.headers {
            header.encode().iter().for_each(|word| digest.update(word.to_le_bytes()));
        }
        self.headers.pop_front();
        let digest: [u8; 32] = digest.finalize().into();
        digest.first_chunk().map_or(1, |&first| u64::from_le_bytes(first).max(1))
    }

    /// Ends the offer of a list. `agreed` says whether all ranks have offered the same one.
    pub(super) fn close(&mut self, agreed: bool) {
        self.agreed = agreed;
        if !agreed {
            self.headers.clear();
        }
    }
}
