//! Distributed data-parallel training for candle models.
