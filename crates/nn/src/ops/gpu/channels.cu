// Sums over the values of each channel, for values of the shape (N, C, P) one after the other in
// memory. A channel's values are split into slices, and `lanes` threads of a block take one slice.
// The order of the additions depends on the sizes only.

typedef unsigned long long count_t;

#define BLOCK 256 // threads per block
#define CARRY 32  // floats that are added before their sum goes to a double
#define PARTS 16  // sums that the first thread of a slice adds; lanes is a multiple of it

// n, the last argument of these kernels, is the number of slices of all channels.
#define SIZES                                                                                      \
  count_t batch, count_t channels, count_t plane, count_t slices, count_t share, count_t lanes,    \
      count_t n

// The places in memory of a thread's values: every lanes-th value of its slice.
struct Walk {
  count_t lane, slice, channel;
  bool is_first;                                       // the thread that writes the slice's sums
  count_t number, end, pixel, start;                   // of a value: in its channel, its place
  count_t plane, image, step, step_pixels, step_start; // what is added for the next one

  __device__ Walk(SIZES) : plane(plane), image(channels * plane), step(lanes) {
    lane = threadIdx.x % lanes;
    slice = blockIdx.x * (BLOCK / lanes) + threadIdx.x / lanes;
    bool is_real = slice < n;
    is_first = is_real && lane == 0;
    if (!is_real) slice = n - 1; // such threads read its channel's numbers, and no values
    channel = slice / slices;
    count_t count = batch * plane, first = slice % slices * share;
    number = first + lane;
    end = first + share < count ? first + share : count;
    if (!is_real) end = 0;
    pixel = number % plane;
    start = number / plane * image + channel * plane;
    step_pixels = lanes % plane;
    step_start = lanes / plane * image;
  }
  __device__ bool is_inside() const { return number < end; }
  __device__ count_t place() const { return start + pixel; }
  __device__ void next() {
    number += step;
    pixel += step_pixels;
    start += step_start;
    if (pixel >= plane) {
      pixel -= plane;
      start += image;
    }
  }
};

#define WALK Walk walk(batch, channels, plane, slices, share, lanes, n)
#define FOR_SLICE(i)                                                                               \
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
};

// Adds the sums of a slice's threads. The slice's first thread writes the totals.
template <unsigned N>
__device__ void add_lanes(const Walk &walk, const Sum (&own)[N], double *totals) {
  // The barriers are few because the software GPU is slow at them.
  __shared__ double sums[N][BLOCK], parts[N][BLOCK / 2];
  for (unsigned k = 0; k < N; k++) sums[k][threadIdx.x] = own[k].total + own[k].part;
  __syncthreads();
  count_t place = threadIdx.x / walk.step * PARTS;
  if (walk.lane < PARTS)
    for (unsigned k = 0; k < N; k++) {
      double part = 0.0;
      for (count_t i = 0; i < walk.step; i += PARTS) part += sums[k][threadIdx.x + i];
      parts[k][place + walk.lane] = part;
    }
  __syncthreads();
  if (walk.is_first)
    for (unsigned k = 0; k < N; k++) {
      double total = 0.0;
      for (unsigned i = 0; i < PARTS; i++) total += parts[k][place + i];
      totals[walk.slice * N + k] = total;
    }
}

// The sum over the slices of a channel. A slice has `width` numbers.
__device__ double of_channel(const double *partials, count_t channel, count_t slices,
                             count_t width) {
  double sum = 0.0;
  for (count_t slice = 0; slice < slices; slice++)
    sum += partials[(channel * slices + slice) * width];
  return sum;
}

// partials[s] = the sum of the s-th slice.
extern "C" __global__ void sum_slices(double *partials, const number_t *values, SIZES) {
  WALK;
  Sum sums[1];
  FOR_SLICE(i) sums[0].add(values[i]);
  add_lanes(walk, sums, partials);
}

// sums[c] = the sum of the slices of channel c. n is the number of channels.
extern "C" __global__ void add_slices(number_t *sums, const double *partials, count_t slices,
                                      count_t n) {
  for (count_t channel = blockIdx.x * (count_t)blockDim.x + threadIdx.x; channel < n;
       channel += (count_t)gridDim.x * blockDim.x)
    sums[channel] = (float)of_channel(partials, channel, slices, 1);
}
