// Included before every .cu file: CUDA C++ as C++ for the host.
//
// A thread of a block is a fiber, which is left only at barriers and shuffles. A kernel without
// barriers is therefore a plain loop over its threads.
#pragma once
#include <algorithm>
#include <cassert>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <math.h>
#include <stdint.h>
#include <type_traits>

#define __CUDACC__ 1
#ifndef __CUDA_ARCH__
#define __CUDA_ARCH__ 900
#endif
#define CUDA_VERSION 13000
#define CUDART_VERSION 13000
#define __CUDACC_VER_MAJOR__ 13
#define __CUDACC_VER_MINOR__ 0

// bin/nvcc finds kernels by this attribute, and their launch bounds by the other one. g++ ignores
// the second.
#define __global__ __attribute__((used, visibility("default")))
#define __launch_bounds__(...) __attribute__((softgpu_launch_bounds(__VA_ARGS__)))
#define __device__
#define __host__
// libcuda finds constants by their names.
#define __constant__ __attribute__((used, visibility("default")))
#define __managed__
// A stream is a thread and runs one block at a time, so a thread's own variable is a block's.
#define __shared__ static thread_local
#define __forceinline__ inline __attribute__((always_inline))
#define __grid_constant__
#define __align__(n) __attribute__((aligned(n)))
#define __restrict__ __restrict

#include "softgpu/vectors.h"

#include "softgpu/thread.h"

#include "softgpu/arithmetic.h"
#include "softgpu/atomics.h"
#include "softgpu/half.h"

#include "softgpu/fp8.h"

#include "softgpu/kernel.h"

namespace cuda {
namespace std {
using ::std::numeric_limits;
}
} // namespace cuda
#define CUDART_INF_F __builtin_inff()
#define CUDART_INF __builtin_inf()
