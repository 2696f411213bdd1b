//! cudarc's own waits between streams, without which a wait that the backend forgets shows as wrong
//! numbers.

use candle_core::Device;

/// Numbers that are made from now on have no waits but the backend's, as in a program that captures
/// graphs.
pub(crate) fn disable(device: &Device) {
    if let Device::Cuda(device) = device {
        // SAFETY: candle works in one stream, and the backend orders its own stream with it. The
        // tests of this case check that it does.
        unsafe { device.disable_event_tracking() };
    }
}
