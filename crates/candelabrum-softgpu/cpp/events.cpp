// Events: marks in streams. An event that a capturing stream records belongs to the capture, and a
// stream that waits for it takes part in the capture.
#include "counts.h"
#include "streams.h"

namespace {
struct Event {
    std::mutex m;
    MarkP mark; // the last record
    unsigned flags = 0;
    // The capture that recorded it, by which stream and after how many operations.
    std::weak_ptr<Graph> graph;
    Stream *by = nullptr;
    size_t after = 0;
};
const unsigned NO_TIMING = 2;

MarkP mark_of(void *handle) {
    auto *e = (Event *)handle;
    std::lock_guard<std::mutex> l(e->m);
    return e->mark;
}
} // namespace

API int cuEventCreate(void **out, unsigned flags) {
    if (int e = error_so_far()) return e;
    auto *event = new Event;
    event->flags = flags;
    *out = event;
    return OK;
}
API int cuEventDestroy_v2(void *e) {
    delete (Event *)e;
    return error_so_far();
}
API int cuEventRecord(void *e, void *h) {
    STREAM(h);
    auto mark = std::make_shared<Mark>();
    auto *event = (Event *)e;
    {
        std::lock_guard<std::mutex> l(event->m);
        event->graph = s->capture;
        event->by = s;
        if (s->capture) {
            event->mark = nullptr;
            event->after = s->capture->nodes.size();
            return OK;
        }
        event->mark = mark;
    }
    enqueue(
        s, [mark] { mark->set(); }, false);
    return OK;
}
API int cuEventQuery(void *e) {
    auto mark = mark_of(e);
    if (int error = error_so_far()) return error;
    return !mark || mark->is_set() ? OK : NOT_READY;
}
API int cuEventSynchronize(void *e) {
    count_call(Call::WAIT);
    if (auto mark = mark_of(e)) mark->wait();
    return error_so_far();
}
API int cuEventElapsedTime_v2(float *ms, void *a, void *b) {
    if (int e = error_so_far()) return e;
    auto from = mark_of(a), to = mark_of(b);
    if (!from || !to || ((((Event *)a)->flags | ((Event *)b)->flags) & NO_TIMING))
        return BAD_HANDLE;
    if (!from->is_set() || !to->is_set()) return NOT_READY;
    *ms = (float)(1e3 * (to->at - from->at));
    return OK;
}
API int cuEventElapsedTime(float *ms, void *a, void *b) { return cuEventElapsedTime_v2(ms, a, b); }

API int cuStreamWaitEvent(void *h, void *e, unsigned) {
    STREAM(h);
    auto *event = (Event *)e;
    std::unique_lock<std::mutex> l(event->m);
    if (auto g = event->graph.lock()) {
        // Operations of a graph run one after the other, so there is nothing to wait for.
        if (s->capture && s->capture != g) return spoil(s, INVALID);
        if (!s->capture) {
            s->capture = g;
            g->forked[s] = g->nodes.size();
        }
        auto joined = g->forked.find(event->by);
        if (joined != g->forked.end() && event->by != s && joined->second <= event->after) {
            event->by->capture = nullptr;
            g->forked.erase(joined);
        }
        return OK;
    }
    auto mark = event->mark;
    l.unlock();
    if (s->capture && mark) return spoil(s, ISOLATION);
    if (mark && !mark->is_set())
        enqueue(
            s, [mark] { mark->wait(); }, false);
    return OK;
}
