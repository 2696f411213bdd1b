// Sums over the values of each channel, for values of the shape (N, C, P) one after the other in memory.
// A channel's values are split into slices, and one block takes one slice. The order of the additions
// depends on the sizes only.

typedef unsigned long long count_t;

#define BLOCK 256 // threads per block
#define CARRY 32  // floats that are added before their sum goes to a double

#define SIZES count_t batch, count_t channels, count_t plane, count_t slices, count_t share
#define CHANNEL (blockIdx.x / slices)

// The places in memory of a thread's values: every BLOCK-th value of the block's slice.
struct Walk {
  count_t number, end, pixel, start;            // of a value: its number in the channel, its place
  count_t plane, image, step_pixels, step_start; // what is added for the next one

  __device__ Walk(SIZES) : plane(plane), image(channels * plane) {
    count_t slice = blockIdx.x % slices, count = batch * plane;
    number = slice * share + threadIdx.x;
    end = slice * share + share < count ? slice * share + share : count;
    pixel = number % plane;
    start = number / plane * image + CHANNEL * plane;
    step_pixels = BLOCK % plane;
    step_start = BLOCK / plane * image;
  }
  __device__ bool is_inside() const { return number < end; }
  __device__ count_t place() const { return start + pixel; }
  __device__ void next() {
    number += BLOCK;
    pixel += step_pixels;
    start += step_start;
    if (pixel >= plane) {
      pixel -= plane;
      start += image;
    }
  }
};

#define FOR_SLICE(i)                                                                               \
  Walk walk(batch, channels, plane, slices, share);                                                \
  for (count_t i; walk.is_inside() && (i = walk.place(), true); walk.next())

// A sum of floats: a few at a time in f32, and these sums in f64.
struct Sum {
  double total = 0.0;
  float part = 0.0f;
  unsigned pending = 0;

  __device__ void add(float value) {
    part += value;
    if (++pending == CARRY) {
      total += part;
      part = 0.0f;
      pending = 0;
    }
  }

  // The sum over the threads of the block. Thread 0 gets it.
  __device__ double of_block() const {
    __shared__ double sums[BLOCK];
    __syncthreads();
    sums[threadIdx.x] = total + part;
    for (unsigned width = BLOCK / 2; width > 0; width /= 2) {
      __syncthreads();
      if (threadIdx.x < width) sums[threadIdx.x] += sums[threadIdx.x + width];
    }
    return sums[0];
  }
};

// The sum over the slices of a channel. A slice has `width` numbers.
__device__ double of_channel(const double *partials, count_t channel, count_t slices, count_t width) {
  double sum = 0.0;
  for (count_t slice = 0; slice < slices; slice++)
    sum += partials[(channel * slices + slice) * width];
  return sum;
}

// partials[b] = the sum of the b-th slice.
extern "C" __global__ void sum_slices(double *partials, const float *values, SIZES, count_t n) {
  Sum sum;
  FOR_SLICE(i) sum.add(values[i]);
  double total = sum.of_block();
  if (threadIdx.x == 0) partials[blockIdx.x] = total;
}

// sums[c] = the sum of the slices of channel c. n is the number of channels.
extern "C" __global__ void add_slices(float *sums, const double *partials, count_t slices, count_t n) {
  for (count_t channel = blockIdx.x * (count_t)blockDim.x + threadIdx.x; channel < n;
       channel += (count_t)gridDim.x * blockDim.x)
    sums[channel] = (float)of_channel(partials, channel, slices, 1);
}
