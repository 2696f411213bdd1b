// The arithmetic of a training step on runs of f32 numbers. Every kernel gets the addresses of runs
// of `n` numbers. Each thread takes every n-th number, where n is the number of threads.

#define FOR_EACH(i, n)                                                                             \
  for (unsigned long long i = blockIdx.x * (unsigned long long)blockDim.x + threadIdx.x; i < (n);  \
       i += (unsigned long long)gridDim.x * blockDim.x)

typedef unsigned long long count_t;

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

// values[0] = NaN if one of the n others is not finite.
extern "C" __global__ void poison(float *values, const float *others, count_t n) {
  FOR_EACH(i, n) {
    if (!isfinite(others[i])) values[0] = __int_as_float(0x7fc00000);
  }
}
