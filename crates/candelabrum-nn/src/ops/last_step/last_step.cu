// The last time step of sequences.

typedef unsigned long long count_t;

#define FOR_EACH(i, n)                                                                             \
  for (count_t i = blockIdx.x * (count_t)blockDim.x + threadIdx.x; i < (n);                        \
       i += (count_t)gridDim.x * blockDim.x)

// ys (N, width) = the last of the steps of xs (N, steps, width).
extern "C" __global__ void last_step(number_t *ys, const number_t *xs, count_t steps, count_t width,
                                     count_t n) {
  FOR_EACH(i, n) {
    count_t sequence = i / width, column = i % width;
    ys[i] = xs[(sequence * steps + steps - 1) * width + column];
  }
}

// dxs (N, steps, width): dys in the last step, and 0 in the others.
extern "C" __global__ void last_step_gradient(number_t *dxs, const number_t *dys, count_t steps,
                                              count_t width, count_t n) {
  FOR_EACH(i, n) {
    count_t row = i / width, column = i % width;
    dxs[i] = row % steps == steps - 1 ? dys[row / steps * width + column] : 0.0f;
  }
}
