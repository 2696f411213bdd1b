// Sums over the values of each channel, for values of the shape (N, C, P) one after the other in
// memory. A channel's values are split into slices, and `lanes` threads of a block take one slice.
// The order of the additions depends only on the sizes, and on whether threads take packs of values.
// packs.cu comes before this text.

#define BLOCK 256      // threads per block
#define CARRY 32       // floats that are added before their sum goes to a double
#define PARTS 16       // sums that a slice's threads add; lanes is a multiple of it
#define MOST_SLICES 64 // slices of a channel

// A channel has less than 2^31 values. With `packs`, a plane is a multiple of WIDE values. If a channel has several slices, lanes is BLOCK. n, the last argument of these
// kernels, is the number of slices of all channels.
#define SIZES                                                                                      \
  count_t batch, count_t channels, count_t plane, count_t slices, count_t share, count_t lanes,    \
      count_t packs, count_t n

// The packs of a thread: every lanes-th pack of its slice.
template <unsigned V> struct Walk {
  unsigned lanes, lane, slice, channel;
  bool is_first;               // the thread that writes the slice's sums
  unsigned number, end, pixel; // of a pack: in its channel, in its plane
  unsigned plane, step_pixels; // packs of a plane, what is added for the next pack
  count_t start, image, step_start; // of a plane's first value in memory, as above

  __device__ Walk(SIZES) : lanes((unsigned)lanes), plane((unsigned)(plane / V)) {
    lane = threadIdx.x % this->lanes;
    slice = blockIdx.x * (BLOCK / this->lanes) + threadIdx.x / this->lanes;
    bool is_real = slice < n;
    is_first = is_real && lane == 0;
    if (!is_real) slice = (unsigned)n - 1; // such threads read its channel's numbers, and no values
    channel = slice / (unsigned)slices;
    unsigned count = (unsigned)batch * this->plane, size = (unsigned)share / V;
    unsigned first = slice % (unsigned)slices * size;
    number = first + lane;
    end = !is_real ? 0 : count - first > size ? first + size : count;
    image = channels * plane;
    pixel = number % this->plane;
    start = number / this->plane * image + channel * plane;
    step_pixels = this->lanes % this->plane;
    step_start = this->lanes / this->plane * image;
  }
  __device__ bool is_inside() const { return number < end; }
  __device__ count_t place() const { return start + (count_t)pixel * V; }
  __device__ void next() {
    number += lanes;
    pixel += step_pixels;
    start += step_start;
    if (pixel >= plane) {
      pixel -= plane;
      start += image;
    }
  }
};

#define WALK Walk<V> walk(batch, channels, plane, slices, share, lanes, packs, n)
#define FOR_PACKS(i)                                                                               \
  for (count_t i; walk.is_inside() && (i = walk.place(), true); walk.next())

#define SIZES_GIVEN batch, channels, plane, slices, share, lanes, packs, n

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
  __device__ double all() const { return total + part; }
};

// The sum over the threads of a slice, which all of them get.
__device__ double add_lanes(unsigned lane, unsigned lanes, double own) {
  // The barriers are few because the software GPU is slow at them.
  __shared__ double sums[BLOCK], parts[BLOCK / 2];
  __syncthreads(); // the threads have read the sum before
  sums[threadIdx.x] = own;
  __syncthreads();
  unsigned place = threadIdx.x / lanes * PARTS;
  if (lane < PARTS) {
    double part = 0.0;
    for (unsigned i = 0; i < lanes; i += PARTS) part += sums[threadIdx.x + i];
    parts[place + lane] = part;
  }
  __syncthreads();
  double total = 0.0;
  for (unsigned i = 0; i < PARTS; i++) total += parts[place + i];
  return total;
}

// The sum over the slices of a channel. A slice has `width` numbers.
__device__ double of_channel(const double *partials, unsigned slices, unsigned width) {
  double sum = 0.0;
  for (unsigned slice = 0; slice < slices; slice++) sum += partials[slice * width];
  return sum;
}

template <unsigned V>
__device__ void sum_slice(double *partials, const number_t *values, SIZES) {
  WALK;
  Sum sum;
  FOR_PACKS(i) {
    Pack<V> pack = load<V>(values, i);
    FOR_VALUES(k) sum.add(pack.values[k]);
  }
  double total = add_lanes(walk.lane, walk.lanes, sum.all());
  if (walk.is_first) partials[walk.slice] = total;
}

// partials[s] = the sum of the s-th slice.
extern "C" __global__ void sum_slices(double *partials, const number_t *values, SIZES) {
  BY_PACKS(sum_slice<V>(partials, values, SIZES_GIVEN))
}

// sums[c] = the sum of the slices of channel c. n is the number of channels.
extern "C" __global__ void add_slices(number_t *sums, const double *partials, count_t slices,
                                      count_t n) {
  FOR_EACH(channel, n)
    sums[channel] = (float)of_channel(partials + channel * slices, (unsigned)slices, 1);
}
