// SOFTGPU_SHARED: the processes that share a device take turns, as on a GPU without MPS. Kernels of
// two processes never run at the same time.
#pragma once
#include "common.h"

// While it exists, the device runs work of this process. Threads of one process do not wait for
// each other.
class Turn {
    int device;

public:
    explicit Turn(int device);
    ~Turn();
    Turn(const Turn &) = delete;
    // Lets other processes have the device while this one has nothing to do. Returns at once
    // without SOFTGPU_SHARED.
    void give_way();
};
