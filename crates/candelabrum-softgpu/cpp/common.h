// What every file of the software GPU uses: settings, messages, random numbers.
#pragma once
#include "softgpu.h"
#include <string>
// The host's code has no use for the kernels' assert.
#undef assert
#define API extern "C" __attribute__((visibility("default")))

typedef uint64_t devptr;

// The variable's number, or `otherwise` if it is not set.
long env(const char *name, long otherwise);
// SOFTGPU_TRACE: whether calls are printed.
bool trace();
// Whether what is documented nowhere is an error.
bool strict();
// Prints one line "softgpu: ..." on stderr.
void say(const char *format, ...) __attribute__((format(printf, 1, 2)));
#define TRACE(...) (trace() ? say(__VA_ARGS__) : (void)0)
// The folder above bin/nvcc.
std::string home();

uint64_t mix(uint64_t x);
// The random numbers of one user, for instance of one stream. With SOFTGPU_SEED they depend on
// that seed, on the rank of the process and on `who` only, so that a run can be repeated.
class Random {
    uint64_t state;

public:
    explicit Random(uint64_t who);
    uint64_t next();
    uint64_t below(uint64_t limit) { return next() % limit; }
};
