//! A model and a loop of your own, without a trainer or options, in one process or several.
//!
//! ```text
//! cargo run --release --example custom_model
//! mpiexec --bind-to none -n 2 cargo run --release --example custom_model
//! ```

#![expect(clippy::print_stdout, reason = "an example talks to its user")]

use candelabrum::prelude::*;

struct Mlp {
    hidden: Linear,
    dropout: Dropout,
    out: Linear,
}

impl Mlp {
    fn new(scope: &Scope) -> Self {
        Self {
            hidden: Linear::new(&scope.pp("hidden"), 128).activation(Activation::Relu),
            dropout: Dropout::new(&scope.pp("dropout"), 0.1),
            out: Linear::new(&scope.pp("out"), 10),
        }
    }
}

impl Model for Mlp {
    fn forward(&self, xs: &Tensor) -> candelabrum::candle::Result<Tensor> {
        let xs = self.hidden.forward(&xs.flatten_from(1)?)?; // (N, 1, 28, 28) -> (N, 128)
        self.out.forward(&self.dropout.forward(&xs)?)
    }
}

fn main() -> anyhow::Result<()> {
    let world = World::from_env()?;
    let data = Mnist::synthetic(0, 12_000, 2_000)?;
    let share = data.partition(world.rank(), world.world_size(), Remainder::Drop)?;

    let device = world.device(); // this rank's GPU, or the CPU
    let params = Params::on(0, DType::F32, device);
    let model = Mlp::new(&params.root());
    model.compile(&params, (1, 1, 28, 28))?; // creates the parameters
    let mut opt = DistOpt::new(Sgd::new(0.05).momentum(0.9), &params, &world)?;

    for epoch in 0..5 {
        let mut losses = [0_f32]; // summed over batches and ranks
        for batch in share.train.batches(64)? {
            let batch = batch?;
            let (xs, ys) = (batch.xs.to_device(device)?, batch.ys.to_device(device)?);
            let loss = model.loss(&model.forward(&xs)?, &ys)?;
            opt.backward_and_update(&loss)?; // gradients, their average over all ranks, the update
            losses[0] += loss.to_scalar::<f32>()?;
        }
        world.comm().all_reduce(&mut losses, ReduceOp::Sum)?;
        if world.is_root() {
            println!("epoch {epoch}: training loss {:.3}", losses[0]);
        }
    }
    Ok(())
}
