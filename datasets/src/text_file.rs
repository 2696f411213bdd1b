//! Files of text in UTF-8 or in Windows-1252, as a whole and by lines.
//!
//! Which encoding a file has is not guessed: many old files of English are Windows-1252, whose quotes and
//! dashes are no UTF-8. What is not UTF-8 is an error that says so.

use std::{fs, path::Path};

use crate::error::{DataFault, DataPlace, Error, Result};

/// How the characters of a file are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TextEncoding {
    /// UTF-8. A byte order mark at the start is left out.
    #[default]
    Utf8,
    /// Windows-1252, which has the letters of ISO 8859-1 (Latin-1), and quotes and dashes. Every byte is a
    /// character.
    Windows1252,
}

/// The characters of bytes 0x80 to 0x9f in Windows-1252, as the WHATWG defines them: bytes without a
/// character are control characters.
const WINDOWS_1252: [char; 32] = [
    '€', '\u{81}', '‚', 'ƒ', '„', '…', '†', '‡', 'ˆ', '‰', 'Š', '‹', 'Œ', '\u{8d}', 'Ž', '\u{8f}',
    '\u{90}', '‘', '’', '“', '”', '•', '–', '—', '˜', '™', 'š', '›', 'œ', '\u{9d}', 'ž', 'Ÿ',
];

/// The text of a file.
///
/// # Errors
/// A file that cannot be read. Bytes that are not UTF-8: the file and the line.
pub(crate) fn read_text(path: &Path, encoding: TextEncoding) -> Result<String> {
    if !fs::metadata(path).map_err(Error::io("open", path))?.is_file() {
        return Err(Error::no_file(path));
    }
    let content = fs::read(path).map_err(Error::io("read", path))?;
    match encoding {
        TextEncoding::Windows1252 => Ok(content.iter().map(|&byte| windows_1252(byte)).collect()),
        TextEncoding::Utf8 => {
            let text = String::from_utf8(content).map_err(|error| {
                let offset = error.utf8_error().valid_up_to();
                let before = &error.as_bytes()[..offset];
                let line = before.iter().filter(|&&byte| byte == b'\n').count() as u64 + 1;
                let byte = error.as_bytes()[offset];
                let what = format!(
                    "byte {offset} of the file, {byte:#04x}, is not UTF-8: convert the file, or say \
                     that it is in another encoding (TextEncoding::Windows1252)"
                );
                DataFault::Unsupported.at(DataPlace::line(path, line), what)
            })?;
            Ok(text.strip_prefix('\u{feff}').map(str::to_owned).unwrap_or(text))
        }
    }
}

fn windows_1252(byte: u8) -> char {
    match byte {
        0x80..=0x9f => WINDOWS_1252[usize::from(byte - 0x80)],
        _ => char::from(byte),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_1252_has_a_character_for_every_byte() {
        let all: String = (0..=255).map(windows_1252).collect();
        let distinct: std::collections::BTreeSet<char> = all.chars().collect();
        assert_eq!(distinct.len(), 256);
        // Python: bytes([0x85, 0x92, 0xe9, 0x97, 0x80]).decode("cp1252")
        let some: String = [0x85, 0x92, 0xe9, 0x97, 0x80].map(windows_1252).iter().collect();
        assert_eq!(some, "…’é—€");
    }

    #[test]
    fn what_is_not_utf_8_is_named_with_its_line_and_byte() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("reviews.txt");
        fs::write(&path, b"\xef\xbb\xbfgood\nbad\nnot \x93bad\x94\n").unwrap();
        let message = read_text(&path, TextEncoding::Utf8).unwrap_err().to_string();
        let expected = "reviews.txt, line 3: byte 16 of the file, 0x93, is not UTF-8";
        assert!(message.contains(expected), "{message}");
        let text = read_text(&path, TextEncoding::Windows1252).unwrap();
        assert!(text.ends_with("not “bad”\n"), "{text}");
        fs::write(&path, b"\xef\xbb\xbfgood").unwrap();
        assert_eq!(read_text(&path, TextEncoding::Utf8).unwrap(), "good");
        let message = read_text(dir.path(), TextEncoding::Utf8).unwrap_err().to_string();
        assert!(message.contains("a directory"), "{message}");
    }
}
