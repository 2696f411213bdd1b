// Copies and fills. Each checks that its device memory lies within one live allocation.
#include "counts.h"
#include "memory.h"
#include "streams.h"
#include <algorithm>

// Whether the range is device memory; otherwise says which call had another one.
static bool on_device(const char *call, devptr p, size_t n) {
    if (is_device(p, n)) return true;
    say("%s: %zu bytes at %#lx are not within an allocation", call, n, (unsigned long)p);
    return false;
}

API int cuMemcpyHtoDAsync_v2(devptr d, const void *h, size_t n, void *sh) {
    STREAM(sh);
    count_call(Call::TO_DEVICE);
    if (!n) return nothing(s, "a copy to the device");
    if (!on_device("a copy to the device", d, n)) return INVALID;
    if (is_pinned(h, n)) {
        enqueue(s, [=] { memcpy((void *)d, h, n); });
    } else {
        // Pageable memory may be used again as soon as the call returns.
        using Bytes = std::vector<char>;
        auto copy = std::make_shared<Bytes>((const char *)h, (const char *)h + n);
        enqueue(s, [=] { memcpy((void *)d, copy->data(), n); });
        if (s->capture) {
            s->capture->nodes.back().pageable = h;
            s->capture->nodes.back().to = d;
        }
    }
    return OK;
}
API int cuMemcpyDtoHAsync_v2(void *h, devptr d, size_t n, void *sh) {
    STREAM(sh);
    count_call(Call::FROM_DEVICE);
    if (!n) return nothing(s, "a copy from the device");
    if (!on_device("a copy from the device", d, n)) return INVALID;
    bool waits = !is_pinned(h, n);
    if (s->capture && waits) {
        // A GPU records the copy, too. The caller goes on with what was in its memory before, which is
        // long gone when the graph is launched, so the copy is left out there.
        enqueue(s, [] {});
        s->capture->nodes.back().source = d;
        s->capture->nodes.back().target = h;
        return OK;
    }
    enqueue(s, [=] { memcpy(h, (void *)d, n); });
    if (waits) {
        count_call(Call::WAIT);
        synchronize(s);
    }
    return s->ctx->error;
}
API int cuMemcpyDtoDAsync_v2(devptr d, devptr a, size_t n, void *sh) {
    STREAM(sh);
    count_call(Call::ON_DEVICE);
    if (!n) return nothing(s, "a copy on the device");
    const char *call = "a copy on the device";
    if (!on_device(call, d, n) || !on_device(call, a, n)) return INVALID;
    enqueue(s, [=] { memmove((void *)d, (void *)a, n); });
    if (s->capture) {
        s->capture->nodes.back().source = a;
        s->capture->nodes.back().to = d;
    }
    return OK;
}
API int cuMemcpyAsync(devptr d, devptr a, size_t n, void *sh) {
    bool from = is_device(a, n), to = is_device(d, n);
    if (from && to) return cuMemcpyDtoDAsync_v2(d, a, n, sh);
    if (to) return cuMemcpyHtoDAsync_v2(d, (void *)a, n, sh);
    if (from) return cuMemcpyDtoHAsync_v2((void *)d, a, n, sh);
    return INVALID;
}
API int cuMemcpyPeerAsync(devptr d, void *, devptr a, void *, size_t n, void *sh) {
    return cuMemcpyDtoDAsync_v2(d, a, n, sh);
}
API int cuMemsetD8Async(devptr d, unsigned char v, size_t n, void *sh) {
    STREAM(sh);
    count_call(Call::FILL);
    if (!n) return nothing(s, "a fill");
    if (!on_device("a fill", d, n)) return INVALID;
    enqueue(s, [=] { memset((void *)d, v, n); });
    return OK;
}

// The calls without a stream: on the legacy default stream, and complete when they return.
static int complete(int code) {
    if (code) return code;
    count_call(Call::WAIT);
    synchronize(stream_of(nullptr));
    return current()->error;
}
API int cuMemcpyHtoD_v2(devptr d, const void *h, size_t n) {
    return complete(cuMemcpyHtoDAsync_v2(d, h, n, nullptr));
}
API int cuMemcpyDtoH_v2(void *h, devptr d, size_t n) {
    int code = cuMemcpyDtoHAsync_v2(h, d, n, nullptr);
    return is_pinned(h, n) ? complete(code) : code; // the other one has waited already
}
API int cuMemcpyDtoD_v2(devptr d, devptr a, size_t n) {
    return complete(cuMemcpyDtoDAsync_v2(d, a, n, nullptr));
}
