//! Rust source with blanked comments and literals, so that checks see only code.
//!
//! A small lexer for strings (raw ones too), characters and nested comments. Lines and columns stay
//! the same.

/// The text with every character of a comment, string or character literal replaced by a space.
pub(super) fn code_only(text: &str) -> String {
    let chars: Vec<char> = text.chars().collect();
    let mut out = String::with_capacity(text.len());
    let mut at = 0;
    while at < chars.len() {
        let end = match literal_or_comment_end(&chars, at) {
            Some(end) => end,
            None => {
                out.push(chars[at]);
                at += 1;
                continue;
            }
        };
        out.extend(chars[at..end].iter().map(|&c| if c == '\n' { '\n' } else { ' ' }));
        at = end;
    }
    out
}

/// The end of the comment or literal that starts here, or `None` if none starts.
fn literal_or_comment_end(chars: &[char], at: usize) -> Option<usize> {
    let next = chars.get(at + 1);
    match chars[at] {
        '/' if next == Some(&'/') => Some(find(chars, at, |i| chars[i] == '\n')),
        '/' if next == Some(&'*') => Some(block_comment_end(chars, at)),
        '"' => Some(string_end(chars, at)),
        '\'' => char_end(chars, at),
        'r' if at == 0 || !is_word(chars[at - 1]) || chars[at - 1] == 'b' => raw_end(chars, at),
        _ => None,
    }
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// The first place from `from` on that fits, or the end of the text.
fn find(chars: &[char], from: usize, fits: impl Fn(usize) -> bool) -> usize {
    (from..chars.len()).find(|&i| fits(i)).unwrap_or(chars.len())
}

fn block_comment_end(chars: &[char], start: usize) -> usize {
    let mut depth = 0;
    let mut at = start;
    while at + 1 < chars.len() {
        match (chars[at], chars[at + 1]) {
            ('/', '*') => (depth, at) = (depth + 1, at + 2),
            ('*', '/') => (depth, at) = (depth - 1, at + 2),
            _ => at += 1,
        }
        if depth == 0 {
            return at;
        }
    }
    chars.len()
}

fn string_end(chars: &[char], start: usize) -> usize {
    let mut at = start + 1;
    while at < chars.len() && chars[at] != '"' {
        at += if chars[at] == '\\' { 2 } else { 1 };
    }
    (at + 1).min(chars.len())
}

/// A character literal, but not a lifetime.
fn char_end(chars: &[char], start: usize) -> Option<usize> {
    match chars.get(start + 1)? {
        '\\' => Some((find(chars, start + 3, |i| chars[i] == '\'') + 1).min(chars.len())),
        _ => (chars.get(start + 2) == Some(&'\'')).then_some(start + 3),
    }
}

/// A raw string such as `r#"..."#`, but not a raw identifier.
fn raw_end(chars: &[char], start: usize) -> Option<usize> {
    let quote = find(chars, start + 1, |i| chars[i] != '#');
    if chars.get(quote) != Some(&'"') {
        return None;
    }
    let hashes = quote - start - 1;
    let closes = |i: usize| {
        chars[i] == '"'
            && chars[i + 1..].iter().take(hashes).filter(|&&c| c == '#').count() == hashes
    };
    Some((find(chars, quote + 1, closes) + 1 + hashes).min(chars.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(source: &str, expected: &str) {
        assert_eq!(code_only(source), expected, "{source}");
    }

    #[test]
    fn comments_and_literals_are_blanked() {
        check("a // b\nc", "a     \nc");
        check("a /* b /* c */ d */ e", "a                   e");
        check(r#"f("x \" y", z)"#, "f(        , z)");
        check("f('\"', '\\'', \"u\")", "f(   ,     ,    )");
        check("r#\"a \" b\"# c", "           c");
        check("br\"a\" c", "b     c");
    }

    #[test]
    fn lifetimes_and_raw_identifiers_are_code() {
        check("fn f<'a>(r#type: &'a str) {}", "fn f<'a>(r#type: &'a str) {}");
        check("for r in 0..2 {}", "for r in 0..2 {}");
    }

    #[test]
    fn lines_stay_where_they_were() {
        let source = "let a = \"one\ntwo\";\n/* three\nfour */ let b;";
        assert_eq!(code_only(source).lines().count(), source.lines().count());
        assert_eq!(code_only(source).lines().nth(3), Some("        let b;"));
    }
}
