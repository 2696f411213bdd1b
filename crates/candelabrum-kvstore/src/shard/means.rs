//! What the update of a value needs besides the value: its key, the optimizer, the updater.

use candelabrum_optim::{Optimizer, ParamInfo};

use super::settings::OptimizerSettings;
use crate::{Key, Result};

/// MXNet's updater: gets the key, the received sum and the stored value, which it changes.
pub(crate) type Updater = Box<dyn FnMut(&Key, &[f32], &mut [f32]) + Send>;

/// What an update needs besides the value.
pub(super) struct UpdateInputs<'a> {
    pub(super) key: &'a Key,
    pub(super) dims: &'a [usize],
    pub(super) settings: Option<&'a OptimizerSettings>,
    pub(super) updater: Option<&'a mut Updater>,
}

impl UpdateInputs<'_> {
    /// The optimizer of a value of `len` elements, of which the whole has other dimensions.
    pub(super) fn optimizer(&self, len: usize) -> Result<Option<Box<dyn Optimizer>>> {
        let Some(settings) = self.settings else { return Ok(None) };
        let name = self.key.to_string();
        let whole = ParamInfo::on_host(&name, self.dims);
        let own = settings.recipe.for_parameter(&whole);
        let mut optimizer = own.build();
        let is_whole = whole.elements() == len;
        let own_dims = [len];
        let part = if is_whole { whole } else { ParamInfo::on_host(&name, &own_dims) };
        optimizer.bind(std::slice::from_ref(&part))?;
        Ok(Some(optimizer))
    }
}
