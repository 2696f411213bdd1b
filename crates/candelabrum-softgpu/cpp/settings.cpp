// Settings from the environment, messages, and random numbers that a seed repeats.
#include "common.h"
#include "noise.h"
#include <cstdarg>
#include <dlfcn.h>
#include <random>

long env(const char *name, long otherwise) {
    const char *value = getenv(name);
    return value && *value ? atol(value) : otherwise;
}

bool trace() {
    static bool on = env("SOFTGPU_TRACE", 0);
    return on;
}

bool strict() {
    static bool on = env("SOFTGPU_STRICT", 0);
    return on;
}

bool noise() {
    static bool on = env("SOFTGPU_NOISE", 0);
    return on;
}

bool every_product_in_tf32() {
    static bool on = env("SOFTGPU_TF32", 0);
    return on;
}

void say(const char *format, ...) {
    char line[1024];
    va_list list;
    va_start(list, format);
    vsnprintf(line, sizeof line, format, list);
    va_end(list);
    fprintf(stderr, "softgpu: %s\n", line);
}

std::string home() {
    if (const char *named = getenv("SOFTGPU_HOME")) return named;
    Dl_info info;
    dladdr((void *)&home, &info);
    char real[4096];
    std::string path = realpath(info.dli_fname, real) ? real : info.dli_fname;
    for (int i = 0; i < 2; i++) path = path.substr(0, path.rfind('/'));
    return path;
}

uint64_t mix(uint64_t x) {
    x += 0x9e3779b97f4a7c15ull;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ x >> 27) * 0x94d049bb133111ebull;
    return x ^ x >> 31;
}

// The same for every user of a process. Ranks of one run have the same SOFTGPU_SEED, and must not
// wait for the same times, so their number counts as well.
static uint64_t seed() {
    static uint64_t value = [] {
        long named = env("SOFTGPU_SEED", -1);
        if (named < 0) named = std::random_device{}() & 0x7fffffff;
        if (env("SOFTGPU_ASYNC", 0)) say("the delays have SOFTGPU_SEED=%ld", named);
        uint64_t mixed = mix((uint64_t)named);
        for (const char *rank : {"CANDELABRUM_RANK", "RANK", "OMPI_COMM_WORLD_RANK"})
            mixed = mix(mixed + (uint64_t)env(rank, -1));
        return mixed;
    }();
    return value;
}

Random::Random(uint64_t who) : state(mix(seed() ^ mix(who)) | 1) {}

uint64_t Random::next() {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state >> 11;
}
