//! Optimizers that update only whole parameters, because they look at a shape, or keep their state in fewer
//! bits: the bits do not depend on threads, a run continues where another one stopped, and special
//! gradients leave numbers behind.

use candelabrum_optim::{
    AdaGrad, Adafactor, Adam, AdamW, AdamW8bit, Error, Lamb, Muon, Optimizer, ParamGroup,
    ParamInfo, Sgd,
};
use candelabrum_testkit::uniform;
use candle_core::DType;

const NAMES: [&str; 6] = ["a.weight", "b.weight", "c.weight", "c.bias", "d.weight", "e.weight"];
const SHAPES: [&[usize]; 6] =
    [&[70, 130], &[200, 33], &[1, 9], &[77], &[5, 4, 3, 3], &[2, 150, 300]];

fn all() -> Vec<Box<dyn Optimizer>> {
    vec![
        Box::new(Adafactor::new(0.1).weight_decay(0.1)),
        Box::new(AdamW8bit::new(0.1)),
        Box::new(AdamW8bit::new(0.1).min_8bit_size(0)),
        Box::new(Adam::new(0.1).amsgrad().bf16_state()),
        Box::new(AdaGrad::new(0.1).initial_accumulator(0.1).bf16_state()),
        Box::new(Lamb::new(0.1).bf16_state()),
        Box::new(Sgd::new(0.1).momentum(0.9).dampening(0.5).bf16_state()),
        Box::new(Muon::new(0.1).bf16_state()),
        Box::new(Muon::new(0.1)),
        Box::new(Muon::new(0.1).group(ParamGroup::matching("b.*").muon(false).weight_decay(0.0))),
    ]
}

fn infos() -> Vec<ParamInfo<'static>> {
    NAMES.iter().zip(SHAPES).map(|(name, dims)| ParamInfo::on_host(name, dims)).collect()
}

fn numbers(dims: &[usize], seed: u64) -> Vec<f32> {
    let numbers = uniform(dims, seed, -1.0, 1.0, DType::F32).unwrap();
    numbers.flatten_all().unwrap().to_vec1().unwrap()
}

fn start() -> Vec<Vec<f32>> {
    SHAPES.iter().zip(0..).map(|(dims, seed)| numbers(dims, seed)).collect()
}

fn train(optimizer: &mut dyn Optimizer, params: &mut [Vec<f32>], steps: std::ops::Range<u64>) {
    for step in steps {
        for (i, param) in params.iter_mut().enumerate() {
            let gradient = numbers(SHAPES[i], 1000 + 10 * step + i as u64);
            optimizer.update(i, param.into(), (&gradient).into()).unwrap();
        }
        optimizer.step();
    }
}

fn bits(params: &[Vec<f32>]) -> Vec<u32> {
    params.iter().flatten().map(|x| x.to_bits()).collect()
}

#[test]
fn bits_do_not_depend_on_threads() {
    for index in 0..all().len() {
        let on = |threads: usize| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            let mut optimizer = all().swap_remove(index);
            optimizer.bind(&infos()).unwrap();
            let mut params = start();
            pool.install(|| train(&mut *optimizer, &mut params, 0..3));
            bits(&params)
        };
        let one = on(1);
        assert!(one.iter().all(|&bits| f32::from_bits(bits).is_finite()));
        for threads in [2, 5] {
            assert!(one == on(threads), "{threads}: {}", all()[index].describe());
        }
    }
}

