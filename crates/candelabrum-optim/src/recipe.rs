//! Recipes: the settings of an optimizer as data, to be sent to another process or kept in a file.

use serde::{Deserialize, Serialize};

use crate::{
    AdaGradRule, AdafactorRule, AdamRule, AdamW8bitRule, LambRule, LarsRule, MuonRule, Optimizer,
    ParamGroup, ParamInfo, Result, RmsPropRule, RuleOptimizer, Schedule, SgdRule, UpdateRule,
};

/// The settings of one of this crate's optimizers, without its state. Each optimizer can be turned
/// into its recipe. The recipe has the settings of the groups and the schedules, too.
///
/// ```
/// use candelabrum_optim::{Optimizer, Recipe, Sgd};
///
/// let sgd = Sgd::new(0.1).momentum(0.9);
/// let described = sgd.describe();
/// let recipe = Recipe::from(sgd);
/// assert_eq!(recipe.build().describe(), described);
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Recipe {
    /// Of [`Sgd`](crate::Sgd).
    Sgd(RecipeSettings<SgdRule>),
    /// Of [`Adam`](crate::Adam).
    Adam(RecipeSettings<AdamRule<false>>),
    /// Of [`AdamW`](crate::AdamW).
    AdamW(RecipeSettings<AdamRule<true>>),
    /// Of [`RmsProp`](crate::RmsProp).
    RmsProp(RecipeSettings<RmsPropRule>),
    /// Of [`AdaGrad`](crate::AdaGrad).
    AdaGrad(RecipeSettings<AdaGradRule>),
    /// Of [`Lamb`](crate::Lamb).
    Lamb(RecipeSettings<LambRule>),
    /// Of [`Lars`](crate::Lars).
    Lars(RecipeSettings<LarsRule>),
    /// Of [`Muon`](crate::Muon).
    Muon(RecipeSettings<MuonRule>),
    /// Of [`Adafactor`](crate::Adafactor).
    Adafactor(RecipeSettings<AdafactorRule>),
    /// Of [`AdamW8bit`](crate::AdamW8bit).
    AdamW8bit(RecipeSettings<AdamW8bitRule>),
}

/// The settings of the optimizer of a rule.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RecipeSettings<R> {
    rule: R,
    lr: Schedule,
    weight_decay: f64,
    groups: Vec<ParamGroup>,
    #[serde(default)]
    bf16_state: bool,
}

/// Calls `$body` with the settings of whatever optimizer the recipe is of.
macro_rules! with_settings {
    ($recipe:expr, $settings:ident => $body:expr) => {
        match $recipe {
            Recipe::Sgd($settings) => $body,
            Recipe::Adam($settings) => $body,
            Recipe::AdamW($settings) => $body,
            Recipe::RmsProp($settings) => $body,
            Recipe::AdaGrad($settings) => $body,
            Recipe::Lamb($settings) => $body,
            Recipe::Lars($settings) => $body,
            Recipe::Muon($settings) => $body,
            Recipe::Adafactor($settings) => $body,
            Recipe::AdamW8bit($settings) => $body,
        }
    };
}

impl Recipe {
    /// An optimizer with these settings, without parameters.
    pub fn build(&self) -> Box<dyn Optimizer> {
        with_settings!(self, settings => Box::new(settings.clone().optimizer()))
    }

    /// Whether the optimizer can update a part of a parameter
    /// ([`Optimizer::is_elementwise`]).
    pub fn is_elementwise(&self) -> bool {
        with_settings!(self, settings => settings.rule.is_elementwise() && !settings.bf16_state)
    }

    /// The same with the state in bf16 ([`RuleOptimizer::bf16_state`]).
    #[must_use]
    pub fn with_bf16_state(mut self) -> Self {
        with_settings!(&mut self, settings => settings.bf16_state = true);
        self
    }

    /// Refuses meaningless settings, and groups that select none of `params`, if there are any
    /// parameters. Allocates no state.
    ///
    /// # Errors
    /// [`Error::Setting`](crate::Error::Setting) and
    /// [`Error::NothingMatches`](crate::Error::NothingMatches).
    pub fn check(&self, params: &[ParamInfo<'_>]) -> Result<()> {
        self.build().bind(&[])?;
        with_settings!(self, settings => settings.check_groups(params))
    }

    /// The recipe for one parameter alone: without the groups that do not select it.
    #[must_use]
    pub fn for_parameter(&self, param: &ParamInfo<'_>) -> Self {
        let mut own = self.clone();
        with_settings!(&mut own, settings => settings.groups.retain(|group| group.selects(param)));
        own
    }
}

impl<R: UpdateRule> RecipeSettings<R> {
    fn optimizer(self) -> RuleOptimizer<R> {
        let mut optimizer = RuleOptimizer::with_rule(self.rule, self.lr, self.weight_decay);
        optimizer.groups = self.groups;
        optimizer.bf16_state = self.bf16_state;
        optimizer
    }

