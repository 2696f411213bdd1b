//! Twenty steps of the CNN from given weights and batches, compared with PyTorch's losses and
//! parameters, which `scripts/golden` wrote.

use candelabrum::models::Cnn;
use candelabrum::prelude::*;
use candelabrum_testkit::mnist_cnn_recipe::{STEPS, batch, parameters};
use candelabrum_testkit::{assert_close, golden};

#[test]
fn twenty_steps_give_pytorchs_losses_and_parameters() {
    let golden =
        golden(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/mnist_cnn_sgd.safetensors"));
    let params = Params::new(0);
    let model = Cnn::new(&params.root(), 10);
    model.compile(&params, (1, 1, 28, 28)).unwrap();
    for (name, value) in parameters().unwrap() {
        params.get(name).unwrap().set(&value).unwrap();
    }
    let sgd = Sgd::new(0.005).momentum(0.9).weight_decay(1e-5);
    let mut opt = DistOpt::new(sgd, &params, &World::single()).unwrap();

    let mut losses = Vec::new();
    for step in 0..STEPS {
        let (xs, ys) = batch(step).unwrap();
        let (_, loss) = model.train_one_batch(&mut opt, &xs, &ys, DistOption::Fp32, 0.05).unwrap();
        losses.push(loss.to_scalar::<f32>().unwrap());
    }
    let losses = Tensor::new(losses, &Device::Cpu).unwrap();
    assert_close(&losses, &golden["losses"], 1e-4, 0.0);

    for param in params.list() {
        let name = param.name();
        let value = param.tensor().detach().flatten_all().unwrap();
        // Relative to the tensor's scale: an element close to zero has no relative precision.
        let scale = |t: &Tensor| {
            f64::from(
                t.abs().unwrap().flatten_all().unwrap().max(0).unwrap().to_scalar::<f32>().unwrap(),
            )
        };
        if let Some(expected) = golden.get(name) {
            let expected = expected.flatten_all().unwrap();
            assert_close(&value, &expected, 1e-4, 1e-4 * scale(&expected));
        } else {
            let expected = &golden[&format!("{name}.every13")];
            let indices: Vec<u32> = (0..value.elem_count() as u32).step_by(13).collect();
            let indices = Tensor::new(indices, &Device::Cpu).unwrap();
            let sample = value.index_select(&indices, 0).unwrap();
            assert_close(&sample, expected, 1e-4, 1e-4 * scale(expected));
            let squares = value.to_dtype(DType::F64).unwrap().sqr().unwrap().sum_all().unwrap();
            let expected = &golden[&format!("{name}.sum_of_squares")];
            assert_close(&squares, &expected.reshape(()).unwrap(), 1e-4, 0.0);
        }
    }
}
