//! A frame of the terminal as SVG.
//!
//! Dots of braille, bars and rules are drawn as shapes, since fonts have them in many widths. Each word is
//! text of a given length, so that columns stay where they are in any font.

use std::fmt::Write;

use ratatui::buffer::{Buffer, Cell};
use ratatui::style::{Color, Modifier};

/// The size of a character, and the space around all of them.
const WIDTH: f64 = 8.4;
const HEIGHT: f64 = 18.0;
const EDGE: f64 = 14.0;

const PAPER: &str = "#15181c";

/// The picture of a frame.
pub(crate) fn picture(buffer: &Buffer) -> String {
    let area = buffer.area;
    let [width, height] = [f64::from(area.width) * WIDTH, f64::from(area.height) * HEIGHT];
    let (width, height) = (width + 2.0 * EDGE, height + 2.0 * EDGE);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width:.1} {height:.1}\" \
         font-family=\"ui-monospace, Menlo, Consolas, 'DejaVu Sans Mono', monospace\" font-size=\"14\">\n\
         <rect width=\"100%\" height=\"100%\" rx=\"8\" fill=\"{PAPER}\"/>\n"
    );
    let columns = usize::from(area.width).max(1);
    for (row, cells) in buffer.content.chunks(columns).enumerate() {
        let top = EDGE + row as f64 * HEIGHT;
        let mut column = 0;
        // A word, or a stretch of the same shape, is one element.
        for word in cells.chunk_by(|a, b| is_text(a) == is_text(b) && look(a) == look(b)) {
            let left = EDGE + column as f64 * WIDTH;
            column += word.len();
            if is_text(&word[0]) {
                svg += &text(word, left, top);
            } else {
                svg += &shapes(word, left, top);
            }
        }
    }
    svg + "</svg>\n"
}

fn is_text(cell: &Cell) -> bool {
    cell.symbol() != " " && shape(character(cell), 0.0, 0.0).is_none()
}

fn character(cell: &Cell) -> char {
    cell.symbol().chars().next().unwrap_or(' ')
}

/// Colour, opacity and weight.
fn look(cell: &Cell) -> (&'static str, &'static str, &'static str) {
    let colour = match cell.fg {
        Color::Cyan => "#5cc8d7",
        Color::Magenta => "#d58be0",
        Color::Green => "#6cc98a",
        Color::Blue => "#6ea8f2",
        Color::Yellow => "#e0b64c",
        Color::Red => "#ef7d7d",
        Color::DarkGray => "#737c87",
        _ => "#dfe3e8",
    };
    let has = |modifier| cell.modifier.contains(modifier);
    let opacity = if has(Modifier::DIM) { " opacity=\"0.5\"" } else { "" };
    (colour, opacity, if has(Modifier::BOLD) { " font-weight=\"bold\"" } else { "" })
}

fn text(word: &[Cell], left: f64, top: f64) -> String {
    let (colour, opacity, weight) = look(&word[0]);
    let letters: String = word.iter().map(Cell::symbol).collect();
    let letters = letters.replace('&', "&amp;").replace('<', "&lt;");
    let (base, length) = (top + 13.5, word.len() as f64 * WIDTH);
    format!(
        "<text x=\"{left:.1}\" y=\"{base:.1}\" textLength=\"{length:.1}\" fill=\"{colour}\"{opacity}{weight}>\
         {letters}</text>\n"
    )
}

fn shapes(cells: &[Cell], left: f64, top: f64) -> String {
    let places = cells.iter().enumerate().map(|(i, cell)| (cell, left + i as f64 * WIDTH));
    let paths = places.filter_map(|(cell, left)| shape(character(cell), left, top));
    let path: String = paths.collect();
    let (colour, opacity, _) = look(&cells[0]);
    match path.is_empty() {
        true => String::new(),
        false => format!("<path fill=\"{colour}\"{opacity} d=\"{path}\"/>\n"),
    }
}

/// The path of a character that is no letter. A space has an empty one.
fn shape(character: char, left: f64, top: f64) -> Option<String> {
    let mut path = String::new();
    let mut add = |x: f64, y: f64, width: f64, height: f64| {
        // Writing to a string cannot fail.
        let _written =
            write!(path, "M{:.1} {:.1}h{width:.1}v{height:.1}h-{width:.1}z", left + x, top + y);
    };
    let (middle, centre) = (HEIGHT / 2.0, WIDTH / 2.0);
    match character {
        ' ' => {}
        '─' => add(0.0, middle - 0.5, WIDTH, 1.0),
        '━' => add(0.0, middle - 1.5, WIDTH, 3.0),
        '│' => add(centre - 0.5, 0.0, 1.0, HEIGHT),
        '└' => {
            add(centre - 0.5, 0.0, 1.0, middle);
            add(centre - 0.5, middle - 0.5, centre + 0.5, 1.0);
        }
        '▁'..='█' => {
            let height = HEIGHT * f64::from(u32::from(character) - 0x2580) / 8.0;
            add(0.0, HEIGHT - height, WIDTH, height);
        }
        '\u{2800}'..='\u{28ff}' => {
            // The bits of a pattern: three rows of the left column, of the right one, then the last row.
            let places = [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2), (0, 3), (1, 3)];
            let bits = u32::from(character) - 0x2800;
            for (_, (x, y)) in (0..8).zip(places).filter(|(bit, _)| bits >> bit & 1 == 1) {
                let (x, y) = (f64::from(x) * centre + 1.1, f64::from(y) * HEIGHT / 4.0 + 1.2);
                add(x, y, 2.1, 2.1);
            }
        }
        _ => return None,
    }
    Some(path)
}
