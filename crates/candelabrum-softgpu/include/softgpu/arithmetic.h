// CUDA's arithmetic functions. The host's functions carry them out, so their last bits may differ
// from a GPU's.
#pragma once
// What a GPU's arithmetic makes of every NaN.
template <class T> constexpr T softgpu_one_nan(T x) {
    if constexpr (std::is_same_v<T, float>)
        if (x != x) return __builtin_bit_cast(float, 0x7fffffff);
    return x;
}
template <class A, class B,
          std::enable_if_t<std::is_arithmetic_v<A> && std::is_arithmetic_v<B>, int> = 0>
constexpr std::common_type_t<A, B> min(A a, B b) {
    using C = std::common_type_t<A, B>;
    if constexpr (std::is_floating_point_v<C>)
        return C(b) != C(b) ? softgpu_one_nan(C(a)) : (C(a) < C(b) ? C(a) : C(b));
    else
        return C(b) < C(a) ? C(b) : C(a);
}
template <class A, class B,
          std::enable_if_t<std::is_arithmetic_v<A> && std::is_arithmetic_v<B>, int> = 0>
constexpr std::common_type_t<A, B> max(A a, B b) {
    using C = std::common_type_t<A, B>;
    if constexpr (std::is_floating_point_v<C>)
        return C(b) != C(b) ? softgpu_one_nan(C(a)) : (C(a) > C(b) ? C(a) : C(b));
    else
        return C(a) < C(b) ? C(b) : C(a);
}
template <class T, class U> inline T softgpu_bits(U u) {
    static_assert(sizeof(T) == sizeof(U));
    T t;
    memcpy(&t, &u, sizeof t);
    return t;
}
static inline unsigned __float_as_uint(float f) { return softgpu_bits<unsigned>(f); }
static inline int __float_as_int(float f) { return softgpu_bits<int>(f); }
static inline float __uint_as_float(unsigned u) { return softgpu_bits<float>(u); }
static inline float __int_as_float(int u) { return softgpu_bits<float>(u); }
static inline long long __double_as_longlong(double d) { return softgpu_bits<long long>(d); }
static inline double __longlong_as_double(long long u) { return softgpu_bits<double>(u); }
extern "C" float softgpu_rsqrtf(float x);
static inline float rsqrtf(float x) { return softgpu_rsqrtf(x); }
static inline double rsqrt(double x) { return 1.0 / sqrt(x); }
static inline float normcdff(float x) { return 0.5f * erfcf(-x * 0.70710678118654752440f); }
static inline double normcdf(double x) { return 0.5 * erfc(-x * 0.70710678118654752440); }
// glibc declares functions of these names, so they are macros here.
#define __expf expf
#define __logf logf
#define __powf powf
#define __sinf sinf
#define __cosf cosf
#define __tanf tanf
#define __log2f log2f
#define __log10f log10f
#define __exp10f exp10f
static inline float __fdividef(float x, float y) { return x / y; }
static inline float fdividef(float x, float y) { return x / y; }
static inline float __frcp_rn(float x) { return 1.0f / x; }
static inline float __fsub_rn(float a, float b) { return a - b; }
static inline float __fdiv_rn(float a, float b) { return a / b; }
static inline double __dadd_rn(double a, double b) { return a + b; }
static inline double __dsub_rn(double a, double b) { return a - b; }
static inline double __dmul_rn(double a, double b) { return a * b; }
static inline double __ddiv_rn(double a, double b) { return a / b; }
static inline double __dsqrt_rn(double x) { return sqrt(x); }
static inline double __fma_rn(double a, double b, double c) { return fma(a, b, c); }
static inline float __fsqrt_rn(float x) { return sqrtf(x); }
static inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
static inline float __fmul_rn(float a, float b) { return a * b; }
static inline float __fadd_rn(float a, float b) { return a + b; }
static inline float __saturatef(float x) { return x > 0 ? (x < 1 ? x : 1) : 0; }
// Conversions by name give the nearest number of the type; a NaN gives 0.
template <class T> inline T softgpu_saturated(double whole) {
    const double least = (double)std::numeric_limits<T>::min();
    const double most = (double)std::numeric_limits<T>::max();
    if (whole != whole) return 0;
    if (whole <= least) return std::numeric_limits<T>::min();
    return whole >= most ? std::numeric_limits<T>::max() : (T)whole;
}
static inline int __float2int_rn(float x) { return softgpu_saturated<int>(nearbyintf(x)); }
static inline int __float2int_rz(float x) { return softgpu_saturated<int>(truncf(x)); }
static inline int __float2int_rd(float x) { return softgpu_saturated<int>(floorf(x)); }
static inline int __float2int_ru(float x) { return softgpu_saturated<int>(ceilf(x)); }
static inline unsigned __float2uint_rn(float x) {
    return softgpu_saturated<unsigned>(nearbyintf(x));
}
static inline unsigned __float2uint_rz(float x) { return softgpu_saturated<unsigned>(truncf(x)); }
static inline long long __float2ll_rn(float x) {
    return softgpu_saturated<long long>(nearbyintf(x));
}
static inline int __double2int_rn(double x) { return softgpu_saturated<int>(nearbyint(x)); }
static inline float __double2float_rn(double x) { return (float)x; }
static inline float __int2float_rn(int x) { return (float)x; }
static inline float __uint2float_rn(unsigned x) { return (float)x; }
static inline float __ll2float_rn(long long x) { return (float)x; }
static inline float __ull2float_rn(unsigned long long x) { return (float)x; }
static inline int __popc(unsigned x) { return __builtin_popcount(x); }
static inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
static inline int __clz(int x) { return x ? __builtin_clz(x) : 32; }
static inline int __clzll(long long x) { return x ? __builtin_clzll(x) : 64; }
static inline int __ffs(int x) { return __builtin_ffs(x); }
static inline int __ffsll(long long x) { return __builtin_ffsll(x); }
static inline unsigned __brev(unsigned x) {
    unsigned r = 0;
    for (int i = 0; i < 32; i++) r |= (x >> i & 1) << (31 - i);
    return r;
}
static inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
    return (unsigned __int128)a * b >> 64;
}
static inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned by) {
    return ((uint64_t)high << 32 | low) << (by & 31) >> 32;
}
static inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned by) {
    return ((uint64_t)high << 32 | low) >> (by & 31);
}
static inline unsigned __umulhi(unsigned a, unsigned b) { return (uint64_t)a * b >> 32; }
static inline int __mul24(int a, int b) { return a * b; }
static inline int __dp4a(int a, int b, int c) {
    for (int i = 0; i < 4; i++) c += (int)(int8_t)(a >> 8 * i) * (int)(int8_t)(b >> 8 * i);
    return c;
}
static inline unsigned __vsubss4(unsigned a, unsigned b) {
    unsigned r = 0;
    for (int i = 0; i < 4; i++) {
        int d = (int)(int8_t)(a >> 8 * i) - (int)(int8_t)(b >> 8 * i);
        d = d > 127 ? 127 : d < -128 ? -128 : d;
        r |= (unsigned)(uint8_t)d << 8 * i;
    }
    return r;
}
static inline unsigned __byte_perm(unsigned x, unsigned y, unsigned s) {
    uint64_t v = (uint64_t)y << 32 | x;
    unsigned r = 0;
    for (int i = 0; i < 4; i++) r |= (unsigned)(v >> 8 * (s >> 4 * i & 7) & 255) << 8 * i;
    return r;
}
// Loads and stores that tell a GPU's caches what to keep.
template <class T> static inline T __ldg(const T *p) { return *p; }
template <class T> static inline T __ldca(const T *p) { return *p; }
template <class T> static inline T __ldcg(const T *p) { return *p; }
template <class T> static inline T __ldcs(const T *p) { return *p; }
template <class T> static inline void __stcg(T *p, T v) { *p = v; }
template <class T> static inline void __stcs(T *p, T v) { *p = v; }
