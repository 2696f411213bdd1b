// What a wild memory access of a kernel says before it ends the process.
#pragma once
#include "common.h"

// The kernel that this thread runs, or null.
extern __thread const char *running_kernel __attribute__((tls_model("initial-exec")));

// Reports faults of kernels. Other faults go to whoever handled them before.
void catch_faults();

// A thread's second stack, on which the report is made: the first one may have overflowed.
class FaultStack {
    void *memory;

public:
    FaultStack();
    ~FaultStack();
    FaultStack(const FaultStack &) = delete;
};