#[test]
fn state_and_count_are_all_that_a_run_needs_to_go_on() {
    for index in 0..all().len() {
        let [mut whole, mut part, mut resumed] = [(); 3].map(|()| all().swap_remove(index));
        for optimizer in [&mut whole, &mut part, &mut resumed] {
            optimizer.bind(&infos()).unwrap();
        }
        let (mut expected, mut params) = (start(), start());
        train(&mut *whole, &mut expected, 0..6);
        train(&mut *part, &mut params, 0..2);
        resumed.set_steps(part.steps());
        for number in 0..NAMES.len() {
            let old = part.parameter_state(number).unwrap().unwrap();
            let new = resumed.parameter_state(number).unwrap().unwrap();
            assert_eq!(old.len(), new.len());
            for (mut new, old) in new.into_iter().zip(&old) {
                new.copy_from(old.as_span()).unwrap();
            }
        }
        train(&mut *resumed, &mut params, 2..6);
        assert_eq!(bits(&params), bits(&expected), "{}", whole.describe());
    }
}

#[test]
fn zeros_and_nan_stay_what_they_are() {
    for mut optimizer in all() {
        optimizer.bind(&infos()).unwrap();
        let mut params = start();
        for (i, param) in params.iter_mut().enumerate() {
            param.fill(0.0);
            let zeros = vec![0.0; param.len()];
            optimizer.update(i, param.into(), (&zeros).into()).unwrap();
        }
        assert!(params.iter().flatten().all(|&x| x == 0.0), "{}", optimizer.describe());
        optimizer.step();
        for (i, param) in params.iter_mut().enumerate() {
            let mut gradient = vec![0.5; param.len()];
            gradient[0] = f32::NAN;
            optimizer.update(i, param.into(), (&gradient).into()).unwrap();
            assert!(param[0].is_nan(), "{}", optimizer.describe());
        }
    }
}

#[test]
fn adafactor_keeps_one_number_for_each_row_and_column() {
    let mut adafactor = Adafactor::new(0.1);
    adafactor.bind(&infos()).unwrap();
    for (number, lens) in
        [[70, 130], [200, 33], [1, 9], [77, 0], [60, 60], [300, 600]].into_iter().enumerate()
    {
        let state = adafactor.parameter_state(number).unwrap().unwrap();
        assert!(state.iter().map(|vector| vector.len()).eq(lens), "{}", NAMES[number]);
    }
    let empty = ParamInfo::on_host("none", &[0, 7]);
    let mut adafactor = Adafactor::new(0.1);
    adafactor.bind(&[empty]).unwrap();
    adafactor.update(0, (&mut []).into(), (&[]).into()).unwrap();
}

#[test]
fn averages_of_8_bits_take_a_quarter_of_the_memory_from_4096_elements_on() {
    let mut adamw = AdamW8bit::new(0.1);
    adamw.bind(&infos()).unwrap();
    assert!(!adamw.has_numeric_state() && !adamw.is_elementwise());
    let lens = [[2275, 2275, 72], [1650, 1650, 52], [9, 9, 0], [77, 77, 0], [180, 180, 0]];
    for (number, lens) in lens.into_iter().enumerate() {
        let state = adamw.parameter_state(number).unwrap().unwrap();
        assert!(state.iter().map(|vector| vector.len()).eq(lens), "{}", NAMES[number]);
    }
    // Small parameters have AdamW's bits, and so has a group without 8 bits.
    let grouped = AdamW8bit::new(0.1).group(ParamGroup::matching(NAMES[1]).state_8bit(false));
    let [small, grouped, plain]: [Vec<Vec<f32>>; 3] =
        [Box::new(adamw) as Box<dyn Optimizer>, Box::new(grouped), Box::new(AdamW::new(0.1))].map(
            |mut optimizer| {
                optimizer.bind(&infos()).unwrap();
                let mut params = start();
                train(&mut *optimizer, &mut params, 0..3);
                params
            },
        );
    let equal = |params: &[Vec<f32>]| -> Vec<bool> {
        params.iter().zip(&plain).map(|(a, b)| a == b).collect()
    };
    assert_eq!(equal(&small), [false, false, true, true, true, false]);
    assert_eq!(equal(&grouped), [false, true, true, true, true, false]);
}

