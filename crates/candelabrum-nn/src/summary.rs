//! The table that [`crate::Model::compile`] returns: layers, output shapes, parameters.

use std::fmt;

use crate::{LayerRow, Param, Params};

/// The layers and parameters of a model after a dry run. `Display` prints the table.
#[derive(Clone, Debug)]
pub struct Summary {
    input: Vec<usize>,
    layers: Vec<LayerRow>,
    params: Vec<(String, Vec<usize>)>,
}

impl Summary {
    pub(crate) fn new(input: &[usize], layers: Vec<LayerRow>, params: &Params) -> Self {
        let shape = |p: &Param| (p.name().to_owned(), p.dims().to_vec());
        Self { input: input.to_vec(), layers, params: params.list().iter().map(shape).collect() }
    }

    /// The layer calls, in order. Empty for a model without layers of this crate.
    pub fn layers(&self) -> &[LayerRow] {
        &self.layers
    }

    /// The number of elements in all parameters.
    pub fn parameter_count(&self) -> usize {
        self.params.iter().map(|(_, dims)| dims.iter().product::<usize>()).sum()
    }

    /// A row per layer; without traced layers, a row per parameter.
    fn rows(&self) -> Vec<[String; 4]> {
        if self.layers.is_empty() {
            let row = |(name, dims): &(String, Vec<usize>)| {
                let count = dims.iter().product();
                [name.clone(), "parameter".to_owned(), shape(dims), thousands(count)]
            };
            return self.params.iter().map(row).collect();
        }
        let row = |layer: &LayerRow| {
            let count = self.params_of(&layer.name);
            [layer.name.clone(), layer.kind.clone(), shape(&layer.output), thousands(count)]
        };
        self.layers.iter().map(row).collect()
    }

    fn params_of(&self, layer: &str) -> usize {
        let own = |name: &str| name.rsplit_once('.').is_some_and(|(path, _)| path == layer);
        let dims = self.params.iter().filter(|(name, _)| own(name));
        dims.map(|(_, dims)| dims.iter().product::<usize>()).sum()
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let head = ["layer", "kind", "output", "parameters"].map(str::to_owned);
        let mut rows = vec![head];
        rows.push([String::new(), "input".to_owned(), shape(&self.input), String::new()]);
        rows.extend(self.rows());
        let mut widths = [0; 4];
        for row in &rows {
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = (*width).max(cell.chars().count());
            }
        }
        let [a, b, c, d] = widths;
        let rule = "-".repeat(a + b + c + d + 6);
        for (i, [name, kind, output, count]) in rows.iter().enumerate() {
            writeln!(f, "{name:a$}  {kind:b$}  {output:c$}  {count:>d$}")?;
            if i == 0 {
                writeln!(f, "{rule}")?;
            }
        }
        writeln!(f, "{rule}")?;
        write!(f, "{} parameters", thousands(self.parameter_count()))
    }
}

fn shape(dims: &[usize]) -> String {
    format!("({})", dims.iter().map(usize::to_string).collect::<Vec<_>>().join(", "))
}

fn thousands(count: usize) -> String {
    let digits = count.to_string();
    let mut out = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thousands_are_grouped() {
        for (count, text) in [(0, "0"), (999, "999"), (1000, "1,000"), (431_080, "431,080")] {
            assert_eq!(thousands(count), text);
        }
    }
}
