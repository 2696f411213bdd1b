// Streams are threads with a queue; events and graphs are made of them.
#pragma once
#include "contexts.h"
#include "status.h"
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

// A point in a stream.
struct Mark {
    std::mutex m;
    std::condition_variable cv;
    bool done = false;
    double at = 0; // seconds
    void set();
    void wait();
    bool is_set();
};
using MarkP = std::shared_ptr<Mark>;

struct Stream;
using Operation = std::function<void()>;

struct Node {
    Operation op;
    const void *pageable = nullptr; // the source of a copy from the host, unless it is pinned
    devptr source = 0;              // the source of a copy from the device
    devptr to = 0;                  // where a copy to the device goes
    void *target = nullptr;         // where a copy to the host goes, unless that is pinned
};

// What a capture records: operations in the order of the calls, on whichever stream.
struct Graph {
    Stream *origin;
    std::vector<Node> nodes;
    bool invalid = false;                 // a call that a capture does not permit has spoilt it
    bool frees_itself = false;            // a launch frees what earlier ones have left allocated
    std::vector<devptr> allocates, frees; // by each launch
    // The streams that were forked from the origin, and how many operations there were when each
    // was last used. A stream leaves when another one waits for all that it has done.
    std::map<Stream *, size_t> forked;
};
using GraphP = std::shared_ptr<Graph>;

struct Stream {
    Context *const ctx;
    const bool blocking; // whether it waits for the legacy default stream, and that one for it
    GraphP capture;      // what is called now is recorded there
    Random random;       // the pauses before its operations

    std::mutex m;
    std::condition_variable cv;
    std::deque<Operation> queue;
    bool busy = false, ending = false;

    // Starts the stream's thread, which deletes the stream once it is ended and empty.
    Stream(Context *ctx, bool blocking);
    // Adds the operation as it is: without a capture, without regard to other streams.
    void add(Operation op);
    MarkP mark();
    bool idle();

private:
    void run();
};

// The stream of a handle, the default streams 0, 1 and 2 included; null without a context.
Stream *stream_of(void *handle);
// Adds the operation as a call on this stream does. With SOFTGPU_SYNC it also waits for it, unless
// `may_block` is false.
void enqueue(Stream *s, Operation op, bool may_block = true);
void synchronize(Stream *s);
Stream *new_stream(Context *c, bool blocking);
// All streams of the context, the legacy one included.
std::vector<Stream *> streams_of(Context *c);

// Notes what a launch allocates and frees. False if it is not possible now.
bool launch_memory(const Graph &g);
// Frees what launches have left allocated and nothing will free, and deletes the graph.
void delete_graph(Graph *g);
// Spoils the capture of the stream, and returns the code.
int spoil(Stream *s, int code);
// The result of a call with no bytes: an error in a capture with SOFTGPU_STRICT.
int nothing(Stream *s, const char *call);

// Defines `s`, or returns the error from the function.
#define STREAM(handle)                                                                             \
    Stream *s = stream_of(handle);                                                                 \
    if (!s) return BAD_CONTEXT;                                                                    \
    if (s->capture && s->capture->invalid) return INVALIDATED;                                     \
    if (int e = s->ctx->error) return e
