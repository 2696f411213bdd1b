//! Which server holds which part of a value: MXNet's rules (`kvstore_dist.h`).
//!
//! A value below a bound is on one server, chosen by its key. A larger one is cut into one part per
//! server. A row-sparse table is always cut, by rows.

use std::ops::Range;

use crate::Key;

/// MXNet's `MXNET_KVSTORE_BIGARRAY_BOUND`: a value with this many elements or more is cut.
pub const BIG_ARRAY_BOUND: usize = 1_000_000;

/// MXNet's factor, by which consecutive keys do not follow the order of the servers.
const SPREAD: i128 = 9973;

/// The part of a value that one server holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ServerPart {
    /// The server's number.
    pub(crate) server: usize,
    /// Elements of a dense value, or rows of a table.
    pub(crate) range: Range<usize>,
}

/// The parts of a dense value of `len` elements. `number` is the key's number in the store, which
/// stands for a key that is a string.
pub(crate) fn dense(
    key: &Key,
    number: u32,
    len: usize,
    bound: usize,
    servers: usize,
) -> Vec<ServerPart> {
    if len >= bound && len >= servers {
        return even(len, servers);
    }
    let number = match key {
        Key::Int(number) => *number,
        Key::Name(_) => number.into(),
    };
    let server = (i128::from(number) * SPREAD).rem_euclid(servers as i128) as usize;
    vec![ServerPart { server, range: 0..len }]
}

/// One part per server, of equal lengths up to one element.
pub(crate) fn even(len: usize, servers: usize) -> Vec<ServerPart> {
    let end =
        |server: usize| (len as u128 * server as u128 + servers as u128 / 2) / servers as u128;
    (0..servers)
        .map(|server| ServerPart { server, range: end(server) as usize..end(server + 1) as usize })
        .collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn every_element_is_in_one_part(len in 0_usize..5_000_000, servers in 1_usize..9) {
            for parts in [even(len, servers), dense(&3.into(), 3, len, BIG_ARRAY_BOUND, servers)] {
                let mut end = 0;
                for part in &parts {
                    prop_assert_eq!(part.range.start, end);
                    end = part.range.end;
                }
                prop_assert_eq!(end, len);
                let lens = parts.iter().map(|part| part.range.len());
                prop_assert!(lens.clone().max().unwrap() - lens.min().unwrap() <= 1);
            }
        }
    }

    #[test]
    fn small_values_are_whole_and_spread_over_the_servers() {
        let server = |key: i64| dense(&key.into(), 0, 10, BIG_ARRAY_BOUND, 3)[0].server;
        assert_eq!([server(0), server(1), server(2), server(3)], [0, 1, 2, 0]);
        let named = dense(&"w".into(), 4, 10, BIG_ARRAY_BOUND, 3);
        assert_eq!(named, [ServerPart { server: 4 * 9973 % 3, range: 0..10 }]);
        assert_eq!(dense(&0.into(), 0, BIG_ARRAY_BOUND, BIG_ARRAY_BOUND, 2).len(), 2);
        assert_eq!(server(-1), 2, "a negative key has a server, too");
    }
}
