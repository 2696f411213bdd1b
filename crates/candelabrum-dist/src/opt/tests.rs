//! Tests of cases that no backend produces on demand: buckets that arrive late, and a bad bucket.

use std::path::Path;
use std::sync::Arc;

use candelabrum_nn::{BackwardAndUpdate, DistOption, Init, Param, Params};
use candelabrum_optim::{Recipe, Sgd};
use candle_core::Tensor;

use super::{DistOpt, DistOptConfig, NewValues, Servers, UpdateServers};
use crate::comm::{BackendWork, CommStats, ElementType, Group, Single};
use crate::{Collective, Communicator, Error, Mesh, Payload, Pending, Result, parameters_sha256};

/// A world of one whose operations complete only when they are waited for.
#[derive(Debug, Default)]
struct Late(Single);

struct Waits(Option<Pending>);

impl BackendWork for Waits {
    fn is_complete(&mut self) -> bool {
        false
    }

    fn wait(mut self: Box<Self>) -> Result<Payload> {
        self.0.take().expect("it is waited for once").wait()
    }
}

impl Communicator for Late {
    fn backend(&self) -> &'static str {
        "late"
    }

    fn rank(&self) -> usize {
        0
    }

    fn world_size(&self) -> usize {
        1
    }

    fn alloc(&self, element: ElementType, len: usize) -> Result<Payload> {
        self.0.alloc(element, len)
    }

    fn start(&self, op: Collective, buffer: Payload) -> Pending {
        Pending::backend(Waits(Some(self.0.start(op, buffer))))
    }

    fn ranks(&self) -> &[usize] {
        &[0]
    }

    fn split(&self, colour: Option<u64>, key: i64) -> Result<Option<Group>> {
        self.0.split(colour, key)
    }

    fn hierarchical(&self, mesh: &Mesh) -> Result<Group> {
        self.0.hierarchical(mesh)
    }

    fn stats(&self) -> CommStats {
        self.0.stats()
    }

    fn abort(&self, _message: &str) {}
}

/// Two parameters, each in a bucket of its own; `second` leaves last.
fn two() -> Result<(Params, Param, Param, DistOpt)> {
    let params = Params::new(0);
    let second = params.root().param("second", 3, Init::Const(2.0))?;
    let first = params.root().param("first", 4, Init::Const(1.0))?;
    let group: Group = Arc::new(Late::default());
    let config = DistOptConfig { first_bucket_bytes: 1, bucket_bytes: 1, ..Default::default() };
    let opt = DistOpt::with_config(Sgd::new(0.1).momentum(0.9), &params, group, config)?;
    Ok((params, first, second, opt))
}

fn loss(first: &Param, second: &Param, slope: f64) -> Result<Tensor> {
    Ok(((first.tensor().sum_all()? * 3.0)? + (second.tensor().sum_all()? * slope)?)?)
}

/// Servers whose values never come.
#[derive(Debug)]
struct Silent(Group);

impl UpdateServers for Silent {
    fn workers(&self) -> &Group {
        &self.0
    }

    fn set_optimizer(&mut self, _: &Recipe) -> Result<()> {
        Ok(())
    }

    fn bind(&mut self, _: &[Param]) -> Result<()> {
        Ok(())
    }

    fn push(&mut self, param: usize, _: &[f32], _: (DistOption, f32)) -> Result<NewValues> {
        self.pull(param)
    }

    fn pull(&mut self, _: usize) -> Result<NewValues> {
        Ok(Box::new(|_| Err(Error::Protocol { what: "the servers are silent".to_owned() })))
    }

    fn barrier(&mut self) -> Result<()> {
        Ok(())
    }

    fn save(&mut self, _: &Path) -> Result<()> {
        Ok(())
    }

    fn load(&mut self, _: &Path) -> Result<()> {
        Ok(())
    }

    fn traffic(&self) -> CommStats {
        CommStats::default()
    }
}

#[test]
fn values_that_servers_never_send_are_an_error_of_each_access() -> Result<()> {
    for overlap_forward in [false, true] {
        let params = Params::new(0);
        let first = params.root().param("first", 4, Init::Const(1.0))?;
        let second = params.root().param("second", 3, Init::Const(2.0))?;
        let servers = Servers::AtOnce(Box::new(Silent(Arc::new(Single::default()))));
        let config = DistOptConfig { overlap_forward, ..Default::default() };
        let mut opt = DistOpt::with_servers(Sgd::new(0.1), &params, servers, config)?;
        let step = opt.backward_and_update(&loss(&first, &second, 1.0)?);
        assert_eq!(step.is_ok(), overlap_forward);
        let is_told = |result: Result<()>| {
            let error = result.expect_err("no values have come").to_string();
            assert!(error.contains("the servers are silent"), "{error}");
        };
        for param in [&first, &second, &first] {
            is_told(param.gather().map_err(Error::from));
        }
        is_told(parameters_sha256(&params).map(drop));
        is_told(opt.average_parameters());
        let next = opt.backward_and_update(&loss(&first, &second, 1.0)?);
        assert!(next.is_err());
    }
    Ok(())
}

#[test]
fn a_unit_is_updated_while_a_later_one_is_under_way() -> Result<()> {
    let (_, first, second, mut opt) = two()?;
    opt.backward_and_update_with(&loss(&first, &second, 1.0)?, DistOption::Fp32, 0.0)?;
    let figures = opt.figures(DistOption::Fp32);
    assert_eq!((figures.buckets, figures.early_updates), (2, 1));
    assert_eq!(first.tensor().to_vec1::<f32>()?, [0.7; 4]);
    assert_eq!(second.tensor().to_vec1::<f32>()?, [1.9; 3]);
    Ok(())
}

#[test]
fn a_bad_unit_undoes_the_updates_of_those_before_it() -> Result<()> {
    let (params, first, second, mut opt) = two()?;
    opt.backward_and_update_with(&loss(&first, &second, 1.0)?, DistOption::Fp32, 0.0)?;
    let state = |opt: &mut DistOpt| -> Vec<Vec<f32>> {
        let states = opt.optimizer.state_mut().unwrap();
        states.into_iter().map(|state| state.host().unwrap().to_vec()).collect()
    };
    let (before, momentum) = (parameters_sha256(&params)?, state(&mut opt));
    // The square root of 0 is finite, its slope is not.
    second.set(&Tensor::new(&[1.0_f32, -1.0, 0.0], &candle_core::Device::Cpu)?)?;
    let changed = parameters_sha256(&params)?;
    assert_ne!(changed, before);
    let bad = (second.tensor().sqr()?.sqrt()?.sum_all()? + first.tensor().sum_all()?)?;
    let error = opt.backward_and_update_with(&bad, DistOption::Fp32, 0.0).unwrap_err();
    assert!(matches!(error, Error::NotFinite { .. }), "{error}");
    assert!(error.to_string().contains("`second`"), "{error}");
    assert_eq!(parameters_sha256(&params)?, changed);
    assert_eq!(state(&mut opt), momentum);
    assert_eq!(opt.optimizer().steps(), 1);
    Ok(())
}
