//! Tensors in memory: the first dimension of each counts the samples.
//!
//! Any number of tensors of any types belong together, for instance inputs, masks and targets. The type
//! parameter says in which form a step gets them.

use std::{
    fmt,
    io::{BufWriter, Write},
    marker::PhantomData,
    sync::{Arc, OnceLock},
};

use candle_core::{Device, Tensor};
use sha2::{Digest, Sha256};

use crate::{
    batch::Batch,
    collate::Collated,
    dataset::Dataset,
    digest::hexadecimal,
    error::{Error, Result, check_count},
    number_rows::NumberRows,
    pass::Pass,
};

/// A batch that is made of a fixed number of tensors.
pub trait FromTensors: Collated {
    /// The number of tensors, or `None` if any number will do.
    const COUNT: Option<usize>;

    /// Puts the tensors together. `None` if there are not [`COUNT`](Self::COUNT).
    fn from_tensors(tensors: Vec<Tensor>) -> Option<Self>;
}

/// Tensors in memory, whose rows are the samples.
///
/// ```
/// use candelabrum_datasets::{Dataset, Pass, TensorDataset};
/// use candle_core::{Device, Tensor};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let xs = Tensor::new(&[[0f32, 1.0], [2.0, 3.0], [4.0, 5.0]], &Device::Cpu)?;
/// let ys = Tensor::new(&[0u32, 500, 1], &Device::Cpu)?;
/// let data = TensorDataset::pair(xs, ys)?;
/// let (xs, ys) = data.read(&[2, 1], &Pass::evaluation())?;
/// assert_eq!(xs.to_vec2::<f32>()?, [[4.0, 5.0], [2.0, 3.0]]);
/// assert_eq!(ys.to_vec1::<u32>()?, [1, 500]);
/// # Ok(())
/// # }
/// ```
pub struct TensorDataset<B = Vec<Tensor>> {
    tensors: Arc<[Tensor]>,
    len: usize,
    /// Computed at the first request.
    sha256: Arc<OnceLock<String>>,
    /// For the tensors of a table, by their places: the numbers as they were written.
    written: Arc<[Option<NumberRows>]>,
    batch: PhantomData<fn() -> B>,
}

impl<B> Clone for TensorDataset<B> {
    fn clone(&self) -> Self {
        let (tensors, sha256) = (Arc::clone(&self.tensors), Arc::clone(&self.sha256));
        let written = Arc::clone(&self.written);
        Self { tensors, len: self.len, sha256, written, batch: PhantomData }
    }
}

impl<B> fmt::Debug for TensorDataset<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tensors = self.tensors.iter().map(|tensor| (tensor.dtype(), tensor.dims()));
        f.debug_list().entries(tensors).finish()
    }
}

impl TensorDataset<Vec<Tensor>> {
    /// Any number of tensors. A batch is a vector of as many tensors.
    ///
    /// # Errors
    /// Those of [`TensorDataset::from_tensors`].
    pub fn new(tensors: Vec<Tensor>) -> Result<Self> {
        Self::from_tensors(tensors)
    }
}

impl TensorDataset<Tensor> {
    /// One tensor. A batch is a tensor, too.
    ///
    /// # Errors
    /// Those of [`TensorDataset::from_tensors`].
    pub fn single(tensor: Tensor) -> Result<Self> {
        Self::from_tensors(vec![tensor])
    }
}

impl TensorDataset<(Tensor, Tensor)> {
    /// Two tensors, for instance inputs and targets.
    ///
    /// # Errors
    /// Those of [`TensorDataset::from_tensors`].
    pub fn pair(first: Tensor, second: Tensor) -> Result<Self> {
        Self::from_tensors(vec![first, second])
    }
}

impl TensorDataset<(Tensor, Tensor, Tensor)> {
    /// Three tensors, for instance inputs, masks and targets.
    ///
    /// # Errors
    /// Those of [`TensorDataset::from_tensors`].
    pub fn triple(first: Tensor, second: Tensor, third: Tensor) -> Result<Self> {
        Self::from_tensors(vec![first, second, third])
    }
}

impl TensorDataset<Batch> {
    /// Inputs with labels.
    ///
    /// # Errors
    /// Those of [`TensorDataset::from_tensors`].
    pub fn labelled(xs: Tensor, ys: Tensor) -> Result<Self> {
        Self::from_tensors(vec![xs, ys])
    }

    /// Inputs and labels of a table.
    pub(crate) fn of_table([xs, ys]: [Column; 2]) -> Result<Self> {
        let data = Self::labelled(xs.tensor()?, ys.tensor()?)?;
        let written = [xs, ys].map(|column| match column {
            Column::Plain(_) => None,
            Column::Written(written) => Some(written),
        });
        Ok(Self { written: written.into(), ..data })
    }

