//! scaling.csv: a row per point. The names of columns contain their units.

use super::report::Row;
use super::sample::Settings;
use crate::split::Part;

const COLUMNS: [&str; 27] = [
    "model",
    "backend",
    "strategy",
    "workers",
    "more_workers_than_cores",
    "threads_per_rank",
    "batch_size_per_rank_images",
    "steps_per_sample",
    "samples",
    "images_per_second_median",
    "images_per_second_min",
    "images_per_second_max",
    "speed_up_times",
    "efficiency_share",
    "step_median_ms",
    "step_min_ms",
    "step_max_ms",
    "forward_ms",
    "backward_ms",
    "compress_ms",
    "exposed_communication_ms",
    "decompress_ms",
    "update_ms",
    "other_ms",
    "communication_busy_ms",
    "sent_bytes_per_step_and_rank",
    "received_bytes_per_step_and_rank",
];

/// The whole file. A cell without a value is empty, and no cell needs quotes.
pub(super) fn file(rows: &[Row], settings: &Settings) -> String {
    let mut text = COLUMNS.join(",") + "\n";
    for row in rows {
        text += &(cells(row, settings).join(",") + "\n");
    }
    text
}

fn cells(row: &Row, settings: &Settings) -> Vec<String> {
    let ms = |seconds: f64| format!("{:.6}", 1000.0 * seconds);
    let or_empty =
        |value: Option<f64>| value.map_or_else(String::new, |value| format!("{value:.4}"));
    let (speed, step) = (row.images_per_second, row.step_seconds.total);
    let mut cells = vec![
        row.point.model.clone(),
        row.point.backend.name().to_owned(),
        row.point.strategy.clone(),
        row.point.workers.to_string(),
        row.oversubscribed.to_string(),
        settings.threads_per_rank.to_string(),
        settings.batch_size.to_string(),
        row.steps.to_string(),
        row.samples.to_string(),
    ];
    cells.extend([speed.median, speed.min, speed.max].map(|speed| format!("{speed:.2}")));
    cells.extend([or_empty(row.speed_up), or_empty(row.efficiency)]);
    cells.extend([step.median, step.min, step.max].map(ms));
    cells.extend(Part::ALL.map(|part| ms(row.step_seconds.get(part).median)));
    cells.push(ms(row.communication_seconds));
    cells.extend(
        [row.bytes_sent_per_step, row.bytes_received_per_step].map(|bytes| format!("{bytes:.0}")),
    );
    cells
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench_scaling::fixture;

    #[test]
    fn every_row_has_a_cell_for_every_column() {
        let mut fixture = fixture::of(&["fp32"], &[1, 4]);
        fixture.add(0, "fp32", 1, 100.0);
        fixture.add(0, "fp32", 4, 300.0);
        let text = file(&fixture.rows(), &fixture.settings);
        let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split(',').collect()).collect();
        assert_eq!(lines.len(), 3);
        assert!(lines.iter().all(|cells| cells.len() == COLUMNS.len()), "{text}");
        let cell = |row: usize, name: &str| {
            lines[row][lines[0].iter().position(|column| *column == name).unwrap()]
        };
        assert_eq!(cell(2, "workers"), "4");
        assert_eq!(cell(2, "more_workers_than_cores"), "true");
        assert_eq!(cell(2, "images_per_second_median"), "300.00");
        assert_eq!(cell(2, "speed_up_times"), "3.0000");
        assert_eq!(cell(2, "efficiency_share"), "0.7500");
        assert_eq!(cell(1, "forward_ms"), "1.000000");
        assert_eq!(cell(1, "sent_bytes_per_step_and_rank"), "1000");
    }

    #[test]
    fn what_is_not_known_is_empty() {
        let mut fixture = fixture::of(&["fp32", "fp16"], &[1]);
        fixture.add(0, "fp16", 1, 100.0);
        let text = file(&fixture.rows(), &fixture.settings);
        assert!(text.lines().nth(1).unwrap().contains("100.00,,,"), "{text}");
    }
}
