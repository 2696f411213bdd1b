//! Which hosts mpiexec or srun could not reach, according to what it printed.
//!
//! There is no interface for it, so these lines are all that is known:
//!
//! | line | printed by |
//! |---|---|
//! | `ssh: connect to host NAME port …` | ssh, which mpiexec uses to reach the host |
//! | `ssh: Could not resolve hostname NAME: …` | ssh |
//! | `Remote daemon: … on node NAME` | Open MPI, when it has lost the host |
//! | `… Node failure on NAME` | srun, for one node |

/// The places in `names` of the hosts that the lines name, without repetition.
pub(super) fn unreachable<'a>(output: &[u8], names: impl Iterator<Item = &'a str>) -> Vec<usize> {
    let output = String::from_utf8_lossy(output);
    let lost: Vec<&str> = output.lines().filter_map(named_in).collect();
    let names = names.enumerate();
    names.filter(|(_, name)| lost.iter().any(|lost| is_same(lost, name))).map(|(i, _)| i).collect()
}

fn named_in(line: &str) -> Option<&str> {
    let after = |words: &str| line.split_once(words).map(|(_, rest)| rest);
    let rest = after("ssh: connect to host ")
        .or_else(|| after("ssh: Could not resolve hostname "))
        .or_else(|| {
            after("Remote daemon:")
                .and_then(|rest| rest.split_once(" on node "))
                .map(|(_, rest)| rest)
        })
        .or_else(|| after("Node failure on "))?;
    let name = rest.split_whitespace().next()?;
    Some(name.trim_end_matches([':', ',', '.', ';']))
}

/// Whether two names are the same host's: launchers shorten names to their first part.
fn is_same(one: &str, other: &str) -> bool {
    let is_address = |name: &str| name.chars().all(|c| c.is_ascii_digit() || c == '.');
    if is_address(one) || is_address(other) {
        return one == other;
    }
    let short = |name: &str| name.split('.').next().unwrap_or_default().to_ascii_lowercase();
    one.eq_ignore_ascii_case(other)
        || (one.contains('.') != other.contains('.') && short(one) == short(other))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lines_of_each_launcher_name_a_host() {
        let names = ["node1", "node2.cluster", "10.0.0.7", "node3"];
        for (line, expected) in [
            ("ssh: connect to host node2.cluster port 22: No route to host", &[1][..]),
            ("ssh: connect to host 10.0.0.7 port 22: Connection refused", &[2]),
            ("ssh: Could not resolve hostname node1: Name or service not known", &[0]),
            ("  Remote daemon: [[60433,0],1] on node node2", &[1]),
            ("srun: error: Node failure on node3", &[3]),
            ("slurmstepd: error: *** JOB 7 ON node3 CANCELLED DUE TO NODE FAILURE ***", &[]),
            ("  HNP daemon   : [[60433,0],0] on node node1", &[]),
            ("rank 3: cannot connect to host node1 port 80", &[]),
            ("ssh: connect to host node4 port 22: No route to host", &[]),
            ("ssh: connect to host ", &[]),
        ] {
            let found = unreachable(line.as_bytes(), names.into_iter());
            assert_eq!(found, expected, "{line}");
        }
    }

    #[test]
    fn several_hosts_are_found_once_each_among_other_output() {
        let output =
            b"\xff\nssh: connect to host a port 22: x\nssh: connect to host a port 22: x\n\
                       ssh: connect to host c port 22: x\n";
        assert_eq!(unreachable(output, ["a", "b", "c"].into_iter()), [0, 2]);
    }

    #[test]
    fn names_of_one_host_are_told_from_names_of_two() {
        assert!(is_same("Node1", "node1") && is_same("node1", "node1.a.b"));
        assert!(!is_same("node1.a", "node1.b") && !is_same("10.0.0.1", "10.0.0.2"));
        assert!(!is_same("10", "10.0.0.1"));
    }
}
