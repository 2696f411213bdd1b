// SOFTGPU_STRICT: addresses that a library's kernels may read and write with wide instructions.
#pragma once
#include "streams.h"

// Whether the address is no multiple of so many bytes. Then it says so, and the context has the
// error of a misaligned address from now on, as after the kernel of a GPU.
bool misaligned(Stream *s, const char *call, const char *operand, const void *p, size_t multiple);
