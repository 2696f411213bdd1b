// Fibers: stacks between which one thread of the host changes.
#pragma once
#include "common.h"
#include <memory>
#include <string>

class Fiber {
public:
    // Runs `main` when it is first entered; `main` must never return.
    explicit Fiber(void (*main)());
    ~Fiber();
    Fiber(const Fiber &) = delete;
    // Enters the fiber, and returns when it leaves.
    void enter();
    // Goes back to where the fiber was entered from.
    void leave();

private:
    char *stack;
    void *own, *outside = nullptr; // stack pointers
};

// The end of the running fiber's stack, or 0 outside of fibers.
uintptr_t top_of_running_stack();
// Whether the address is in the page below a fiber's stack.
bool in_guard_of_stack(uintptr_t address);
