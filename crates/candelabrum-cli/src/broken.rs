//! What is wrong with a log, in sentences.

use candelabrum_runlog::LogReader;

/// A sentence for each line that was left out, or that is incomplete.
pub(crate) fn broken(reader: &LogReader) -> Vec<String> {
    let lines = reader.broken().iter();
    let mut all: Vec<String> = lines
        .map(|b| format!("Line {} of the log is no event and was left out: {}.", b.line, b.reason))
        .collect();
    let more = reader.broken_count() - reader.broken().len() as u64;
    if more > 0 {
        all.push(format!("{more} more lines of the log are no events and were left out."));
    }
    all.extend(reader.torn().map(|torn| {
        format!(
            "Line {} of the log is incomplete ({} bytes) and was left out. A log that is being written \
             ends so for moments, and a crash leaves it so.",
            torn.line, torn.bytes
        )
    }));
    all
}
