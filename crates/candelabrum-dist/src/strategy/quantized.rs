//! 2bit and 1bit: each rank sends a code of u = g + r for each element, and keeps what the code lacks.
//!
//! The codes are MXNet's ([`bits`]). 2bit sends `spars`, `-spars` or 0. 1bit sends 1 for what is above `spars`, and -1 for
//! all else (Seide et al., "1-Bit Stochastic Gradient Descent and its Application to Data-Parallel Distributed Training of
//! Speech DNNs", Interspeech 2014, with MXNet's magnitudes). All ranks gather all codes and average them.

use candelabrum_memory::{ElementType, FlatTensor, reduce};
use candelabrum_nn::DistOption;

use super::{Bucket, ErrorFeedback, Message, Strategy, bits};
use crate::comm::{Collective, Payload};
use crate::{Error, Result};

#[derive(Debug)]
pub(super) struct Quantized {
    option: DistOption,
    error_feedback: Option<ErrorFeedback>,
}

impl Quantized {
    /// 2bit or 1bit. Without `corr`, what is not sent is lost.
    pub(super) fn new(option: DistOption, corr: bool) -> Self {
        Self { option, error_feedback: corr.then(ErrorFeedback::default) }
    }

    fn is_two_bit(&self) -> bool {
        self.option == DistOption::TwoBit
    }

    /// The bytes of the codes of so many elements.
    fn bytes(&self, len: usize) -> usize {
        len.div_ceil(if self.is_two_bit() { 4 } else { 8 })
    }
}

impl Strategy for Quantized {
    fn describe(&self) -> String {
        format!("{} corr={}", self.option, self.error_feedback.is_some())
    }

    fn check_spars(&self, spars: f32) -> Result<()> {
        let (good, range) = match self.is_two_bit() {
            true => (spars > 0.0, "above 0 (the magnitude that 2bit sends)"),
            false => (true, "a finite number (the limit between 1 and -1 in 1bit)"),
        };
        if good && spars.is_finite() {
            return Ok(());
        }
        Err(Error::Setting { setting: "spars", value: spars.to_string(), range })
    }

    fn averages_workers(&self) -> bool {
        true
    }

    fn error_feedback(&mut self) -> Option<&mut ErrorFeedback> {
        self.error_feedback.as_mut()
    }

    fn compress(&mut self, bucket: &Bucket<'_>, values: &mut [f32]) -> Result<Message> {
        let mut codes = FlatTensor::zeros(ElementType::U8, self.bytes(values.len()));
        let bytes = codes.as_mut_slice::<u8>()?;
        match self.is_two_bit() {
            true => bits::encode_2bit(bytes, bucket.spars, values),
            false => bits::encode_1bit(bytes, bucket.spars, values),
        }
        Ok(Message::new(Collective::AllGather, codes.into()))
    }

    fn aggregate(
        &mut self,
        bucket: &Bucket<'_>,
        received: Vec<Payload>,
        values: &mut [f32],
    ) -> Result<Option<Message>> {
        let Some(gathered) = received.first() else { return Ok(None) };
        let each = self.bytes(values.len());
        // A code of 1bit has no zero, so those of servers, which have no gradients, do not count.
        let codes = gathered.as_slice::<u8>()?.chunks_exact(each.max(1)).take(bucket.workers);
        for (rank, codes) in codes.enumerate() {
            match self.is_two_bit() {
                true => bits::decode_2bit(codes, bucket.spars, values, rank == 0),
                false => bits::decode_1bit(codes, values, rank == 0),
            }
        }
        reduce::divide(ElementType::F32, bytemuck::cast_slice_mut(values), bucket.workers);
        Ok(None)
    }
}
