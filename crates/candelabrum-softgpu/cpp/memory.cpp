// Allocations of device memory and of pinned host memory.
#include "memory.h"
#include "counts.h"
#include "streams.h"
#include <algorithm>
#include <utility>

// They outlive the end of main, because streams do.
static std::mutex &table = *new std::mutex;
static auto &device = *new std::map<devptr, size_t>;
static auto &pinned = *new std::map<devptr, size_t>;
static size_t used;
// The most of it since the pool's attribute was set to 0.
static size_t most_used;
// Memory that graphs allocate, and whether a launch has done so and nothing has freed it since. Its
// address stays the same, and it is in `device` as long as the graph exists.
static auto &of_graphs = *new std::map<devptr, bool>;

static bool within(const std::map<devptr, size_t> &in, devptr p, size_t n) {
    std::lock_guard<std::mutex> l(table);
    auto at = in.upper_bound(p);
    if (at == in.begin()) return false;
    --at;
    return p + n <= at->first + at->second;
}
bool is_device(devptr p, size_t n) { return within(device, p, n); }
bool is_pinned(const void *p, size_t n) { return within(pinned, (devptr)p, n); }

void adopt(devptr p, size_t n) {
    std::lock_guard<std::mutex> l(table);
    device[p] = n;
}

size_t device_memory() {
    static size_t n = (size_t)env("SOFTGPU_MEMORY_MB", 8192) << 20;
    return n;
}

// New memory in the table, or 0.
static devptr take(size_t n) {
    {
        std::lock_guard<std::mutex> l(table);
        if (n > device_memory() || used > device_memory() - n) return 0;
        used += n;
        most_used = std::max(most_used, used);
    }
    void *p = nullptr;
    if (guarding())
        p = guarded_take(n);
    else if (posix_memalign(&p, 256, n))
        p = nullptr;
    std::lock_guard<std::mutex> l(table);
    if (p)
        device[(devptr)p] = n;
    else
        used -= n;
    return (devptr)p;
}
// Takes the allocation out of the table and returns its size, or 0 if there is none.
static size_t forget(devptr p) {
    std::lock_guard<std::mutex> l(table);
    auto at = device.find(p);
    if (at == device.end()) return 0;
    size_t n = at->second;
    device.erase(at);
    used -= n;
    return n;
}
static void release(devptr p, size_t n) {
    memset((void *)p, FREED, n);
    if (guarding())
        guarded_release((void *)p, n);
    else
        free((void *)p);
}

// The size of an allocation of a graph, or 0.
static size_t graph_memory(devptr p) {
    std::lock_guard<std::mutex> l(table);
    return of_graphs.count(p) ? device[p] : 0;
}
// Returns false if it was so already.
static bool set_allocated(devptr p, bool allocated) {
    std::lock_guard<std::mutex> l(table);
    return std::exchange(of_graphs[p], allocated) != allocated;
}
bool launch_memory(const Graph &g) {
    for (devptr p : g.allocates)
        if (!set_allocated(p, true) && !g.frees_itself) {
            say("the graph was launched again before the memory that it allocates was freed");
            return false;
        }
    for (devptr p : g.frees)
        if (!set_allocated(p, false)) {
            say("the graph frees memory that is not allocated");
            return false;
        }
    return true;
}
void delete_graph(Graph *g) {
    for (devptr p : g->allocates) {
        bool still_used;
        {
            std::lock_guard<std::mutex> l(table);
            still_used = of_graphs[p];
            of_graphs.erase(p);
        }
        // What is still allocated is now like other memory.
        if (!still_used) g->origin->add([p, n = forget(p)] { release(p, n); });
    }
    delete g;
}

