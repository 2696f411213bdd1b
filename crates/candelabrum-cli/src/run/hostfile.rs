//! The hosts of a job, from a file as Open MPI's or Hydra's mpiexec read it.
//!
//! A line is a host: `host slots=N`, as for Open MPI, or `host:N`, as for Hydra. Without a number it
//! has one slot. `#` begins a comment. A host that stands in several lines has all their slots.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use super::failure::{Result, StartFailure};

/// The most bytes of a hostfile: it may be a device, or a file of another kind by mistake.
const LONGEST: u64 = 1 << 20;

/// The most slots of a host.
const MOST_SLOTS: usize = 1 << 16;

/// A host, and how many ranks it takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct HostSlots {
    pub(super) name: String,
    pub(super) slots: usize,
}

/// Reads a hostfile.
pub(super) fn read(path: &Path) -> Result<Vec<HostSlots>> {
    let shown = path.display();
    let mut text = String::new();
    let read = File::open(path).and_then(|file| file.take(LONGEST + 1).read_to_string(&mut text));
    read.map_err(|error| {
        StartFailure::Usage(format!(
            "cannot read the hostfile {shown}: {error}; is its name right?"
        ))
    })?;
    if text.len() as u64 > LONGEST {
        return Err(StartFailure::Usage(format!("the hostfile {shown} is longer than 1 MiB")));
    }
    parse(&text).map_err(|what| StartFailure::Usage(format!("{shown}{what}")))
}

/// The hosts in the order of their first lines. An error begins with the number of its line.
fn parse(text: &str) -> std::result::Result<Vec<HostSlots>, String> {
    let mut hosts: Vec<HostSlots> = Vec::new();
    for (line, number) in text.lines().zip(1..) {
        let line = line.split('#').next().unwrap_or_default();
        let mut words = line.split_whitespace();
        let Some(first) = words.next() else { continue };
        let HostSlots { name, slots } =
            host(first, words).map_err(|what| format!(":{number}: {what}"))?;
        match hosts.iter_mut().find(|host| host.name == name) {
            Some(host) => host.slots = host.slots.saturating_add(slots).min(MOST_SLOTS),
            None => hosts.push(HostSlots { name, slots }),
        }
    }
    if hosts.is_empty() {
        return Err(" names no host: write a line such as `node1 slots=4` for each".to_owned());
    }
    Ok(hosts)
}

fn host<'a>(
    first: &str,
    words: impl Iterator<Item = &'a str>,
) -> std::result::Result<HostSlots, String> {
    let (name, mut slots) = match first.split_once(':') {
        None => (first, None),
        Some((name, slots)) => (name, Some(number(slots)?)),
    };
    // The name becomes a part of mpiexec's arguments.
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
    if name.is_empty() || name.starts_with('-') || !name.chars().all(is_plain) {
        return Err(format!(
            "`{name}` is not the name or IPv4 address of a host; a user or an IPv6 address belongs \
             into ~/.ssh/config, under a name"
        ));
    }
    for word in words {
        match word.split_once('=') {
            Some(("slots", _)) if slots.is_some() => {
                return Err(format!("the slots of {name} are given twice"));
            }
            Some(("slots", value)) => slots = Some(number(value)?),
            // Open MPI's limit for a job that asks for more ranks than slots.
            Some(("max_slots" | "max-slots", value)) => drop(number(value)?),
            _ => return Err(format!("`{word}` is not known here: write `slots=N`")),
        }
    }
    Ok(HostSlots { name: name.to_owned(), slots: slots.unwrap_or(1) })
}

fn number(text: &str) -> std::result::Result<usize, String> {
    let number = text.parse().ok().filter(|slots| (1..=MOST_SLOTS).contains(slots));
    number.ok_or_else(|| {
        format!("`{text}` is not a number of slots: it must be from 1 to {MOST_SLOTS}")
    })
}

/// The slots of all hosts.
pub(super) fn slots(hosts: &[HostSlots]) -> usize {
    hosts.iter().fold(0, |sum, host| sum.saturating_add(host.slots))
}

