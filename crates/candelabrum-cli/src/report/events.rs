//! What happened besides numbers: notes, resumes, checkpoints, and what is odd about a log.

use candelabrum_runlog::{Stamped, duration_in_words};
use maud::{Markup, html};

use super::colour::chip;
use super::load::Loaded;
use crate::entries::entries;

/// The most entries of a run that are shown, from its beginning and its end.
const MOST: usize = 60;

/// The section.
pub(super) fn section(runs: &[Loaded]) -> Markup {
    html! {
        section {
            h2 { "Notes, checkpoints and resumes" }
            @for (i, run) in runs.iter().enumerate() {
                @let entries = entries(&run.run);
                h3 { (chip(i)) (run.name) }
                p.aside { (run.dir.display().to_string()) }
                @for sentence in &run.broken { p.warning { (sentence) } }
                @if entries.is_empty() { p { "None." } }
                @else { div.wide { table.events { tbody {
                    @for (at, entry) in shown(&entries) {
                        @if let Some(omitted) = at {
                            tr { th {} td.text { (omitted) " more entries are not shown." } }
                        }
                        tr {
                            th { (duration_in_words(run.run.elapsed(entry.time))) }
                            td.text { (entry.what) }
                        }
                    }
                } } } }
            }
        }
    }
}

/// The first and the last entries. The number of those between stands at the first one after them.
fn shown(entries: &[Stamped<String>]) -> Vec<(Option<usize>, &Stamped<String>)> {
    let omitted = entries.len().saturating_sub(MOST);
    let (first, last) = entries.split_at(if omitted > 0 { MOST / 2 } else { entries.len() });
    let last = last.get(omitted..).unwrap_or_default();
    let mark = |(i, entry)| ((i == 0 && omitted > 0).then_some(omitted), entry);
    first.iter().map(|entry| (None, entry)).chain(last.iter().enumerate().map(mark)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_many_entries_the_first_and_the_last_are_shown() {
        let entries: Vec<Stamped<String>> =
            (0..200).map(|i| Stamped { time: f64::from(i), what: i.to_string() }).collect();
        let shown = shown(&entries);
        assert_eq!(shown.len(), MOST);
        assert_eq!((shown[29].0, &*shown[29].1.what), (None, "29"));
        assert_eq!((shown[30].0, &*shown[30].1.what), (Some(140), "170"));
        assert_eq!(shown[59].1.what, "199");
        assert_eq!(self::shown(&entries[..5]).len(), 5);
    }
}
