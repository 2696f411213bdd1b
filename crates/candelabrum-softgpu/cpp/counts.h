// SOFTGPU_COUNTS: how many calls of each kind a process has made so far.
#pragma once

enum class Call {
    KERNEL,       // launches of kernels that NVRTC compiled
    OTHER_KERNEL, // launches of other kernels: candle's
    BLAS,         // products of cuBLAS and cuBLASLt
    DNN,          // convolutions of cuDNN
    ALLOCATION,
    FREE,
    FILL,
    TO_DEVICE, // copies
    FROM_DEVICE,
    ON_DEVICE,
    WAIT, // of the host: for a stream, an event, the device, or inside of a copy
    GRAPH,
    KINDS
};
// Adds one. A call in a capture counts, and the operations of a graph that is launched do not.
void count_call(Call call);