    fn check_groups(&self, params: &[ParamInfo<'_>]) -> Result<()> {
        if params.is_empty() {
            return Ok(());
        }
        self.groups.iter().try_for_each(|group| group.check_selects(R::NAME, params))
    }
}

impl<R> From<RuleOptimizer<R>> for RecipeSettings<R> {
    fn from(optimizer: RuleOptimizer<R>) -> Self {
        let RuleOptimizer { rule, lr, weight_decay, groups, bf16_state, .. } = optimizer;
        Self { rule, lr, weight_decay, groups, bf16_state }
    }
}

macro_rules! recipe_of {
    ($($variant:ident($rule:ty)),+) => {
        $(impl From<RuleOptimizer<$rule>> for Recipe {
            fn from(optimizer: RuleOptimizer<$rule>) -> Self {
                Self::$variant(optimizer.into())
            }
        })+
    };
}

recipe_of!(
    Sgd(SgdRule),
    Adam(AdamRule<false>),
    AdamW(AdamRule<true>),
    RmsProp(RmsPropRule),
    AdaGrad(AdaGradRule),
    Lamb(LambRule),
    Lars(LarsRule),
    Muon(MuonRule),
    Adafactor(AdafactorRule),
    AdamW8bit(AdamW8bitRule)
);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        AdaGrad, Adafactor, Adam, AdamW, AdamW8bit, Error, Lamb, Lars, Muon, OneCycle, RmsProp, Sgd,
    };

    fn all() -> Vec<(Recipe, String)> {
        fn with<R: UpdateRule>(optimizer: RuleOptimizer<R>) -> (Recipe, String)
        where
            Recipe: From<RuleOptimizer<R>>,
        {
            let described = optimizer.describe();
            (optimizer.into(), described)
        }
        // 0.1 + 0.2 has no short decimal, and must survive nevertheless.
        let odd = 0.1 + 0.2;
        let schedule = Schedule::Cosine { lr: odd, steps: 900, min: 1e-7 }.warm_up(100, 0.1);
        let group = ParamGroup::matching("*.bias").lr(OneCycle::new(odd, 7)).weight_decay(0.0);
        vec![
            with(Sgd::new(schedule).momentum(odd).nesterov().group(group)),
            with(Adam::new(odd).betas(0.8, odd).amsgrad()),
            with(AdamW::new(Schedule::Constant(1e-3).then(5, odd)).eps(odd)),
            with(RmsProp::new(odd).group(ParamGroup::below_dims(2).lr_scale(odd))),
            with(AdaGrad::new(odd).lr_decay(odd)),
            with(Lamb::new(odd).group(ParamGroup::below_dims(2).trust_ratio(false))),
            with(Lars::new(odd)),
            with(Adafactor::new(odd).beta2_decay(-odd).eps(odd, 1e-3)),
            with(Adam::new(odd).bf16_state()),
            with(AdamW8bit::new(odd).betas(0.8, odd).min_8bit_size(0)),
            with(Muon::new(odd).momentum(odd).group(ParamGroup::matching("w").muon(false))),
        ]
    }

    #[test]
    fn a_recipe_arrives_as_it_was_sent() {
        for (recipe, described) in all() {
            let text = serde_json::to_string(&recipe).unwrap();
            let arrived: Recipe = serde_json::from_str(&text).unwrap();
            assert_eq!(arrived, recipe);
            assert_eq!(arrived.build().describe(), described);
        }
    }

    #[test]
    fn only_the_groups_of_a_parameter_stay_with_it() {
        let recipe = Recipe::from(
            Sgd::new(0.1)
                .group(ParamGroup::matching("*.bias").lr_scale(2.0))
                .group(ParamGroup::below_dims(2).weight_decay(0.0)),
        );
        let (weight, bias) =
            (ParamInfo::on_host("a.weight", &[2, 2]), ParamInfo::on_host("a.bias", &[2]));
        let groups = |info| recipe.for_parameter(info).build().describe().matches("group").count();
        assert_eq!((groups(&weight), groups(&bias)), (0, 2));
        recipe.check(&[weight.clone(), bias]).unwrap();
        let message = recipe.check(&[weight]).unwrap_err().to_string();
        assert!(message.contains("*.bias"), "{message}");
        assert!(recipe.check(&[]).is_ok());
        assert!(Recipe::from(Sgd::new(f64::NAN)).check(&[]).is_err());
    }

    #[test]
    fn parts_of_a_parameter_are_updated_as_the_whole_is() {
        let info = ParamInfo::on_host("w", &[6]);
        for (recipe, _) in all() {
            let (mut whole, mut parts) =
                (recipe.for_parameter(&info).build(), recipe.for_parameter(&info).build());
            whole.bind(std::slice::from_ref(&info)).unwrap();
            parts.bind(std::slice::from_ref(&info)).unwrap();
            let mut expected = [1.0, -2.0, 3.0, 0.5, -0.25, 0.0];
            let mut got = expected;
            for step in 0..3 {
                let grad = [0.1, 0.2, -0.3, 1.0, -1.0, 0.0].map(|g: f32| g + step as f32);
                whole.update(0, (&mut expected).into(), (&grad).into()).unwrap();
                for range in [4..6, 0..1, 1..4] {
                    let part =
                        parts.update_range(0, range.clone(), &mut got[range.clone()], &grad[range]);
                    match recipe.is_elementwise() {
                        true => part.unwrap(),
                        false => assert!(matches!(part, Err(Error::Whole { .. }))),
                    }
                }
                whole.step();
                parts.step();
            }
            if recipe.is_elementwise() {
                assert_eq!(got, expected, "{recipe:?}");
            }
        }
    }
}
