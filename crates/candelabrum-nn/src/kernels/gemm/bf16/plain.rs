//! What a product in bf16 is, without vectors: for tests.

/// The nearest number with 8 significant bits. Of two, the one whose last bit is 0.
pub(super) fn nearest(number: f32) -> f32 {
    let bits = number.to_bits();
    let last = bits >> 16 & 1;
    f32::from_bits((bits + 0x7fff + last) & 0xffff_0000)
}

/// The product of two factors by rows (rows × depth) and (columns × depth), rounded to bf16, with sums in
/// f64. It is added to 1.5 if `add`.
pub(super) fn product_of_rounded(left: &[f32], right: &[f32], depth: usize, add: bool) -> Vec<f64> {
    if depth == 0 {
        return Vec::new();
    }
    let start = if add { 1.5 } else { 0.0 };
    let rounded = |number: f32| f64::from(nearest(number));
    let mut out = Vec::new();
    for left in left.chunks(depth) {
        for right in right.chunks(depth) {
            let terms = left.iter().zip(right).map(|(&a, &b)| rounded(a) * rounded(b));
            out.push(start + terms.sum::<f64>());
        }
    }
    out
}
