// Modules are shared objects that bin/nvcc made; functions are their kernels.
#pragma once
#include "common.h"

const unsigned MOST_THREADS = 1024;     // of a block
const unsigned SHARED = 48 << 10;       // of a block, in bytes
const unsigned MOST_SHARED = 227 << 10; // of a block that asked for more

// The beginning of a "cubin". The "PTX" follows.
const char CUBIN[] = "\x7f"
                     "ELF of softgpu\n";

struct Function {
    const softgpu_kernel_t *kernel;
    std::string name;
    uintptr_t base; // the address of its module
    bool is_own;    // whether NVRTC compiled it
    size_t most_shared = SHARED;
};
