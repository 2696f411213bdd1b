// The cross entropy of rows. The texts of rows.cu and indices.cu come before.

#define IGNORED -1 // a row that does not count
#define NO_CLASS -2

// The class of a row.
__device__ long long class_of(count_t row, const void *labels, count_t size, count_t ignores,
                              count_t ignored, count_t classes) {
  long long label = index_at(labels, size, row);
  if (ignores && label == (long long)ignored) return IGNORED;
  return label >= 0 && (count_t)label < classes ? label : NO_CLASS;
}

// The cross entropy of n rows. The targets are probabilities, or labels if there are none. kept is
// 1 - smoothing, and even is smoothing / classes. saved gets, for the n rows, the maximum and the
// sum of the exponentials, and after all of these the losses.
extern "C" __global__ void losses(float *saved, const number_t *logits,
                                  const number_t *probabilities,
                                  const void *labels, count_t size, count_t ignores,
                                  count_t ignored, count_t classes, float kept, float even,
                                  count_t width, count_t n) {
  count_t row = own_row(width), len = row < n ? classes : 0;
  const number_t *z = logits + row * classes, *t = probabilities + row * classes;
  float top = row_max(z, len, width);
  float sum = sum_of_exp(z, top, len, width), ln = logf(sum);
  long long label = NO_CLASS;
  if (row < n && !probabilities) {
    label = class_of(row, labels, size, ignores, ignored, classes);
  }
  Sum own, own_all;
  for (count_t c = own_lane(width); c < len; c += width) {
    float surprise = (top - z[c]) + ln;
    if (probabilities) {
      // 0 * infinity is 0 here: a class without weight does not count.
      if (t[c] != 0.0f) own.add(t[c] * surprise);
    } else if ((long long)c == label) {
      own.add(surprise);
    }
    own_all.add(surprise);
  }
  float loss = (float)group_sum(own, width), all = (float)group_sum(own_all, width);
  if (row >= n || own_lane(width) != 0) return;
  saved[2 * row] = top;
  saved[2 * row + 1] = sum;
  if (even != 0.0f) loss = kept * loss + even * all;
  if (!probabilities && label == NO_CLASS) loss = NOT_A_NUMBER;
  if (!probabilities && label == IGNORED) loss = 0.0f;
  saved[2 * n + row] = loss;
}

// *loss = the mean of the n losses that count, 0 if none does. saved gets the divisor of the mean after
// the losses. One block runs it.
extern "C" __global__ void mean_loss(number_t *loss, float *saved, const void *labels, count_t size,
                                     count_t ignores, count_t ignored, count_t n) {
  Sum sum, counted;
  for (count_t row = threadIdx.x; row < n; row += BLOCK) {
    sum.add(saved[2 * n + row]);
    sum.carry();
    counted.add(ignores && index_at(labels, size, row) == (long long)ignored ? 0.0f : 1.0f);
  }
  double total = group_sum(sum, BLOCK), rows = group_sum(counted, BLOCK);
  if (threadIdx.x != 0) return;
  if (rows < 1.0) rows = 1.0;
  *loss = (float)(total / rows);
  saved[3 * n] = (float)rows;
}

// The gradient of the logits, from the gradient of the loss.
extern "C" __global__ void loss_gradient(number_t *dlogits, const number_t *dloss,
                                         const number_t *logits, const number_t *probabilities, const void *labels,
                                         count_t size, count_t ignores, count_t ignored,
                                         const float *saved, count_t classes, float kept,
                                         float even, float smoothing, count_t width, count_t n) {
  count_t row = own_row(width), len = row < n ? classes : 0;
  const number_t *z = logits + row * classes, *t = probabilities + row * classes;
  number_t *dz = dlogits + row * classes;
  float scale = *dloss / saved[3 * n], weight = scale;
  if (probabilities) {
    Sum own;
    for (count_t c = own_lane(width); c < len; c += width) own.add(t[c]);
    weight = scale * kept * (float)group_sum(own, width) + scale * smoothing;
  }
  if (row >= n) return;
  float top = saved[2 * row], factor = weight / saved[2 * row + 1];
  long long label = NO_CLASS;
  if (!probabilities) label = class_of(row, labels, size, ignores, ignored, classes);
  for (count_t c = own_lane(width); c < len; c += width) {
    float target = probabilities ? (float)t[c] : ((long long)c == label ? 1.0f : 0.0f);
    float d = expf(z[c] - top) * factor - scale * even - scale * kept * target;
    if (!probabilities && label == NO_CLASS) d = NOT_A_NUMBER;
    if (!probabilities && label == IGNORED) d = 0.0f;
    dz[c] = d;
  }
}
