//! What a model has from its files and nothing trains: the frozen weights below an adapter, for instance.
//!
//! Ranks do not send these values to each other, and checkpoints do not contain them. A digest shows that all ranks, and
//! a run that continues, have read the same files.

use candelabrum_nn::{Param, Params};
use candle_core::DType;
use sha2::{Digest, Sha256};

use crate::Result;
use crate::consistency::hexadecimal;

/// The digest of a model's constants, which is computed once.
#[derive(Debug, Default)]
pub struct Constants {
    /// The constant parameters and matrices, and the digest.
    known: Option<(Vec<String>, Option<String>)>,
}

impl Constants {
    /// The SHA-256, in hexadecimal, of the parameters that are [constant](Param::is_constant) and of the quantised
    /// matrices. `None` if there is nothing of this kind. Computed again if others are constant.
    ///
    /// # Errors
    /// Values that cannot be read.
    pub fn sha256(&mut self, params: &Params) -> Result<Option<String>> {
        let constants = params.list().into_iter().filter(Param::is_constant);
        let matrices = params.constants().into_iter().map(|(name, _)| name);
        let names = constants.map(|param| param.name().to_owned()).chain(matrices);
        let names: Vec<String> = names.collect();
        if let Some((known, digest)) = &self.known
            && *known == names
        {
            return Ok(digest.clone());
        }
        let digest = sha256(params)?;
        self.known = Some((names, digest.clone()));
        Ok(digest)
    }
}

fn sha256(params: &Params) -> Result<Option<String>> {
    let (list, matrices) = (params.list(), params.constants());
    let constants: Vec<&Param> = list.iter().filter(|param| param.is_constant()).collect();
    if constants.is_empty() && matrices.is_empty() {
        return Ok(None);
    }
    let mut hasher = Sha256::new();
    for param in constants {
        // Not the master of a parameter in 16 bits, which would be made for this.
        let values = param.var().as_detached_tensor().flatten_all()?.to_dtype(DType::F32)?;
        hasher.update(param.name().as_bytes());
        hasher.update([0]);
        hasher.update(bytemuck::cast_slice::<f32, u8>(&values.to_vec1()?));
    }
    for (name, matrix) in matrices {
        hasher.update(name.as_bytes());
        hasher.update([0]);
        hasher.update(matrix.data()?);
    }
    Ok(Some(hexadecimal(&hasher.finalize())))
}
