//! Selecting the largest hundredth of a gradient, beside a sort of it and a copy of it.
//!
//! ```text
//! cargo bench -p candelabrum-dist --bench top_k
//! ```
//!
//! Contenders take turns, ratios are formed within a round, and the medians over the rounds are
//! printed. All run on one thread. The sorts get every advantage: `sort_unstable` and a radix sort
//! order bare keys and forget the positions that a strategy needs; only the packed sort does the
//! whole work. `--quick` takes a hundredth of the elements.

#![expect(clippy::print_stdout, reason = "its result is what it prints")]

use std::hint::black_box;
use std::time::Instant;

use candelabrum_dist::strategy::select::{Selector, count_of_share};

const ELEMENTS: usize = 25_000_000;
const SHARE: f32 = 0.01;
const ROUNDS: usize = 9;

fn main() {
    let has = |name: &str| std::env::args().any(|arg| arg == name);
    // Cargo says `--bench` when it measures; without, it only asks whether this still runs.
    let (elements, rounds) = match (has("--bench"), has("--quick")) {
        (true, false) => (ELEMENTS, ROUNDS),
        (true, true) => (ELEMENTS / 100, ROUNDS),
        (false, _) => (10_000, 1),
    };
    let values = gradient(elements);
    let k = count_of_share(SHARE, elements);
    println!("{elements} elements, K = {k}, {rounds} rounds\n");
    println!("{:<38} {:>10} {:>8} {:>9} {:>9}", "", "ms", "GB/s", "x top_k", "x copy");

    let mut contenders = contenders(&values, k);
    let mut seconds = vec![Vec::new(); contenders.len()];
    // The round before the first touches all memory and is not counted.
    for round in 0..=rounds {
        for (contender, seconds) in contenders.iter_mut().zip(&mut seconds) {
            let start = Instant::now();
            (contender.run)();
            let elapsed = start.elapsed().as_secs_f64();
            if round > 0 {
                seconds.push(elapsed);
            }
        }
    }

    let ratio_to = |own: &[f64], other: &[f64]| {
        median(own.iter().zip(other).map(|(own, other)| own / other).collect())
    };
    for (contender, own) in contenders.iter().zip(&seconds) {
        let time = median(own.clone());
        println!(
            "{:<38} {:>10.3} {:>8.2} {:>9.2} {:>9.2}",
            contender.name,
            time * 1e3,
            size_of_val(&values[..]) as f64 / time / 1e9,
            ratio_to(own, &seconds[0]),
            ratio_to(own, &seconds[1]),
        );
    }
}

struct Contender<'a> {
    name: &'static str,
    run: Box<dyn FnMut() + 'a>,
}

/// All that is measured; the first two are what the others are compared with.
fn contenders(values: &[f32], k: usize) -> Vec<Contender<'_>> {
    let mut selector = Selector::default();
    let mut indices = Vec::new();
    let top_k = move || {
        selector.top_k(black_box(values), k, &mut indices);
        black_box(&indices);
    };

    let mut copied = vec![1.0; values.len()];
    let copy = move || {
        copied.copy_from_slice(black_box(values));
        black_box(&copied);
    };

    let mut selector = Selector::default();
    let mut indices = Vec::new();
    selector.top_k(values, k, &mut indices);
    let threshold = indices.iter().map(|&i| values[i as usize].abs()).fold(f32::MAX, f32::min);
    let at_least = move || {
        selector.at_least(black_box(values), threshold, &mut indices);
        black_box(&indices);
    };

    let mut keys = Vec::new();
    let sort = move || {
        keys.clear();
        keys.extend(black_box(values).iter().map(|&x| key(x)));
        keys.sort_unstable();
        black_box(&keys);
    };

    let (mut keys, mut other) = (Vec::new(), Vec::new());
    let radix = move || {
        keys.clear();
        keys.extend(black_box(values).iter().map(|&x| key(x)));
        radix_sort(&mut keys, &mut other);
        black_box(&keys);
    };

    let mut packed = Vec::new();
    let mut indices = Vec::new();
    let packed_sort = move || {
        packed.clear();
        // Inverted keys: the largest come first, and of equals the lowest position.
        let pack = |(x, i): (&f32, u32)| u64::from(!key(*x)) << 32 | u64::from(i);
        packed.extend(black_box(values).iter().zip(0..).map(pack));
        packed.sort_unstable();
        indices.clear();
        indices.extend(packed[..k].iter().map(|&packed| packed as u32));
        indices.sort_unstable();
        black_box(&indices);
    };

    vec![
        Contender { name: "Selector::top_k", run: Box::new(top_k) },
        Contender { name: "copy into another buffer", run: Box::new(copy) },
        Contender { name: "Selector::at_least, as many elements", run: Box::new(at_least) },
        Contender { name: "sort_unstable, keys alone", run: Box::new(sort) },
        Contender { name: "radix sort, keys alone", run: Box::new(radix) },
        Contender { name: "sort_unstable, keys and positions", run: Box::new(packed_sort) },
    ]
}

fn key(x: f32) -> u32 {
    x.to_bits() & 0x7fff_ffff
}

/// Three passes of 11 bits, the least significant first; one pass more counts for all three.
fn radix_sort(keys: &mut Vec<u32>, other: &mut Vec<u32>) {
    const SHIFTS: [u32; 3] = [0, 11, 22];
    let digit = |key: u32, shift: u32| (key >> shift & 0x7ff) as usize;
    let mut counts = [[0_usize; 1 << 11]; SHIFTS.len()];
    for &key in keys.iter() {
        for (counts, shift) in counts.iter_mut().zip(SHIFTS) {
            counts[digit(key, shift)] += 1;
        }
    }
    other.resize(keys.len(), 0);
    for (counts, shift) in counts.iter_mut().zip(SHIFTS) {
        let mut start = 0;
        for count in counts.iter_mut() {
            start += std::mem::replace(count, start);
        }
        for &key in keys.iter() {
            let place = &mut counts[digit(key, shift)];
            other[*place] = key;
            *place += 1;
        }
        std::mem::swap(keys, other);
    }
}

/// Normal but for its tails: sums of uniform numbers from a xorshift generator.
fn gradient(len: usize) -> Vec<f32> {
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let mut uniform = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1 << 24) as f32 - 0.5
    };
    (0..len).map(|_| 1e-3 * (0..12).map(|_| uniform()).sum::<f32>()).collect()
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
