//! A case of the table: an operation and its arguments. What may be asked of it follows from them, but for the few
//! exceptions that a case names.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::ops::Index;

use candelabrum_testkit::golden;
use candle_core::{DType, Result, Shape, Tensor};

use crate::{golden_path, random};

/// More elements than one thread takes, in kernels/parallel.rs.
const SEVERAL_THREADS: usize = 1 << 13;

/// The inputs of an operation, then its constants. One that may be left out is asked for with `get`.
pub(crate) struct Arguments(pub(super) Vec<Option<Tensor>>);

impl Arguments {
    pub(crate) fn get(&self, number: usize) -> Option<&Tensor> {
        self.0.get(number)?.as_ref()
    }
}

impl Index<usize> for Arguments {
    type Output = Tensor;

    fn index(&self, number: usize) -> &Tensor {
        self.get(number).expect("this argument is in each case")
    }
}

/// An operation that threads can share.
pub(crate) trait Operation:
    Fn(&Arguments) -> Result<Tensor> + Send + Sync + 'static
{
}

impl<F: Fn(&Arguments) -> Result<Tensor> + Send + Sync + 'static> Operation for F {}

pub(crate) struct Case {
    pub(super) name: String,
    /// In f64. The gradients of all inputs are compared.
    pub(super) inputs: Vec<Option<Tensor>>,
    /// Labels, masks, lengths. Those in f64 take the type of the inputs.
    pub(super) constants: Vec<Option<Tensor>>,
    /// Inputs that may be left out, each group as a whole.
    optional: Vec<Vec<usize>>,
    pub(super) operation: Box<dyn Operation>,
    /// PyTorch's result and gradients, by the names `ys`, `dys`, `d0`, .., and the tolerance in f64.
    pub(super) pytorch: Option<(BTreeMap<String, Tensor>, f64)>,
    pub(super) has_slopes: bool,
    pub(super) has_halves: bool,
    pub(super) is_large: bool,
    pub(super) is_layer: bool,
}

impl Case {
    pub(crate) fn constants(&mut self, constants: impl IntoIterator<Item = Tensor>) -> &mut Self {
        self.constants = constants.into_iter().map(Some).collect();
        self
    }

    /// The case is also asked without each of these groups of inputs.
    pub(crate) fn optional(&mut self, groups: &[&[usize]]) -> &mut Self {
        self.optional = groups.iter().map(|group| group.to_vec()).collect();
        self
    }

    /// With jumps, ties, NaN or infinities, next to which nothing can be measured.
    pub(crate) fn rough(&mut self) -> &mut Self {
        self.has_slopes = false;
        self.not_in_16_bits()
    }

    /// Not for 16 bits, where the roundings of one part go through another.
    pub(crate) fn not_in_16_bits(&mut self) -> &mut Self {
        self.has_halves = false;
        self
    }

    /// As precise as a case of few elements, and not too long for a software GPU.
    pub(crate) fn small(&mut self) -> &mut Self {
        self.is_large = false;
        self
    }

    /// Whether there are no samples.
    pub(super) fn is_empty(&self) -> bool {
        let arguments = self.inputs.iter().chain(&self.constants);
        arguments.flatten().any(|argument| argument.elem_count() == 0)
    }

    /// The gradient of the result.
    pub(super) fn dys(&self, shape: &Shape) -> Result<Tensor> {
        match &self.pytorch {
            Some((tensors, _)) => Ok(tensors["dys"].clone()),
            None => random(shape, 99),
        }
    }

    /// The numbers of the inputs that are given, in each variant of this case.
    pub(super) fn variants(&self) -> Vec<Vec<usize>> {
        let given = |numbers: usize| {
            let is_left_out = |number: &usize| {
                let mut groups = self.optional.iter().enumerate();
                groups.any(|(group, members)| numbers >> group & 1 == 1 && members.contains(number))
            };
            let given = |number: &usize| self.inputs[*number].is_some() && !is_left_out(number);
            (0..self.inputs.len()).filter(given).collect()
        };
        (0..1 << self.optional.len()).map(given).collect()
    }
}

/// The cases of one operation.
pub(crate) struct Cases {
    pub(super) name: &'static str,
    inputs: Vec<String>,
    constants: &'static [&'static str],
    pub(super) list: Vec<Case>,
}

