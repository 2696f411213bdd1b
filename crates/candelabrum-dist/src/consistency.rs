//! A check at start-up that all ranks train the same model. Its error names the first difference.

use candelabrum_nn::{Param, Params};
use sha2::{Digest, Sha256};

use crate::comm::{Collective, Communicator, Payload};
use crate::{Error, Result};

/// Compares `facts`, pairs of a name and a value, with the facts of all other ranks.
///
/// Usually the ranks exchange 32 bytes each. They send the facts themselves only if these digests
/// differ.
///
/// # Errors
/// [`Error::Inconsistent`], the same on every rank: the first fact that differs, rank 0's value,
/// and the ranks with another value. [`Error::Order`] if only the order of parameters differs. A
/// failure of another rank or a passed deadline.
pub fn check_consistency(comm: &dyn Communicator, facts: &[(String, String)]) -> Result<()> {
    if comm.world_size() == 1 {
        return Ok(());
    }
    let lines: Vec<String> = facts.iter().map(|(name, value)| format!("{name}\t{value}")).collect();
    let text = lines.join("\n");
    let digest: [u8; 32] = Sha256::digest(&text).into();
    // A rank that waits for others that do not compare these facts says what they are about.
    let about = facts.first().map_or("facts", |(name, _)| name);
    let digests = Payload::from_slice(&digest).labelled(about.to_owned());
    let digests: Vec<u8> = comm.run(Collective::AllGather, digests)?.to_vec()?;
    if digests.chunks_exact(digest.len()).all(|other| other == &digests[..digest.len()]) {
        return Ok(());
    }
    let texts = comm.all_gather_text(&text)?;
    Err(first_difference(&texts))
}

fn first_difference(texts: &[String]) -> Error {
    let facts: Vec<Vec<(&str, &str)>> = texts
        .iter()
        .map(|text| text.lines().map(|line| line.split_once('\t').unwrap_or((line, ""))).collect())
        .collect();
    let longest = facts.iter().map(Vec::len).max().unwrap_or(0);
    for i in 0..longest {
        let first = facts[0].get(i);
        let different: Vec<usize> =
            (1..facts.len()).filter(|&rank| facts[rank].get(i) != first).collect();
        let Some(&rank) = different.first() else { continue };
        let got = facts[rank].get(i);
        let ranks = different.iter().map(usize::to_string).collect::<Vec<_>>().join(", ");
        if let (Some((expected, _)), Some((got, _))) = (first, got)
            && let (Some(expected), Some(got)) = (parameter_of(expected), parameter_of(got))
            && expected != got
            && different.iter().all(|&rank| sorted(&facts[rank]) == sorted(&facts[0]))
        {
            return Error::Order { expected: expected.to_owned(), ranks, got: got.to_owned() };
        }
        let name = first.or(got).map_or("", |(name, _)| name);
        let show = |fact: Option<&(&str, &str)>| match fact {
            Some((other, value)) if *other == name => (*value).to_owned(),
            Some((other, value)) => format!("{other} {value}"),
            None => "nothing".to_owned(),
        };
        return Error::Inconsistent {
            what: name.to_owned(),
            expected: show(first),
            ranks,
            got: show(got),
        };
    }
    // Different digests of equal texts: only a broken transport can cause this.
    Error::Protocol { what: "digests of equal facts differ".to_owned() }
}

fn sorted<'a>(facts: &[(&'a str, &'a str)]) -> Vec<(&'a str, &'a str)> {
    let mut facts = facts.to_vec();
    facts.sort_unstable();
    facts
}

/// The name of a parameter, in the name of a fact about it.
fn parameter_of(fact: &str) -> Option<&str> {
    fact.strip_prefix(PARAMETER)
}

const PARAMETER: &str = "parameter ";

/// The facts about parameters that must be the same on all ranks: names, shapes and element types,
/// in order.
pub(crate) fn parameter_facts(params: &[Param]) -> Vec<(String, String)> {
    let fact = |param: &Param| {
        (format!("{PARAMETER}{}", param.name()), format!("{:?} {:?}", param.dims(), param.dtype()))
    };
    let mut facts = vec![("the number of parameters".to_owned(), params.len().to_string())];
    facts.extend(params.iter().map(fact));
    facts
}

/// The SHA-256, in hexadecimal, of the names and values of all parameters in order. Equal digests
/// mean equal models, bit for bit.
///
/// # Errors
/// A parameter whose values cannot be read.
pub fn parameters_sha256(params: &Params) -> Result<String> {
    digest(&params.list())
}

pub(crate) fn hexadecimal(digest: &[u8]) -> String {
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// As [`parameters_sha256`], of some parameters.
pub(crate) fn digest(params: &[Param]) -> Result<String> {
    let mut hasher = Sha256::new();
    for param in params {
        let mut values = vec![0.0; param.element_count()];
        param.with_values(|numbers| numbers.copy_to_slice(&mut values))?;
        hasher.update(param.name().as_bytes());
        hasher.update([0]);
        hasher.update(bytemuck::cast_slice::<f32, u8>(&values));
    }
    Ok(hexadecimal(&hasher.finalize()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_difference_is_named_with_its_ranks() {
        let texts = |third: &str| {
            ["a\t1\nb\t2\nc\t3", "a\t1\nb\t2\nc\t3", third].map(str::to_owned).to_vec()
        };
        let cases = [
            ("a\t1\nb\t9\nc\t3", "b differs between ranks: rank 0 has `2`, rank(s) 2 `9`"),
            ("a\t1\nb\t2", "c differs between ranks: rank 0 has `3`, rank(s) 2 `nothing`"),
            ("a\t1\nx\t2\nc\t3", "b differs between ranks: rank 0 has `2`, rank(s) 2 `x 2`"),
        ];
        for (third, expected) in cases {
            assert_eq!(first_difference(&texts(third)).to_string(), expected);
        }
    }

    #[test]
    fn another_order_of_the_same_parameters_is_named_as_such() {
        let of = |other: &str| {
            let own = "count\t2\nparameter a\t[2] F32\nparameter b\t[3] F32";
            first_difference(&[own, own, other].map(str::to_owned)).to_string()
        };
        let order = of("count\t2\nparameter b\t[3] F32\nparameter a\t[2] F32");
        for part in ["order of", "rank 0 has `a` where rank(s) 2 have `b`", "sort", "from_varmap"] {
            assert!(order.contains(part), "{order}");
        }
        for other in [
            "parameter b\t[3] F32\nparameter a\t[3] F32",
            "parameter a\t[3] F32\nparameter b\t[2] F32",
        ] {
            let message = of(&format!("count\t2\n{other}"));
            assert!(message.starts_with("parameter a differs between ranks"), "{message}");
        }
    }
}
