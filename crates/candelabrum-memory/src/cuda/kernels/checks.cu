// A sum of squares in a fixed order, and a search for numbers that are not finite. Both leave their
// result on the GPU. The text of sums.cu comes before this one.

// partials[b] = the sum of the squares of the b-th SHARE numbers.
extern "C" __global__ void partial_squares(double *partials, const float *values, count_t n) {
  count_t start = (count_t)blockIdx.x * SHARE, end = start + SHARE < n ? start + SHARE : n;
  double sum = 0;
  for (count_t i = start + threadIdx.x; i < end; i += BLOCK) sum += (double)values[i] * values[i];
  sum = block_sum(sum);
  if (threadIdx.x == 0) partials[blockIdx.x] = sum;
}

// *total += the sum of the n partials. One block runs it.
extern "C" __global__ void add_partials(double *total, const double *partials, count_t n) {
  double sum = 0;
  for (count_t i = threadIdx.x; i < n; i += BLOCK) sum += partials[i];
  sum = block_sum(sum);
  if (threadIdx.x == 0) *total += sum;
}

// The lowest key of a number that is not finite. The key of number i is first_key + i. `found` has
// the complement of the lowest key, and 0 if nothing was found, so zeroed memory is a fresh search.
extern "C" __global__ void search(count_t *found, const float *values, count_t first_key, count_t n) {
  for (count_t i = blockIdx.x * (count_t)blockDim.x + threadIdx.x; i < n;
       i += (count_t)gridDim.x * blockDim.x) {
    if (!isfinite(values[i])) {
      atomicMax(found, ~(first_key + i));
      return; // this thread's later numbers have higher keys
    }
  }
}
