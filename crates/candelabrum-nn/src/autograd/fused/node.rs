//! A fused operation in candle's graph: [`JoinInputs`] under a scalar token, [`EmitResult`] under the result.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use candle_core::{
    CpuStorage, CudaStorage, CustomOp1, CustomOp2, CustomOp3, Device, Layout, Result, Shape,
    Storage, Tensor, TensorId, bail,
};

use super::elements::{to_flat, with_inputs};
use super::inbox::GradientInbox;
use super::link::{
    self, Differentiable, GradientTarget, GraphLink, LinkMark, LinkTargets, Versioned,
};
use super::operation::{Backward, InputGradients};
use super::untyped::{Operation, TypedKernels};
use crate::autograd::candle_pass;
use crate::autograd::hooks;
use crate::autograd::pass::{self, GradientPlace};
use crate::autograd::profile::{self, ProfilePhase};
use crate::autograd::recomputing::Unread;
use crate::autograd::saved::{self, SavesTensors};
use crate::kernels::elementwise::add_all;
use crate::kernels::float::{Float, for_float};
use crate::kernels::scratch::{Pooled, PooledValues};
use crate::params::{self, BlockPlace};

/// Makes a tensor of `ys`. If an input is in the graph, the tensor is too. The `targets` of the
/// gradients are the inputs before they were made contiguous.
pub(super) fn attach(
    op: Box<dyn Operation>,
    targets: Vec<Option<GradientTarget>>,
    inputs: Vec<Option<Tensor>>,
    shape: Shape,
    ys: Storage,
    saved: PooledValues,
) -> Result<Tensor> {
    let (name, reads) = (op.name(), op.reads());
    let targets = LinkTargets::new(targets);
    let (parents, versions) = targets.parents(|number| reads.input(number));
    if parents.is_empty() {
        let any = inputs.iter().flatten().next();
        return any.map_or_else(|| bail!("{name}: no input"), |any| result(any, ys, shape));
    }
    candle_pass::check()?;
    // Detached: only the numbers are kept, not the graph below them.
    let kept = inputs
        .into_iter()
        .enumerate()
        .map(|(number, input)| input.filter(|_| reads.input(number)).map(|input| input.detach()))
        .collect();
    let inbox = Arc::new(GradientInbox::default());
    let node = Arc::new(Node {
        number: next_number(),
        op,
        targets,
        kept,
        versions,
        place: params::present_block(),
        output: OnceLock::new(),
        output_dims: shape.dims().to_vec(),
        saved,
        inbox: Arc::clone(&inbox),
    });
    let operation: Arc<dyn Differentiable> = Arc::clone(&node) as _;
    saved::begun(&node);
    LAST.set(node.number);
    let token = JoinInputs::all(&operation, name, parents)?;
    let result = emit(name, &operation, &token, inbox, shape, ys)?;
    if reads.output {
        drop(node.output.set(result.detach()));
    }
    Ok(result)
}

/// The result of an operation, under its token.
pub(super) fn emit(
    name: &'static str,
    node: &Arc<dyn Differentiable>,
    token: &Tensor,
    inbox: Arc<GradientInbox>,
    shape: Shape,
    ys: Storage,
) -> Result<Tensor> {
    let elements = shape.elem_count();
    let link =
        GraphLink { token: token.clone(), node: Arc::clone(node), inbox, elements, view: None };
    let mark = Arc::new(LinkMark::new(link));
    let ys = ResultValues { name, shape, storage: Mutex::new(Some(ys)) };
    let result = token.apply_op1(EmitResult { ys, mark: Arc::clone(&mark) })?;
    mark.register(result.detach());
    Ok(result)
}

thread_local! {
    /// The number of the last operation of this thread.
    static LAST: Cell<u64> = const { Cell::new(u64::MAX) };
}

/// One call of an operation, kept for the backward pass.
pub(super) struct Node {
    number: u64,
    pub(super) op: Box<dyn Operation>,
    pub(super) targets: LinkTargets,
    /// By input. `None` for an input that the backward does not read.
    pub(super) kept: Vec<Option<Tensor>>,
    /// The parameters in `kept` and their versions in the forward pass: `kept` shares their memory.
    versions: Vec<Versioned>,
    /// The block whose parameters are among them.
    place: Option<BlockPlace>,
    pub(super) output: OnceLock<Tensor>,
    pub(super) output_dims: Vec<usize>,
    pub(super) saved: PooledValues,
    inbox: Arc<GradientInbox>,
}

/// The number of the next call of an operation.
pub(super) fn next_number() -> u64 {
    static NUMBERS: AtomicU64 = AtomicU64::new(0);
    NUMBERS.fetch_add(1, Ordering::Relaxed)
}

