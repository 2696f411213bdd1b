// Sums in a fixed order. This text is put before kernels that add numbers up: each block adds a share,
// and one block adds the results.

typedef unsigned long long count_t;

#define BLOCK 256  // threads per block
#define SHARE 8192 // numbers that one block adds

// The sum over the threads of a block, always in the same order. Thread 0 gets it.
__device__ double block_sum(double own) {
  __shared__ double sums[BLOCK];
  __syncthreads(); // thread 0 has the result of the call before
  sums[threadIdx.x] = own;
  for (unsigned width = BLOCK / 2; width > 0; width /= 2) {
    __syncthreads();
    if (threadIdx.x < width) sums[threadIdx.x] += sums[threadIdx.x + width];
  }
  return sums[0];
}