#[test]
fn an_element_with_tiny_gradients_makes_steps_of_the_rate_in_a_group_without_8_bits() {
    const RARE: usize = 7;
    let moved = |mut adamw: AdamW8bit| {
        adamw.bind(&[ParamInfo::on_host("table", &[64, 64])]).unwrap();
        let mut values = vec![0.0_f32; 64 * 64];
        for step in 0..100 {
            let rare = if step % 10 == 0 { 3e-4 } else { 0.0 };
            let gradient = |at| if at == RARE { rare } else { [1.0, -0.9][(step + at) % 2] };
            let gradients: Vec<f32> = (0..values.len()).map(gradient).collect();
            adamw.update(0, (&mut values).into(), (&gradients).into()).unwrap();
            adamw.step();
        }
        values[RARE].abs()
    };
    let adamw = || AdamW8bit::new(1e-3).weight_decay(0.0);
    // What the documentation warns of.
    assert!(moved(adamw()) > 1.0);
    assert!(moved(adamw().group(ParamGroup::matching("t*").state_8bit(false))) < 0.2);
}

#[test]
fn a_state_in_bf16_takes_half_of_the_memory_and_follows_that_in_f32() {
    let [narrow, wide] = [true, false].map(|is_narrow| {
        let adamw = AdamW::new(0.01);
        let mut adamw = if is_narrow { adamw.bf16_state() } else { adamw };
        adamw.bind(&infos()).unwrap();
        let lens = adamw.state_mut().unwrap().iter().map(|vector| vector.len()).sum::<usize>();
        let mut params = start();
        train(&mut adamw, &mut params, 0..20);
        (lens, params)
    });
    let odd = SHAPES.iter().filter(|dims| dims.iter().product::<usize>() % 2 == 1).count();
    assert_eq!(2 * narrow.0, wide.0 + 2 * odd);
    let differences = narrow.1.iter().flatten().zip(wide.1.iter().flatten());
    let (mut largest, mut sum) = (0.0_f32, 0.0_f64);
    for (a, b) in differences {
        largest = largest.max((a - b).abs());
        sum += f64::from(a - b);
    }
    // Twenty steps of at most 0.01, whose averages are wrong by less than a hundredth.
    assert!(largest > 0.0 && largest < 5e-3, "{largest}");
    let mean = sum / narrow.1.iter().flatten().count() as f64;
    assert!(mean.abs() < 1e-5, "{mean}");
}

#[test]
fn a_state_in_bf16_is_neither_divided_nor_averaged_nor_8_bits() {
    let mut adamw = AdamW::new(0.1).bf16_state();
    adamw.bind(&infos()).unwrap();
    assert!(!adamw.is_elementwise() && !adamw.has_numeric_state());
    assert!(adamw.describe().ends_with("; state in bf16"), "{}", adamw.describe());
    let part = adamw.update_range(0, 0..1, &mut [0.0], &[0.0]);
    assert!(matches!(part, Err(Error::Whole { .. })));
    let error = AdamW8bit::new(0.1).bf16_state().bind(&infos()).unwrap_err();
    assert_eq!(error, Error::NoNumbers { optimizer: "AdamW8bit" });
}

#[test]
fn muon_leaves_vectors_and_chosen_matrices_to_adamw() {
    let muon = Muon::new(0.1).weight_decay(0.01).group(ParamGroup::matching("b.*").muon(false));
    let mut optimizers: [Box<dyn Optimizer>; 2] =
        [Box::new(muon), Box::new(AdamW::new(0.1).weight_decay(0.01))];
    let [muon, adamw] = optimizers.each_mut().map(|optimizer| {
        optimizer.bind(&infos()).unwrap();
        let mut params = start();
        train(&mut **optimizer, &mut params, 0..3);
        params
    });
    let equal: Vec<bool> = muon.iter().zip(&adamw).map(|(a, b)| a == b).collect();
    assert_eq!(equal, [false, true, false, true, true, true]);
}
