//! The words and the sentences of a text.
//!
//! The rules are simple, depend on the text alone, and suit texts in English and in similar languages. For
//! other rules put spaces between words and line ends between sentences.

/// The words of a text, in lower case: runs of letters and digits, in which an apostrophe may stand between
/// two of them. Any other character that is no white space is a word of its own.
///
/// ```
/// use candelabrum_datasets::words;
///
/// let found: Vec<String> = words("It's no well-made film.").collect();
/// assert_eq!(found, ["it's", "no", "well", "-", "made", "film", "."]);
/// ```
pub fn words(text: &str) -> impl Iterator<Item = String> {
    let mut rest = text.trim_start();
    std::iter::from_fn(move || {
        let end = end_of_word(rest)?;
        let (word, after) = rest.split_at(end);
        rest = after.trim_start();
        Some(word.to_lowercase())
    })
}

/// The number of bytes of the word with which a text begins. `None`: the text is empty.
fn end_of_word(text: &str) -> Option<usize> {
    let mut characters = text.char_indices().peekable();
    let (_, first) = characters.next()?;
    if !first.is_alphanumeric() {
        return Some(first.len_utf8());
    }
    while let Some((place, character)) = characters.next() {
        let is_inside = character.is_alphanumeric()
            || matches!(character, '\'' | '’')
                && characters.peek().is_some_and(|(_, next)| next.is_alphanumeric());
        if !is_inside {
            return Some(place);
        }
    }
    Some(text.len())
}

/// The sentences of a text. A sentence ends behind `.`, `!` or `?`, with the quotes and brackets that follow, if
/// white space or the end of the text comes next, and at the end of a line. Marks without letters or digits belong
/// to the sentence that follows them, or else to the last one.
///
/// ```
/// use candelabrum_datasets::sentences;
///
/// let text = "Costs 3.50 . . (Really!) \"Yes.\" So be it";
/// assert_eq!(sentences(text), ["Costs 3.50 .", ". (Really!)", "\"Yes.\"", "So be it"]);
/// ```
pub fn sentences(text: &str) -> Vec<&str> {
    let mut ranges: Vec<std::ops::Range<usize>> = Vec::new();
    let (mut start, mut has_words, mut is_over) = (0, false, false);
    for (place, character) in text.char_indices() {
        if has_words && (character == '\n' || is_over && character.is_whitespace()) {
            ranges.push(start..place);
            (start, has_words) = (place, false);
        }
        has_words |= character.is_alphanumeric();
        let closes = matches!(character, '"' | '\'' | '”' | '’' | ')' | ']');
        is_over = matches!(character, '.' | '!' | '?' | '…') || is_over && closes;
    }
    match ranges.last_mut() {
        Some(last) if !has_words => last.end = text.len(),
        _ => ranges.push(start..text.len()),
    }
    let sentences = ranges.into_iter().map(|range| text[range].trim());
    sentences.filter(|sentence| !sentence.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Vec<String> {
        words(text).collect()
    }

    #[test]
    fn words_are_letters_and_digits_and_all_other_characters_stand_alone() {
        assert_eq!(
            of("  Don't 'quote' U.S. 4th--Größe\t\u{a0}ok’s"),
            ["don't", "'", "quote", "'", "u", ".", "s", ".", "4th", "-", "-", "größe", "ok’s"]
        );
        assert!(of(" \n\t").is_empty());
        assert_eq!(of("a'"), ["a", "'"]);
    }

    #[test]
    fn sentences_have_all_of_the_text_in_order() {
        for text in ["One. Two! Three?", "no end", ". . .", "", " \n ", "a .\n\n. b ! ) c\nd . . ."]
        {
            let joined: String = sentences(text).concat();
            let without = |text: &str| text.split_whitespace().collect::<String>();
            assert_eq!(without(&joined), without(text), "{text:?}");
        }
        assert_eq!(sentences("a .\n\n. b ! ) c\nd . . ."), ["a .", ". b !", ") c", "d . . ."]);
        assert_eq!(sentences(". . ."), [". . ."]);
        assert!(sentences(" \n").is_empty());
        assert_eq!(sentences("He left.) She stayed"), ["He left.)", "She stayed"]);
    }
}