API int cuMemAlloc_v2(devptr *p, size_t n) {
    if (!n) return INVALID;
    if (int e = error_so_far()) return e;
    count_call(Call::ALLOCATION);
    *p = take(n);
    if (!*p) return OOM;
    memset((void *)*p, FRESH, n);
    return OK;
}
API int cuMemAllocAsync(devptr *p, size_t n, void *h) {
    STREAM(h);
    count_call(Call::ALLOCATION);
    // candle's own tests need a success.
    if (!n && nothing(s, "an allocation") != OK) return INVALID;
    if (!n) n = 1;
    devptr q = take(n);
    if (!q) return OOM;
    if (s->capture) {
        std::lock_guard<std::mutex> l(table);
        of_graphs[q] = false;
        s->capture->allocates.push_back(q);
    }
    enqueue(s, [q, n] { memset((void *)q, FRESH, n); });
    *p = q;
    return OK;
}
API int cuMemFree_v2(devptr p) {
    if (!p) return OK;
    Context *c = current();
    if (!c) return BAD_CONTEXT;
    if (c->error) return c->error;
    count_call(Call::FREE);
    // Waits for the device, as the real one does.
    for (auto *s : streams_of(c)) s->mark()->wait();
    size_t n = forget(p);
    if (!n) return INVALID;
    release(p, n);
    return OK;
}
API int cuMemFreeAsync(devptr p, void *h) {
    STREAM(h);
    if (!p) return INVALID;
    count_call(Call::FREE);
    if (size_t n = graph_memory(p)) {
        if (s->capture)
            s->capture->frees.push_back(p);
        else if (!set_allocated(p, false))
            return INVALID;
        enqueue(s, [p, n] { memset((void *)p, FREED, n); });
        return OK;
    }
    if (s->capture) {
        say("the capture frees memory that no graph has allocated");
        return spoil(s, INVALID);
    }
    size_t n = forget(p);
    if (!n) return INVALID;
    enqueue(s, [p, n] { release(p, n); });
    return OK;
}
API int cuMemGetInfo_v2(size_t *free, size_t *total) {
    if (int e = error_so_far()) return e;
    std::lock_guard<std::mutex> l(table);
    *total = device_memory();
    *free = *total - used;
    return OK;
}
API int cuMemHostAlloc(void **p, size_t n, unsigned) {
    if (int e = error_so_far()) return e;
    if (posix_memalign(p, 4096, n ? n : 1)) return OOM;
    std::lock_guard<std::mutex> l(table);
    pinned[(devptr)*p] = n;
    return OK;
}
API int cuMemFreeHost(void *p) {
    std::lock_guard<std::mutex> l(table);
    if (!pinned.erase((devptr)p)) return INVALID;
    free(p);
    return error_so_far();
}

// There is one pool. All that can be set about it is that its most memory is forgotten.
static void *const POOL = (void *)16;
API int cuDeviceGetDefaultMemPool(void **p, int) {
    *p = POOL;
    return OK;
}
enum { USED_MEM_CURRENT = 7, USED_MEM_HIGH = 8 };
API int cuMemPoolSetAttribute(void *, int attribute, void *value) {
    std::lock_guard<std::mutex> l(table);
    if (attribute == USED_MEM_HIGH) {
        if (*(uint64_t *)value) return INVALID;
        most_used = used;
    }
    return OK;
}
API int cuMemPoolGetAttribute(void *, int attribute, void *value) {
    std::lock_guard<std::mutex> l(table);
    switch (attribute) {
    case USED_MEM_CURRENT: *(uint64_t *)value = used; return OK;
    case USED_MEM_HIGH: *(uint64_t *)value = most_used; return OK;
    }
    return INVALID;
}
API int cuMemPoolTrimTo(void *, size_t) {
    if (trace()) say("cuMemPoolTrimTo");
    return error_so_far();
}

API int cuPointerGetAttribute(void *out, int what, devptr p) {
    const int MEMORY_TYPE = 2, DEVICE_ORDINAL = 9, ON_DEVICE = 2;
    switch (what) {
    case MEMORY_TYPE:
        if (!is_device(p, 1)) return INVALID;
        *(int *)out = ON_DEVICE;
        return OK;
    case DEVICE_ORDINAL: *(int *)out = 0; return OK;
    }
    return INVALID;
}
