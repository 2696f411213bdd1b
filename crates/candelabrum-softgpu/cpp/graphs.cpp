// Graphs: a capture records operations, a launch runs them one after the other.
#include "counts.h"
#include "memory.h"
#include "streams.h"

API int cuStreamIsCapturing(void *h, int *v) {
    Stream *s = stream_of(h);
    if (!s) return BAD_CONTEXT;
    *v = !s->capture ? 0 : s->capture->invalid ? 2 : 1;
    return OK;
}
API int cuStreamBeginCapture_v2(void *h, int) {
    STREAM(h);
    if ((uintptr_t)h < 2) return CAPTURING;
    if (s->capture) return BAD_STATE;
    s->capture = GraphP(new Graph, delete_graph);
    s->capture->origin = s;
    return OK;
}
API int cuStreamEndCapture(void *h, void **g) {
    Stream *s = stream_of(h);
    if (!s) return BAD_CONTEXT;
    auto graph = s->capture;
    if (!graph) return BAD_STATE;
    if (graph->origin != s) return INVALID;
    s->capture = nullptr;
    *g = nullptr;
    if (s->ctx->error) return s->ctx->error;
    bool joined = graph->forked.empty();
    for (auto &[other, last] : graph->forked) other->capture = nullptr;
    graph->forked.clear();
    if (graph->invalid) return INVALIDATED;
    if (!joined) {
        say("the capture ends before the stream that began it waits for the streams forked from "
            "it");
        return UNJOINED;
    }
    *g = new GraphP(graph);
    return OK;
}
API int cuGraphInstantiateWithFlags(void **exec, void *g, unsigned long long flags) {
    const unsigned AUTO_FREE_ON_LAUNCH = 1;
    if (int e = error_so_far()) return e;
    auto graph = *(GraphP *)g;
    graph->frees_itself = flags & AUTO_FREE_ON_LAUNCH;
    *exec = new GraphP(graph);
    return OK;
}
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
    if (s->capture || !launch_memory(*graph)) return spoil(s, INVALID);
    count_call(Call::GRAPH);
    bool reads = false, writes = false;
    for (auto &node : graph->nodes) {
        reads |= node.pageable != nullptr;
        writes |= node.target != nullptr;
    }
    if (reads)
        say("the graph copies from pageable memory: a GPU would read that memory again, here it is "
            "read once");
    if (writes)
        say("the graph copies to pageable memory: a GPU would write there, here nothing is written");
    enqueue(s, [graph] {
        for (auto &node : graph->nodes) node.op();
    });
    return OK;
}

// The nodes. Copies on the device and from pageable memory are told from the others, which count as kernels.
API int cuGraphGetNodes(void *g, void **nodes, size_t *n) {
    auto &all = (*(GraphP *)g)->nodes;
    if (nodes && !*n) return INVALID; // seen on an H200 with driver 580.159
    for (size_t i = 0; nodes && i < *n; i++) nodes[i] = i < all.size() ? &all[i] : nullptr;
    if (!nodes || all.size() < *n) *n = all.size();
    return OK;
}
API int cuGraphNodeGetType(void *node, int *type) {
    *type = ((Node *)node)->pageable || ((Node *)node)->source ? 1 : 0;
    return OK;
}
// One side of CUDA_MEMCPY3D, and its beginning.
struct Side {
    size_t x, y, z, level;
    int kind;
    const void *host;
    devptr device;
    void *array, *reserved;
    size_t pitch, height;
};
struct Copy {
    Side from, to;
};
// A driver may describe a copy by addresses of which only the driver knows the place.
API int cuGraphMemcpyNodeGetParams(void *node, Copy *copy) {
    const int HOST = 1, DEVICE = 2, UNIFIED = 4;
    auto [op, pageable, source, to, target] = *(Node *)node;
    *copy = {};
    copy->from.kind = source ? DEVICE : HOST;
    copy->from.host = pageable;
    copy->from.device = source;
    copy->to.kind = target ? HOST : DEVICE;
    copy->to.host = target;
    copy->to.device = to;
    if (env("SOFTGPU_UNIFIED_COPIES", 0)) {
        copy->from.kind = copy->to.kind = UNIFIED;
        if (!source) copy->from.device = (devptr)pageable;
        if (target) copy->to.device = (devptr)target;
    }
    return OK;
}
