// Graphs: a capture records operations, a launch runs them one after the other.
#include "streams.h"

API int cuStreamIsCapturing(void *h, int *v) {
    Stream *s = stream_of(h);
    if (!s) return BAD_CONTEXT;
    *v = s->capture ? 1 : 0;
    return OK;
}
API int cuStreamBeginCapture_v2(void *h, int) {
    STREAM(h);
    if ((uintptr_t)h < 2) return CAPTURING;
    if (s->capture) return INVALID;
    s->capture = std::make_shared<Graph>();
    s->capture->origin = s;
    return OK;
}
API int cuStreamEndCapture(void *h, void **g) {
    STREAM(h);
    auto graph = s->capture;
    if (!graph) return NOT_CAPTURING;
    if (graph->origin != s) return INVALID;
    s->capture = nullptr;
    *g = nullptr;
    bool joined = graph->forked.empty();
    for (auto &[other, last] : graph->forked) other->capture = nullptr;
    graph->forked.clear();
    if (!joined) {
        say("the capture ends before the stream that began it waits for the streams forked from "
            "it");
        return UNJOINED;
    }
    *g = new GraphP(graph);
    return OK;
}
API int cuGraphInstantiateWithFlags(void **exec, void *g, unsigned long long) {
    *exec = new GraphP(*(GraphP *)g);
    return OK;
}
API int cuGraphUpload(void *, void *) { return OK; }
API int cuGraphDestroy(void *g) {
    delete (GraphP *)g;
    return OK;
}
API int cuGraphExecDestroy(void *exec) {
    delete (GraphP *)exec;
    return OK;
}
API int cuGraphLaunch(void *exec, void *h) {
    STREAM(h);
    auto graph = *(GraphP *)exec;
    enqueue(s, [graph] {
        for (auto &op : graph->ops) op();
    });
    return OK;
}
