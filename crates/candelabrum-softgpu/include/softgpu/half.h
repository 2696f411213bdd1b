// Half precision (f16 and bf16). Each operation rounds once to nearest, ties to even.
#pragma once
namespace softgpu {
// Correctly rounded (to nearest, ties to even) narrow float: `E` bits of exponent, `M` of mantissa.
template <int E, int M> inline uint16_t narrow(double d) {
    uint64_t b = __double_as_longlong(d);
    uint16_t sign = (uint16_t)(b >> 63 << (E + M));
    const int bias = (1 << (E - 1)) - 1;
    const uint16_t inf = (uint16_t)(((1 << E) - 1) << M);
    if (std::isnan(d)) return 0x7fff; // a GPU's NaN in both types
    double a = std::fabs(d);
    if (a == 0) return sign;
    if (std::isinf(d)) return sign | inf;
    int e;
    std::frexp(a, &e);
    e -= 1;                                           // a = 1.m * 2^e
    int shift = (e < 1 - bias ? 1 - bias : e) - M;    // unit in the last place: 2^shift
    double q = std::nearbyint(std::ldexp(a, -shift)); // exact scaling, one rounding
    uint32_t m = (uint32_t)q;
    if (e < 1 - bias) return sign | (uint16_t)m; // a subnormal, or just the smallest normal
    if (m >> (M + 1)) {
        m >>= 1;
        e++;
    }
    if (e > bias) return sign | inf;
    return sign | (uint16_t)((e + bias) << M) | (uint16_t)(m & ((1 << M) - 1));
}
inline float wide16(uint16_t h) {
    uint32_t s = (uint32_t)(h >> 15) << 31, e = h >> 10 & 31, m = h & 1023;
    if (e == 31) return __uint_as_float(s | 0x7f800000u | m << 13);
    if (e) return __uint_as_float(s | (e + 112) << 23 | m << 13);
    float f = (float)m * 5.9604644775390625e-8f;
    return s ? -f : f;
}
inline float widebf(uint16_t h) { return __uint_as_float((uint32_t)h << 16); }
inline uint16_t narrowbf(float f) {
    uint32_t u = __float_as_uint(f);
    if (f != f) return 0x7fff;
    return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}
} // namespace softgpu
struct __half_raw {
    unsigned short x;
};
struct __nv_bfloat16_raw {
    unsigned short x;
};
#define SOFTGPU_HALF(H, RAW, WIDE, NARROW)                                                         \
    struct alignas(2) H {                                                                          \
        unsigned short __x;                                                                        \
        H() = default;                                                                             \
        H(const RAW &r) : __x(r.x) {}                                                              \
        template <class T, std::enable_if_t<std::is_arithmetic_v<T>, int> = 0> H(T v)              \
            : __x(NARROW(v)) {}                                                                    \
        operator float() const { return WIDE(__x); }                                               \
        operator RAW() const { return {__x}; }                                                     \
    };                                                                                             \
    inline H operator+(H a, H b) { return (float)a + (float)b; }                                   \
    inline H operator-(H a, H b) { return (float)a - (float)b; }                                   \
    inline H operator*(H a, H b) { return (float)a * (float)b; }                                   \
    inline H operator/(H a, H b) { return (float)a / (float)b; }                                   \
    inline H operator-(H a) {                                                                      \
        H r;                                                                                       \
        r.__x = a.__x ^ 0x8000;                                                                    \
        return r;                                                                                  \
    }                                                                                              \
    inline H operator+(H a) { return a; }                                                          \
    inline H &operator+=(H &a, H b) { return a = a + b; }                                          \
    inline H &operator-=(H &a, H b) { return a = a - b; }                                          \
    inline H &operator*=(H &a, H b) { return a = a * b; }                                          \
    inline H &operator/=(H &a, H b) { return a = a / b; }                                          \
    inline bool operator==(H a, H b) { return (float)a == (float)b; }                              \
    inline bool operator!=(H a, H b) { return (float)a != (float)b; }                              \
    inline bool operator<(H a, H b) { return (float)a < (float)b; }                                \
    inline bool operator<=(H a, H b) { return (float)a <= (float)b; }                              \
    inline bool operator>(H a, H b) { return (float)a > (float)b; }                                \
    inline bool operator>=(H a, H b) { return (float)a >= (float)b; }                              \
    inline bool __hisnan(H a) { return (float)a != (float)a; }                                     \
    inline H __habs(H a) {                                                                         \
        H r;                                                                                       \
        r.__x = a.__x & 0x7fff;                                                                    \
        return r;                                                                                  \
    }                                                                                              \
    inline H __hneg(H a) { return -a; }                                                            \
    inline H __hadd(H a, H b) { return a + b; }                                                    \
    inline H __hsub(H a, H b) { return a - b; }                                                    \
    inline H __hmul(H a, H b) { return a * b; }                                                    \
    inline H __hdiv(H a, H b) { return a / b; }                                                    \
    inline H __hfma(H a, H b, H c) { return (double)(float)a * (float)b + (float)c; }              \
    inline bool __heq(H a, H b) { return a == b; }                                                 \
    inline bool __hlt(H a, H b) { return a < b; }                                                  \
    inline bool __hgt(H a, H b) { return a > b; }                                                  \
    inline H __hmax_nan(H a, H b) {                                                                \
        return __hisnan(a) || __hisnan(b) ? H(NAN) : a > b ? a : b;                                \
    }                                                                                              \
    inline H __hmin_nan(H a, H b) {                                                                \
        return __hisnan(a) || __hisnan(b) ? H(NAN) : a < b ? a : b;                                \
    }                                                                                              \
    inline H __hmax(H a, H b) {                                                                    \
        if (__hisnan(a) != __hisnan(b)) return __hisnan(a) ? b : a;                                \
        return __hmax_nan(a, b);                                                                   \
    }                                                                                              \
    inline H __hmin(H a, H b) {                                                                    \
        if (__hisnan(a) != __hisnan(b)) return __hisnan(a) ? b : a;                                \
        return __hmin_nan(a, b);                                                                   \
    }                                                                                              \
    inline H hsqrt(H a) { return sqrtf(a); }                                                       \
    inline H hrsqrt(H a) { return rsqrtf(a); }                                                     \
    inline H hrcp(H a) { return 1.0f / (float)a; }                                                 \
    inline H hsin(H a) { return sinf(a); }                                                         \
    inline H hcos(H a) { return cosf(a); }                                                         \
    inline H hexp(H a) { return expf(a); }                                                         \
    inline H hexp2(H a) { return exp2f(a); }                                                       \
    inline H hlog(H a) { return logf(a); }                                                         \
    inline H hlog2(H a) { return log2f(a); }                                                       \
    inline H hceil(H a) { return ceilf(a); }                                                       \
    inline H hfloor(H a) { return floorf(a); }                                                     \
    inline H hrint(H a) { return nearbyintf(a); }                                                  \
    inline H htanh(H a) { return tanhf(a); }
