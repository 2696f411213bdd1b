//! Dataset readers, partitioning, samplers and batch loading.
