// Sums and maxima of the rows of a matrix. This text is put before kernels that work row by row.
//
// A group of `width` threads works on one row. The width is a power of two and at most BLOCK, and
// the grid has a group for each row. A group after the last row works on a row without elements,
// because all threads of a block must come to the same barriers.

typedef unsigned long long count_t;

#define BLOCK 256 // threads per block
#define CARRY 32  // numbers between two additions to a total in f64

__device__ count_t own_row(count_t width) {
  return (blockIdx.x * (count_t)BLOCK + threadIdx.x) / width;
}

__device__ count_t own_lane(count_t width) { return threadIdx.x % width; }

// The sum of the numbers of one thread.
struct Sum {
  double total = 0;
  float part = 0;
  unsigned pending = 0;

  __device__ void add(float number) {
    part += number;
    if (++pending == CARRY) carry();
  }

  __device__ void carry() {
    total += part;
    part = 0;
    pending = 0;
  }
};

// The sum over the threads of a group, always in the same order. Every thread gets it.
__device__ double group_sum(Sum own, count_t width) {
  __shared__ double sums[BLOCK];
  own.carry();
  __syncthreads(); // every thread has read the result of the call before
  sums[threadIdx.x] = own.total;
  for (count_t half = width / 2; half > 0; half /= 2) {
    __syncthreads();
    if (own_lane(width) < half) sums[threadIdx.x] += sums[threadIdx.x + half];
  }
  __syncthreads();
  return sums[threadIdx.x - own_lane(width)];
}

// The largest number of the group's row. NaN does not count.
__device__ float row_max(const number_t *row, count_t len, count_t width) {
  __shared__ float largest[BLOCK];
  float own = __int_as_float(0xff800000); // minus infinity
  for (count_t i = own_lane(width); i < len; i += width) own = row[i] > own ? (float)row[i] : own;
  __syncthreads(); // every thread has read the result of the call before
  largest[threadIdx.x] = own;
  for (count_t half = width / 2; half > 0; half /= 2) {
    __syncthreads();
    if (own_lane(width) < half) {
      float other = largest[threadIdx.x + half];
      if (other > largest[threadIdx.x]) largest[threadIdx.x] = other;
    }
  }
  __syncthreads();
  return largest[threadIdx.x - own_lane(width)];
}

// The sum of exp(x - top) over the group's row, in f32 as on the CPU.
__device__ float sum_of_exp(const number_t *x, float top, count_t len, count_t width) {
  Sum sum;
  for (count_t c = own_lane(width); c < len; c += width) sum.add(expf(x[c] - top));
  return (float)group_sum(sum, width);
}