impl SavesTensors for Node {
    fn each_kept(&self, f: &mut dyn FnMut(&Tensor)) {
        self.kept.iter().flatten().chain(self.output.get()).for_each(f);
    }

    fn other_bytes(&self) -> usize {
        self.saved.bytes()
    }
}

impl Differentiable for Node {
    fn name(&self) -> &'static str {
        self.op.name()
    }

    fn number(&self) -> u64 {
        self.number
    }

    fn unread_as_last(&self) -> Option<Unread> {
        let is_read = self.op.reads().output || self.number != LAST.get();
        let saves = match &self.saved {
            PooledValues::F32(values) => !values.is_empty(),
            PooledValues::F64(values) => !values.is_empty(),
            PooledValues::Gpu(_) => true,
        };
        (!is_read).then_some(if saves { Unread::Result } else { Unread::All })
    }

    fn targets(&self) -> &LinkTargets {
        &self.targets
    }

    fn differentiate(&self) -> Result<()> {
        hooks::refuse_changed(self.op.name(), &self.versions)?;
        let _entered = params::enter_backward(self.place.as_ref())?;
        let ready = match self.inbox.take() {
            Some(PooledValues::F32(dys)) => self.backward(dys)?,
            Some(PooledValues::F64(dys)) => self.backward(dys)?,
            Some(PooledValues::Gpu(dys)) => self.backward_on_gpu(dys)?,
            None => bail!("{}: the result has no gradient, this is a bug", self.op.name()),
        };
        self.targets.put(ready);
        Ok(())
    }
}

impl Node {
    /// Returns the gradients that candle adds, by input. All other gradients are in their places.
    fn backward<T: TypedKernels>(&self, mut dys: Pooled<T>) -> Result<Vec<Option<Tensor>>> {
        if let (Some(view), Some(Some(GradientTarget::Link(link)))) =
            (self.op.view(), self.targets.first())
            && link.view.is_none()
        {
            profile::timed(ProfilePhase::Backward, self.op.name(), &self.output_dims, || {
                link.inbox.deliver_view(view, &dys, link.elements);
            });
            return Ok(vec![None]);
        }
        let Some(saved) = T::values(&self.saved) else {
            bail!("{}: a gradient of another dtype than the result", self.op.name())
        };
        let kept = self.kept.iter().map(Option::as_ref);
        let tensors: Vec<Option<&Tensor>> = kept.chain([self.output.get()]).collect();
        let variables: Vec<Option<TensorId>> =
            self.targets.iter().map(|target| target.as_ref()?.variable()).collect();
        let passed = self.passed();
        let gradients = pass::with_places::<T, _>(&variables, |places| {
            let copied = |number: usize| passed.is_none_or(|(passed, _)| passed != number);
            let wanted = self.targets.iter().enumerate();
            let wanted = wanted.map(|(number, target)| target.as_ref().filter(|_| copied(number)));
            let mut gradients: Vec<Gradient<'_, T>> =
                wanted.zip(places).map(|(target, place)| Gradient::new(target, place)).collect();
            with_inputs(&tensors, self.op.name(), |slices: &[&[T]]| {
                let (ys, inputs) = slices.split_last().expect("the result is among them");
                let grads = InputGradients(gradients.iter_mut().map(Gradient::slice).collect());
                let dys = &mut *dys;
                let is_passed = passed.is_some();
                let pass = Backward { inputs, ys, saved, dys, is_passed, grads };
                profile::timed(ProfilePhase::Backward, self.op.name(), &self.output_dims, || {
                    T::backward(&*self.op, pass)
                })
            })?;
            gradients.into_iter().map(Gradient::finish).collect()
        });
        if let (Ok(_), Some((_, link))) = (&gradients, passed) {
            link.deliver(dys);
        }
        gradients
    }

    /// The input that gets the gradient of the result itself, if it is another operation's result.
    fn passed(&self) -> Option<(usize, &GraphLink)> {
        let number = self.op.passes_gradient_to()?;
        match self.targets.get(number)? {
            Some(GradientTarget::Link(link)) if link.view.is_none() => Some((number, link)),
            _ => None,
        }
    }
}

