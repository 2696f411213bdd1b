// The running thread of a block: its indices, its barriers and the exchanges of its warp.
#pragma once

struct softgpu_state_t {
    uint3 tid, bid, bdim, gdim;
    void *dynamic;       // dynamic shared memory of this block
    unsigned lane, warp; // of this thread
};
extern "C" {
// libsoftgpu.so defines all of these. The state is of the fast kind of thread-local memory, since
// every kernel reads it for every index.
extern __thread softgpu_state_t softgpu_state __attribute__((tls_model("initial-exec")));
// Waits for all threads of the block that have not ended. `line` tells barriers apart. Returns the
// number of threads with a true predicate (what = 0), or whether all (1) or any (2) have one.
unsigned softgpu_block_barrier(int what, int predicate, const char *file, int line);
// Puts 8 bytes into the warp's exchange, waits for the lanes in `mask` and returns the 32 values.
const uint64_t *softgpu_warp_exchange(unsigned mask, uint64_t value, unsigned *arrived);
void softgpu_assert(const char *what, const char *file, int line);
}
#define threadIdx (softgpu_state.tid)
#define blockIdx (softgpu_state.bid)
#define blockDim (softgpu_state.bdim)
#define gridDim (softgpu_state.gdim)
#define warpSize 32
#undef assert
#define assert(x) ((x) ? (void)0 : softgpu_assert(#x, __FILE__, __LINE__))

// The default arguments are the place of the call.
#define SOFTGPU_PLACE const char *file = __builtin_FILE(), int line = __builtin_LINE()
static inline void __syncthreads(SOFTGPU_PLACE) { softgpu_block_barrier(0, 0, file, line); }
static inline int __syncthreads_count(int p, SOFTGPU_PLACE) {
    return softgpu_block_barrier(0, p, file, line);
}
static inline int __syncthreads_and(int p, SOFTGPU_PLACE) {
    return softgpu_block_barrier(1, p, file, line);
}
static inline int __syncthreads_or(int p, SOFTGPU_PLACE) {
    return softgpu_block_barrier(2, p, file, line);
}
static inline void __syncwarp(unsigned mask = ~0u) {
    unsigned arrived;
    softgpu_warp_exchange(mask, 0, &arrived);
}
static inline void __threadfence() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
static inline void __threadfence_block() {}
static inline void __threadfence_system() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
static inline unsigned __activemask() { return ~0u; }
static inline void __nanosleep(unsigned) {}
static inline long long clock64() { return 0; }
static inline void __trap() { softgpu_assert("__trap", "", 0); }

namespace softgpu {
template <class T> inline uint64_t pack(T v) {
    static_assert(sizeof(T) <= 8);
    uint64_t b = 0;
    memcpy(&b, &v, sizeof v);
    return b;
}
template <class T> inline T unpack(uint64_t b) {
    T v;
    memcpy((void *)&v, &b, sizeof v);
    return v;
}
template <class T> inline T shuffle(unsigned mask, T v, unsigned from) {
    unsigned arrived;
    const uint64_t *all = softgpu_warp_exchange(mask, pack(v), &arrived);
    return from < 32 && (arrived >> from & 1) ? unpack<T>(all[from]) : v;
}
} // namespace softgpu
template <class T> inline T __shfl_sync(unsigned m, T v, int src, int w = 32) {
    unsigned l = softgpu_state.lane;
    return softgpu::shuffle(m, v, (l & ~(w - 1)) | (src & (w - 1)));
}
template <class T> inline T __shfl_xor_sync(unsigned m, T v, int x, int w = 32) {
    unsigned l = softgpu_state.lane, s = l ^ x;
    return softgpu::shuffle(m, v, s > (l | (w - 1)) ? l : s);
}
template <class T> inline T __shfl_down_sync(unsigned m, T v, unsigned d, int w = 32) {
    unsigned l = softgpu_state.lane;
    return softgpu::shuffle(m, v, (l & (w - 1)) + d >= (unsigned)w ? l : l + d);
}
template <class T> inline T __shfl_up_sync(unsigned m, T v, unsigned d, int w = 32) {
    unsigned l = softgpu_state.lane;
    return softgpu::shuffle(m, v, (l & (w - 1)) < d ? l : l - d);
}
inline unsigned __ballot_sync(unsigned m, int p) {
    unsigned arrived, r = 0;
    const uint64_t *all = softgpu_warp_exchange(m, p != 0, &arrived);
    for (int i = 0; i < 32; i++)
        if ((arrived >> i & 1) && all[i]) r |= 1u << i;
    return r;
}
inline unsigned __match_any_sync(unsigned m, uint64_t v) {
    unsigned arrived, r = 0;
    const uint64_t *all = softgpu_warp_exchange(m, v, &arrived);
    for (int i = 0; i < 32; i++)
        if ((arrived >> i & 1) && all[i] == v) r |= 1u << i;
    return r;
}
// Folds the 32-bit numbers of the lanes of the mask.
template <class T, class F> inline T softgpu_reduce(unsigned m, T v, F fold) {
    unsigned arrived;
    const uint64_t *all = softgpu_warp_exchange(m, softgpu::pack(v), &arrived);
    bool first = true;
    T r = v;
    for (int i = 0; i < 32; i++) {
        if (!(arrived >> i & 1)) continue;
        T next = softgpu::unpack<T>(all[i]);
        r = first ? next : fold(r, next);
        first = false;
    }
    return r;
}
template <class T> inline T __reduce_add_sync(unsigned m, T v) {
    return softgpu_reduce(m, v, [](T a, T b) { return T(a + b); });
}
template <class T> inline T __reduce_min_sync(unsigned m, T v) {
    return softgpu_reduce(m, v, [](T a, T b) { return b < a ? b : a; });
}
template <class T> inline T __reduce_max_sync(unsigned m, T v) {
    return softgpu_reduce(m, v, [](T a, T b) { return a < b ? b : a; });
}
inline int __any_sync(unsigned m, int p) { return __ballot_sync(m, p) != 0; }
inline int __all_sync(unsigned m, int p) { return __ballot_sync(m, !p) == 0; }
