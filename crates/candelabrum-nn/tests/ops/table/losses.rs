//! Softmax and all losses.

use candelabrum_nn::layers::SoftMaxCrossEntropy;
use candelabrum_nn::ops::{self, CrossEntropyConfig, CtcConfig, Reduction};
use candelabrum_testkit::integers;
use candle_core::{DType, Device, Result, Tensor};

use super::case::{Arguments, Cases, GoldenCase, golden_cases};
use crate::random;

const BOTH: [Reduction; 2] = [Reduction::Mean, Reduction::Sum];
const LOW: f64 = f64::NEG_INFINITY;

fn reduction_of(case: &GoldenCase) -> Reduction {
    if case.name.ends_with("_mean") { Reduction::Mean } else { Reduction::Sum }
}

#[test]
fn softmax_and_its_logarithm() -> Result<()> {
    type Softmax = fn(&Arguments) -> Result<Tensor>;
    let both: [(&str, Softmax); 2] =
        [("softmax", |t| ops::softmax(&t[0])), ("log_softmax", |t| ops::log_softmax(&t[0]))];
    for (name, f) in both {
        let mut cases = Cases::new(name, &["xs"], &[]);
        cases.golden(name, |_| Ok(f))?;
        for dims in [&[3, 5][..], &[7], &[2, 3, 33], &[2, 700], &[4, 1], &[3, 0], &[0, 3]] {
            cases.add_with("", &[random(dims, 1)?.affine(3.0, 0.0)?], f);
        }
        let odd = [[LOW, 0.0, 1.0], [LOW, LOW, LOW], [900.0, -900.0, 899.0]];
        cases.add_with("odd", &[Tensor::new(&odd, &Device::Cpu)?], f).rough();
        cases.add("", &[&[37, 1999]], f);
        cases.check()?;
    }
    Ok(())
}

#[test]
fn softmax_cross_entropy() -> Result<()> {
    let with = |config| move |t: &Arguments| ops::softmax_cross_entropy_with(&t[0], &t[1], config);
    let mut cases = Cases::new("softmax_cross_entropy", &["logits"], &["targets"]);
    cases.golden("cross_entropy", |_| {
        Ok(|t: &Arguments| ops::softmax_cross_entropy(&t[0], &t[1]))
    })?;
    cases.golden("cross_entropy_options", |case| {
        let loss = SoftMaxCrossEntropy::new().label_smoothing(case.number("smoothing")? as f32);
        let loss = case.ignored()?.map_or(loss, |label| loss.ignore_index(label));
        Ok(move |t: &Arguments| loss.forward(&t[0], &t[1]))
    })?;
    let logits = random((5, 7), 1)?.affine(4.0, 0.0)?;
    let nan = Tensor::full(f64::NAN, (1, 7), &Device::Cpu)?;
    let with_nan = logits.slice_scatter0(&nan, 1)?;
    let labels = integers(5, 2, 7)?;
    let ignored = Tensor::new(&[3i64, -1, 0, -1, 6], &Device::Cpu)?;
    // Some are exactly 0.
    let probabilities = random((5, 7), 3)?.abs()?;
    let probabilities = (&probabilities * probabilities.ge(0.3)?.to_dtype(DType::F64)?)?;
    for label_smoothing in [0.0, 0.3, 1.0] {
        for (logits, targets, ignore_index) in [
            (&logits, &labels, None),
            (&logits, &labels.to_dtype(DType::U8)?, None),
            (&logits, &labels, Some(-1)),
            (&logits, &ignored, Some(-1)),
            (&with_nan, &ignored, Some(-1)),
            (&with_nan, &labels, None),
            (&logits, &probabilities, None),
            (&random((2, 3, 5), 4)?, &integers((2, 3), 5, 5)?, None),
            (&random((2, 3, 5), 4)?, &random((2, 3, 5), 6)?.abs()?, None),
            (&random((37, 1999), 1)?.affine(5.0, 0.0)?, &integers(37, 2, 1999)?, None),
            (&logits.narrow(0, 0, 0)?, &labels.narrow(0, 0, 0)?, None),
        ] {
            let config = CrossEntropyConfig { label_smoothing, ignore_index };
            let case = cases.add_with(config, std::slice::from_ref(logits), with(config));
            case.constants([targets.clone()]);
            if std::ptr::eq(logits, &with_nan) {
                case.rough();
            }
        }
    }
    // The infinite loss of a class with weight 0 does not count.
    let odd = [Tensor::new(&[[LOW, 0.0, 1.0], [2.0, LOW, -2.0]], &Device::Cpu)?];
    let targets = Tensor::new(&[[0.0, 0.4, 0.6], [1.0, 0.0, 0.0]], &Device::Cpu)?;
    let case = cases.add_with("odd", &odd, with(CrossEntropyConfig::default()));
    case.constants([targets]).rough();
    cases.check()
}

