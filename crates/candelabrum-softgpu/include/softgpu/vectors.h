// CUDA's vector types, with the alignment that they have on a GPU.
#pragma once
struct uint3 {
    unsigned x, y, z;
};
struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned a = 1, unsigned b = 1, unsigned c = 1) : x(a), y(b), z(c) {}
    operator uint3() const { return {x, y, z}; }
};
#define SOFTGPU_VEC(T, N, A2, A4)                                                                  \
    struct A2 N##2 {                                                                               \
        T x, y;                                                                                    \
    };                                                                                             \
    struct N##3 {                                                                                  \
        T x, y, z;                                                                                 \
    };                                                                                             \
    struct A4 N##4 {                                                                               \
        T x, y, z, w;                                                                              \
    };                                                                                             \
    struct N##1 {                                                                                  \
        T x;                                                                                       \
    };                                                                                             \
    static inline N##1 make_##N##1(T x) { return {x}; }                                            \
    static inline N##2 make_##N##2(T x, T y) { return {x, y}; }                                    \
    static inline N##3 make_##N##3(T x, T y, T z) { return {x, y, z}; }                            \
    static inline N##4 make_##N##4(T x, T y, T z, T w) { return {x, y, z, w}; }
SOFTGPU_VEC(signed char, char, alignas(2), alignas(4))
SOFTGPU_VEC(unsigned char, uchar, alignas(2), alignas(4))
SOFTGPU_VEC(short, short, alignas(4), alignas(8))
SOFTGPU_VEC(unsigned short, ushort, alignas(4), alignas(8))
SOFTGPU_VEC(int, int, alignas(8), alignas(16))
SOFTGPU_VEC(float, float, alignas(8), alignas(16))
SOFTGPU_VEC(double, double, alignas(16), alignas(16))
SOFTGPU_VEC(unsigned long long, ulonglong, alignas(16), alignas(16))
SOFTGPU_VEC(long long, longlong, alignas(16), alignas(16))
struct alignas(8) uint2 {
    unsigned x, y;
};
struct alignas(16) uint4 {
    unsigned x, y, z, w;
};
static inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
static inline uint3 make_uint3(unsigned x, unsigned y, unsigned z) { return {x, y, z}; }
static inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) {
    return {x, y, z, w};
}
