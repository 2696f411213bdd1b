//! Whether a tokenizer and a model belong together.

use crate::{
    error::{Error, Result},
    tokenizer::Tokenizer,
};

/// Checks that every token of a tokenizer has a row in an embedding. An embedding may have more rows: many models have
/// a round number of them.
///
/// # Errors
/// More tokens than rows: both numbers.
pub fn check_vocabulary(tokenizer: &Tokenizer, rows_of_embedding: usize) -> Result<()> {
    if tokenizer.len() <= rows_of_embedding {
        return Ok(());
    }
    let (tokens, rows) = (grouped(tokenizer.len()), grouped(rows_of_embedding));
    Err(Error::argument(format!(
        "a tokenizer of {tokens} tokens for an embedding of {rows} rows: take the tokenizer that belongs to the model, or \
         give the embedding a row for each token"
    )))
}

/// A number with a comma after each three digits.
fn grouped(number: usize) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tokenizer::tiny;

    #[test]
    fn every_token_needs_a_row() {
        let tokenizer = Tokenizer::from_gguf("model.gguf", &tiny::metadata("gpt-2")).unwrap();
        check_vocabulary(&tokenizer, 270).unwrap();
        check_vocabulary(&tokenizer, 512).unwrap();
        let message = check_vocabulary(&tokenizer, 269).unwrap_err().to_string();
        assert!(message.starts_with("a tokenizer of 270 tokens for an embedding of 269 rows: "));
        let numbers = [0, 999, 1_000, 49_153, 1_234_567].map(grouped);
        assert_eq!(numbers, ["0", "999", "1,000", "49,153", "1,234,567"]);
    }
}
