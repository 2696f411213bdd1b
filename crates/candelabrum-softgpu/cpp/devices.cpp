// The calls about devices and their contexts.
#include "counts.h"
#include "fault.h"
#include "memory.h"
#include "streams.h"

static std::atomic<bool> initialised;

API int cuInit(unsigned) {
    if (device_count() < 1) return NO_DEVICE;
    if (!initialised.exchange(true)) catch_faults();
    return OK;
}
API int cuDriverGetVersion(int *v) {
    *v = 13000;
    return OK;
}
API int cuDeviceGetCount(int *n) {
    if (!initialised) return NOT_INIT;
    *n = device_count();
    return OK;
}
API int cuDeviceGet(int *d, int i) {
    if (!initialised) return NOT_INIT;
    if (i < 0 || i >= device_count()) return BAD_DEVICE;
    *d = i;
    return OK;
}
API int cuDeviceGetName(char *name, int n, int) {
    snprintf(name, n, "softgpu");
    return OK;
}
API int cuDeviceTotalMem_v2(size_t *n, int) {
    *n = device_memory();
    return OK;
}

// CU_DEVICE_ATTRIBUTE_*, with the limits of compute capability 9.0.
static int attribute(int what) {
    switch (what) {
    case 1: return 1024; // threads of a block
    case 2:
    case 3: return 1024;       // block x, y
    case 4: return 64;         // block z
    case 5: return 0x7fffffff; // grid x
    case 6:
    case 7: return 65535; // grid y, z
    case 8: return 49152; // shared memory of a block
    case 10: return 32;   // threads of a warp
    case 16: return 4;    // multiprocessors
    case 39: return 2048; // threads of a multiprocessor
    case 75: return 9;    // compute capability
    case 76: return 0;
    case 81: return 233472; // shared memory of a multiprocessor
    case 97: return 232448; // shared memory of a block that asks for more
    case 31:
    case 40:
    case 41:
    case 83:
    case 95:
    case 115: return 1; // concurrent kernels, copies, one address space, managed memory, pools
    }
    return 0;
}
API int cuDeviceGetAttribute(int *v, int what, int) {
    *v = attribute(what);
    return OK;
}
API int cuDevicePrimaryCtxRetain(void **c, int d) {
    if (d < 0 || d >= device_count()) return BAD_DEVICE;
    *c = context_of(d);
    return OK;
}
API int cuDevicePrimaryCtxRelease_v2(int) { return OK; }
API int cuCtxSetCurrent(void *c) {
    set_current((Context *)c);
    return OK;
}
API int cuCtxGetCurrent(void **c) {
    *c = current();
    return OK;
}
API int cuCtxSetFlags(unsigned) { return OK; }
API int cuCtxSynchronize() {
    Context *c = current();
    if (!c) return BAD_CONTEXT;
    count_call(Call::WAIT);
    std::vector<MarkP> marks;
    for (auto *s : streams_of(c)) marks.push_back(s->mark());
    for (auto &mark : marks) mark->wait();
    return c->error;
}
