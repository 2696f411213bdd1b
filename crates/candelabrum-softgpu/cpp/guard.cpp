// SOFTGPU_CHECK: the address check for kernels.
//
// Each allocation has pages of its own between two pages without access, and ends 0 to 15 bytes
// before the second one, because a GPU's memory is aligned and vector loads rely on it. The bytes
// before and after the allocation are filled with a pattern that is looked at when it is freed.
// Freed memory keeps its addresses without access, until MOST_FREED others were freed after it; its
// pages are given back to the system at once, so only addresses are used up.
#include "memory.h"
#include <deque>
#include <map>
#include <mutex>
#include <sys/mman.h>
#include <unistd.h>

namespace {
const size_t ALIGNMENT = 16, PAGE = 4096, MOST_FREED = 4096;
const unsigned char PATTERN = 0xca;

// [start, start + size) with the pages without access; the allocation itself is [p, p + bytes).
struct Region {
    char *start;
    size_t size;
    char *p;
    size_t bytes;
    bool freed;
    char *inner() const { return start + PAGE; }
    char *inner_end() const { return start + size - PAGE; }
};
std::timed_mutex &lock = *new std::timed_mutex;
auto &regions = *new std::map<uintptr_t, Region>; // by their starts
auto &freed = *new std::deque<uintptr_t>;         // the starts, oldest first

const char *spoiled(const Region &r) {
    for (char *c = r.inner(); c < r.p; c++)
        if ((unsigned char)*c != PATTERN) return "before its start";
    for (char *c = r.p + r.bytes; c < r.inner_end(); c++)
        if ((unsigned char)*c != PATTERN) return "past its end";
    return nullptr;
}
} // namespace

bool guarding() {
    static bool on = env("SOFTGPU_CHECK", 0);
    return on;
}

void *guarded_take(size_t bytes) {
    size_t rounded = (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    size_t inner = (rounded + PAGE - 1) / PAGE * PAGE, size = inner + 2 * PAGE;
    const int FLAGS = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    void *start = mmap(nullptr, size, PROT_NONE, FLAGS, -1, 0);
    if (start == MAP_FAILED) return nullptr;
    Region r{(char *)start, size, (char *)start + PAGE + inner - rounded, bytes, false};
    if (mprotect(r.inner(), inner, PROT_READ | PROT_WRITE)) {
        munmap(start, size);
        return nullptr;
    }
    memset(r.inner(), PATTERN, r.p - r.inner());
    memset(r.p + bytes, PATTERN, r.inner_end() - (r.p + bytes));
    std::lock_guard<std::timed_mutex> l(lock);
    regions[(uintptr_t)start] = r;
    return r.p;
}

void guarded_release(void *p, size_t bytes) {
    std::lock_guard<std::timed_mutex> l(lock);
    auto at = regions.upper_bound((uintptr_t)p);
    if (at == regions.begin()) return;
    Region &r = (--at)->second;
    if (const char *where = spoiled(r)) {
        say("the allocation of %zu bytes at %p was written %s (seen when it was freed)", bytes, p,
            where);
        abort();
    }
    mprotect(r.inner(), r.inner_end() - r.inner(), PROT_NONE);
    madvise(r.inner(), r.inner_end() - r.inner(), MADV_DONTNEED);
    r.freed = true;
    freed.push_back((uintptr_t)r.start);
    if (freed.size() <= MOST_FREED) return;
    auto oldest = regions.find(freed.front());
    freed.pop_front();
    munmap(oldest->second.start, oldest->second.size);
    regions.erase(oldest);
}

void describe_address(uintptr_t address, char *text, size_t size) {
    text[0] = 0;
    std::unique_lock<std::timed_mutex> l(lock, std::chrono::seconds(1));
    if (!l) return;
    auto at = regions.upper_bound(address);
    if (at == regions.begin()) return;
    const Region &r = (--at)->second;
    if (address >= (uintptr_t)r.start + r.size) return;
    long offset = (long)(address - (uintptr_t)r.p);
    const char *state = r.freed ? "a freed" : "an";
    if (offset < 0)
        snprintf(text, size, "%ld bytes before the start of %s allocation of %zu bytes", -offset,
                 state, r.bytes);
    else if ((size_t)offset < r.bytes)
        snprintf(text, size, "byte %ld of %s allocation of %zu bytes", offset, state, r.bytes);
    else
        snprintf(text, size, "%ld bytes past the end of %s allocation of %zu bytes",
                 offset - (long)r.bytes, state, r.bytes);
}
