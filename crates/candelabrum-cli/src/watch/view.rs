//! The picture of a dashboard: what goes where, for small and for large terminals.

use candelabrum_runlog::{RunHistory, Series, duration_in_words, names};
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Style, Stylize};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Borders, LineGauge, Paragraph, Sparkline};

use super::curve::{self, CurveStyle, bars, shares};
use crate::entries::entries;
use crate::number::number;
use crate::state::RunActivity;

/// From this width on there are two columns.
const WIDE: u16 = 90;

/// The smallest size in which everything has a place.
const SMALLEST: [u16; 2] = [40, 10];

/// What is shown.
pub(super) struct WatchView<'a> {
    pub(super) name: &'a str,
    pub(super) run: &'a RunHistory,
    pub(super) state: RunActivity,
    /// The number of lines of the log that are no events.
    pub(super) broken: u64,
    /// The series in the large chart.
    pub(super) metric: Option<String>,
    /// The series of evaluations.
    pub(super) evaluation: Option<String>,
    pub(super) is_logarithmic: bool,
    pub(super) smoothing: f64,
}

/// Draws it.
pub(super) fn draw(frame: &mut Frame<'_>, view: &WatchView<'_>) {
    let area = frame.area();
    if area.width < SMALLEST[0] || area.height < SMALLEST[1] {
        let [width, height] = SMALLEST;
        let text = format!("The dashboard needs {width}x{height}.");
        return frame.render_widget(Paragraph::new(text), area);
    }
    let happened = match area.height {
        0..18 => 2,
        18..30 => 4,
        _ => 7,
    };
    let is_wide = area.width >= WIDE && area.height >= 18;
    let rows = [
        Constraint::Length(1),
        Constraint::Length(2),
        Constraint::Min(3),
        Constraint::Length(if is_wide { 0 } else { 2 }),
        Constraint::Length(happened),
        Constraint::Length(1),
    ];
    let [title, progress, middle, figures, events, keys] = Layout::vertical(rows).areas(area);
    draw_title(frame, title, view);
    draw_progress(frame, progress, view);
    if is_wide {
        let columns = [Constraint::Percentage(62), Constraint::Length(2), Constraint::Min(10)];
        let [left, _, right] = Layout::horizontal(columns).areas(middle);
        draw_metric(frame, left, view);
        draw_side(frame, right, view);
    } else {
        draw_metric(frame, middle, view);
        draw_figures(frame, figures, view);
    }
    draw_events(frame, events, view);
    let help = "q quit   ←→ metric   ↑↓ evaluation   l logarithmic   s smoothing";
    frame.render_widget(Paragraph::new(Line::from(help).dim()), keys);
}

fn draw_title(frame: &mut Frame<'_>, area: Rect, view: &WatchView<'_>) {
    let colour = match &view.state {
        RunActivity::Running => Color::Green,
        RunActivity::Silent(_) => Color::Yellow,
        RunActivity::Ended(reason) if reason == "finished" => Color::Cyan,
        RunActivity::Ended(_) => Color::Red,
        RunActivity::Empty => Color::Reset,
    };
    let mut spans = vec![
        Span::from(one_line(view.name)).bold(),
        Span::from("  "),
        Span::from(one_line(&view.state.describe())).fg(colour).bold(),
    ];
    let run = view.run;
    let ranks = run.settings().map(|settings| match settings.world_size {
        1 => "1 rank".to_owned(),
        ranks => format!("{ranks} ranks"),
    });
    let strategy = run.epochs.last().and_then(|end| end.what.dist_option.clone());
    let time = run.began().map(|_| duration_in_words(run.seconds()));
    for part in [ranks, strategy, time].into_iter().flatten() {
        spans.push(Span::from(format!("  {}", one_line(&part))).dim());
    }
    frame.render_widget(Paragraph::new(Line::from(spans)), area);
}

