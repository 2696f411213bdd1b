//! Steps that are refused on every rank, with servers and without.

use candelabrum::candle::Var;
use candelabrum::nn::{LossWeight, Param, weighted};
use candelabrum::prelude::*;

use crate::ranks::on_ranks;

struct Net {
    params: Params,
    body: Linear,
    head: Linear,
}

impl Net {
    fn new() -> Self {
        let params = Params::new(3);
        let root = params.root();
        let (body, head) = (Linear::new(&root.pp("body"), 4), Linear::new(&root.pp("head"), 3));
        let net = Self { params, body, head };
        net.logits();
        net
    }

    /// Those of two rows.
    fn logits(&self) -> Tensor {
        let xs = Tensor::new(&[[1f32, -0.5], [0.5, 2.0]], &Device::Cpu).unwrap();
        self.head.forward(&self.body.forward(&xs).unwrap()).unwrap()
    }

    fn loss(&self) -> Tensor {
        self.logits().sqr().unwrap().mean_all().unwrap()
    }

    fn bits(&self, layer: &str) -> Vec<u32> {
        let list = self.params.list();
        let of_layer = list.iter().filter(|param| param.name().starts_with(layer));
        let values = |var: &Var| var.flatten_all().unwrap().to_vec1::<f32>().unwrap();
        of_layer.flat_map(|param| values(param.var())).map(f32::to_bits).collect()
    }

    fn freeze(&self, layer: &str) {
        assert_eq!(self.params.freeze(|name| name.starts_with(layer)), 2);
    }

    fn unfreeze(&self) {
        self.params.list().iter().for_each(Param::unfreeze);
    }
}

impl Model for Net {
    fn forward(&self, xs: &Tensor) -> candelabrum::candle::Result<Tensor> {
        self.head.forward(&self.body.forward(xs)?)
    }
}

fn served(
    kind: &str,
    world: &World,
    params: &Params,
    optimizer: impl Into<candelabrum::optim::Recipe>,
) -> DistOpt {
    let store = KvStore::create(kind, world).unwrap();
    DistOpt::with_servers(optimizer, params, store.servers(), DistOptConfig::default()).unwrap()
}

/// What `work` makes of the steps of two ranks, with servers and without.
fn with_both(work: impl Fn(&World, &Net, &mut dyn FnMut(&Tensor) -> Result<(), String>) + Sync) {
    on_ranks(2, 0, |world| {
        let net = Net::new();
        let mut opt = DistOpt::new(AdamW::new(0.1), &net.params, world).unwrap();
        work(world, &net, &mut |loss| opt.backward_and_update(loss).map_err(|e| e.to_string()));
    });
    on_ranks(2, 1, |world| {
        let net = Net::new();
        let mut opt = served("dist_sync", world, &net.params, AdamW::new(0.1));
        work(world, &net, &mut |loss| opt.backward_and_update(loss).map_err(|e| e.to_string()));
    });
}

#[track_caller]
fn refused(result: Result<(), String>, parts: &[&str]) {
    let error = result.unwrap_err();
    parts.iter().for_each(|part| assert!(error.contains(part), "`{part}` is missing: {error}"));
}

#[test]
fn a_parameter_frozen_between_steps_is_not_touched_and_may_go_on() {
    with_both(|_, net, step| {
        step(&net.loss()).unwrap();
        net.freeze("body");
        let (body, head) = (net.bits("body"), net.bits("head"));
        for _ in 0..3 {
            step(&net.loss()).unwrap();
        }
        // AdamW has moments of the first step, and a decay of weights.
        assert_eq!(net.bits("body"), body);
        assert_ne!(net.bits("head"), head);
        net.unfreeze();
        step(&net.loss()).unwrap();
        assert_ne!(net.bits("body"), body);
    });
}

#[test]
fn a_parameter_frozen_at_the_first_step_cannot_be_trained_later() {
    with_both(|_, net, step| {
        net.freeze("body");
        step(&net.loss()).unwrap();
        net.unfreeze();
        refused(step(&net.loss()), &["body.weight, body.bias was frozen", "make a new optimizer"]);
        net.freeze("body");
    });
}

