//! Stochastic gradient descent with momentum, as PyTorch's `torch.optim.SGD`:
//!
//! ```text
//! g = grad + weight_decay · p
//! v = g                              at the first step
//! v = momentum · v + (1 - dampening) · g     after that
//! p = p - lr · v                     (Nesterov: p - lr · (g + momentum · v))
//! ```
//!
//! Momentum after Sutskever et al., ICML 2013. SINGA starts v at zero, so its dampening also
//! shrinks the first step; ours is PyTorch's.

use crate::{Error, Optimizer, Result};

/// SGD with momentum, dampening, Nesterov's variant and L2 weight decay.
#[derive(Clone, Debug)]
pub struct Sgd {
    lr: f32,
    momentum: f32,
    dampening: f32,
    nesterov: bool,
    weight_decay: f32,
    /// One velocity per bound parameter; stays empty without momentum.
    velocity: Vec<Velocity>,
    sizes: Vec<usize>,
}

#[derive(Clone, Debug)]
struct Velocity {
    values: Vec<f32>,
    /// Before the first update `values` means nothing.
    started: bool,
}

impl Sgd {
    /// Plain descent with learning rate `lr`.
    pub fn new(lr: f32) -> Self {
        Self {
            lr,
            momentum: 0.0,
            dampening: 0.0,
            nesterov: false,
            weight_decay: 0.0,
            velocity: Vec::new(),
            sizes: Vec::new(),
        }
    }

    /// Keeps this share of the velocity at each step.
    #[must_use]
    pub fn momentum(mut self, momentum: f32) -> Self {
        self.momentum = momentum;
        self
    }

    /// Takes this share off each new gradient in the velocity.
    #[must_use]
    pub fn dampening(mut self, dampening: f32) -> Self {
        self.dampening = dampening;
        self
    }

    /// Looks ahead along the velocity; needs momentum and no dampening.
    #[must_use]
    pub fn nesterov(mut self) -> Self {
        self.nesterov = true;
        self
    }

    /// Adds this multiple of the parameter to its gradient.
    #[must_use]
    pub fn weight_decay(mut self, weight_decay: f32) -> Self {
        self.weight_decay = weight_decay;
        self
    }

    fn check(&self) -> Result<()> {
        let at_least_zero = "a number of at least 0";
        let settings = [
            ("lr", self.lr, self.lr >= 0.0, at_least_zero),
            ("momentum", self.momentum, self.momentum >= 0.0, at_least_zero),
            ("weight_decay", self.weight_decay, self.weight_decay >= 0.0, at_least_zero),
            ("dampening", self.dampening, true, "a number"),
            (
                "momentum",
                self.momentum,
                !self.nesterov || self.momentum > 0.0,
                "above 0 for Nesterov",
            ),
            (
                "dampening",
                self.dampening,
                !self.nesterov || self.dampening == 0.0,
                "0 for Nesterov",
            ),
        ];
        for (setting, value, good, range) in settings {
            if !good || !value.is_finite() {
                let value = f64::from(value);
                return Err(Error::Setting { optimizer: "Sgd", setting, value, range });
            }
        }
        Ok(())
    }
}

impl Optimizer for Sgd {
    fn describe(&self) -> String {
        format!(
            "Sgd lr={} momentum={} dampening={} nesterov={} weight_decay={}",
            self.lr, self.momentum, self.dampening, self.nesterov, self.weight_decay
        )
    }

    fn bind(&mut self, sizes: &[usize]) -> Result<()> {
        self.check()?;
        self.sizes = sizes.to_vec();
        if self.momentum != 0.0 {
            let velocity = |&size: &usize| Velocity { values: vec![0.0; size], started: false };
            self.velocity = sizes.iter().map(velocity).collect();
        }
        Ok(())
    }

    fn update(&mut self, index: usize, value: &mut [f32], grad: &[f32]) -> Result<()> {
        let bound = self.sizes.len();
        let &expected = self.sizes.get(index).ok_or(Error::Unbound { index, bound })?;
        if value.len() != expected || grad.len() != expected {
            let (value, grad) = (value.len(), grad.len());
            return Err(Error::Length { index, expected, value, grad });
        }
        let (lr, decay) = (self.lr, self.weight_decay);
        let Some(velocity) = self.velocity.get_mut(index) else {
            for (p, &g) in value.iter_mut().zip(grad) {
                *p -= lr * (g + decay * *p);
            }
            return Ok(());
        };
        // The first velocity is the gradient itself, without dampening.
        let (keep, take) =
            if velocity.started { (self.momentum, 1.0 - self.dampening) } else { (0.0, 1.0) };
        velocity.started = true;
        let elements = value.iter_mut().zip(&mut velocity.values).zip(grad);
        if self.nesterov {
            let momentum = self.momentum;
            for ((p, v), &g) in elements {
                let g = g + decay * *p;
                *v = keep * *v + take * g;
                *p -= lr * (g + momentum * *v);
            }
        } else {
            for ((p, v), &g) in elements {
                let g = g + decay * *p;
                *v = keep * *v + take * g;
                *p -= lr * *v;
            }
        }
        Ok(())
    }

    fn state_mut(&mut self) -> Vec<&mut [f32]> {
        self.velocity.iter_mut().map(|velocity| velocity.values.as_mut_slice()).collect()
    }

    fn step(&mut self) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_out_of_range_are_named() {
        let cases = [
            (Sgd::new(-1.0), "lr"),
            (Sgd::new(f32::NAN), "lr"),
            (Sgd::new(0.1).momentum(-0.5), "momentum"),
            (Sgd::new(0.1).weight_decay(f32::INFINITY), "weight_decay"),
            (Sgd::new(0.1).nesterov(), "momentum"),
            (Sgd::new(0.1).momentum(0.9).dampening(0.1).nesterov(), "dampening"),
        ];
        for (mut sgd, setting) in cases {
            let message = sgd.bind(&[1]).unwrap_err().to_string();
            assert!(message.contains(setting), "{message}");
        }
    }

    #[test]
    fn a_call_that_does_not_fit_is_an_error() {
        let mut sgd = Sgd::new(0.1);
        sgd.bind(&[2]).unwrap();
        assert_eq!(sgd.update(1, &mut [0.0], &[0.0]), Err(Error::Unbound { index: 1, bound: 1 }));
        assert!(sgd.update(0, &mut [0.0], &[0.0, 1.0]).is_err());
    }

    #[test]
    fn two_steps_by_hand() {
        let mut sgd = Sgd::new(0.5).momentum(0.5).weight_decay(1.0);
        sgd.bind(&[1]).unwrap();
        let mut p = [1.0];
        sgd.update(0, &mut p, &[1.0]).unwrap(); // g = 2, v = 2, p = 1 - 1 = 0
        assert_eq!(p, [0.0]);
        sgd.update(0, &mut p, &[1.0]).unwrap(); // g = 1, v = 2, p = 0 - 1 = -1
        assert_eq!(p, [-1.0]);
    }
}