fn draw_progress(frame: &mut Frame<'_>, area: Rect, view: &WatchView<'_>) {
    let (run, pace) = (view.run, &view.run.pace);
    let of = |done: u64, all: Option<u64>| match all {
        Some(all) => format!("{done}/{all}"),
        None => done.to_string(),
    };
    let is_over = run.end.is_some();
    let left = pace.seconds_left().filter(|_| !is_over);
    let left = left.map_or(String::new(), |left| format!(", {} left", duration_in_words(left)));
    let step = format!("step {}{left}", of(pace.step(), pace.steps()));
    let epoch = format!("epoch {}", of(run.epoch.saturating_add(1), pace.epochs()));
    let shares = [pace.share(), pace.share_of_epoch(run.epoch)];
    let width = [&step, &epoch].map(|text| text.chars().count()).into_iter().max().unwrap_or(0);
    let [above, below] = Layout::vertical([Constraint::Length(1); 2]).areas(area);
    for (area, text, share) in [(above, step, shares[0]), (below, epoch, shares[1])] {
        let Some(share) = share else {
            frame.render_widget(Paragraph::new(text), area);
            continue;
        };
        let gauge = LineGauge::default()
            .filled_symbol("━")
            .unfilled_symbol("─")
            .filled_style(Style::new().fg(Color::Cyan))
            .unfilled_style(Style::new().dim())
            .label(format!("{text:width$} {:>4.0}%", share * 100.0))
            .ratio(share);
        frame.render_widget(gauge, area);
    }
}

/// A rule with a title above an area.
fn headed<'a>(title: impl Into<Line<'a>>) -> Block<'a> {
    let mut title: Line<'a> = title.into();
    title.push_span(" ");
    // Only the rule is dim.
    title = title.not_dim();
    Block::new().borders(Borders::TOP).border_style(Style::new().dim()).title(title)
}

fn draw_metric(frame: &mut Frame<'_>, area: Rect, view: &WatchView<'_>) {
    let empty = Series::default();
    let (name, series) = match &view.metric {
        Some(name) => (one_line(name), view.run.series.get(name).unwrap_or(&empty)),
        None => ("no values yet".to_owned(), &empty),
    };
    let smoothing = match view.smoothing {
        0.0 => String::new(),
        share => format!(", smoothed over {:.0}%", share * 100.0),
    };
    let scale = if view.is_logarithmic { ", logarithmic" } else { "" };
    let last = series.last_finite().map_or(String::new(), |p| format!(" {}", number(p.value)));
    let mut title = vec![
        Span::from(format!("{name}{last}")).fg(Color::Cyan).bold(),
        Span::from(format!("{scale}{smoothing}")),
    ];
    let odd = series.not_finite();
    if odd > 0 {
        title.push(Span::from(format!(", {odd} NaN or infinite")).fg(Color::Yellow));
    }
    let WatchView { is_logarithmic, smoothing, .. } = *view;
    let look = CurveStyle { colour: Color::Cyan, is_logarithmic, smoothing };
    curve::draw(frame, area, headed(Line::from(title)), series, look);
}

/// The right column of a wide terminal.
fn draw_side(frame: &mut Frame<'_>, area: Rect, view: &WatchView<'_>) {
    let rate = if area.height >= 16 { 4 } else { 3 };
    let rows = [Constraint::Min(4), Constraint::Length(rate), Constraint::Length(2)];
    let [evaluation, speed, schedule] = Layout::vertical(rows).areas(area);
    let empty = Series::default();
    let series = view.evaluation.as_ref().and_then(|name| view.run.series.get(name));
    let title = evaluation_in_words(view).unwrap_or_else(|| "no evaluation yet".to_owned());
    let look = CurveStyle { colour: Color::Magenta, is_logarithmic: false, smoothing: 0.0 };
    let title = Span::from(title).fg(Color::Magenta).bold();
    curve::draw(frame, evaluation, headed(title), series.unwrap_or(&empty), look);

    let title = speed_in_words(view).unwrap_or_else(|| "no throughput yet".to_owned());
    let line = Sparkline::default().style(Style::new().fg(Color::Green));
    // Sparklines take whole numbers.
    let shares = speed_of(view).map(|series| shares(series, usize::from(area.width)));
    let thousandths = |share: f64| (share * 1000.0).max(0.0) as u64;
    let heights: Vec<u64> = shares.unwrap_or_default().into_iter().map(thousandths).collect();
    let block = headed(Span::from(title).fg(Color::Green).bold());
    frame.render_widget(line.block(block).data(heights), speed);

    let rate = rate_in_words(view).unwrap_or_else(|| "no learning rate yet".to_owned());
    let bars = rate_of(view).map(|series| bars(series, usize::from(area.width)));
    let block = headed(Span::from(rate).fg(Color::Blue).bold());
    let line = Line::from(bars.unwrap_or_default()).fg(Color::Blue);
    frame.render_widget(Paragraph::new(line).block(block), schedule);
}

