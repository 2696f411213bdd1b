// Streams. Operations of one stream run in order on its thread; two streams run at the same time.
#include "streams.h"
#include "counts.h"
#include "fault.h"
#include <algorithm>
#include <chrono>
#include <thread>
#include <unistd.h>

void Mark::set() {
    std::lock_guard<std::mutex> l(m);
    done = true;
    auto now = std::chrono::steady_clock::now().time_since_epoch();
    at = std::chrono::duration<double>(now).count();
    cv.notify_all();
}
void Mark::wait() {
    std::unique_lock<std::mutex> l(m);
    cv.wait(l, [&] { return done; });
}
bool Mark::is_set() {
    std::lock_guard<std::mutex> l(m);
    return done;
}

// SOFTGPU_ASYNC: half of the operations start at once, the others after a pause. A missing wait
// between two streams then gives wrong numbers in some runs.
static void random_delay(Random &random) {
    static long most = env("SOFTGPU_DELAY_US", env("SOFTGPU_ASYNC", 0) ? 300 : 0);
    if (most <= 0) return;
    long us = (long)random.below(2 * most);
    if (us > most) usleep(us - most);
}

static uint64_t number_of(Context *c) {
    std::lock_guard<std::mutex> l(c->m);
    return (uint64_t)c->device << 32 | c->created++;
}

Stream::Stream(Context *c, bool b) : ctx(c), blocking(b), random(number_of(c)) {
    std::thread([this] { run(); }).detach();
}

void Stream::run() {
    FaultStack faults;
    for (;;) {
        Operation op;
        {
            std::unique_lock<std::mutex> l(m);
            busy = false;
            cv.wait(l, [&] { return !queue.empty() || ending; });
            if (queue.empty()) {
                l.unlock();
                delete this;
                return;
            }
            op = std::move(queue.front());
            queue.pop_front();
            busy = true;
        }
        random_delay(random);
        op();
    }
}

void Stream::add(Operation op) {
    std::lock_guard<std::mutex> l(m);
    queue.push_back(std::move(op));
    cv.notify_one();
}

MarkP Stream::mark() {
    auto mark = std::make_shared<Mark>();
    add([mark] { mark->set(); });
    return mark;
}

bool Stream::idle() {
    std::lock_guard<std::mutex> l(m);
    return queue.empty() && !busy;
}

void enqueue(Stream *s, Operation op, bool may_block) {
    if (auto g = s->capture) {
        g->nodes.push_back({std::move(op)});
        if (s != g->origin) g->forked[s] = g->nodes.size();
        return;
    }
    Context *c = s->ctx;
    auto after = [s](Stream *other) {
        auto mark = other->mark();
        s->add([mark] { mark->wait(); });
    };
    if (s == c->legacy) {
        std::lock_guard<std::mutex> l(c->m);
        for (Stream *other : c->streams)
            if (other->blocking && !other->idle()) after(other);
    } else if (s->blocking && c->legacy && !c->legacy->idle()) {
        after(c->legacy);
    }
    s->add(std::move(op));
    static bool sync = env("SOFTGPU_SYNC", 0);
    if (sync && may_block) s->mark()->wait();
}

int spoil(Stream *s, int code) {
    if (s->capture) s->capture->invalid = true;
    return code;
}

int nothing(Stream *s, const char *call) {
    if (!s->capture || !strict()) return OK;
    say("%s of no bytes in a capture", call);
    return spoil(s, INVALID);
}

void synchronize(Stream *s) {
    auto mark = std::make_shared<Mark>();
    enqueue(
        s, [mark] { mark->set(); }, false);
    mark->wait();
}

Stream *new_stream(Context *c, bool blocking) {
    auto *s = new Stream(c, blocking);
    std::lock_guard<std::mutex> l(c->m);
    c->streams.push_back(s);
    return s;
}

static void end_stream(Stream *s) {
    {
        std::lock_guard<std::mutex> l(s->ctx->m);
        auto &all = s->ctx->streams;
        all.erase(std::remove(all.begin(), all.end(), s), all.end());
    }
    std::lock_guard<std::mutex> l(s->m);
    s->ending = true;
    s->cv.notify_one();
}

std::vector<Stream *> streams_of(Context *c) {
    std::lock_guard<std::mutex> l(c->m);
    auto all = c->streams;
    if (c->legacy) all.push_back(c->legacy);
    return all;
}

// The default streams of one host thread, by device.
struct PerThread {
    std::map<int, Stream *> of;
    ~PerThread() {
        for (auto &[device, s] : of) end_stream(s);
    }
};
static thread_local PerThread per_thread;

Stream *stream_of(void *handle) {
    Context *c = current();
    if (!c) return nullptr;
    if ((uintptr_t)handle == 2) {
        auto *&s = per_thread.of[c->device];
        if (!s) s = new_stream(c, true);
        return s;
    }
    if ((uintptr_t)handle < 2) {
        static std::mutex m;
        std::lock_guard<std::mutex> l(m);
        if (!c->legacy) c->legacy = new Stream(c, false);
        return c->legacy;
    }
    return (Stream *)handle;
}

API int cuStreamCreate(void **h, unsigned flags) {
    if (!current()) return BAD_CONTEXT;
    if (int e = error_so_far()) return e;
    *h = new_stream(current(), !(flags & 1));
    return OK;
}
API int cuStreamCreateWithPriority(void **h, unsigned flags, int) {
    return cuStreamCreate(h, flags);
}
API int cuStreamDestroy_v2(void *h) {
    if ((uintptr_t)h <= 2) return BAD_HANDLE;
    end_stream((Stream *)h);
    return error_so_far();
}
API int cuStreamSynchronize(void *h) {
    STREAM(h);
    if (s->capture) return spoil(s, CAPTURING);
    count_call(Call::WAIT);
    synchronize(s);
    return s->ctx->error;
}
API int cuLaunchHostFunc(void *h, void (*f)(void *), void *a) {
    STREAM(h);
    enqueue(s, [=] { f(a); });
    return OK;
}
