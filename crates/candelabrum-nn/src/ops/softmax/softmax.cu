// Softmax and its logarithm. The text of rows.cu comes before.

// ys = softmax(xs), or its logarithm, for n rows.
extern "C" __global__ void softmax(number_t *ys, const number_t *xs, count_t classes, count_t logarithm,
                                   count_t width, count_t n) {
  count_t row = own_row(width), len = row < n ? classes : 0;
  const number_t *x = xs + row * classes;
  number_t *y = ys + row * classes;
  float top = row_max(x, len, width);
  float sum = sum_of_exp(x, top, len, width), ln = logf(sum);
  for (count_t c = own_lane(width); c < len; c += width) {
    y[c] = logarithm ? (x[c] - top) - ln : expf(x[c] - top) / sum;
  }
}

// dxs from the result ys.
extern "C" __global__ void softmax_gradient(number_t *dxs, const number_t *dys, const number_t *ys,
                                            count_t classes, count_t logarithm, count_t width,
                                            count_t n) {
  count_t row = own_row(width), len = row < n ? classes : 0;
  const number_t *y = ys + row * classes, *dy = dys + row * classes;
  number_t *dx = dxs + row * classes;
  Sum own;
  for (count_t c = own_lane(width); c < len; c += width) own.add(logarithm ? dy[c] : dy[c] * y[c]);
  float sum = (float)group_sum(own, width);
  for (count_t c = own_lane(width); c < len; c += width) {
    dx[c] = logarithm ? dy[c] - expf(y[c]) * sum : y[c] * (dy[c] - sum);
  }
}
