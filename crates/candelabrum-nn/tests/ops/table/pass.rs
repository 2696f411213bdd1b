//! A forward and backward pass of a case, in a type, on a device, by kernel or composite, and with inputs that lie
//! in memory in one way or another.

use candelabrum_nn::ops::{scale, with_composites};
use candle_core::{DType, Device, Result, Shape, Tensor, Var};

use super::case::{Arguments, Case, like};

/// How the inputs lie in memory.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Layout {
    Contiguous,
    /// Behind one NaN, so at an address that vectors of elements do not begin at.
    Shifted,
    /// Views of the results of another operation, transposed, with NaN beside each element. Their gradients go to an
    /// inbox. The result is transposed, too.
    Strided,
}

#[derive(Clone)]
pub(super) struct Pass<'a> {
    pub(super) device: Device,
    /// The inputs are rounded to this type first.
    pub(super) rounded: DType,
    pub(super) dtype: DType,
    pub(super) is_composite: bool,
    pub(super) layout: Layout,
    /// The inputs that are given.
    pub(super) given: &'a [usize],
    /// Those of them that have a gradient.
    pub(super) trained: &'a [usize],
}

impl<'a> Pass<'a> {
    /// By the kernel, on the CPU.
    pub(super) fn new(dtype: DType, given: &'a [usize]) -> Self {
        Self {
            device: Device::Cpu,
            rounded: dtype,
            dtype,
            is_composite: false,
            layout: Layout::Contiguous,
            given,
            trained: given,
        }
    }

    pub(super) fn composite(&self) -> Self {
        Self { is_composite: true, ..self.clone() }
    }

    /// The result, and the gradients of the inputs for a gradient of the result, on the CPU.
    pub(super) fn run(&self, case: &Case) -> Result<Vec<Tensor>> {
        let mut variables = Vec::new();
        let mut untrained = Vec::new();
        let mut arguments = Vec::new();
        for (number, input) in case.inputs.iter().enumerate() {
            let Some(input) = input.as_ref().filter(|_| self.given.contains(&number)) else {
                arguments.push(None);
                continue;
            };
            let input = input.to_dtype(self.rounded)?.to_dtype(self.dtype)?;
            let input = input.to_device(&self.device)?;
            if self.trained.contains(&number) {
                let variable = Var::from_tensor(&self.layout.surround(&input)?)?;
                arguments.push(Some(self.layout.input(&variable, input.shape())?));
                variables.push((variable, input.shape().clone()));
            } else {
                untrained.push(input.clone());
                arguments.push(Some(input));
            }
        }
        let own = Tensor::zeros((), self.dtype, &self.device)?;
        for constant in &case.constants {
            arguments.push(constant.as_ref().map(|constant| like(constant, &own)).transpose()?);
        }
        let arguments = Arguments(arguments);
        let run = || (case.operation)(&arguments);
        let ys = if self.is_composite { with_composites(run) } else { run() }?;
        // Losses of 16 bits are in f32.
        let is_loss = ys.rank() == 0 && ys.dtype() == DType::F32;
        assert!(ys.dtype() == self.dtype || is_loss, "a result of dtype {:?}", ys.dtype());
        let dys = like(&case.dys(ys.shape())?, &ys)?;
        let last = ys.rank().saturating_sub(1);
        let loss = match self.layout {
            Layout::Strided => (ys.transpose(0, last)? * dys.transpose(0, last)?)?,
            _ => (&ys * dys)?,
        };
        let grads = loss.sum_all()?.backward()?;
        let has_gradient = |tensor: &Tensor| grads.get(tensor).is_some();
        assert!(!untrained.iter().any(has_gradient), "a gradient of an input that needs none");
        let gradient = |(variable, shape): &(Var, Shape)| {
            let gradient = grads.get(variable).expect("every input has a gradient");
            self.layout.part(&gradient.to_device(&Device::Cpu)?, shape)
        };
        let gradients = variables.iter().map(gradient);
        [ys.detach().to_device(&Device::Cpu)].into_iter().chain(gradients).collect()
    }
}

impl Layout {
    /// The values of a variable of which the input is a part.
    fn surround(self, xs: &Tensor) -> Result<Tensor> {
        let last = xs.rank().saturating_sub(1);
        match self {
            Self::Shifted if xs.rank() > 0 => {
                let xs = xs.flatten_all()?;
                Tensor::cat(&[&(xs.narrow(0, 0, 1)? * f64::NAN)?, &xs], 0)
            }
            Self::Strided if xs.rank() > 0 => {
                let xs = xs.transpose(0, last)?.contiguous()?.unsqueeze(last + 1)?;
                Tensor::cat(&[&(&xs * f64::NAN)?, &xs], last + 1)
            }
            _ => Ok(xs.clone()),
        }
    }

    fn input(self, variable: &Var, shape: &Shape) -> Result<Tensor> {
        match self {
            Self::Strided => self.part(&scale(variable, 1.0)?, shape),
            _ => self.part(variable, shape),
        }
    }

    /// The part of the variable, or of its gradient.
    fn part(self, whole: &Tensor, shape: &Shape) -> Result<Tensor> {
        match self {
            Self::Shifted if shape.rank() > 0 => {
                whole.narrow(0, 1, shape.elem_count())?.reshape(shape)
            }
            Self::Strided if shape.rank() > 0 => {
                let last = shape.rank();
                whole.narrow(last, 1, 1)?.squeeze(last)?.transpose(0, last - 1)
            }
            _ => Ok(whole.clone()),
        }
    }
}
