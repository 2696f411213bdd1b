//! Parses the command line. Errors take one line.

use clap::Parser;
use clap::error::ErrorKind;

/// The arguments of this process. Wrong arguments end the process with one line on standard error,
/// and a request for help ends it with the help.
pub fn parse<A: Parser>() -> A {
    A::try_parse().unwrap_or_else(|error| {
        if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) {
            error.exit();
        }
        complain(&error.to_string());
        std::process::exit(error.exit_code());
    })
}

#[expect(clippy::print_stderr, reason = "the one place where a wrong command line is answered")]
fn complain(message: &str) {
    eprintln!("{}", one_line(message));
}

/// clap's message without the paragraphs that explain how to get help.
fn one_line(message: &str) -> String {
    let lines = message.lines().map(str::trim);
    let said =
        lines.take_while(|line| !line.starts_with("Usage:") && !line.starts_with("For more"));
    said.filter(|line| !line.is_empty()).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_of_several_paragraphs_becomes_one_line() {
        let message = "error: unexpected argument '--epoch' found\n\n  tip: a similar argument \
                       exists: '--epochs'\n\nUsage: mnist_dist --epochs <N>\n\nFor more \
                       information, try '--help'.\n";
        assert_eq!(
            one_line(message),
            "error: unexpected argument '--epoch' found tip: a similar argument exists: '--epochs'"
        );
    }
}