impl Cases {
    /// The arguments have the names of PyTorch's, as in golden files.
    pub(crate) fn new(
        name: &'static str,
        inputs: &[&str],
        constants: &'static [&'static str],
    ) -> Self {
        let inputs = inputs.iter().map(|&input| input.to_owned()).collect();
        Self { name, inputs, constants, list: Vec::new() }
    }

    /// A case with random inputs of these shapes.
    pub(crate) fn add(
        &mut self,
        label: impl Debug,
        shapes: &[&[usize]],
        operation: impl Operation,
    ) -> &mut Case {
        let input = |(seed, shape): (u64, &&[usize])| random(*shape, seed).expect("random numbers");
        let inputs: Vec<Tensor> = (1..).zip(shapes).map(input).collect();
        self.add_with(label, &inputs, operation)
    }

    pub(crate) fn add_with(
        &mut self,
        label: impl Debug,
        inputs: &[Tensor],
        operation: impl Operation,
    ) -> &mut Case {
        let shapes: Vec<&[usize]> = inputs.iter().map(Tensor::dims).collect();
        let name = format!("{} {label:?} of {shapes:?}", self.name);
        self.list.push(Case {
            name,
            inputs: inputs.iter().cloned().map(Some).collect(),
            constants: Vec::new(),
            optional: Vec::new(),
            operation: Box::new(operation),
            pytorch: None,
            has_slopes: true,
            has_halves: true,
            is_large: inputs.iter().any(|input| input.elem_count() > SEVERAL_THREADS),
            is_layer: false,
        });
        self.list.last_mut().expect("it was pushed")
    }

    /// All cases of a golden file. `operation` reads the options of a case.
    pub(crate) fn golden<F: Operation>(
        &mut self,
        file: &str,
        operation: impl Fn(&GoldenCase) -> Result<F>,
    ) -> Result<()> {
        for case in golden_cases(file) {
            self.add_golden(&case, operation(&case)?);
        }
        Ok(())
    }

    pub(crate) fn add_golden(&mut self, case: &GoldenCase, operation: impl Operation) -> &mut Case {
        let of = |name: &str| case.tensors.get(name).cloned();
        let inputs = self.inputs.iter().map(|name| of(name)).collect();
        let constants = self.constants.iter().map(|name| of(name)).collect();
        let gradients = self.inputs.iter().enumerate();
        let gradients =
            gradients.map(|(number, name)| (format!("d{number}"), of(&format!("d{name}"))));
        let results = ["ys", "dys"].map(|name| (name.to_owned(), of(name)));
        let results = results.into_iter().chain(gradients);
        let results = results.filter_map(|(name, tensor)| Some((name, tensor?))).collect();
        // A mean of 1e4 costs PyTorch, too, some digits.
        let tolerance = if case.name == "large_mean" { 1e-11 } else { 1e-12 };
        let added = self.add_with(&case.name, &[], operation).rough();
        (added.inputs, added.constants) = (inputs, constants);
        added.pytorch = Some((results, tolerance));
        added
    }
}

/// A tensor with the type and on the device of another one. Integers stay integers.
pub(crate) fn like(tensor: &Tensor, other: &Tensor) -> Result<Tensor> {
    let dtype = if tensor.dtype() == DType::F64 { other.dtype() } else { tensor.dtype() };
    tensor.to_dtype(dtype)?.to_device(other.device())
}

/// One case of a golden file: its tensors by name.
pub(crate) struct GoldenCase {
    pub(crate) name: String,
    pub(crate) tensors: BTreeMap<String, Tensor>,
}

impl GoldenCase {
    /// The tensor `config`.
    pub(crate) fn config<const N: usize>(&self) -> Result<[usize; N]> {
        let config = self.tensors["config"].to_vec1::<i64>()?;
        let config = config.into_iter().map(|n| usize::try_from(n).expect("no size is negative"));
        Ok(config.collect::<Vec<_>>().try_into().expect("the file has as many numbers"))
    }

    pub(crate) fn number(&self, name: &str) -> Result<f64> {
        self.tensors[name].to_scalar()
    }

    /// The label to ignore, if there is one.
    pub(crate) fn ignored(&self) -> Result<Option<i64>> {
        self.tensors.get("ignore").map(Tensor::to_scalar).transpose()
    }
}

pub(crate) fn golden_cases(file: &str) -> Vec<GoldenCase> {
    let mut cases: BTreeMap<String, BTreeMap<String, Tensor>> = BTreeMap::new();
    for (name, tensor) in golden(golden_path(&format!("{file}.safetensors"))) {
        let (case, name) = name.split_once('.').expect("names are `case.tensor`");
        cases.entry(case.to_owned()).or_default().insert(name.to_owned(), tensor);
    }
    cases.into_iter().map(|(name, tensors)| GoldenCase { name, tensors }).collect()
}
