// Dropout with the CPU's mask: element i is kept if the i-th number of SplitMix64 is large enough.

typedef unsigned long long count_t;

#define GOLDEN 0x9e3779b97f4a7c15ull

// The output function of SplitMix64.
__device__ count_t mix(count_t z) {
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ z >> 27) * 0x94d049bb133111ebull;
  return z ^ z >> 31;
}

// ys = xs * scale, and 0 where the upper 32 bits of the number are below the threshold. The key is
// `*stored`, or `key` if that is a null pointer.
extern "C" __global__ void dropout(number_t *ys, const number_t *xs, const count_t *stored, count_t key,
                                   count_t threshold, float scale, count_t n) {
  if (stored) key = *stored;
  for (count_t i = blockIdx.x * (count_t)blockDim.x + threadIdx.x; i < n;
       i += (count_t)gridDim.x * blockDim.x) {
    count_t number = mix(key + (i + 1) * GOLDEN);
    ys[i] = number >> 32 >= threshold ? xs[i] * scale : 0.0f; // a dropped NaN becomes 0
  }
}
