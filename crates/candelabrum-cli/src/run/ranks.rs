//! A set of ranks, as users write it: `0,2-3`, `all` or `none`.

use std::collections::BTreeSet;
use std::str::FromStr;

/// The most ranks that a set may name, so that a slip of the keyboard does not fill the memory.
const MOST: usize = 1_000_000;

/// A set of ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum RankSet {
    All,
    Are(BTreeSet<usize>),
}

impl RankSet {
    /// The first rank that a job of so many ranks does not have.
    pub(super) fn beyond(&self, ranks: usize) -> Option<usize> {
        match self {
            Self::All => None,
            Self::Are(set) => set.range(ranks..).next().copied(),
        }
    }

    /// The ranks, or `None` for all.
    pub(super) fn to_shown(&self) -> Option<BTreeSet<usize>> {
        match self {
            Self::All => None,
            Self::Are(set) => Some(set.clone()),
        }
    }
}

impl FromStr for RankSet {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "all" => return Ok(Self::All),
            "none" => return Ok(Self::Are(BTreeSet::new())),
            _ => {}
        }
        let mut set = BTreeSet::new();
        for part in text.split(',') {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let range = first.parse::<usize>().ok().zip(last.parse::<usize>().ok());
            let range = range.filter(|(first, last)| first <= last && *last < MOST);
            let (first, last) = range
                .ok_or_else(|| format!("`{part}` is neither a rank nor a range such as 2-3"))?;
            set.extend(first..=last);
        }
        Ok(Self::Are(set))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_and_ranges_are_sets() {
        let set = |text: &str| text.parse::<RankSet>().map(|set| set.to_shown());
        assert_eq!(set("0,2-4,3"), Ok(Some([0, 2, 3, 4].into())));
        assert_eq!(set("none"), Ok(Some(BTreeSet::new())));
        assert_eq!(set("all"), Ok(None));
        for text in ["", "x", "1,", "4-2", "-1", "0-99999999999"] {
            assert!(set(text).is_err(), "{text}");
        }
    }

    #[test]
    fn ranks_that_a_job_does_not_have_are_found() {
        let beyond = |text: &str, ranks| text.parse::<RankSet>().unwrap().beyond(ranks);
        assert_eq!(beyond("0-3", 4), None);
        assert_eq!(beyond("0,5,9", 4), Some(5));
        assert_eq!(beyond("all", 1), None);
    }
}
