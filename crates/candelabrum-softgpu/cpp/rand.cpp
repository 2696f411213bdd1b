// libcurand: other numbers than NVIDIA's, of the same distributions.
#include "memory.h"
#include "streams.h"

struct Rand {
    void *stream = nullptr;
    uint64_t seed = 0, offset = 0;
};
API int curandCreateGenerator(void **g, int) {
    *g = new Rand;
    return 0;
}
API int curandDestroyGenerator(void *g) {
    delete (Rand *)g;
    return 0;
}
API int curandSetPseudoRandomGeneratorSeed(void *g, unsigned long long s) {
    ((Rand *)g)->seed = s;
    ((Rand *)g)->offset = 0;
    return 0;
}
API int curandSetGeneratorOffset(void *g, unsigned long long o) {
    ((Rand *)g)->offset = o;
    return 0;
}
API int curandSetStream(void *g, void *s) {
    ((Rand *)g)->stream = s;
    return 0;
}
static double uniform(uint64_t seed, uint64_t i) {
    return ((mix(mix(seed) + i) >> 11) + 1) * 0x1p-53;
} // (0, 1]
template <class T, class F> static int generate(void *gv, T *out, size_t n, F f) {
    auto *g = (Rand *)gv;
    Stream *s = stream_of(g->stream);
    if (!s) return 101;
    if (!is_device((devptr)out, n * sizeof(T))) return 201;
    uint64_t seed = g->seed, from = g->offset;
    g->offset += 2 * n;
    enqueue(s, [=] {
        for (size_t i = 0; i < n; i++) out[i] = (T)f(seed, from + 2 * i);
    });
    return 0;
}
static double normal(uint64_t s, uint64_t i) {
    return sqrt(-2 * log(uniform(s, i))) * cos(2 * M_PI * uniform(s, i + 1));
}
API int curandGenerate(void *g, unsigned *o, size_t n) {
    return generate(g, o, n, [](uint64_t s, uint64_t i) { return (unsigned)mix(mix(s) + i); });
}
API int curandGenerateUniform(void *g, float *o, size_t n) { return generate(g, o, n, uniform); }
API int curandGenerateUniformDouble(void *g, double *o, size_t n) {
    return generate(g, o, n, uniform);
}
#define NORMAL(name, T, wrap)                                                                      \
    API int curandGenerate##name(void *g, T *o, size_t n, T mean, T dev) {                         \
        if (n % 2) return 105;                                                                     \
        return generate(g, o, n,                                                                   \
                        [=](uint64_t s, uint64_t i) { return wrap(mean + dev * normal(s, i)); });  \
    }
NORMAL(Normal, float, )
NORMAL(NormalDouble, double, ) NORMAL(LogNormal, float, exp) NORMAL(LogNormalDouble, double, exp)
