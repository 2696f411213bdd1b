//! temporary
/// temporary
#[derive(Debug, Default, Clone)]
pub struct Selector;
impl Selector {
    /// temporary
    pub fn top_k(&mut self, values: &[f32], k: usize, indices: &mut Vec<u32>) {
        let mut all: Vec<u32> = (0..values.len() as u32).collect();
        all.sort_by(|&a, &b| values[b as usize].abs().total_cmp(&values[a as usize].abs()));
        all.truncate(k);
        all.sort_unstable();
        *indices = all;
    }
    /// temporary
    pub fn at_least(&mut self, values: &[f32], threshold: f32, indices: &mut Vec<u32>) {
        *indices =
            (0..values.len() as u32).filter(|&i| values[i as usize].abs() >= threshold).collect();
    }
}
/// temporary
pub fn count_of_share(share: f32, n: usize) -> usize {
    ((share * n as f32).ceil() as usize).min(n)
}
