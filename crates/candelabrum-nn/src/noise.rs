//! The noise of a recorded forward pass.
//!
//! A CUDA graph repeats its kernels with the arguments of the recording, so a mask that depends on an
//! argument would be the same in every replay. While a pass is recorded, kernels read the keys of
//! their noise from memory on the GPU instead. Each replay first writes new keys there, drawn from
//! the same scopes in the same order as in a pass that is not recorded. So the masks are the same,
//! bit for bit, with and without a recording.

use std::cell::RefCell;
use std::ops::Range;

use candelabrum_memory::cuda::{CudaSpan, Gpu, KernelArg, Kernels, LaunchGrid};
use candelabrum_memory::hash::mix;
use candelabrum_memory::{ElementType, FlatTensor, Location};
use candle_core::{Result, bail};

use crate::autograd::recomputing;
use crate::{Params, Scope};

const KERNELS: Kernels = Kernels { name: "noise_keys", text: include_str!("noise_keys.cu") };

/// Keys that one launch of the kernel writes.
const AT_ONCE: usize = 8;

/// The largest number of keys of one pass.
const MOST: usize = 4096;

/// f32 numbers in the memory of one key, which has 64 bits.
const NUMBERS: usize = 2;

thread_local! {
    /// The recording of this thread.
    static RECORDING: RefCell<Option<RecordedNoise>> = const { RefCell::new(None) };
}

/// The seeds that a recorded pass has drawn, and the memory of their keys on the GPU.
#[derive(Debug)]
pub struct RecordedNoise {
    params: Params,
    /// The draws of `params` before the recording.
    draws_before: u64,
    keys: FlatTensor,
    scopes: Vec<Scope>,
    seeds: Vec<u64>,
}

/// Notes the seeds that this thread draws, until it is dropped.
#[derive(Debug)]
pub struct NoiseRecorder(());

impl NoiseRecorder {
    /// Begins to note seeds of `params`, which are on a GPU.
    ///
    /// # Errors
    /// Too little memory on the device.
    pub fn begin(params: &Params) -> Result<Self> {
        let location = Location::from_device(params.device());
        let noise = RecordedNoise {
            params: params.clone(),
            draws_before: params.noise_draws(),
            keys: FlatTensor::zeros_on(&location, ElementType::F32, MOST * NUMBERS)?,
            scopes: Vec::new(),
            seeds: Vec::new(),
        };
        RECORDING.set(Some(noise));
        Ok(Self(()))
    }

    /// Ends the recording of a pass.
    ///
    /// # Errors
    /// A recording that another one has ended.
    pub fn end(self) -> Result<RecordedNoise> {
        let Some(noise) = RECORDING.take() else { bail!("noise: nothing is being recorded") };
        Ok(noise)
    }
}

/// A recording that did not end has no effect on later seeds: the pass will be computed again.
impl Drop for NoiseRecorder {
    fn drop(&mut self) {
        if let Some(noise) = RECORDING.take() {
            noise.params.set_noise_draws(noise.draws_before);
        }
    }
}

impl Scope {
    /// A new seed for noise in this scope. It differs from call to call and is the same in every
    /// run.
    pub fn noise_seed(&self) -> u64 {
        recomputing::seed(|| {
            let seed = self.next_noise_seed();
            RECORDING.with_borrow_mut(|recording| {
                if let Some(noise) = recording {
                    noise.scopes.push(self.clone());
                    noise.seeds.push(seed);
                }
            });
            seed
        })
    }
}

/// Calls `f` with the memory from which a kernel must read the key of this seed, or with `None` if it
/// takes the key as an argument.
///
/// # Errors
/// In a recording: a seed that no scope has drawn, because it would be the same in every replay. The
/// error of `f`.
pub(crate) fn with_key<R>(
    seed: u64,
    f: impl FnOnce(Option<CudaSpan<'_>>) -> Result<R>,
) -> Result<R> {
    RECORDING.with_borrow(|recording| {
        let Some(noise) = recording else { return f(None) };
        match noise.seeds.iter().position(|drawn| *drawn == seed) {
            Some(number) if number < MOST => f(Some(noise.keys(number..number + 1)?)),
            Some(_) => bail!("noise: more than {MOST} seeds in one pass"),
            None => bail!("the seed {seed} of a dropout does not come from `Scope::noise_seed`"),
        }
    })
}

impl RecordedNoise {
    fn keys(&self, numbers: Range<usize>) -> Result<CudaSpan<'_>> {
        let range = numbers.start * NUMBERS..numbers.end * NUMBERS;
        Ok(self.keys.range(range)?.cuda()?)
    }

    /// Draws new seeds for the next replay.
    pub fn draw(&mut self) {
        self.seeds.clear();
        self.seeds.extend(self.scopes.iter().map(Scope::noise_seed));
    }

    /// Enqueues the writes of the seeds' keys on the device's stream, so later kernels of the stream read the new keys.
    ///
    /// # Errors
    /// The driver's error.
    pub fn write(&mut self) -> Result<()> {
        let Some(gpu) = Gpu::from_device(self.params.device()) else { return Ok(()) };
        for (start, seeds) in (0..).step_by(AT_ONCE).zip(self.seeds.chunks(AT_ONCE)) {
            let mut keys = [0_u64; AT_ONCE];
            for (key, &seed) in keys.iter_mut().zip(seeds) {
                *key = mix(seed);
            }
            let count = seeds.len();
            let range = start * NUMBERS..(start + count) * NUMBERS;
            let mut place = self.keys.range_mut(range)?.cuda()?;
            let args = [&[KernelArg::from(&mut place)], &keys.map(KernelArg::from)[..]].concat();
            gpu.launch(KERNELS, "set_keys", LaunchGrid::one_block(count), &args)?;
        }
        Ok(())
    }
}