#[test]
fn losses_of_differences() -> Result<()> {
    type Loss = fn(&Tensor, &Tensor, f64, Reduction) -> Result<Tensor>;
    let all: [(&'static str, Loss); 4] = [
        ("smooth_l1", ops::smooth_l1_loss),
        ("mse", |xs, ys, _, reduction| ops::mse_loss(xs, ys, reduction)),
        ("l1", |xs, ys, _, reduction| ops::l1_loss(xs, ys, reduction)),
        ("huber", ops::huber_loss),
    ];
    let ties = |seed| integers((6, 7), seed, 3)?.to_dtype(DType::F64)?.affine(0.4, 0.0);
    let ties = [ties(1)?, ties(2)?];
    for (name, loss) in all {
        let with = |bound, reduction| move |t: &Arguments| loss(&t[0], &t[1], bound, reduction);
        let mut cases = Cases::new(name, &["xs", "targets"], &[]);
        for case in golden_cases("element_losses") {
            if case.name.starts_with(name) {
                cases.add_golden(&case, with(0.75, reduction_of(&case)));
            }
        }
        for reduction in BOTH {
            for dims in [&[3, 5][..], &[7], &[], &[2, 1, 3], &[0, 3], &[101, 203]] {
                cases.add(reduction, &[dims, dims], with(0.4, reduction));
            }
            cases.add_with(reduction, &ties, with(0.4, reduction)).rough();
        }
        cases.check()?;
    }
    Ok(())
}

#[test]
fn bce_with_logits_loss() -> Result<()> {
    let with = |reduction| {
        move |t: &Arguments| ops::bce_with_logits_loss(&t[0], &t[1], t.get(2), reduction)
    };
    let mut cases = Cases::new("bce_with_logits_loss", &["xs"], &["targets", "weight"]);
    cases.golden("bce_with_logits", |case| Ok(with(reduction_of(case))))?;
    let odd = Tensor::new(&[0.0, -0.0, 1e-9, 40.0, -40.0, 200.0, -200.0], &Device::Cpu)?;
    let any = |shape: (usize, usize)| random(shape, 1)?.affine(4.0, 0.0);
    for xs in [any((4, 7))?, any((0, 7))?, any((2000, 7))?, odd] {
        let constants = [random(xs.shape(), 2)?.abs()?, random(7, 3)?.abs()?];
        for reduction in BOTH {
            for count in [1, 2] {
                let case = cases.add_with(reduction, std::slice::from_ref(&xs), with(reduction));
                case.constants(constants[..count].to_vec());
            }
        }
    }
    cases.check()
}

#[test]
fn nll_loss() -> Result<()> {
    let with =
        |ignored, reduction| move |t: &Arguments| ops::nll_loss(&t[0], &t[1], ignored, reduction);
    let mut cases = Cases::new("nll_loss", &["xs"], &["targets"]);
    cases.golden("nll", |case| Ok(with(case.ignored()?, reduction_of(case))))?;
    for reduction in BOTH {
        for ignored in [None, Some(2)] {
            for dims in [[3, 4, 5], [0, 4, 5], [30, 40, 50]] {
                let case = cases.add((ignored, reduction), &[&dims], with(ignored, reduction));
                case.constants([integers(&dims[..2], 4, 5)?]);
            }
        }
        // No class is ignored.
        let targets = Tensor::new(&[[1i64, 4], [0, -1], [2, 2]], &Device::Cpu)?;
        cases.add(reduction, &[&[3, 2, 5]], with(Some(-1), reduction)).constants([targets]);
    }
    cases.check()
}

#[test]
fn cosines() -> Result<()> {
    let loss = |margin, reduction| {
        move |t: &Arguments| ops::cosine_embedding_loss(&t[0], &t[1], &t[2], margin, reduction)
    };
    let similarity = |eps| move |t: &Arguments| ops::cosine_similarity(&t[0], &t[1], eps);
    let mut losses = Cases::new("cosine_embedding_loss", &["left", "right"], &["targets"]);
    let mut cosines = Cases::new("cosine_similarity", &["left", "right"], &[]);
    for case in golden_cases("cosine") {
        if case.name.starts_with("similarity") {
            cosines.add_golden(&case, similarity(case.number("eps")?));
        } else {
            losses.add_golden(&case, loss(case.number("margin")?, reduction_of(&case)));
        }
    }
    for dims in [&[3, 5][..], &[4], &[1], &[2, 3, 1], &[2, 2, 7], &[0, 3], &[101, 203]] {
        cosines.add("", &[dims, dims], similarity(1e-8));
    }
    let short = Tensor::new(&[[0.0, 0.0], [1e-3, 2e-3], [1.0, -2.0]], &Device::Cpu)?;
    cosines.add_with("short", &[short, random((3, 2), 2)?], similarity(0.1)).rough();
    cosines.add("its flip", &[&[3, 4]], |t| ops::cosine_similarity(&t[0], &t[0].flip(&[1])?, 1e-8));
    for reduction in BOTH {
        for rows in [4, 0, 101] {
            let signs = (0..rows).map(|row| if row % 3 == 0 { 1.0 } else { -1.0 }).collect();
            let case = losses.add(reduction, &[&[rows, 203], &[rows, 203]], loss(-0.9, reduction));
            case.constants([Tensor::from_vec(signs, rows, &Device::Cpu)?]);
        }
    }
    cosines.check()?;
    losses.check()
}

#[test]
fn ctc_loss() -> Result<()> {
    /// The labels, the numbers of steps and those of labels are constants.
    fn of(log_probs: &Tensor, t: &Arguments, config: CtcConfig) -> Result<Tensor> {
        ops::ctc_loss(log_probs, &t[1], &t[2], &t[3], config)
    }
    let of_scores = |config| move |t: &Arguments| of(&ops::log_softmax(&t[0])?, t, config);
    let mut cases = Cases::new("ctc_loss", &["xs"], &["labels", "lengths", "counts"]);
    cases.golden("ctc", |case| {
        let ([blank], reduction) = (case.config()?, reduction_of(case));
        let zero_infinity = case.name.starts_with("too_short");
        Ok(of_scores(CtcConfig { blank, zero_infinity, reduction }))
    })?;
    let labels = Tensor::new(&[[1u32, 1, 2], [2, 9, 9], [1, 2, 1], [9, 9, 9]], &Device::Cpu)?;
    let numbers = |numbers: [u32; 4]| Tensor::new(&numbers, &Device::Cpu);
    let some = [labels, numbers([7, 4, 2, 3])?, numbers([3, 1, 3, 0])?];
    let [labels, lengths, counts] = some.each_ref().map(|constant| constant.narrow(0, 0, 0));
    let nothing = [labels?, lengths?, counts?];
    let lengths = Tensor::full(60u32, 7, &Device::Cpu)?;
    let many = [integers((7, 20), 3, 20)?.affine(1.0, 4.0)?, lengths, integers(7, 4, 20)?];
    for reduction in BOTH {
        for blank in [0, 3] {
            let config = CtcConfig { blank, zero_infinity: true, reduction };
            for (dims, constants) in
                [([4, 7, 4], &some), ([0, 7, 4], &nothing), ([7, 60, 48], &many)]
            {
                let xs = [random(&dims[..], 1)?.affine(2.0, 0.0)?];
                cases.add_with(config, &xs, of_scores(config)).constants(constants.clone());
            }
            // This gradient is that of the logarithms themselves.
            let case =
                cases.add((config, "logarithms"), &[&[4, 7, 4]], move |t| of(&t[0], t, config));
            case.constants(some.clone()).not_in_16_bits();
        }
    }
    cases.check()
}