namespace softgpu {
inline uint16_t to16(double d) { return narrow<5, 10>(d); }
template <class T> inline uint16_t tobf(T v) {
    if constexpr (std::is_same_v<T, float>)
        return narrowbf(v);
    else
        return narrow<8, 7>((double)v);
}
} // namespace softgpu
SOFTGPU_HALF(__half, __half_raw, softgpu::wide16, softgpu::to16)
SOFTGPU_HALF(__nv_bfloat16, __nv_bfloat16_raw, softgpu::widebf, softgpu::tobf)
using half = __half;
using nv_bfloat16 = __nv_bfloat16;
struct alignas(4) __half2 {
    __half x, y;
};
struct alignas(4) __nv_bfloat162 {
    __nv_bfloat16 x, y;
};
using half2 = __half2;
using nv_bfloat162 = __nv_bfloat162;
inline float __half2float(__half h) { return h; }
inline __half __float2half(float f) { return f; }
inline __half __float2half_rn(float f) { return f; }
inline __half __double2half(double f) { return f; }
inline __half __int2half_rn(int i) { return i; }
inline __half __ushort_as_half(unsigned short u) { return __half_raw{u}; }
inline unsigned short __half_as_ushort(__half h) { return h.__x; }
inline float __bfloat162float(__nv_bfloat16 h) { return h; }
inline __nv_bfloat16 __float2bfloat16(float f) { return f; }
inline __nv_bfloat16 __float2bfloat16_rn(float f) { return f; }
inline __nv_bfloat16 __ushort_as_bfloat16(unsigned short u) { return __nv_bfloat16_raw{u}; }
inline unsigned short __bfloat16_as_ushort(__nv_bfloat16 h) { return h.__x; }
#define SOFTGPU_PAIR(H, H2)                                                                        \
    inline H2 __halves2half2(H a, H b) { return {a, b}; }                                          \
    inline H __low2half(H2 a) { return a.x; }                                                      \
    inline H __high2half(H2 a) { return a.y; }                                                     \
    inline float __low2float(H2 a) { return a.x; }                                                 \
    inline float __high2float(H2 a) { return a.y; }                                                \
    inline H2 __hadd2(H2 a, H2 b) { return {a.x + b.x, a.y + b.y}; }                               \
    inline H2 __hsub2(H2 a, H2 b) { return {a.x - b.x, a.y - b.y}; }                               \
    inline H2 __hmul2(H2 a, H2 b) { return {a.x * b.x, a.y * b.y}; }                               \
    inline H2 __h2div(H2 a, H2 b) { return {a.x / b.x, a.y / b.y}; }                               \
    inline H2 __hneg2(H2 a) { return {-a.x, -a.y}; }                                               \
    inline H2 __hmax2(H2 a, H2 b) { return {__hmax(a.x, b.x), __hmax(a.y, b.y)}; }                 \
    inline H2 __hmin2(H2 a, H2 b) { return {__hmin(a.x, b.x), __hmin(a.y, b.y)}; }                 \
    inline H2 __hfma2(H2 a, H2 b, H2 c) { return {__hfma(a.x, b.x, c.x), __hfma(a.y, b.y, c.y)}; } \
    inline H2 operator+(H2 a, H2 b) { return __hadd2(a, b); }                                      \
    inline H2 operator-(H2 a, H2 b) { return __hsub2(a, b); }                                      \
    inline H2 operator*(H2 a, H2 b) { return __hmul2(a, b); }
