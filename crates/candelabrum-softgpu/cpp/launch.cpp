// Launches: the limits of a GPU, and the blocks of a grid one after the other.
#include "block.h"
#include "counts.h"
#include "fault.h"
#include "memory.h"
#include "modules.h"
#include "streams.h"
#include "turns.h"
#include <link.h>

// What a launch is wrong about, or null.
static const char *outside_limits(const Function &f, uint3 grid, uint3 block, unsigned shared) {
    if (!grid.x || !grid.y || !grid.z || !block.x || !block.y || !block.z)
        return "no blocks or no threads";
    if (grid.x > 0x7fffffff || grid.y > 65535 || grid.z > 65535) return "too many blocks";
    uint64_t threads = (uint64_t)block.x * block.y * block.z;
    if (block.x > 1024 || block.y > 1024 || block.z > 64 || threads > MOST_THREADS)
        return "too many threads in a block";
    if (threads > f.kernel->bounds) return "more threads in a block than its __launch_bounds__";
    if (shared > f.most_shared) return "too much dynamic shared memory";
    return nullptr;
}

// The __shared__ variables of a module on this thread: all its thread-local memory. Null before
// their first use.
static std::pair<char *, size_t> shared_variables(uintptr_t base) {
    struct Search {
        uintptr_t base;
        char *at;
        size_t size;
    } search{base, nullptr, 0};
    dl_iterate_phdr(
        [](dl_phdr_info *i, size_t, void *v) {
            auto *s = (Search *)v;
            if (i->dlpi_addr != s->base) return 0;
            for (int k = 0; k < i->dlpi_phnum; k++) {
                if (i->dlpi_phdr[k].p_type != PT_TLS) continue;
                s->at = (char *)i->dlpi_tls_data;
                s->size = i->dlpi_phdr[k].p_memsz;
            }
            return 1;
        },
        &search);
    return {search.at, search.at ? search.size : 0};
}

namespace {
struct Launch {
    std::string name;
    const softgpu_kernel_t *kernel;
    std::shared_ptr<void> args;
    uintptr_t base;
    uint3 grid, block;
    unsigned shared;
    Context *context;

    void run() const;
};
} // namespace

void Launch::run() const {
    if (context->error) return;
    Turn turn(context->device);
    Block &b = Block::mine();
    b.dim = block;
    b.call = kernel->call;
    b.args = args.get();
    softgpu_state.bdim = block;
    softgpu_state.gdim = grid;
    b.dynamic.resize(shared / 8 + 32);
    softgpu_state.dynamic = (void *)(((uintptr_t)b.dynamic.data() + 127) / 128 * 128);
    running_kernel = name.c_str();
    bool first = true;
    for (unsigned z = 0; z < grid.z; z++)
        for (unsigned y = 0; y < grid.y; y++)
            for (unsigned x = 0; x < grid.x; x++) {
                softgpu_state.bid = {x, y, z};
                // What an earlier block left there must not make this one look right. Large arrays
                // are only filled for the first block, for speed.
                auto [at, size] = shared_variables(base);
                if (at && (first || size <= 16384)) memset(at, FRESH, size);
                if (shared && (first || shared <= 16384))
                    memset(softgpu_state.dynamic, FRESH, shared);
                first = false;
                const std::string &failure = b.run();
                if (failure.empty()) continue;
                say("kernel %s: block (%u,%u,%u): %s", name.c_str(), x, y, z, failure.c_str());
                context->error = b.error;
                running_kernel = nullptr;
                return;
            }
    running_kernel = nullptr;
}

API int cuLaunchKernel(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                       unsigned by, unsigned bz, unsigned shared, void *h, void **params, void **) {
    auto &f = *(Function *)function;
    const uint3 grid{gx, gy, gz}, block{bx, by, bz};
    STREAM(h);
    TRACE("launch %s (%u,%u,%u) (%u,%u,%u) %u", f.name.c_str(), grid.x, grid.y, grid.z, block.x,
          block.y, block.z, shared);
    if (const char *why = outside_limits(f, grid, block, shared)) {
        say("the launch of %s with blocks (%u,%u,%u), threads (%u,%u,%u) and %u bytes of shared "
            "memory fails: %s",
            f.name.c_str(), grid.x, grid.y, grid.z, block.x, block.y, block.z, shared, why);
        return INVALID;
    }
    count_call(f.is_own ? Call::KERNEL : Call::OTHER_KERNEL);
    std::shared_ptr<void> args(f.kernel->pack(params), f.kernel->drop);
    Launch launch{f.name, f.kernel, args, f.base, grid, block, shared, s->ctx};
    enqueue(s, [launch] { launch.run(); });
    return OK;
}
