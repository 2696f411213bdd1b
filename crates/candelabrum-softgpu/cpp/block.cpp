// How the threads of a block take turns: in their order up to the first barrier, then in the order
// in which barriers and exchanges let them go on.
#include "block.h"
#include "status.h"
#include <algorithm>

extern "C" {
__attribute__((visibility("default"))) __thread softgpu_state_t softgpu_state
    __attribute__((tls_model("initial-exec")));
}

// Small, because a library that is opened at run time has about 1.5 kB of the fast kind of
// thread-local memory.
static thread_local std::unique_ptr<Block> block_of_thread;

Block &Block::mine() {
    if (!block_of_thread) block_of_thread = std::make_unique<Block>();
    return *block_of_thread;
}

void Block::place(unsigned t) {
    current = t;
    softgpu_state.tid = {t % dim.x, t / dim.x % dim.y, t / dim.x / dim.y};
    softgpu_state.lane = t % 32;
    softgpu_state.warp = t / 32;
}

// Lets the threads go on once all that have not ended wait.
void Block::release_barrier() {
    if (!alive || waiting != alive) return;
    unsigned count = 0;
    const Thread *first = nullptr;
    for (auto &t : threads) {
        if (t.state != AT_BARRIER) continue;
        count += t.predicate != 0;
        if (!first) first = &t;
        if (t.line == first->line && !strcmp(t.file, first->file)) continue;
        failure = "threads wait at different barriers: " + std::string(first->file) + ":" +
                  std::to_string(first->line) + " and " + t.file + ":" + std::to_string(t.line);
        return;
    }
    reduced[0] = count;
    reduced[1] = count == alive;
    reduced[2] = count != 0;
    for (unsigned i = 0; i < n; i++) {
        if (threads[i].state != AT_BARRIER) continue;
        threads[i].state = READY;
        ready.push_back(i);
    }
    waiting = 0;
}

// Lets the lanes of the mask go on once all that have not ended wait with the same mask.
void Block::release_warp(unsigned warp, unsigned mask) {
    unsigned first = warp * 32, last = std::min(first + 32, n), lanes = 0;
    for (unsigned i = first; i < last; i++) {
        if (!(mask >> (i - first) & 1) || threads[i].state == ENDED) continue;
        if (threads[i].state != AT_WARP || threads[i].mask != mask) return;
        lanes |= 1u << (i - first);
    }
    for (unsigned i = first; i < last; i++) {
        if (!(lanes >> (i - first) & 1)) continue;
        auto &t = threads[i];
        results[i] = t.value;
        t.arrived = lanes;
        t.state = READY;
        exchanging--;
        ready.push_back(i);
    }
}

void Block::end_thread() {
    threads[current].state = ENDED;
    alive--;
    release_barrier();
    if (!exchanging) return;
    unsigned first = current / 32 * 32;
    for (unsigned i = first; i < std::min(first + 32, n); i++)
        if (threads[i].state == AT_WARP) release_warp(current / 32, threads[i].mask);
}

// Runs threads from their starts, one after the other, as long as they end without a barrier.
void Block::fiber_main() {
    // The other order shows kernels that depend on it.
    static bool reverse = env("SOFTGPU_REVERSE", 0);
    for (;;) {
        Block &b = *block_of_thread;
        while (b.next < b.n && b.failure.empty()) {
            unsigned t = b.next++;
            if (reverse) t = b.n - 1 - t;
            b.threads[t].fiber = b.running;
            b.place(t);
            b.call(b.args);
            b.end_thread();
        }
        b.pool.push_back(b.running);
        b.running->leave();
    }
}

const std::string &Block::run() {
    n = dim.x * dim.y * dim.z;
    next = 0;
    alive = n;
    waiting = exchanging = 0;
    failure.clear();
    error = LAUNCH_FAILED;
    ready.clear();
    threads.assign(n, Thread{});
    results.resize((n + 31) / 32 * 32);
    while (failure.empty()) {
        if (next < n) {
            if (pool.empty()) {
                fibers.push_back(std::make_unique<Fiber>(fiber_main));
                pool.push_back(fibers.back().get());
            }
            running = pool.back();
            pool.pop_back();
        } else if (!ready.empty()) {
            unsigned t = ready.front();
            ready.pop_front();
            place(t);
            running = threads[t].fiber;
        } else if (alive) {
            failure = "some threads wait at a barrier of the block, others at one of their warp, "
                      "or for lanes that never come";
            break;
        } else {
            break;
        }
        running->enter();
    }
    // The fibers of a block that failed are somewhere in the kernel. They are never entered again.
    if (!failure.empty()) pool.clear();
    return failure;
}

unsigned Block::barrier(int what, int predicate, const char *file, int line) {
    auto &t = threads[current];
    t.predicate = predicate;
    t.file = file;
    t.line = line;
    t.state = AT_BARRIER;
    waiting++;
    release_barrier();
    running->leave();
    return reduced[what];
}

const uint64_t *Block::exchange(unsigned mask, uint64_t value, unsigned *arrived) {
    unsigned at = current;
    auto &t = threads[at];
    t.value = value;
    t.mask = mask;
    t.state = AT_WARP;
    exchanging++;
    release_warp(at / 32, mask);
    running->leave();
    *arrived = t.arrived;
    return &results[at / 32 * 32];
}

void Block::fail(const std::string &why, int code) {
    failure = why;
    error = code;
    running->leave();
    abort(); // the fiber of a block that failed is never entered again
}

API unsigned softgpu_block_barrier(int what, int predicate, const char *file, int line) {
    return block_of_thread->barrier(what, predicate, file, line);
}
API const uint64_t *softgpu_warp_exchange(unsigned mask, uint64_t value, unsigned *arrived) {
    return block_of_thread->exchange(mask, value, arrived);
}
API void softgpu_assert(const char *what, const char *file, int line) {
    auto &s = softgpu_state;
    // CUDA's own words.
    fprintf(stderr, "%s:%d: block: [%u,%u,%u], thread: [%u,%u,%u] Assertion `%s` failed.\n", file,
            line, s.bid.x, s.bid.y, s.bid.z, s.tid.x, s.tid.y, s.tid.z, what);
    block_of_thread->fail("assertion", ASSERT);
}