/// The memory for the gradient of an input, and its destination.
enum Gradient<'a, T: Float> {
    Unwanted,
    /// The first gradient of a variable, which is written directly to its place.
    Straight(&'a mut [T]),
    /// A further gradient of a variable.
    Added(&'a mut [T], Pooled<T>),
    Linked(&'a GraphLink, Pooled<T>),
    Candles(&'a Tensor, Vec<T>),
}

impl<'a, T: Float> Gradient<'a, T> {
    fn new(target: Option<&'a GradientTarget>, place: Option<GradientPlace<&'a mut [T]>>) -> Self {
        match (target, place) {
            (None, _) => Self::Unwanted,
            (Some(GradientTarget::Link(link)), _) => Self::Linked(link, Pooled::new(link.len())),
            (Some(GradientTarget::Tensor(_)), Some(GradientPlace { values, holds: false })) => {
                Self::Straight(values)
            }
            (Some(GradientTarget::Tensor(_)), Some(GradientPlace { values, holds: true })) => {
                let gradient = Pooled::new(values.len());
                Self::Added(values, gradient)
            }
            (Some(GradientTarget::Tensor(tensor)), None) => {
                Self::Candles(tensor, vec![T::zero(); tensor.elem_count()])
            }
        }
    }

    fn slice(&mut self) -> Option<&mut [T]> {
        match self {
            Self::Unwanted => None,
            Self::Straight(values) => Some(values),
            Self::Added(_, values) | Self::Linked(_, values) => Some(values),
            Self::Candles(_, values) => Some(values),
        }
    }

    fn finish(self) -> Result<Option<Tensor>> {
        match self {
            Self::Unwanted | Self::Straight(_) => Ok(None),
            Self::Added(sum, values) => {
                add_all(sum, &values);
                Ok(None)
            }
            Self::Linked(link, values) => {
                link.deliver(values);
                Ok(None)
            }
            Self::Candles(tensor, values) => {
                Tensor::from_vec(values, tensor.shape(), &Device::Cpu).map(Some)
            }
        }
    }
}

/// Joins the inputs of an operation into one scalar token, which represents the operation in
/// candle's graph. candle's custom operations have at most three arguments, so more inputs are
/// joined in a tree.
pub(super) struct JoinInputs {
    node: Arc<dyn Differentiable>,
    name: &'static str,
    /// By argument: the number of the input, or `None` for the token of an inner join or of a hook.
    inputs: Vec<Option<usize>>,
    /// Whether this join runs the backward. Inner joins run later and only fetch their gradients.
    outermost: bool,
}

impl JoinInputs {
    pub(super) fn all(
        node: &Arc<dyn Differentiable>,
        name: &'static str,
        mut parts: Vec<(Option<usize>, Tensor)>,
    ) -> Result<Tensor> {
        // candle reaches the inputs in their order. Each join of three parts leaves two parts less. The depth of the
        // tree is logarithmic, which the stack of the thread that walks the graph bounds.
        while parts.len() > 3 {
            let joins = ((parts.len() - 2) / 2).min(parts.len() / 3);
            let rest = parts.split_off(3 * joins);
            let join = |three: &[_]| Ok((None, Self::some(node, name, three, false)?));
            parts = parts.chunks(3).map(join).collect::<Result<_>>()?;
            parts.extend(rest);
        }
        Self::some(node, name, &parts, true)
    }

    fn some(
        node: &Arc<dyn Differentiable>,
        name: &'static str,
        parts: &[(Option<usize>, Tensor)],
        outermost: bool,
    ) -> Result<Tensor> {
        let inputs = parts.iter().map(|(input, _)| *input).collect();
        let join = Self { node: Arc::clone(node), name, inputs, outermost };
        match parts {
            [(_, a)] => a.apply_op1(join),
            [(_, a), (_, b)] => a.apply_op2(b, join),
            [(_, a), (_, b), (_, c)] => a.apply_op3(b, c, join),
            _ => bail!("{name}: a join of {} tensors, this is a bug", parts.len()),
        }
    }

    /// The gradients of the arguments.
    fn gradients<const N: usize>(&self, arguments: [&Tensor; N]) -> Result<[Option<Tensor>; N]> {
        if self.outermost {
            self.node.differentiate()?;
        }
        let mut gradients = [const { None }; N];
        let inputs = self.inputs.iter().zip(arguments);
        for (gradient, (input, argument)) in gradients.iter_mut().zip(inputs) {
            *gradient = match input {
                Some(number) => self.node.targets().gradient(*number, argument),
                None => Some(argument.detach()),
            };
        }
        Ok(gradients)
    }
}

pub(super) fn token() -> (CpuStorage, Shape) {
    (CpuStorage::F32(vec![0.0]), Shape::from(()))
}

impl CustomOp1 for JoinInputs {
    fn name(&self) -> &'static str {
        self.name
    }

    fn cpu_fwd(&self, _: &CpuStorage, _: &Layout) -> Result<(CpuStorage, Shape)> {
        Ok(token())
    }

    fn cuda_fwd(&self, a: &CudaStorage, _: &Layout) -> Result<(CudaStorage, Shape)> {
        hooks::token_on_gpu(a)
    }

    fn bwd(&self, a: &Tensor, token: &Tensor, _: &Tensor) -> Result<Option<Tensor>> {
        profile::called(token, || self.gradients([a])).map(|[a]| a)
    }
}

impl CustomOp2 for JoinInputs {
    fn name(&self) -> &'static str {
        self.name
    }

    fn cpu_fwd(
        &self,
        _: &CpuStorage,
        _: &Layout,
        _: &CpuStorage,
        _: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        Ok(token())
    }

    fn cuda_fwd(
        &self,
        a: &CudaStorage,
        _: &Layout,
        _: &CudaStorage,
        _: &Layout,
    ) -> Result<(CudaStorage, Shape)> {
        hooks::token_on_gpu(a)
    }

    fn bwd(
        &self,
        a: &Tensor,
        b: &Tensor,
        token: &Tensor,
        _: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>)> {
        profile::called(token, || self.gradients([a, b])).map(|[a, b]| (a, b))
    }
}

impl CustomOp3 for JoinInputs {
    fn name(&self) -> &'static str {
        self.name
    }

    fn cpu_fwd(
        &self,
        _: &CpuStorage,
        _: &Layout,
        _: &CpuStorage,
        _: &Layout,
        _: &CpuStorage,
        _: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        Ok(token())
    }

    fn cuda_fwd(
        &self,
        a: &CudaStorage,
        _: &Layout,
        _: &CudaStorage,
        _: &Layout,
        _: &CudaStorage,
        _: &Layout,
    ) -> Result<(CudaStorage, Shape)> {
        hooks::token_on_gpu(a)
    }

    fn bwd(
        &self,
        a: &Tensor,
        b: &Tensor,
        c: &Tensor,
        token: &Tensor,
        _: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        profile::called(token, || self.gradients([a, b, c])).map(|[a, b, c]| (a, b, c))
    }
}

