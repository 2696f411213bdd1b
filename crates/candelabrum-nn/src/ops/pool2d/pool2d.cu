// Poolings. A thread computes one number, so no two threads write to the same place: in a backward
// it gathers the gradients of all windows that hold its pixel, in the order of the windows.

// There are less than 2^31 numbers, so places are computed in 32 bits, whose divisions are fast.

typedef unsigned long long count_t;

#define FOR_EACH(i, n)                                                                             \
  for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < (unsigned)(n);                      \
       i += gridDim.x * blockDim.x)

// The sizes of a pooling along one axis.
struct Axis {
  unsigned in, out, kernel, stride, padding;
};

#define AXIS(name)                                                                                 \
  count_t name##_in, count_t name##_out, count_t name##_kernel, count_t name##_stride,             \
      count_t name##_padding
#define AXIS_OF(name)                                                                              \
  Axis {                                                                                           \
    (unsigned)name##_in, (unsigned)name##_out, (unsigned)name##_kernel, (unsigned)name##_stride,   \
        (unsigned)name##_padding                                                                   \
  }

struct Range {
  unsigned start, end;
};

// The pixels of window o inside the image. There is at least one.
__device__ Range window(Axis axis, unsigned o) {
  unsigned start = o * axis.stride, end = start + axis.kernel - axis.padding;
  return Range{start > axis.padding ? start - axis.padding : 0, end < axis.in ? end : axis.in};
}

// The windows that hold pixel i.
__device__ Range windows(Axis axis, unsigned i) {
  unsigned place = i + axis.padding;
  unsigned start = place < axis.kernel ? 0 : (place - axis.kernel) / axis.stride + 1;
  unsigned end = place / axis.stride + 1;
  return Range{start, end < axis.out ? end : axis.out};
}

// The place of a window's maximum in its plane: the first maximum, or the last NaN.
__device__ unsigned winner(const number_t *plane, Range rows, Range columns, unsigned width) {
  unsigned place = rows.start * width + columns.start;
  float best = plane[place];
  for (unsigned y = rows.start; y < rows.end; y++)
    for (unsigned x = columns.start; x < columns.end; x++) {
      float value = plane[y * width + x];
      if (value > best || isnan(value)) {
        best = value;
        place = y * width + x;
      }
    }
  return place;
}

// ys = the maximum of each window. winners = its place in its plane, which a float represents
// exactly. Without winners, the backward finds them again.
extern "C" __global__ void max_pool(number_t *ys, float *winners, const number_t *xs, AXIS(y), AXIS(x),
                                    count_t n) {
  Axis rows = AXIS_OF(y), columns = AXIS_OF(x);
  FOR_EACH(i, n) {
    unsigned oy = i / columns.out % rows.out, ox = i % columns.out;
    const number_t *plane = xs + i / (rows.out * columns.out) * (rows.in * columns.in);
    unsigned place = winner(plane, window(rows, oy), window(columns, ox), columns.in);
    ys[i] = plane[place];
    if (winners) winners[i] = (float)place;
  }
}

// dxs = the gradients of the windows whose maximum is this pixel. n is the number of pixels.
extern "C" __global__ void max_pool_back(number_t *dxs, const number_t *dys, const float *winners,
                                         const number_t *xs, AXIS(y), AXIS(x), count_t n) {
  Axis rows = AXIS_OF(y), columns = AXIS_OF(x);
  FOR_EACH(i, n) {
    unsigned in_plane = rows.in * columns.in, out_plane = rows.out * columns.out;
    unsigned plane = i / in_plane, own = i % in_plane;
    Range down = windows(rows, own / columns.in), right = windows(columns, own % columns.in);
    float sum = 0.0f;
    for (unsigned oy = down.start; oy < down.end; oy++)
      for (unsigned ox = right.start; ox < right.end; ox++) {
        unsigned result = plane * out_plane + oy * columns.out + ox;
        unsigned place = winners ? (unsigned)winners[result]
                                : winner(xs + plane * in_plane, window(rows, oy),
                                         window(columns, ox), columns.in);
        if (place == own) sum += dys[result];
      }
    dxs[i] = sum;
  }
}

// The number by which the sum of a window is divided.
__device__ float divisor(Axis rows, Axis columns, Range down, Range right, count_t whole) {
  return (float)(whole ? rows.kernel * columns.kernel
                       : (down.end - down.start) * (right.end - right.start));
}

// ys = the mean of each window. With whole, pixels of the padding count.
extern "C" __global__ void avg_pool(number_t *ys, const number_t *xs, count_t whole, AXIS(y), AXIS(x),
                                    count_t n) {
  Axis rows = AXIS_OF(y), columns = AXIS_OF(x);
  FOR_EACH(i, n) {
    Range down = window(rows, i / columns.out % rows.out), right = window(columns, i % columns.out);
    const number_t *plane = xs + i / (rows.out * columns.out) * (rows.in * columns.in);
    float sum = 0.0f;
    for (unsigned y = down.start; y < down.end; y++)
      for (unsigned x = right.start; x < right.end; x++) sum += plane[y * columns.in + x];
    ys[i] = sum / divisor(rows, columns, down, right, whole);
  }
}

// dxs = the shares of the windows that hold this pixel. n is the number of pixels.
extern "C" __global__ void avg_pool_back(number_t *dxs, const number_t *dys, count_t whole, AXIS(y),
                                         AXIS(x), count_t n) {
  Axis rows = AXIS_OF(y), columns = AXIS_OF(x);
  FOR_EACH(i, n) {
    unsigned in_plane = rows.in * columns.in, out_plane = rows.out * columns.out;
    unsigned plane = i / in_plane, own = i % in_plane;
    Range down = windows(rows, own / columns.in), right = windows(columns, own % columns.in);
    float sum = 0.0f;
    for (unsigned oy = down.start; oy < down.end; oy++)
      for (unsigned ox = right.start; ox < right.end; ox++)
        sum += dys[plane * out_plane + oy * columns.out + ox] /
               divisor(rows, columns, window(rows, oy), window(columns, ox), whole);
    dxs[i] = sum;
  }
}

#define LANES 32 // threads per plane
#define PLANES 8 // planes per block

// ys = the mean of each plane. n is the number of planes.
extern "C" __global__ void means(number_t *ys, const number_t *xs, count_t plane, count_t n) {
  __shared__ float sums[PLANES * LANES];
  unsigned lane = threadIdx.x % LANES;
  unsigned number = blockIdx.x * PLANES + threadIdx.x / LANES, size = (unsigned)plane;
  float sum = 0.0f;
  if (number < n)
    for (unsigned i = lane; i < size; i += LANES) sum += xs[number * size + i];
  sums[threadIdx.x] = sum;
  __syncthreads();
  if (lane == 0 && number < n) {
    float total = 0.0f;
    for (unsigned i = 0; i < LANES; i++) total += sums[threadIdx.x + i];
    ys[number] = total / (float)plane;
  }
}

// dxs = the share of each pixel in the mean of its plane. n is the number of pixels.
extern "C" __global__ void means_back(number_t *dxs, const number_t *dys, count_t plane, count_t n) {
  FOR_EACH(i, n) dxs[i] = dys[i / (unsigned)plane] / (float)plane;
}
