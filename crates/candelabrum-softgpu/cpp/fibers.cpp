// Fibers for x86-64: a change of stacks keeps the registers that a call must keep.
#include "fibers.h"
#include <sys/mman.h>
#ifndef __x86_64__
#error "fibers are written for x86-64"
#endif

asm(R"(
.text
.type softgpu_switch,@function
softgpu_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp,(%rdi)
  movq %rsi,%rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size softgpu_switch,.-softgpu_switch
)");
extern "C" void softgpu_switch(void **save, void *load);

static const size_t STACK = 256 << 10, GUARD = 4096;
// The fiber that runs on this thread: its stack is where a fault can be.
static __thread char *running_stack __attribute__((tls_model("initial-exec"))) = nullptr;

Fiber::Fiber(void (*main)()) {
    const int FLAGS = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    stack = (char *)mmap(nullptr, STACK, PROT_READ | PROT_WRITE, FLAGS, -1, 0);
    if (stack == MAP_FAILED) {
        say("no memory for the stack of a thread");
        abort();
    }
    mprotect(stack, GUARD, PROT_NONE);
    void **top = (void **)(stack + STACK);
    *--top = nullptr; // where `main` would return to
    *--top = (void *)main;
    for (int i = 0; i < 6; i++) *--top = nullptr; // the registers
    own = top;
}
Fiber::~Fiber() { munmap(stack, STACK); }

void Fiber::enter() {
    running_stack = stack;
    softgpu_switch(&outside, own);
    running_stack = nullptr;
}
void Fiber::leave() { softgpu_switch(&own, outside); }

uintptr_t top_of_running_stack() {
    return running_stack ? (uintptr_t)running_stack + STACK : 0;
}

bool in_guard_of_stack(uintptr_t address) {
    auto stack = (uintptr_t)running_stack;
    return stack && address >= stack && address < stack + GUARD;
}
