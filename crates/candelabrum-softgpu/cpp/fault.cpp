// SIGSEGV in a kernel: says which kernel, block, thread and address. Then it ends the process by
// that signal, or with SOFTGPU_STICKY it ends the kernel, and the context has an error from then
// on.
#include "fault.h"
#include "block.h"
#include "fibers.h"
#include "memory.h"
#include "status.h"
#include <csignal>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

__thread const char *running_kernel __attribute__((tls_model("initial-exec"))) = nullptr;

static struct sigaction before[2];
static const size_t STACK_SIZE = 64 << 10;

FaultStack::FaultStack() {
    const int FLAGS = MAP_PRIVATE | MAP_ANONYMOUS;
    memory = mmap(nullptr, STACK_SIZE, PROT_READ | PROT_WRITE, FLAGS, -1, 0);
    stack_t stack{memory, 0, STACK_SIZE};
    sigaltstack(&stack, nullptr);
}
FaultStack::~FaultStack() {
    stack_t none{nullptr, SS_DISABLE, 0};
    sigaltstack(&none, nullptr);
    munmap(memory, STACK_SIZE);
}

// The process ends anyway, so functions that are not meant for signal handlers are accepted here.
static void report(uintptr_t address) {
    char what[200], place[200] = "outside of a kernel", text[600];
    describe_address(address, what, sizeof what);
    if (!what[0] && in_guard_of_stack(address))
        snprintf(what, sizeof what, "the stack of the thread is full");
    auto &s = softgpu_state;
    if (running_kernel)
        snprintf(place, sizeof place, "in kernel %s, block (%u,%u,%u), thread (%u,%u,%u)",
                 running_kernel, s.bid.x, s.bid.y, s.bid.z, s.tid.x, s.tid.y, s.tid.z);
    const char *hint = guarding() ? "" : " (SOFTGPU_CHECK=1 tells more)";
    int n = snprintf(text, sizeof text, "softgpu: wild memory access %s, at %#lx: %s%s\n", place,
                     (unsigned long)address, what[0] ? what : "near no allocation", hint);
    if (write(2, text, n) < 0) return;
}

// Where the thread of a kernel goes on after its wild access.
static void leave_kernel() {
    Block::mine().fail("a wild memory access", ILLEGAL_ADDRESS);
}

// Lets the thread go on in `leave_kernel`, on its own stack, whose frames are not used any more.
static bool ends_only_kernel(void *context) {
    static const bool sticky = env("SOFTGPU_STICKY", 0);
    uintptr_t top = top_of_running_stack();
    if (!sticky || !running_kernel || !top) return false;
    auto &registers = ((ucontext_t *)context)->uc_mcontext.gregs;
    registers[REG_RIP] = (greg_t)leave_kernel;
    registers[REG_RSP] = (greg_t)(top - 8); // as after a call
    return true;
}

static void on_fault(int signal, siginfo_t *info, void *context) {
    auto address = (uintptr_t)info->si_addr;
    char what[200] = "";
    if (guarding()) describe_address(address, what, sizeof what);
    if (running_kernel || what[0]) {
        report(address);
        if (ends_only_kernel(context)) return;
        ::signal(signal, SIG_DFL); // the access happens again, and ends the process
        return;
    }
    const struct sigaction &old = before[signal == SIGBUS];
    if (old.sa_flags & SA_SIGINFO)
        old.sa_sigaction(signal, info, context);
    else if (old.sa_handler != SIG_DFL && old.sa_handler != SIG_IGN)
        old.sa_handler(signal);
    else
        ::signal(signal, SIG_DFL);
}

void catch_faults() {
    struct sigaction action {};
    action.sa_sigaction = on_fault;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigaction(SIGSEGV, &action, &before[0]);
    sigaction(SIGBUS, &action, &before[1]);
}
