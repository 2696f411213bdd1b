// Contexts: one for each device, and one is current in each host thread.
#pragma once
#include "common.h"
#include <atomic>
#include <mutex>
#include <vector>

struct Stream;

struct Context {
    int device = 0;
    std::atomic<int> error{0}; // stays, as on a GPU
    std::mutex m;
    unsigned created = 0; // streams so far
    std::vector<Stream *> streams;
    Stream *legacy = nullptr;
};

// The context of this thread; null before one is set.
Context *current();
// The error of this thread's context that stays, or 0.
int error_so_far();
void set_current(Context *c);
Context *context_of(int device);
int device_count();
