// Layer normalisation and root-mean-square normalisation. The text of rows.cu comes before.

// The normalisation of a row: h = ((x - shift) - rest) inverse.
struct Scale {
  float shift, rest, inverse;

  __device__ float at(float x) const { return ((x - shift) - rest) * inverse; }
};

#define SCALE 3 // numbers of a saved scale

__device__ Scale load(const float *saved, count_t row) {
  const float *from = saved + SCALE * row;
  return {from[0], from[1], from[2]};
}

// The scale of a row. `rest` is the rounding error of the mean, so a large mean costs no digits.
__device__ Scale scale_of(const number_t *x, count_t len, count_t count, count_t centred, double eps,
                          count_t width) {
  double shift = 0, rest = 0, variance;
  Sum sum, squares;
  if (centred) {
    for (count_t c = own_lane(width); c < len; c += width) sum.add(x[c]);
    float first = (float)(group_sum(sum, width) / count);
    Sum deviations;
    for (count_t c = own_lane(width); c < len; c += width) {
      float deviation = x[c] - first;
      deviations.add(deviation);
      squares.add(deviation * deviation);
    }
    double error = group_sum(deviations, width) / count;
    shift = (float)(first + error);
    rest = (first - shift) + error;
    variance = group_sum(squares, width) / count - error * error;
    if (variance < 0) variance = 0; // NaN stays NaN
  } else {
    for (count_t c = own_lane(width); c < len; c += width) squares.add(x[c] * x[c]);
    variance = group_sum(squares, width) / count;
  }
  return {(float)shift, (float)rest, (float)(1 / sqrt(variance + eps))};
}

// ys = weight h + bias for n rows of `count` numbers. The weight and the bias may be missing. saved
// gets the scale of each row.
extern "C" __global__ void normalise(number_t *ys, float *saved, const number_t *xs,
                                     const number_t *weight, const number_t *bias, count_t count, count_t centred, double eps,
                                     count_t width, count_t n) {
  count_t row = own_row(width), len = row < n ? count : 0;
  const number_t *x = xs + row * count;
  number_t *y = ys + row * count;
  Scale scale = scale_of(x, len, count, centred, eps, width);
  for (count_t c = own_lane(width); c < len; c += width) {
    float h = scale.at(x[c]);
    if (weight) h *= weight[c];
    y[c] = bias ? h + bias[c] : h;
  }
  if (row >= n || own_lane(width) != 0) return;
  float *to = saved + SCALE * row;
  to[0] = scale.shift;
  to[1] = scale.rest;
  to[2] = scale.inverse;
}

// dxs for n rows, with g = dy weight: inverse (g - mean(g) - h mean(g h)).
extern "C" __global__ void input_gradient(number_t *dxs, const number_t *dys, const number_t *xs,
                                          const number_t *weight, const float *saved, count_t count,
                                          count_t centred, count_t width, count_t n) {
  count_t row = own_row(width), len = row < n ? count : 0;
  const number_t *x = xs + row * count, *dy = dys + row * count;
  number_t *dx = dxs + row * count;
  Scale scale = {0.0f, 0.0f, 0.0f};
  if (row < n) scale = load(saved, row);
  Sum sum, dot;
  for (count_t c = own_lane(width); c < len; c += width) {
    float g = weight ? dy[c] * weight[c] : dy[c];
    sum.add(g);
    dot.add(g * scale.at(x[c]));
  }
  float mean = (float)(group_sum(sum, width) / count), slope = (float)(group_sum(dot, width) / count);
  if (!centred) mean = 0.0f;
  for (count_t c = own_lane(width); c < len; c += width) {
    float g = weight ? dy[c] * weight[c] : dy[c];
    dx[c] = scale.inverse * ((g - mean) - scale.at(x[c]) * slope);
  }
}

#define ROWS 64 // rows per group of `parameter_gradients`

// The gradients of weight and bias as sums over groups of ROWS rows: dws and dbs (groups, count). One
// of the two may be missing. A thread adds one column of one group, row after row. n is the number
// of sums.
extern "C" __global__ void parameter_gradients(float *dws, float *dbs, const number_t *dys,
                                               const number_t *xs, const float *saved, count_t rows,
                                               count_t count, count_t n) {
  for (count_t i = blockIdx.x * (count_t)blockDim.x + threadIdx.x; i < n;
       i += (count_t)gridDim.x * blockDim.x) {
    count_t group = i / count, column = i % count;
    count_t start = group * ROWS, end = start + ROWS < rows ? start + ROWS : rows;
    float dw = 0.0f, db = 0.0f;
    for (count_t row = start; row < end; row++) {
      float dy = dys[row * count + column];
      if (dws) dw += dy * load(saved, row).at(xs[row * count + column]);
      db += dy;
    }
    if (dws) dws[i] = dw;
    if (dbs) dbs[i] = db;
  }
}
