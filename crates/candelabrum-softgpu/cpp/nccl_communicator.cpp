// Communicators: how they are made, divided, ended and aborted.
#include "nccl.h"
#include <algorithm>
#include <cstddef>
#include <random>
#include <thread>
#include <unistd.h>

struct ncclUniqueId {
    char internal[128];
};
struct Config {
    size_t size;
    unsigned magic, version;
    int blocking;
};
static thread_local std::string last_error;

int refuse(int code, const std::string &text) {
    last_error = text;
    TRACE("nccl: %s", text.c_str());
    return code;
}

// A call that does not block does its work up to this much later.
static void later(Random random) {
    static long most = env("SOFTGPU_NCCL_LATE_US", 400);
    if (most > 0) usleep(random.below(most));
}
// One number for each call of this process.
static Random next_random() {
    static std::atomic<uint64_t> calls;
    return Random(1ull << 63 | calls++);
}

int in_background(const CommP &c, std::function<int()> job) {
    if (c->blocking) {
        int code = job();
        if (code) c->fail(code);
        return code;
    }
    c->state = IN_PROGRESS;
    std::thread([c, job, random = next_random()] {
        later(random);
        c->progress(job());
    }).detach();
    return IN_PROGRESS;
}

API int ncclGetVersion(int *v) {
    *v = 22809;
    return SUCCESS;
}
API const char *ncclGetErrorString(int e) {
    static const char *const t[] = {"no error",
                                    "unhandled cuda error",
                                    "unhandled system error",
                                    "internal error",
                                    "invalid argument",
                                    "invalid usage",
                                    "remote process exited or there was a network error",
                                    "NCCL operation in progress"};
    return e >= 0 && e < 8 ? t[e] : "unknown result code";
}
API const char *ncclGetLastError(ncclComm_t) { return last_error.c_str(); }
API int ncclGetUniqueId(ncclUniqueId *id) {
    std::random_device r;
    memset(id, 0, sizeof *id);
    snprintf(id->internal, sizeof id->internal, "%08x%08x%08x", r(), r(), (unsigned)getpid());
    return SUCCESS;
}
API int ncclCommInitRankConfig(ncclComm_t *out, int n, ncclUniqueId id, int rank, Config *config) {
    if (!out) return refuse(INVALID_ARGUMENT, "no place for the communicator");
    *out = nullptr;
    if (n < 1 || rank < 0 || rank >= n) return refuse(INVALID_ARGUMENT, "rank or number of ranks");
    if (config && (config->magic != 0xcafebeef))
        return refuse(INVALID_ARGUMENT,
                      "ncclConfig_t argument not initialized via NCCL_CONFIG_INITIALIZER");
    if (!current()) return refuse(UNHANDLED_CUDA, "no context");
    auto c = std::make_shared<Comm>();
    c->id = std::string(id.internal, strnlen(id.internal, 100));
    c->rank = rank;
    c->n = n;
    c->ctx = current();
    c->blocking = !config || config->blocking != 0;
    if (c->blocking) {
        int r = join(*c);
        if (r) return refuse(r, "joining");
        *out = new Handle{c};
        return SUCCESS;
    }
    c->state = IN_PROGRESS;
    *out = new Handle{c};
    std::thread([c, random = next_random()] {
        later(random);
        usleep(1000 * env("SOFTGPU_NCCL_START_MS", 0));
        c->progress(join(*c));
    }).detach();
    return IN_PROGRESS;
}
API int ncclCommInitRank(ncclComm_t *out, int n, ncclUniqueId id, int rank) {
    return ncclCommInitRankConfig(out, n, id, rank, nullptr);
}
API int ncclCommGetAsyncError(ncclComm_t h, int *e) {
    if (!h || !e) return INVALID_ARGUMENT;
    *e = h->c->state;
    return SUCCESS;
}
int ready(ncclComm_t h) {
    if (!h) return refuse(INVALID_ARGUMENT, "comm argument is NULL");
    if (h->c->aborted || h->c->finalized)
        return refuse(INVALID_USAGE, "the communicator was aborted or finalized");
    int s = h->c->state;
    if (s == IN_PROGRESS)
        return refuse(
            INVALID_ARGUMENT,
            "Attempt to use communicator before the previous operation returned ncclSuccess");
    return s;
}
API int ncclCommCount(ncclComm_t h, int *n) {
    if (int e = ready(h)) return e;
    *n = h->c->n;
    return SUCCESS;
}
API int ncclCommAbort(ncclComm_t h) {
    if (!h) return SUCCESS;
    h->c->aborted = true;
    h->c->cv.notify_all();
    delete h;
    return SUCCESS;
}
API int ncclCommDestroy(ncclComm_t h) {
    if (!h) return SUCCESS;
    delete h;
    return SUCCESS;
}
API int ncclCommFinalize(ncclComm_t h) {
    if (int e = ready(h)) return e;
    CommP c = h->c;
    c->finalized = true;
    uint64_t t = c->ticket();
    TRACE("nccl: finalize %s", c->id.c_str());
    // As NCCL 2.28.9: it does not wait for the other ranks.
    return in_background(c, [c, t] {
        if (!c->turn(t)) return (int)INTERNAL;
        c->next();
        return (int)SUCCESS;
    });
}
API int ncclCommSplit(ncclComm_t h, int color, int key, ncclComm_t *out, Config *config) {
    if (int e = ready(h)) return e;
    CommP c = h->c;
    *out = nullptr;
    uint64_t t = c->ticket();
    int number = ++c->splits;
    bool blocking = config && config->size >= 24 && config->blocking != INT32_MIN
                        ? config->blocking != 0
                        : c->blocking;
    int code = in_background(c, [=] {
        if (!c->turn(t)) return (int)INTERNAL;
        struct Seat {
            int color, key, rank;
        } mine{color, key, c->rank};
        std::vector<Seat> all(c->n);
        auto x = everybody(*c, 0x5b1, (char *)&mine, sizeof mine, (char *)all.data());
        bool good = exchange(*c, x);
        c->next();
        if (!good) return c->state == IN_PROGRESS ? (int)INTERNAL : c->state.load();
        if (color < 0) return (int)SUCCESS;
        std::vector<Seat> group;
        for (auto &s : all)
            if (s.color == color) group.push_back(s);
        std::stable_sort(group.begin(), group.end(),
                         [](const Seat &a, const Seat &b) { return a.key < b.key; });
        auto child = std::make_shared<Comm>();
        child->n = (int)group.size();
        child->ctx = c->ctx;
        child->blocking = blocking;
        char id[100];
        snprintf(id, sizeof id, "%s.%d.%d", c->id.c_str(), number, color);
        child->id = id;
        for (int i = 0; i < child->n; i++)
            if (group[i].rank == c->rank) child->rank = i;
        int r = join(*child);
        if (r) return r;
        __atomic_store_n(out, new Handle{child}, __ATOMIC_RELEASE);
        return (int)SUCCESS;
    });
    // As NCCL 2.28.9: only the state of the parent tells that the split is in progress.
    return code == IN_PROGRESS ? (int)SUCCESS : code;
}