/// The two lines with figures of a narrow terminal.
fn draw_figures(frame: &mut Frame<'_>, area: Rect, view: &WatchView<'_>) {
    let evaluation = evaluation_in_words(view).unwrap_or_else(|| "no evaluation yet".to_owned());
    let speed = [speed_in_words(view), rate_in_words(view)].into_iter().flatten();
    let mut words = speed.collect::<Vec<_>>().join("  ");
    if let Some(series) = speed_of(view) {
        let room = usize::from(area.width).saturating_sub(words.chars().count() + 2).min(40);
        words = format!("{words}  {}", bars(series, room));
    }
    let lines = [Line::from(evaluation).fg(Color::Magenta), Line::from(words).fg(Color::Green)];
    frame.render_widget(Paragraph::new(lines.to_vec()), area);
}

fn draw_events(frame: &mut Frame<'_>, area: Rect, view: &WatchView<'_>) {
    let all = entries(view.run);
    let room = usize::from(area.height).saturating_sub(1);
    let last = all.iter().rev().take(room).rev();
    let line = |entry: &candelabrum_runlog::Stamped<String>| {
        let time = duration_in_words(view.run.elapsed(entry.time));
        Line::from(vec![Span::from(format!("{time:>12}  ")).dim(), one_line(&entry.what).into()])
    };
    let lines: Vec<Line<'_>> = last.map(line).collect();
    let mut title = vec![Span::from("notes and checkpoints")];
    if view.broken > 0 {
        let text = format!(", {} of the log's lines are no events", view.broken);
        title.push(Span::from(text).fg(Color::Yellow));
    }
    frame.render_widget(Paragraph::new(lines).block(headed(Line::from(title))), area);
}

/// The last and the best value of the evaluation.
fn evaluation_in_words(view: &WatchView<'_>) -> Option<String> {
    let name = view.evaluation.as_ref()?;
    let series = view.run.series.get(name)?;
    let [low, high] = [series.best(false)?, series.best(true)?];
    let last = number(series.last_finite()?.value);
    let range = format!(" ({} to {})", number(low.value), number(high.value));
    let range = if low.value < high.value { range } else { String::new() };
    let name = name.strip_prefix("evaluation/").unwrap_or(name);
    Some(format!("{} {last}{range}", one_line(name)))
}

fn speed_of<'a>(view: &WatchView<'a>) -> Option<&'a Series> {
    let name = |kind: &str| format!("{kind}/{}", names::SAMPLES_PER_SECOND);
    let series = &view.run.series;
    series.get(&name("train")).or_else(|| series.get(&name("epoch")))
}

fn speed_in_words(view: &WatchView<'_>) -> Option<String> {
    Some(format!("{:.0} samples/s", speed_of(view)?.last_finite()?.value))
}

fn rate_of<'a>(view: &WatchView<'a>) -> Option<&'a Series> {
    view.run.series.get(&format!("train/{}", names::LEARNING_RATE))
}

fn rate_in_words(view: &WatchView<'_>) -> Option<String> {
    Some(format!("learning rate {}", number(rate_of(view)?.last_finite()?.value)))
}

/// A text from a log on one line.
fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}