    /// The inputs and the labels, as they were written if they are those of a table.
    pub(crate) fn columns(&self) -> [Column; 2] {
        [0, 1].map(|place| match self.written.get(place) {
            Some(Some(written)) => Column::Written(written.clone()),
            _ => Column::Plain(self.tensors[place].clone()),
        })
    }
}

/// The inputs or the labels of a table.
#[derive(Debug)]
pub(crate) enum Column {
    Plain(Tensor),
    Written(NumberRows),
}

impl Column {
    /// The tensor from which batches are made.
    fn tensor(&self) -> Result<Tensor> {
        match self {
            Self::Plain(tensor) => Ok(tensor.clone()),
            Self::Written(written) => written.tensor(),
        }
    }
}

impl<B: FromTensors> TensorDataset<B> {
    /// Tensors for batches of type `B`. They are copied to the CPU if they are not there.
    ///
    /// # Errors
    /// No tensors or a number that `B` does not have, a tensor without dimensions, first dimensions
    /// that differ or do not fit into 32 bits.
    pub fn from_tensors(tensors: Vec<Tensor>) -> Result<Self> {
        let wrong = B::COUNT.is_some_and(|count| count != tensors.len());
        if wrong || tensors.is_empty() {
            return Err(wrong_count(tensors.len(), B::COUNT));
        }
        let mut on_cpu = Vec::with_capacity(tensors.len());
        let mut len = None;
        for (index, tensor) in tensors.into_iter().enumerate() {
            let Some(&rows) = tensor.dims().first() else {
                return Err(Error::argument(format!(
                    "tensor {index} has no dimensions: its first dimension must count the samples"
                )));
            };
            let expected = *len.get_or_insert(rows);
            if rows != expected {
                return Err(Error::argument(format!(
                    "tensor {index} has {rows} samples, the first one has {expected}: all must have \
                     as many"
                )));
            }
            on_cpu.push(tensor.to_device(&Device::Cpu)?.contiguous()?.detach());
        }
        let len = len.unwrap_or(0);
        check_count(len)?;
        let (sha256, written) = (Arc::default(), Arc::from([]));
        Ok(Self { tensors: on_cpu.into(), len, sha256, written, batch: PhantomData })
    }

    /// The tensors, on the CPU.
    pub fn tensors(&self) -> &[Tensor] {
        &self.tensors
    }

    /// SHA-256, in hexadecimal, of the types, the shapes and the numbers.
    ///
    /// # Errors
    /// Tensors of a type that candle cannot write.
    ///
    /// # Cost
    /// The first call reads all numbers. Later calls on this dataset and its clones cost nothing.
    pub fn sha256(&self) -> Result<&str> {
        if let Some(known) = self.sha256.get() {
            return Ok(known);
        }
        let digest = digest(&self.tensors)?;
        Ok(self.sha256.get_or_init(|| digest))
    }
}

/// The number of tensors is not that of the batch. `None`: a batch has any number above 0.
fn wrong_count(got: usize, needed: Option<usize>) -> Error {
    let needed = needed.map_or("at least 1".to_owned(), |needed| needed.to_string());
    Error::argument(format!("{got} tensors, the batch has {needed}"))
}

fn digest(tensors: &[Tensor]) -> Result<String> {
    /// Elements that are copied at a time.
    const BLOCK: usize = 1 << 20;
    let mut out = BufWriter::new(Sha256::new());
    let written = |error| Error::custom(format!("cannot compute the digest of tensors: {error}"));
    for tensor in tensors {
        write!(out, "{:?} {:?};", tensor.dtype(), tensor.dims()).map_err(written)?;
        let flat = tensor.flatten_all()?;
        for start in (0..flat.elem_count()).step_by(BLOCK) {
            let len = BLOCK.min(flat.elem_count() - start);
            flat.narrow(0, start, len)?.write_bytes(&mut out)?;
        }
    }
    let hasher = out.into_inner().map_err(|error| written(error.into_error()))?;
    Ok(hexadecimal(&hasher.finalize()))
}

impl<B: FromTensors> Dataset for TensorDataset<B> {
    type Batch = B;

    fn len(&self) -> usize {
        self.len
    }

    fn read(&self, samples: &[u32], _: &Pass) -> Result<B> {
        let len = self.len;
        if let Some(&sample) = samples.iter().find(|&&sample| sample as usize >= len) {
            return Err(Error::NoSuchSample { sample: sample as usize, len });
        }
        if let Some(lost) = self.written.iter().flatten().find_map(|written| written.lost.as_ref())
        {
            return Err(lost.error());
        }
        let numbers = Tensor::new(samples, &Device::Cpu)?;
        let rows = self.tensors.iter().map(|tensor| {
            if samples.is_empty() {
                tensor.narrow(0, 0, 0)
            } else {
                tensor.index_select(&numbers, 0)
            }
        });
        let rows: Vec<Tensor> = rows.collect::<candle_core::Result<_>>()?;
        let got = rows.len();
        B::from_tensors(rows).ok_or_else(|| wrong_count(got, B::COUNT))
    }

