// The arithmetic of a training step on runs of f32 numbers. Every kernel gets the addresses of runs
// of `n` numbers. Each thread takes every n-th number, where n is the number of threads.

#define FOR_EACH(i, n)                                                                             \
  for (unsigned long long i = blockIdx.x * (unsigned long long)blockDim.x + threadIdx.x; i < (n);  \
       i += (unsigned long long)gridDim.x * blockDim.x)

typedef unsigned long long count_t;
typedef unsigned short half_t; // the bits of a 16-bit float

extern "C" __global__ void fill(float *values, float value, count_t n) {
  FOR_EACH(i, n) values[i] = value;
}

extern "C" __global__ void scale(float *values, float factor, count_t n) {
  FOR_EACH(i, n) values[i] *= factor;
}

// NaN stays NaN.
extern "C" __global__ void clamp(float *values, float limit, count_t n) {
  FOR_EACH(i, n) {
    float x = values[i];
    values[i] = x > limit ? limit : (x < -limit ? -limit : x);
  }
}

extern "C" __global__ void add(float *values, const float *from, count_t n) {
  FOR_EACH(i, n) values[i] += from[i];
}

// values[0] = NaN if one of the n others is not finite.
extern "C" __global__ void poison(float *values, const float *others, count_t n) {
  FOR_EACH(i, n) {
    if (!isfinite(others[i])) values[0] = __int_as_float(0x7fc00000);
  }
}

// f32 to fp16, rounded to nearest, ties to even.
__device__ half_t to_f16(float value) {
  unsigned bits = __float_as_uint(value), sign = bits >> 16 & 0x8000, magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000) return sign | 0x7e00 | (magnitude >> 13 & 0x1ff); // NaN
  if (magnitude >= 0x477ff000) return sign | 0x7c00; // at least 65520, which rounds to infinity
  if (magnitude < 0x38800000) {
    // Below 2^-14 the result is subnormal: a multiple of 2^-24. The addition of 1/2, whose last bit
    // is worth 2^-24, rounds to it.
    float rounded = __uint_as_float(magnitude) + 0.5f;
    return sign | (half_t)(__float_as_uint(rounded) - 0x3f000000);
  }
  unsigned odd = magnitude >> 13 & 1;
  return sign | (half_t)((magnitude - 0x38000000 + 0xfff + odd) >> 13);
}

__device__ float from_f16(half_t value) {
  unsigned sign = (unsigned)(value & 0x8000) << 16, exponent = value >> 10 & 31, rest = value & 0x3ff;
  if (exponent == 31) return __uint_as_float(sign | 0x7f800000 | rest << 13);
  if (exponent != 0) return __uint_as_float(sign | (exponent + 112) << 23 | rest << 13);
  float magnitude = (float)rest * 5.9604644775390625e-8f; // 2^-24
  return sign ? -magnitude : magnitude;
}

// f32 to bf16, rounded to nearest, ties to even.
__device__ half_t to_bf16(float value) {
  unsigned bits = __float_as_uint(value);
  if (value != value) return (half_t)(bits >> 16 | 0x40);
  return (half_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

extern "C" __global__ void narrow_f16(half_t *to, const float *from, float divisor, count_t n) {
  FOR_EACH(i, n) to[i] = to_f16(from[i] / divisor);
}

extern "C" __global__ void narrow_bf16(half_t *to, const float *from, float divisor, count_t n) {
  FOR_EACH(i, n) to[i] = to_bf16(from[i] / divisor);
}

extern "C" __global__ void widen_f16(float *to, const half_t *from, count_t n) {
  FOR_EACH(i, n) to[i] = from_f16(from[i]);
}

extern "C" __global__ void widen_bf16(float *to, const half_t *from, count_t n) {
  FOR_EACH(i, n) to[i] = __uint_as_float((unsigned)from[i] << 16);
}
