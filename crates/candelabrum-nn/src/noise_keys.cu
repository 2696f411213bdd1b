// Keys of noise for the kernels of a recorded pass.

typedef unsigned long long count_t;

// keys[0..n] = k0, k1, ..., with n of at most 8. One block runs it.
extern "C" __global__ void set_keys(count_t *keys, count_t k0, count_t k1, count_t k2, count_t k3,
                                    count_t k4, count_t k5, count_t k6, count_t k7, count_t n) {
  const count_t all[8] = {k0, k1, k2, k3, k4, k5, k6, k7};
  if (threadIdx.x < n) keys[threadIdx.x] = all[threadIdx.x];
}
