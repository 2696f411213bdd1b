// Eight bits: e4m3 without infinities, saturating.
#pragma once
enum __nv_fp8_interpretation_t { __NV_E4M3, __NV_E5M2 };
enum __nv_saturation_t { __NV_NOSAT, __NV_SATFINITE };
typedef unsigned char __nv_fp8_storage_t;
namespace softgpu {
inline uint8_t to8(double d) {
    uint8_t sign = std::signbit(d) ? 0x80 : 0;
    if (std::isnan(d)) return sign | 0x7f;
    double a = std::fabs(d);
    if (a > 448) a = 448;
    if (a == 0) return sign;
    int e;
    std::frexp(a, &e);
    e -= 1;
    int shift = (e < -6 ? -6 : e) - 3;
    unsigned m = (unsigned)std::nearbyint(std::ldexp(a, -shift));
    if (e < -6) return sign | (uint8_t)m;
    if (m >> 4) {
        m >>= 1;
        e++;
    }
    return sign | (uint8_t)((e + 7) << 3 | (m & 7));
}
inline float from8(uint8_t b) {
    int e = b >> 3 & 15, m = b & 7;
    float f;
    if (e == 15 && m == 7)
        f = __uint_as_float(0x7fc00000u);
    else
        f = e ? ldexpf((float)(8 + m), e - 10) : ldexpf((float)m, -9);
    return b & 0x80 ? -f : f;
}
} // namespace softgpu
struct __nv_fp8_e4m3 {
    __nv_fp8_storage_t __x;
    __nv_fp8_e4m3() = default;
    template <class T, std::enable_if_t<std::is_arithmetic_v<T>, int> = 0>
    explicit __nv_fp8_e4m3(T v) : __x(softgpu::to8((double)v)) {}
    explicit __nv_fp8_e4m3(__half v) : __x(softgpu::to8((float)v)) {}
    explicit __nv_fp8_e4m3(__nv_bfloat16 v) : __x(softgpu::to8((float)v)) {}
    explicit operator float() const { return softgpu::from8(__x); }
};
inline __half_raw __nv_cvt_fp8_to_halfraw(__nv_fp8_storage_t x, __nv_fp8_interpretation_t) {
    return __half(softgpu::from8(x));
}
