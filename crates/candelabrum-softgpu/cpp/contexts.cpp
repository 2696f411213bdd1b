// Devices and their contexts. SOFTGPU_COUNT is the number of devices; all of them share the host's
// memory, and each has one context.
#include "contexts.h"
#include <algorithm>

const int MOST_DEVICES = 64;
static thread_local Context *current_ctx = nullptr;

Context *current() { return current_ctx; }
int error_so_far() { return current_ctx ? current_ctx->error.load() : 0; }
void set_current(Context *c) { current_ctx = c; }

int device_count() {
    static int n = (int)std::min<long>(env("SOFTGPU_COUNT", 1), MOST_DEVICES);
    return n;
}

Context *context_of(int device) {
    static Context *all = [] {
        auto *made = new Context[MOST_DEVICES];
        for (int i = 0; i < MOST_DEVICES; i++) made[i].device = i;
        return made;
    }();
    return &all[device];
}
