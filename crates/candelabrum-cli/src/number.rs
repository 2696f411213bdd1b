//! Numbers as short texts: about four digits, and the same form for equal sizes. The page of a report has the same forms
//! (`report/markup.js`).

/// A number with about four digits: `0.3412`, `12.5`, `48210`, `3.2e-5`.
pub(crate) fn number(value: f64) -> String {
    let size = value.abs();
    match size {
        _ if value.is_nan() => "NaN".to_owned(),
        f64::INFINITY => if value > 0.0 { "infinite" } else { "-infinite" }.to_owned(),
        0.0 => "0".to_owned(),
        _ if !(1e-3..1e7).contains(&size) => {
            let text = format!("{value:.3e}");
            let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
            format!("{}e{exponent}", without_zeros(digits))
        }
        _ => {
            // Digits after the point: 3 before 1, 0 from 10000 on.
            let before = size.log10().floor();
            let decimals = (3.0 - before).clamp(0.0, 6.0) as usize;
            without_zeros(&format!("{value:.decimals$}")).to_owned()
        }
    }
}

/// A number without the zeros at the end of its decimals.
fn without_zeros(text: &str) -> &str {
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.') } else { text }
}

/// The mean of the finite values, if there is one.
pub(crate) fn mean(values: impl IntoIterator<Item = f64>) -> Option<f64> {
    let finite = values.into_iter().filter(|value| value.is_finite());
    let (sum, count) = finite.fold((0.0, 0.0), |(sum, count), value| (sum + value, count + 1.0));
    (count > 0.0).then(|| sum / count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short_and_lose_no_size() {
        for (value, text) in [
            (0.0, "0"),
            (-0.0, "0"),
            (0.34119, "0.3412"),
            (0.05, "0.05"),
            (0.001, "0.001"),
            (1.0, "1"),
            (12.5, "12.5"),
            (-123.456, "-123.5"),
            (48210.4, "48210"),
            (9_999_999.0, "9999999"),
            (1e7, "1e7"),
            (0.000_032, "3.2e-5"),
            (1e-300, "1e-300"),
            (f64::NAN, "NaN"),
            (f64::NEG_INFINITY, "-infinite"),
        ] {
            assert_eq!(number(value), text);
        }
        assert_eq!((mean([1.0, f64::NAN, 4.0]), mean([f64::INFINITY])), (Some(2.5), None));
    }
}