#[test]
fn ranks_that_freeze_different_parameters_are_told() {
    with_both(|world, net, step| {
        step(&net.loss()).unwrap();
        net.freeze(if world.rank() == 0 { "body" } else { "head" });
        refused(step(&net.loss()), &["the frozen parameters", "body.weight", "head.weight"]);
    });
}

#[test]
fn a_loss_whose_weight_got_lost_is_refused() {
    with_both(|_, net, step| {
        let labels = Tensor::new(&[1_i64, -100], &Device::Cpu).unwrap();
        let loss = || SoftMaxCrossEntropy::new().ignore_index(-100).forward(&net.logits(), &labels);
        step(&loss().unwrap()).unwrap();
        let halved = (loss().unwrap() / 2.0).unwrap();
        assert!(LossWeight::from_loss(&halved).is_none());
        refused(step(&halved), &["weight of the loss is not known", "weighted(&loss, rows)"]);
    });
}

#[test]
fn a_loss_that_is_refused_leaves_no_trace_in_running_statistics() {
    on_ranks(1, 1, |world| {
        let params = Params::new(0);
        let norm = BatchNorm2d::new(&params.root().pp("norm"));
        let loss = |factor: f64| {
            let xs = (Tensor::arange(0f32, 8.0, &Device::Cpu).unwrap() * factor).unwrap();
            let ys = norm.forward(&xs.reshape((2, 1, 2, 2)).unwrap()).unwrap();
            ys.sqr().unwrap().mean_all().unwrap()
        };
        loss(0.5);
        let mut opt = served("dist_sync", world, &params, Sgd::new(0.1));
        let mut step = |loss: &Tensor| {
            let step = opt.backward_and_update_with(loss, DistOption::Fp32, 0.0);
            step.map_err(|error| error.to_string())
        };
        let mean = || params.buffers()[0].value().to_vec1::<f32>().unwrap();
        step(&loss(1.0)).unwrap();
        let before = mean();
        refused(step(&loss(f64::NAN)), &["the loss is not finite"]);
        assert_eq!(mean(), before);
        step(&loss(1.0)).unwrap();
        assert!(mean().iter().all(|mean| mean.is_finite()));
    });
}

#[test]
fn a_weight_that_was_begun_must_be_that_of_the_losses() {
    on_ranks(2, 0, |world| {
        let net = Net::new();
        let mut opt = DistOpt::new(Sgd::new(0.1), &net.params, world).unwrap();
        opt.begin_step(3.0);
        let step = opt.backward_and_update(&weighted(&net.loss(), 2.0).unwrap());
        refused(step.map_err(|error| error.to_string()), &["weigh 2", "weight 3 was begun"]);
    });
}

#[test]
fn a_run_whose_rate_is_set_by_servers_and_by_a_hook_is_refused_at_its_start() {
    on_ranks(2, 1, |world| {
        let net = Net::new();
        let (params, before) = (net.params.clone(), net.bits(""));
        let opt = served("dist_async", world, &params, Sgd::new(0.1));
        let xs = Tensor::ones((8, 2), DType::F32, &Device::Cpu).unwrap();
        let ys = Tensor::zeros(8, DType::U32, &Device::Cpu).unwrap();
        let data = TensorDataset::pair(xs, ys).unwrap();
        let fit = Fit::new(FitConfig { batch_size: 2, ..FitConfig::default() })
            .hook(ReduceOnPlateau::new(Monitor::loss()));
        let mut trainer = Trainer::new(net, opt);
        let end = trainer.fit_with(fit, &data, Some(&data)).map_err(|error| error.to_string());
        refused(end.map(drop), &["servers of a key-value store", "schedule"]);
        let values = |param: &Param| param.var().flatten_all().unwrap().to_vec1::<f32>().unwrap();
        let after: Vec<u32> = params.list().iter().flat_map(values).map(f32::to_bits).collect();
        assert_eq!(after, before);
    });
}
