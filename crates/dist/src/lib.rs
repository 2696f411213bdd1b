//! World, communicators and DistOpt: data-parallel training over ranks.