SOFTGPU_PAIR(__half, __half2)
SOFTGPU_PAIR(__nv_bfloat16, __nv_bfloat162)
inline half2 make_half2(half a, half b) { return {a, b}; }
inline half2 __float2half2_rn(float a) { return {a, a}; }
inline half2 __floats2half2_rn(float a, float b) { return {a, b}; }
inline float2 __half22float2(half2 a) { return {a.x, a.y}; }
inline __nv_bfloat162 make_bfloat162(__nv_bfloat16 a, __nv_bfloat16 b) { return {a, b}; }
inline __nv_bfloat162 __floats2bfloat162_rn(float a, float b) { return {a, b}; }
inline float2 __bfloat1622float2(__nv_bfloat162 a) { return {a.x, a.y}; }
inline __nv_bfloat162 __float2bfloat162_rn(float a) { return {a, a}; }
inline half2 __float22half2_rn(float2 a) { return {a.x, a.y}; }
inline __nv_bfloat162 __float22bfloat162_rn(float2 a) { return {a.x, a.y}; }
inline __nv_bfloat162 __halves2bfloat162(__nv_bfloat16 a, __nv_bfloat16 b) { return {a, b}; }
inline __nv_bfloat16 __low2bfloat16(__nv_bfloat162 a) { return a.x; }
inline __nv_bfloat16 __high2bfloat16(__nv_bfloat162 a) { return a.y; }