/// A tensor of `ys` outside of the graph, on the device of `any`.
pub(super) fn result(any: &Tensor, ys: Storage, shape: Shape) -> Result<Tensor> {
    let storage = Mutex::new(Some(ys));
    any.apply_op1_no_bwd(&ResultValues { name: "result", shape, storage })
}

/// The numbers of a result, until candle makes a tensor of them.
struct ResultValues {
    name: &'static str,
    shape: Shape,
    storage: Mutex<Option<Storage>>,
}

impl ResultValues {
    fn take(&self) -> Option<Storage> {
        self.storage.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl CustomOp1 for ResultValues {
    fn name(&self) -> &'static str {
        self.name
    }

    fn cpu_fwd(&self, _: &CpuStorage, _: &Layout) -> Result<(CpuStorage, Shape)> {
        let Some(Storage::Cpu(ys)) = self.take() else {
            bail!("{}: no result on the CPU, this is a bug", self.name)
        };
        Ok((ys, self.shape.clone()))
    }

    fn cuda_fwd(&self, _: &CudaStorage, _: &Layout) -> Result<(CudaStorage, Shape)> {
        let Some(Storage::Cuda(ys)) = self.take() else {
            bail!("{}: no result on the GPU, this is a bug", self.name)
        };
        Ok((ys, self.shape.clone()))
    }
}

/// Gives the token the shape and the numbers of the result. If candle's own operations use the
/// result, this operation receives their gradient.
struct EmitResult {
    ys: ResultValues,
    /// Keeps the result's entry alive as long as this operation, and therefore the result, lives.
    mark: Arc<LinkMark>,
}

/// Puts a gradient that candle has computed into the inbox of a result of operation `name`.
pub(super) fn receive(name: &'static str, inbox: &GradientInbox, dys: &Tensor) -> Result<()> {
    if dys.device().is_cuda() {
        return inbox.deliver_on_gpu(to_flat(dys)?);
    }
    for_float!(dys.dtype(), name, T => {
        inbox.deliver(link::values_of::<T>(dys)?);
        Ok(())
    })
}

impl CustomOp1 for EmitResult {
    fn name(&self) -> &'static str {
        self.ys.name
    }

    fn cpu_fwd(&self, token: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        self.ys.cpu_fwd(token, layout)
    }

    fn cuda_fwd(&self, token: &CudaStorage, layout: &Layout) -> Result<(CudaStorage, Shape)> {
        self.ys.cuda_fwd(token, layout)
    }

    fn bwd(&self, token: &Tensor, ys: &Tensor, dys: &Tensor) -> Result<Option<Tensor>> {
        profile::called(ys, || receive(self.ys.name, self.mark.inbox(), dys))?;
        Ok(Some(token.detach()))
    }
}
