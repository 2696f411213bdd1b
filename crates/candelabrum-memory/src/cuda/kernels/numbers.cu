// Sums and conversions of numbers of one floating-point type, number_t.

typedef unsigned long long count_t;

#define FOR_EACH(i, n)                                                                             \
  for (count_t i = blockIdx.x * (count_t)blockDim.x + threadIdx.x; i < (n);                        \
       i += (count_t)gridDim.x * blockDim.x)

extern "C" __global__ void add(number_t *sums, const number_t *others, count_t n) {
  FOR_EACH(i, n) sums[i] = (float)sums[i] + (float)others[i];
}

// to = from / divisor, rounded to nearest, ties to even.
extern "C" __global__ void narrow(number_t *to, const float *from, float divisor, count_t n) {
  FOR_EACH(i, n) to[i] = from[i] / divisor;
}

// to = from, exactly.
extern "C" __global__ void widen(float *to, const number_t *from, count_t n) {
  FOR_EACH(i, n) to[i] = from[i];
}

extern "C" __global__ void add_to_f32(float *sums, const number_t *others, count_t n) {
  FOR_EACH(i, n) sums[i] += (float)others[i];
}
