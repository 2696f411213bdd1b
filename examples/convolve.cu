// A 2-d convolution of planes of pixels with one or two filters. Around a plane everything is zero. As in
// every framework the filter is not mirrored.
//
// The program passes this text to NVRTC, so it has no #include. `tiled` and `untiled` do the same
// arithmetic in the same order, so their results are equal bit for bit.

typedef unsigned long long count_t;

#define MOST_FILTERS 2
#define MOST_RADIUS 8
#define MOST_SIDE (2 * MOST_RADIUS + 1)

// The filters one after the other, row by row. All threads of a warp need the same weight at the same
// time: constant memory gives a number to all of them at once.
extern "C" {
__constant__ float FILTERS[MOST_FILTERS * MOST_SIDE * MOST_SIDE];
}

// The pixels of a block. A warp of 32 threads computes a row, so it reads and writes neighbours.
#define TILE 32

struct Plane {
  const float *pixels;
  int height, width;
};

// A pixel, or zero outside of the plane.
__device__ float pixel(Plane plane, int y, int x) {
  bool inside = y >= 0 && y < plane.height && x >= 0 && x < plane.width;
  return inside ? plane.pixels[(count_t)y * plane.width + x] : 0.0f;
}

// The numbers of ys for a pixel of a plane are `filters` planes.
__device__ count_t place(count_t plane, int filters, int filter, int height, int width, int y, int x) {
  return ((plane * filters + filter) * height + y) * width + x;
}

// Every thread reads all pixels under the filter from global memory: (2 radius + 1)^2 for one result.
extern "C" __global__ void untiled(const float *xs, float *ys, count_t filters, count_t radius,
                                   count_t height, count_t width, count_t pixels) {
  count_t threads = (count_t)gridDim.x * blockDim.x;
  int r = radius, side = 2 * r + 1;
  for (count_t i = blockIdx.x * (count_t)blockDim.x + threadIdx.x; i < pixels; i += threads) {
    count_t number = i / (height * width);
    Plane plane = {xs + number * height * width, (int)height, (int)width};
    int y = i / width % height, x = i % width;
    for (int filter = 0; filter < filters; filter++) {
      const float *weight = FILTERS + filter * side * side;
      float sum = 0.0f;
      for (int dy = -r; dy <= r; dy++)
        for (int dx = -r; dx <= r; dx++)
          // NVRTC is told not to fuse a product and a sum, because other kernels need the CPU's bits.
          sum = fmaf(*weight++, pixel(plane, y + dy, x + dx), sum);
      ys[place(number, filters, filter, height, width, y, x)] = sum;
    }
  }
}

// A block copies its tile and the pixels around it, the halo, to shared memory once. With radius 8 a
// thread then reads 9 pixels of global memory instead of 4 times 289.
extern "C" __global__ void tiled(const float *xs, float *ys, count_t filters, count_t radius,
                                 count_t height, count_t width, count_t tiles) {
  __shared__ float near[(TILE + 2 * MOST_RADIUS) * (TILE + 2 * MOST_RADIUS)];
  int across = (width + TILE - 1) / TILE, down = (height + TILE - 1) / TILE;
  int left = blockIdx.x % across * TILE, top = blockIdx.x / across % down * TILE;
  count_t number = blockIdx.x / across / down;
  Plane plane = {xs + number * height * width, (int)height, (int)width};

  int r = radius, side = 2 * r + 1, pitch = TILE + 2 * r;
  for (int i = threadIdx.x; i < pitch * pitch; i += blockDim.x)
    near[i] = pixel(plane, top + i / pitch - r, left + i % pitch - r);
  __syncthreads();

  // The tiles at the end of a row or column may be larger than what is left of the plane.
  int x = threadIdx.x % TILE;
  for (int y = threadIdx.x / TILE; y < TILE; y += blockDim.x / TILE) {
    if (left + x >= plane.width || top + y >= plane.height) continue;
    for (int filter = 0; filter < filters; filter++) {
      const float *weight = FILTERS + filter * side * side;
      float sum = 0.0f;
      for (int dy = 0; dy < side; dy++)
        for (int dx = 0; dx < side; dx++)
          sum = fmaf(*weight++, near[(y + dy) * pitch + x + dx], sum);
      ys[place(number, filters, filter, height, width, top + y, left + x)] = sum;
    }
  }
}