/// How many of `ranks` ranks are on each host: the first host's slots are filled first. Ranks without
/// a slot go to the hosts in turn.
pub(super) fn place(hosts: &[HostSlots], ranks: usize) -> Vec<usize> {
    let mut left = ranks;
    let mut placed: Vec<usize> = hosts
        .iter()
        .map(|host| {
            let here = host.slots.min(left);
            left -= here;
            here
        })
        .collect();
    let count = placed.len();
    for (index, here) in placed.iter_mut().enumerate() {
        *here += left / count + usize::from(index < left % count);
    }
    placed
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn host_of(name: &str, slots: usize) -> HostSlots {
        HostSlots { name: name.to_owned(), slots }
    }

    #[test]
    fn both_forms_are_read() {
        let text = "# ours\nnode1 slots=4   # fast\n\n  node2:2\n10.0.0.7\nnode3 max_slots=8 slots=3\n\
                    node1:1\n";
        let hosts = parse(text).unwrap();
        let expected =
            [host_of("node1", 5), host_of("node2", 2), host_of("10.0.0.7", 1), host_of("node3", 3)];
        assert_eq!(hosts, expected);
        assert_eq!(slots(&hosts), 11);
    }

    #[test]
    fn errors_name_the_line() {
        for (text, parts) in [
            ("", ["names no host", "slots=4"]),
            ("# nothing\n\n", ["names no host", "slots=4"]),
            ("a\nb slots=x\n", [":2:", "`x`"]),
            ("a slots=0\n", [":1:", "`0`"]),
            ("a:99999999\n", [":1:", "`99999999`"]),
            ("a:2 slots=2\n", [":1:", "twice"]),
            ("a slots=2 slots=2\n", [":1:", "twice"]),
            ("a\n\nb cores=2\n", [":3:", "`cores=2`"]),
            ("a b\n", [":1:", "`b`"]),
            ("-x\n", [":1:", "`-x`"]),
            ("me@a\n", [":1:", "~/.ssh/config"]),
            ("fe80::1\n", [":1:", "`:1`"]),
            ("node[1-4]\n", [":1:", "`node[1-4]`"]),
            ("a,b\n", [":1:", "`a,b`"]),
        ] {
            let message = parse(text).unwrap_err();
            for part in parts {
                assert!(message.contains(part), "{text:?}: {message}");
            }
        }
    }

    #[test]
    fn files_that_are_no_hostfiles_are_refused() {
        let missing = read(Path::new("/no/such/hosts")).unwrap_err();
        assert!(missing.code() == 2 && missing.to_string().contains("/no/such/hosts"), "{missing}");
        let endless = read(Path::new("/dev/zero")).unwrap_err();
        assert!(endless.to_string().contains("/dev/zero"), "{endless}");
    }

    #[test]
    fn slots_are_filled_in_order_and_the_rest_goes_round() {
        let hosts = [host_of("a", 2), host_of("b", 3)];
        assert_eq!(place(&hosts, 1), [1, 0]);
        assert_eq!(place(&hosts, 4), [2, 2]);
        assert_eq!(place(&hosts, 8), [4, 4]);
        assert_eq!(place(&hosts, 0), [0, 0]);
    }

    proptest! {
        #[test]
        fn hosts_are_read_as_they_are_written(
            hosts in proptest::collection::vec(("[a-z][a-z0-9.-]{0,12}", 1_usize..100, any::<bool>()), 1..20),
            comment in "[ \t]*(#.*)?",
        ) {
            let mut text = String::new();
            for (name, slots, is_open_mpi) in &hosts {
                let line = if *is_open_mpi { format!("{name} slots={slots}") } else { format!("{name}:{slots}") };
                text += &format!("{line}{comment}\n");
            }
            let read = parse(&text).unwrap();
            prop_assert_eq!(slots(&read), hosts.iter().map(|(_, slots, _)| slots).sum::<usize>());
            let of = |name: &str| hosts.iter().filter(|(n, ..)| n == name).map(|(_, slots, _)| slots).sum::<usize>();
            for host in &read {
                prop_assert_eq!(host.slots, of(&host.name));
            }
            prop_assert_eq!(place(&read, 7).iter().sum::<usize>(), 7);
        }

        #[test]
        fn no_text_makes_it_panic_and_no_name_becomes_an_option(text in "\\PC{0,60}(\n\\PC{0,30}){0,3}") {
            match parse(&text) {
                Ok(hosts) => for host in hosts {
                    prop_assert!(!host.name.starts_with('-') && !host.name.contains([',', ':', ' ']));
                },
                Err(message) => prop_assert!(message.starts_with([':', ' ']), "{}", message),
            }
        }
    }
}
