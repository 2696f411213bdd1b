//! The training loop around a model: metrics, progress, reports.
