// The collective operations and the messages, and groups of them.
#include "nccl.h"
#include "turns.h"
#include <unistd.h>

static const size_t SIZES[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
template <class T> static T combine(int op, T a, T b) {
    switch (op) {
    case 1: return T(a * b);
    case 2: return a != a || b > a ? b : a;
    case 3: return a != a || b < a ? b : a;
    default: return T(a + b);
    }
}
template <class T> static void reduce_as(int op, char *const *from, int n, char *to, size_t count) {
    for (size_t i = 0; i < count; i++) {
        auto value = [&](int p) {
            T v = ((T *)from[p])[i];
            if constexpr (!std::is_integral_v<T>)
                if (op == 4) v = v * T(1.0 / n);
            return v;
        };
        T a = value(0);
        for (int p = 1; p < n; p++) a = combine<T>(op, a, value(p));
        if constexpr (std::is_integral_v<T>)
            if (op == 4) a = T(a / T(n));
        // One rank's numbers are copied.
        ((T *)to)[i] = n > 1 ? softgpu_one_nan(a) : a;
    }
}
static void reduce(int type, int op, char *const *from, int n, char *to, size_t count) {
    switch (type) {
    case 0: return reduce_as<int8_t>(op, from, n, to, count);
    case 1: return reduce_as<uint8_t>(op, from, n, to, count);
    case 2: return reduce_as<int32_t>(op, from, n, to, count);
    case 3: return reduce_as<uint32_t>(op, from, n, to, count);
    case 4: return reduce_as<int64_t>(op, from, n, to, count);
    case 5: return reduce_as<uint64_t>(op, from, n, to, count);
    case 6: return reduce_as<__half>(op, from, n, to, count);
    case 7: return reduce_as<float>(op, from, n, to, count);
    case 8: return reduce_as<double>(op, from, n, to, count);
    case 9: return reduce_as<__nv_bfloat16>(op, from, n, to, count);
    }
}
enum { ALL_REDUCE = 1, BROADCAST, REDUCE, ALL_GATHER, REDUCE_SCATTER, SEND };
struct Op {
    int what;
    const char *from;
    char *to;
    size_t count;
    int type, op, peer;
};
static bool perform(Comm &c, const std::vector<Op> &ops) {
    std::vector<Transfer> t;
    std::deque<std::vector<char>> temporary;
    std::vector<std::function<void()>> after;
    int n = c.n, r = c.rank;
    for (auto &o : ops) {
        size_t size = SIZES[o.type], bytes = o.count * size;
        uint32_t what = (uint32_t)(o.what | o.op << 8 | (o.what == SEND ? 0 : o.peer << 16)),
                 type = (uint32_t)o.type;
        auto add = [&](int peer, bool send, const char *data, size_t k) {
            t.push_back({peer, send, (char *)data, k, {what, type, 0}});
        };
        auto copy = [&](const char *p, size_t k) {
            temporary.emplace_back(p, p + k);
            return temporary.back().data();
        };
        auto room = [&](size_t k) {
            temporary.emplace_back(k);
            return temporary.back().data();
        };
        switch (o.what) {
        case ALL_REDUCE:
        case REDUCE:
        case REDUCE_SCATTER: {
            bool scatter = o.what == REDUCE_SCATTER;
            char *mine = copy(o.from, bytes * (scatter ? n : 1));
            bool keep = o.what != REDUCE || o.peer == r;
            for (int p = 0; p < n; p++)
                if (o.what != REDUCE || o.peer == p)
                    add(p, true, mine + (scatter ? p * bytes : 0), bytes);
            if (keep) {
                std::vector<char *> all;
                for (int p = 0; p < n; p++) {
                    all.push_back(room(bytes));
                    add(p, false, all[p], bytes);
                }
                after.push_back([=] { reduce(o.type, o.op, all.data(), n, o.to, o.count); });
            }
            break;
        }
        case BROADCAST: {
            if (o.peer == r) {
                char *mine = copy(o.from, bytes);
                for (int p = 0; p < n; p++) add(p, true, mine, bytes);
            }
            add(o.peer, false, o.to, bytes);
            break;
        }
        case ALL_GATHER: {
            char *mine = copy(o.from, bytes);
            for (int p = 0; p < n; p++) {
                add(p, true, mine, bytes);
                add(p, false, o.to + p * bytes, bytes);
            }
            break;
        }
        case SEND:
            if (o.from)
                add(o.peer, true, o.from, bytes);
            else
                add(o.peer, false, o.to, bytes);
        }
    }
    Turn turn(c.ctx->device);
    if (!exchange(c, t, &turn)) return false;
    for (auto &f : after) f();
    return true;
}
struct Waiting {
    CommP c;
    Stream *s;
    std::vector<Op> ops;
};
static thread_local int depth;
static thread_local std::vector<Waiting> group;
static thread_local int group_error;

// What a stream does for the operations, when the ticket's turn comes.
static void carry_out(Comm &c, const std::vector<Op> &ops, uint64_t ticket) {
    // The kernel of a device that has failed does not run.
    bool good = c.turn(ticket) && (c.ctx->error || perform(c, ops));
    // As a kernel that waits for other ranks: only an abort ends it.
    while (!good && !c.aborted) usleep(1000);
    c.next();
}
static int launch() {
    auto all = std::move(group);
    group.clear();
    int result = group_error;
    group_error = 0;
    if (result) return result;
    for (auto &w : all) {
        CommP c = w.c;
        Stream *s = w.s;
        auto ops = std::move(w.ops);
        if (s->capture) { // each launch of the graph takes a ticket of its own
            enqueue(s, [=] { carry_out(*c, ops, c->ticket()); });
            continue;
        }
        uint64_t ticket = c->ticket();
        auto start = [=] {
            enqueue(
                s, [=] { carry_out(*c, ops, ticket); }, false);
            return (int)SUCCESS;
        };
        int code = in_background(c, start);
        if (code && code != IN_PROGRESS) return code;
        if (code) result = IN_PROGRESS;
    }
    return result;
}
API int ncclGroupStart() {
    depth++;
    return SUCCESS;
}
API int ncclGroupEnd() {
    if (!depth) return refuse(INVALID_USAGE, "ncclGroupEnd: not in a group call");
    return --depth ? (int)SUCCESS : launch();
}
static int queue(ncclComm_t h, void *stream, Op o, size_t from_bytes, size_t to_bytes) {
    int e = ready(h);
    if (!e && (o.type < 0 || o.type > 9 || (o.op < 0 || o.op > 4)))
        e = refuse(INVALID_ARGUMENT, "type or operation");
    if (!e && (o.peer < 0 || o.peer >= h->c->n))
        e = refuse(INVALID_ARGUMENT, "invalid root or peer");
    if (!e && ((from_bytes && !is_device((devptr)o.from, from_bytes)) ||
               (to_bytes && !is_device((devptr)o.to, to_bytes)))) {
        say("nccl: memory outside of an allocation");
        e = refuse(INVALID_ARGUMENT, "not a valid pointer");
    }
    Stream *s = e ? nullptr : stream_of(stream);
    if (!e && !s) e = refuse(UNHANDLED_CUDA, "no context");
    if (!e && s->ctx->error) e = refuse(UNHANDLED_CUDA, "the device has failed");
    if (e) {
        if (depth && !group_error) group_error = e;
        return e;
    }
    if (o.what == SEND ? false : o.count == 0) return SUCCESS; // NCCL launches nothing
    Waiting *w = nullptr;
    for (auto &g : group)
        if (g.c == h->c && g.s == s) w = &g;
    if (!w) {
        group.push_back({h->c, s, {}});
        w = &group.back();
    }
    w->ops.push_back(o);
    return depth ? (int)SUCCESS : launch();
}
#define BYTES(k) ((k) * (type >= 0 && type < 12 ? SIZES[type] : 1))
#define N (h ? (size_t)h->c->n : 0)
#define ME (h ? h->c->rank : 0)
API int ncclAllReduce(const void *a, void *b, size_t k, int type, int op, ncclComm_t h, void *s) {
    return queue(h, s, {ALL_REDUCE, (char *)a, (char *)b, k, type, op, 0}, BYTES(k), BYTES(k));
}
API int ncclReduce(const void *a, void *b, size_t k, int type, int op, int root, ncclComm_t h,
                   void *s) {
    return queue(h, s, {REDUCE, (char *)a, (char *)b, k, type, op, root}, BYTES(k),
                 root == ME ? BYTES(k) : 0);
}
API int ncclBroadcast(const void *a, void *b, size_t k, int type, int root, ncclComm_t h, void *s) {
    return queue(h, s, {BROADCAST, (char *)a, (char *)b, k, type, 0, root},
                 root == ME ? BYTES(k) : 0, BYTES(k));
}
API int ncclAllGather(const void *a, void *b, size_t k, int type, ncclComm_t h, void *s) {
    return queue(h, s, {ALL_GATHER, (char *)a, (char *)b, k, type, 0, 0}, BYTES(k), BYTES(k * N));
}
API int ncclReduceScatter(const void *a, void *b, size_t k, int type, int op, ncclComm_t h,
                          void *s) {
    return queue(h, s, {REDUCE_SCATTER, (char *)a, (char *)b, k, type, op, 0}, BYTES(k * N),
                 BYTES(k));
}
API int ncclSend(const void *a, size_t k, int type, int peer, ncclComm_t h, void *s) {
    return queue(h, s, {SEND, (char *)a, nullptr, k, type, 0, peer}, BYTES(k), 0);
}
API int ncclRecv(void *b, size_t k, int type, int peer, ncclComm_t h, void *s) {
    return queue(h, s, {SEND, nullptr, (char *)b, k, type, 0, peer}, 0, BYTES(k));
}
