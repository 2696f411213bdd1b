//! Layers, parameters and fused operations for candle models.
