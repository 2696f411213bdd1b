//! What is asked of each case: the same of all. A failure names the case and the question.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{LazyLock, OnceLock};

use candelabrum_memory::cuda;
use candelabrum_testkit::assert_close;
use candle_core::{DType, Device, Result, Tensor};
use rayon::{ThreadPool, ThreadPoolBuilder};

use super::case::{Arguments, Case, Cases};
use super::pass::{Layout, Pass};
use crate::random;

/// A case of which these inputs are given, and what its kernel computes in f64.
struct Asked<'a> {
    case: &'a Case,
    given: &'a [usize],
    kernel: &'a [Tensor],
}

type Question = fn(&Asked<'_>) -> Result<()>;

const QUESTIONS: [(&str, Question); 8] = [
    ("is the kernel the composite?", composite),
    ("are the values PyTorch's?", pytorch),
    ("are the gradients slopes?", slopes),
    ("are views read where they lie?", views),
    ("does a gradient need no other one?", alone),
    ("are the bits the same for any number of threads?", threads),
    ("are 16 bits as precise as they can be?", halves),
    ("does a GPU compute the same?", on_a_gpu),
];

/// The first questions.
const ON_THE_CPU: usize = 6;

/// What an operation may say of a batch without samples instead of a result.
const NOTHING: [&str; 3] = ["nothing to take the mean of", "more than one value", "nothing to do"];

impl Cases {
    /// Asks everything of all cases. One of them must be a batch without samples and one as large as several
    /// threads take.
    pub(crate) fn check(&self) -> Result<()> {
        assert!(self.list.iter().any(Case::is_empty), "{}: no case without elements", self.name);
        assert!(self.list.iter().any(|case| case.is_large), "{}: no large case", self.name);
        self.check_part()
    }

    /// Asks everything of some cases of an operation that has others elsewhere.
    pub(crate) fn check_part(&self) -> Result<()> {
        self.ask(&QUESTIONS)
    }

    /// Asks on the CPU what takes no time, for shapes that a test draws.
    pub(crate) fn check_drawn(&self) -> Result<()> {
        self.ask(&QUESTIONS[..ON_THE_CPU])
    }

    /// Compares the kernels on a GPU in f32 with those of the CPU in f64, also of many elements.
    pub(crate) fn check_precision_on_a_gpu(&self, tolerance: f64) -> Result<()> {
        let Some(device) = gpu() else { return Ok(()) };
        for case in &self.list {
            let given = &case.variants()[0];
            let pass = Pass::new(DType::F32, given);
            let precise = Pass { dtype: DType::F64, ..pass.clone() }.run(case)?;
            let on_gpu = || Pass { device: device.clone(), ..pass.clone() }.run(case);
            ask(&case.name, "is a GPU as precise?", || {
                close(&on_gpu()?, &precise, tolerance);
                Ok(())
            })?;
        }
        Ok(())
    }

    fn ask(&self, questions: &[(&str, Question)]) -> Result<()> {
        for case in &self.list {
            for given in case.variants() {
                let name = format!("{}, inputs {given:?}", case.name);
                let ask_all = || ask_all(questions, &name, case, &given);
                ask(&name, "is there a result?", ask_all)?;
            }
        }
        Ok(())
    }
}

fn ask_all(questions: &[(&str, Question)], name: &str, case: &Case, given: &[usize]) -> Result<()> {
    let pass = Pass::new(DType::F64, given);
    let kernel = match pass.run(case) {
        Err(error) if case.is_empty() => {
            let (error, composite) = (error.to_string(), pass.composite().run(case));
            assert_eq!(composite.err().map(|error| error.to_string()).as_ref(), Some(&error));
            assert!(NOTHING.iter().any(|text| error.contains(text)), "{error}");
            return Ok(());
        }
        kernel => kernel?,
    };
    let asked = Asked { case, given, kernel: &kernel };
    questions.iter().try_for_each(|(question, f)| ask(name, question, || f(&asked)))
}

/// Names the case and the question in an error, and beside a panic.
#[expect(clippy::print_stdout, reason = "a comparison that fails panics without a name")]
fn ask(name: &str, question: &str, f: impl FnOnce() -> Result<()>) -> Result<()> {
    match catch_unwind(AssertUnwindSafe(f)) {
        Ok(answer) => answer.map_err(|error| error.context(format!("{name}: {question}"))),
        Err(panic) => {
            println!("{name}: {question}");
            resume_unwind(panic)
        }
    }
}

fn close(actual: &[Tensor], expected: &[Tensor], tolerance: f64) {
    assert_eq!(actual.len(), expected.len());
    for (actual, expected) in actual.iter().zip(expected) {
        assert_close(actual, expected, tolerance, tolerance);
    }
}

fn composite(&Asked { case, given, kernel }: &Asked<'_>) -> Result<()> {
    // PyTorch's cases are asked whether both compute what PyTorch did.
    if case.pytorch.is_some() {
        return Ok(());
    }
    // In f32 the rounding errors of long sums differ. In f64 they are far below any mistake.
    let [in_f64, in_f32] = if case.is_large { [1e-11, 2e-4] } else { [1e-12, 2e-5] };
    let pass = Pass::new(DType::F64, given);
    close(&pass.composite().run(case)?, kernel, in_f64);
    let pass = Pass::new(DType::F32, given);
    close(&pass.composite().run(case)?, &pass.run(case)?, in_f32);
    Ok(())
}

fn pytorch(&Asked { case, given, kernel }: &Asked<'_>) -> Result<()> {
    let Some((tensors, tolerance)) = &case.pytorch else { return Ok(()) };
    let gradients = given.iter().map(|number| tensors[&format!("d{number}")].clone());
    let expected: Vec<Tensor> = [tensors["ys"].clone()].into_iter().chain(gradients).collect();
    close(kernel, &expected, *tolerance);
    close(&Pass::new(DType::F64, given).composite().run(case)?, &expected, *tolerance);
    let pass = Pass::new(DType::F32, given);
    close(&pass.run(case)?, &expected, 4e-6);
    close(&pass.composite().run(case)?, &expected, 4e-6);
    Ok(())
}

/// Compares each gradient with the central difference along one direction, in which all elements move.
fn slopes(&Asked { case, given, kernel }: &Asked<'_>) -> Result<()> {
    const STEP: f64 = 1e-6;
    if !case.has_slopes {
        return Ok(());
    }
    let dys = case.dys(kernel[0].shape())?;
    for (number, gradient) in given.iter().zip(&kernel[1..]) {
        let direction = random(gradient.shape(), 77)?;
        let at = |step: f64| -> Result<f64> {
            let mut inputs = case.inputs.clone();
            for (n, input) in inputs.iter_mut().enumerate() {
                *input = input.take().filter(|_| given.contains(&n));
            }
            let moved = &case.inputs[*number].as_ref().expect("it is given");
            inputs[*number] = Some((*moved + (&direction * step)?)?);
            let arguments = Arguments([&inputs[..], &case.constants].concat());
            ((case.operation)(&arguments)? * &dys)?.sum_all()?.to_scalar()
        };
        let slope = (at(STEP)? - at(-STEP)?) / (2.0 * STEP);
        let expected = (gradient * direction)?.sum_all()?.to_scalar::<f64>()?;
        let is_close = (slope - expected).abs() <= 1e-7 * (1.0 + slope.abs());
        assert!(is_close, "input {number}: the slope {slope}, by the gradient {expected}");
    }
    Ok(())
}

fn views(&Asked { case, given, kernel }: &Asked<'_>) -> Result<()> {
    // A layer has variables, not views of them.
    if case.is_empty() || case.is_layer {
        return Ok(());
    }
    for layout in [Layout::Shifted, Layout::Strided] {
        close(&Pass { layout, ..Pass::new(DType::F64, given) }.run(case)?, kernel, 1e-11);
    }
    Ok(())
}

fn alone(&Asked { case, given, kernel }: &Asked<'_>) -> Result<()> {
    if given.len() < 2 || case.is_layer {
        return Ok(());
    }
    for (number, gradient) in given.iter().zip(&kernel[1..]) {
        let trained = std::slice::from_ref(number);
        let one = Pass { trained, ..Pass::new(DType::F64, given) }.run(case)?;
        close(&one, &[kernel[0].clone(), gradient.clone()], 1e-12);
    }
    Ok(())
}

fn threads(&Asked { case, given, .. }: &Asked<'_>) -> Result<()> {
    static POOLS: LazyLock<Vec<ThreadPool>> = LazyLock::new(|| {
        let pool = |threads| ThreadPoolBuilder::new().num_threads(threads).build();
        [1, 2, 3].map(|threads| pool(threads).expect("a thread pool")).into()
    });
    let run = || -> Result<Vec<Vec<u32>>> {
        let bits = |tensor: &Tensor| -> Result<Vec<u32>> {
            Ok(tensor.flatten_all()?.to_vec1::<f32>()?.into_iter().map(f32::to_bits).collect())
        };
        Pass::new(DType::F32, given).run(case)?.iter().map(bits).collect()
    };
    let expected = POOLS[0].install(run)?;
    for pool in &POOLS[1..] {
        let threads = pool.current_num_threads();
        assert!(pool.install(run)? == expected, "{threads} threads differ from one");
    }
    Ok(())
}

fn halves(&Asked { case, given, .. }: &Asked<'_>) -> Result<()> {
    if !case.has_halves || case.is_large {
        return Ok(());
    }
    // 16 bits agree with the kernel in f64 within a few of their last places.
    for (dtype, tolerance) in [(DType::F16, 1e-2), (DType::BF16, 8e-2)] {
        let pass = Pass::new(dtype, given);
        let kernel = Pass { dtype: DType::F64, ..pass.clone() }.run(case)?;
        close(&pass.composite().run(case)?, &kernel, tolerance);
        close(&pass.run(case)?, &kernel, tolerance);
    }
    Ok(())
}

/// Compares the kernels and the composites on a GPU with the same type's results on the CPU.
fn on_a_gpu(&Asked { case, given, .. }: &Asked<'_>) -> Result<()> {
    let Some(device) = gpu().filter(|_| !case.is_large) else { return Ok(()) };
    for (dtype, tolerance) in [(DType::F32, 2e-5), (DType::BF16, 2e-2), (DType::F16, 4e-3)] {
        let is_half = dtype != DType::F32;
        if is_half && !case.has_halves {
            continue;
        }
        let on_cpu = Pass { is_composite: is_half, ..Pass::new(dtype, given) };
        let expected = on_cpu.run(case)?;
        let kernel = Pass { device: device.clone(), is_composite: false, ..on_cpu.clone() };
        close(&kernel.run(case)?, &expected, tolerance);
        close(&kernel.composite().run(case)?, &expected, tolerance);
        if !case.is_empty() && !case.is_layer {
            let shifted = Pass { layout: Layout::Shifted, ..kernel };
            close(&shifted.run(case)?, &expected, tolerance);
        }
    }
    Ok(())
}

/// The first GPU. `None` if there is none, or if this build cannot use it.
pub(crate) fn gpu() -> Option<Device> {
    static GPU: OnceLock<Option<Device>> = OnceLock::new();
    let open = || match cuda::open(0) {
        Ok(gpu) => Some(gpu),
        Err(error) => {
            let required = std::env::var_os("REQUIRE_GPUS").is_some();
            assert!(!required, "REQUIRE_GPUS is set, but there is no GPU: {error}");
            None
        }
    };
    GPU.get_or_init(open).clone()
}
