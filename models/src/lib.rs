//! Ready models, each a small file.
