//! When work is worth another thread.

/// Below some 10 microseconds of work, waking another thread costs more than it saves. `elements`
/// are those that the operation reads or writes, a few operations each.
pub(super) fn worth_threads(elements: usize) -> bool {
    elements > 1 << 15 && rayon::current_num_threads() > 1
}
