//! What the name of a file in a tar file says: to which sample it belongs, or that it belongs to none.

/// What the path of a file in an archive says.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum TarName<'a> {
    /// A file of a sample: the path up to the first dot of the name, and what follows the dot.
    Part { key: &'a [u8], ending: &'a [u8] },
    /// A file for people, or for a system: `README`, a hidden file, `__name__`.
    ForOthers,
    /// A name without a dot.
    NoEnding,
}

/// Names of files that people or systems add to a folder, in lower case.
const FOR_OTHERS: [&str; 13] = [
    "authors",
    "changelog",
    "copying",
    "desktop.ini",
    "licence",
    "license",
    "manifest",
    "md5sums",
    "notice",
    "readme",
    "sha256sums",
    "thumbs.db",
    "version",
];

impl<'a> TarName<'a> {
    /// What this path says, which does not begin with `./`.
    pub(crate) fn from_path(path: &'a [u8]) -> Self {
        let name_at = path.iter().rposition(|&byte| byte == b'/').map_or(0, |slash| slash + 1);
        let name = &path[name_at..];
        let is_note = |path: &[u8]| path.starts_with(b"__") && path.ends_with(b"__");
        let is_known = FOR_OTHERS.iter().any(|known| name.eq_ignore_ascii_case(known.as_bytes()));
        if is_known || name.starts_with(b".") || is_note(name) || is_note(path) {
            return Self::ForOthers;
        }
        let Some(dot) = name.iter().position(|&byte| byte == b'.') else { return Self::NoEnding };
        let (key, ending) = path.split_at(name_at + dot);
        Self::Part { key, ending: &ending[1..] }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_divided_at_its_first_dot_or_belongs_to_no_sample() {
        let part = |path: &'static str, key: &'static str, ending: &'static str| {
            let (key, ending) = (key.as_bytes(), ending.as_bytes());
            assert_eq!(
                TarName::from_path(path.as_bytes()),
                TarName::Part { key, ending },
                "{path}"
            );
        };
        part("a/b.c/007.seg.png", "a/b.c/007", "seg.png");
        part("0.", "0", "");
        part("__a.jpg", "__a", "jpg");
        for path in ["a/README", "license", ".a.jpg", "a/._b", "__x__", "a/__x.y__", "__a/b.c__"] {
            assert_eq!(TarName::from_path(path.as_bytes()), TarName::ForOthers, "{path}");
        }
        for path in ["", "a.b/", "a.b/c", "000"] {
            assert_eq!(TarName::from_path(path.as_bytes()), TarName::NoEnding, "{path}");
        }
    }
}
