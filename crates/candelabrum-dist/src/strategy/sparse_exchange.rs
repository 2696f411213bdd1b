//! The exchange of the sparse strategies: the message of positions and values, its sum, and the
//! density from which a dense exchange is cheaper.
//!
//! A message of K elements is 2K words of 32 bits: K positions, ascending, then K values. Ranks
//! gather each other's messages and add them in rank order, so all ranks get the same bits.
//!
//! An all-gather of density d costs each rank 8·d·n·(N-1) bytes, a dense all-reduce 8·n·(N-1)/N.
//! From d = 1/N on, the dense exchange costs no more, and it loses nothing.

use candelabrum_memory::SpanMut;

use super::{Bucket, Message, gpu};
use crate::comm::{Collective, ElementType, Payload, ReduceOp};
use crate::{Error, Result};

/// Returns an error for buckets whose positions do not fit into the words of a message.
pub(super) fn check(buckets: &[Bucket<'_>]) -> Result<()> {
    let fits = |bucket: &&Bucket<'_>| i32::try_from(bucket.len()).is_err();
    match buckets.iter().find(fits) {
        None => Ok(()),
        Some(bucket) => {
            let what = format!("a sparse exchange of {bucket}: positions have 31 bits");
            Err(Error::Unsupported { what })
        }
    }
}

/// Whether a sparse exchange of `count` elements on each rank takes fewer bytes than a dense one.
pub(super) fn pays(bucket: &Bucket<'_>, count: usize) -> bool {
    count <= most_that_pays(bucket) && !bucket.is_empty()
}

/// The largest number of elements on each rank with which a sparse exchange of a bucket pays.
pub(super) fn most_that_pays(bucket: &Bucket<'_>) -> usize {
    bucket.len().saturating_sub(1) / bucket.world_size
}

/// The dense exchange of a bucket, where a sparse one saves nothing. The user is notified once.
#[derive(Debug, Default)]
pub(super) struct DenseExchange {
    said: bool,
}

impl DenseExchange {
    /// The message that sends all of `bucket`. The first call writes a note for the user to
    /// `note`.
    pub(super) fn message(
        &mut self,
        strategy: &str,
        bucket: &Bucket<'_>,
        count: usize,
        note: &mut Option<String>,
    ) -> Message {
        if !std::mem::replace(&mut self.said, true) {
            let percent = 100.0 * count as f64 / bucket.len().max(1) as f64;
            let (spars, ranks) = (bucket.spars, bucket.world_size);
            *note = Some(format!(
                "{strategy} with spars {spars}: positions and values of {percent:.1}% of {bucket} \
                 take as many bytes over {ranks} ranks as all of it (from 1/{ranks} on), so such \
                 buckets are sent whole"
            ));
        }
        Message::InPlace(Collective::AllReduce(ReduceOp::Mean))
    }
}

/// Takes the elements at `positions` out of `values` and leaves zeros in their places.
pub(super) fn take_out(positions: &[u32], values: &mut [f32]) -> Vec<f32> {
    positions.iter().map(|&at| std::mem::take(&mut values[at as usize])).collect()
}

/// The message of these elements, padded to `room` elements.
pub(super) fn pack(positions: &[u32], values: &[f32], room: usize) -> Result<Payload> {
    let mut buffer = Payload::zeros(ElementType::I32, 2 * room);
    let (front, back) = buffer.as_mut_slice::<i32>()?.split_at_mut(room);
    for (word, &at) in front.iter_mut().zip(positions) {
        *word = at.cast_signed(); // positions have 31 bits, see `check`
    }
    for (word, value) in back.iter_mut().zip(values) {
        *word = value.to_bits().cast_signed();
    }
    Ok(buffer)
}

/// Writes the mean of all ranks' messages into `values`: their sum in rank order, divided by the
/// number of ranks. `counts` has the number of elements that each rank sent; each message has room
/// for `room`.
pub(super) fn average(
    bucket: &Bucket<'_>,
    gathered: &Payload,
    room: usize,
    counts: &[usize],
    values: SpanMut<'_>,
) -> Result<()> {
    let values = match values {
        SpanMut::Host(values) => values,
        SpanMut::Cuda(values) => return gpu::average(bucket, gathered, room, counts, values),
    };
    let words = gathered.as_slice::<i32>()?;
    values.fill(0.0);
    for (rank, (message, &count)) in words.chunks_exact(2 * room.max(1)).zip(counts).enumerate() {
        let (positions, sent) = message.split_at(room);
        for (&at, &bits) in positions.iter().zip(sent).take(count) {
            let Some(value) = values.get_mut(at.cast_unsigned() as usize) else {
                let what = format!("rank {rank} sent element {at} of {bucket}");
                return Err(Error::Protocol { what });
            };
            *value += f32::from_bits(bits.cast_unsigned());
        }
    }
    let ranks = bucket.world_size as f32;
    values.iter_mut().for_each(|value| *value /= ranks);
    Ok(())
}

#[cfg(test)]
mod tests {
    use candelabrum_nn::{Init, Params};
    use proptest::prelude::*;

    use super::*;
    use crate::strategy::Strategy as _;
    use crate::strategy::sparse_threshold::SparseThreshold;
    use crate::strategy::sparse_top_k::SparseTopK;
    use candelabrum_nn::{BucketPlan, BucketSlot};

    /// Calls `test` with a bucket of one parameter of `len` elements in a world of `world_size`.
    fn with_bucket<T>(
        len: usize,
        world_size: usize,
        spars: f32,
        test: impl FnOnce(&Bucket<'_>) -> T,
    ) -> T {
        let params = Params::new(0);
        params.root().param("weight", len, Init::ZEROS).unwrap();
        let plan = BucketPlan { slots: vec![BucketSlot { param: 0, range: 0..len }], len };
        let (index, count, layout, step, rank) = (0, 1, 0, 0, 0);
        let params = params.list();
        let (plan, params) = (&plan, &params[..]);
        test(&Bucket {
            index,
            count,
            layout,
            step,
            spars,
            rank,
            world_size,
            workers: world_size,
            plan,
            params,
        })
    }

    /// The positions and values of a message.
    fn read(message: Message) -> Vec<(usize, f32)> {
        let Message::Payloads(mut parts) = message else { panic!("the values travel themselves") };
        let words = parts.pop().unwrap().1.to_vec::<i32>().unwrap();
        let (positions, bits) = words.split_at(words.len() / 2);
        let value = |&bits: &i32| f32::from_bits(bits.cast_unsigned());
        positions.iter().map(|&at| at as usize).zip(bits.iter().map(value)).collect()
    }

    /// Checks that each bit of `input` is either in the message or in the rest, and never in both.
    fn assert_nothing_is_lost(input: &[f32], rest: &[f32], sent: &[(usize, f32)]) {
        let mut whole = rest.to_vec();
        for &(at, value) in sent {
            assert_eq!(rest[at].to_bits(), 0, "element {at} is sent and kept");
            whole[at] = value;
        }
        let bits = |values: &[f32]| values.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
        assert_eq!(bits(&whole), bits(input));
    }

    fn numbers() -> impl Strategy<Value = Vec<f32>> {
        let number = prop_oneof![
            4 => -1.0_f32..1.0,
            1 => (-2_i8..=2).prop_map(f32::from),
            1 => prop::sample::select(vec![0.0, -0.0, 1e-45, -1e-40, f32::MAX, f32::MIN]),
        ];
        prop::collection::vec(number, 1..300)
    }

    proptest! {
        #[test]
        fn what_top_k_sends_and_what_it_keeps_is_the_input(
            input in numbers(),
            spars in 0.001_f32..0.49,
        ) {
            with_bucket(input.len(), 2, spars, |bucket| {
                let mut strategy = SparseTopK::new(true);
                let mut values = input.clone();
                match strategy.compress(bucket, &mut values).unwrap() {
                    // A bucket so small that one element is half of it.
                    Message::InPlace(_) => assert_eq!(values, input),
                    message => assert_nothing_is_lost(&input, &values, &read(message)),
                }
            });
        }

        #[test]
        fn what_a_threshold_sends_and_what_it_keeps_is_the_input(
            input in numbers(),
            spars in 0.001_f32..2.0,
        ) {
            with_bucket(input.len(), 1, spars, |bucket| {
                let mut strategy = SparseThreshold::new(true);
                let mut values = input.clone();
                strategy.compress(bucket, &mut values).unwrap();
                let count = input.iter().filter(|x| x.abs() >= spars).count();
                let counts = Payload::from_slice(&[count as i32]);
                let rest = values.clone();
                match strategy.aggregate(bucket, vec![counts], &mut values).unwrap() {
                    None => assert_eq!(count, 0),
                    // The sparse message is as large as the whole bucket.
                    Some(Message::InPlace(_)) => assert_eq!(values, input),
                    Some(message) => assert_nothing_is_lost(&input, &rest, &read(message)),
                }
            });
        }
    }

    #[test]
    fn a_message_gives_the_mean_in_rank_order() {
        with_bucket(4, 2, 0.5, |bucket| {
            let first = pack(&[1, 3], &[4.0, -2.0], 3).unwrap();
            let second = pack(&[0, 1, 3], &[1.0, 1.0, 2.0], 3).unwrap();
            let words = [first, second].map(|buffer| buffer.to_vec::<i32>().unwrap()).concat();
            let mut values = [9.0; 4];
            average(bucket, &Payload::from_slice(&words), 3, &[2, 3], (&mut values).into())
                .unwrap();
            assert_eq!(values, [0.5, 2.5, 0.0, 0.0]);
        });
    }

    #[test]
    fn a_position_outside_the_unit_is_an_error_that_names_the_rank() {
        with_bucket(4, 2, 0.5, |bucket| {
            for at in [4_u32, u32::MAX] {
                let words = [0, 0, at.cast_signed(), 0];
                let gathered = Payload::from_slice(&words);
                let (counts, mut values) = ([1, 1], [0.0; 4]);
                let error =
                    average(bucket, &gathered, 1, &counts, (&mut values).into()).unwrap_err();
                assert!(error.to_string().contains("rank 1 sent element"), "{error}");
            }
        });
    }
}
