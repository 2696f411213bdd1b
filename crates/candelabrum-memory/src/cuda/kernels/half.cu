// Floats of 16 bits, whose arithmetic is that of f32. A number is rounded when it is stored.

typedef unsigned short half_t; // the bits of a 16-bit float

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

__device__ float from_bf16(half_t value) { return __uint_as_float((unsigned)value << 16); }

// A float of 16 bits in memory. It has an assignment and no constructor from a float, because
// otherwise the type of `c ? number : 0.0f` would be ambiguous.
struct f16_t {
  half_t bits;
  __device__ operator float() const { return from_f16(bits); }
  __device__ f16_t &operator=(float value) {
    bits = to_f16(value);
    return *this;
  }
};

struct bf16_t {
  half_t bits;
  __device__ operator float() const { return from_bf16(bits); }
  __device__ bf16_t &operator=(float value) {
    bits = to_bf16(value);
    return *this;
  }
};
