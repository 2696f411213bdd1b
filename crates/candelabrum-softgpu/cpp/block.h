// One block of a kernel: its threads are fibers that take turns on one thread of the host.
#pragma once
#include "fibers.h"
#include <deque>
#include <vector>

class Block {
public:
    // What the threads run. Set before run().
    uint3 dim{};
    void (*call)(void *) = nullptr;
    void *args = nullptr;
    std::vector<uint64_t> dynamic; // shared memory
    int error = 0; // of the context, after a failure

    // Runs all threads to their ends. Returns what went wrong, or an empty text.
    const std::string &run();

    // Called by threads.
    unsigned barrier(int what, int predicate, const char *file, int line);
    const uint64_t *exchange(unsigned mask, uint64_t value, unsigned *arrived);
    void fail(const std::string &why, int error);

    // The block of this thread of the host.
    static Block &mine();

private:
    enum State : uint8_t { NEW, READY, AT_BARRIER, AT_WARP, ENDED };
    struct Thread {
        Fiber *fiber = nullptr;
        State state = NEW;
        unsigned mask = 0, arrived = 0;
        uint64_t value = 0;
        int predicate = 0, line = 0;
        const char *file = "";
    };
    unsigned n = 0, next = 0, alive = 0, current = 0, reduced[3] = {};
    unsigned waiting = 0,
             exchanging = 0; // the threads at a barrier of the block, and of their warps
    std::vector<Thread> threads;
    std::deque<unsigned> ready;
    std::vector<uint64_t> results; // of exchanges, 32 for each warp
    std::string failure;
    std::vector<std::unique_ptr<Fiber>> fibers;
    std::vector<Fiber *> pool; // those that no thread has
    Fiber *running = nullptr;

    static void fiber_main();
    void place(unsigned thread);
    void end_thread();
    void release_barrier();
    void release_warp(unsigned warp, unsigned mask);
};