    fn fingerprint(&self) -> Result<String> {
        Ok(self.sha256()?.to_owned())
    }
}

impl FromTensors for Vec<Tensor> {
    const COUNT: Option<usize> = None;

    fn from_tensors(tensors: Vec<Tensor>) -> Option<Self> {
        Some(tensors)
    }
}

impl FromTensors for Tensor {
    const COUNT: Option<usize> = Some(1);

    fn from_tensors(tensors: Vec<Tensor>) -> Option<Self> {
        <[Tensor; 1]>::try_from(tensors).ok().map(|[tensor]| tensor)
    }
}

macro_rules! from_tensors {
    ($($count:literal => $tuple:ty;)*) => {$(
        impl FromTensors for $tuple {
            const COUNT: Option<usize> = Some($count);

            fn from_tensors(tensors: Vec<Tensor>) -> Option<Self> {
                <[Tensor; $count]>::try_from(tensors).ok().map(Self::from)
            }
        }
    )*};
}

from_tensors! {
    2 => (Tensor, Tensor);
    3 => (Tensor, Tensor, Tensor);
    4 => (Tensor, Tensor, Tensor, Tensor);
}

impl FromTensors for Batch {
    const COUNT: Option<usize> = Some(2);

    fn from_tensors(tensors: Vec<Tensor>) -> Option<Self> {
        <[Tensor; 2]>::try_from(tensors).ok().map(|[xs, ys]| Self { xs, ys })
    }
}

#[cfg(test)]
mod tests {
    use candle_core::{DType, IndexOp};

    use super::*;

    fn arange(rows: u32) -> Tensor {
        Tensor::arange(0, rows, &Device::Cpu).unwrap()
    }

    #[test]
    fn rows_of_all_tensors_belong_together_whatever_their_types_and_strides() {
        let columns = arange(12).reshape((3, 4)).unwrap().t().unwrap(); // (4, 3), not contiguous
        let flags = arange(4).to_dtype(DType::U8).unwrap();
        let halves = arange(4).to_dtype(DType::BF16).unwrap().reshape((4, 1, 1)).unwrap();
        let data = TensorDataset::new(vec![columns, flags, halves]).unwrap();
        let rows = data.read(&[3, 3, 0], &Pass::evaluation()).unwrap();
        assert_eq!(rows[0].to_vec2::<u32>().unwrap(), [[3, 7, 11], [3, 7, 11], [0, 4, 8]]);
        assert_eq!(rows[1].to_vec1::<u8>().unwrap(), [3, 3, 0]);
        assert_eq!((rows[2].dtype(), rows[2].dims()), (DType::BF16, &[3, 1, 1][..]));
        let none = data.read(&[], &Pass::evaluation()).unwrap();
        assert_eq!(
            none.iter().map(Tensor::dims).collect::<Vec<_>>(),
            [&[0, 3][..], &[0], &[0, 1, 1]]
        );
    }

    #[test]
    fn tensors_that_do_not_belong_together_are_errors() {
        let message = |result: Result<TensorDataset>| result.unwrap_err().to_string();
        assert!(message(TensorDataset::new(vec![])).starts_with("0 tensors"));
        let text = message(TensorDataset::new(vec![arange(3), arange(4)]));
        assert!(text.contains('3') && text.contains('4'), "{text}");
        let scalar = arange(3).i(0).unwrap();
        assert!(TensorDataset::single(scalar).is_err());
        assert!(TensorDataset::<(Tensor, Tensor)>::from_tensors(vec![arange(3)]).is_err());
        let data = TensorDataset::single(arange(3)).unwrap();
        for sample in [3, u32::MAX] {
            let error = data.read(&[0, sample], &Pass::evaluation()).unwrap_err();
            assert!(matches!(error, Error::NoSuchSample { len: 3, .. }), "{error}");
        }
    }

    #[test]
    fn the_fingerprint_shows_types_shapes_and_numbers() {
        let of = |tensor: Tensor| TensorDataset::single(tensor).unwrap().fingerprint().unwrap();
        let one = of(arange(6));
        assert_eq!(of(arange(7).narrow(0, 0, 6).unwrap()), one);
        let reshaped = arange(6).reshape((6, 1)).unwrap();
        let others = [arange(7), arange(6).to_dtype(DType::I64).unwrap(), reshaped];
        assert!(others.into_iter().all(|other| of(other) != one));
    }
}
