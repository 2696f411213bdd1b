// The cells of recurrent layers. The text of sigmoid.cu comes before. A thread computes one hidden unit
// of one sequence in one step, in f32.
//
// (N, T, ..) tensors have a row for each step of each sequence, so the row of step t of sequence s is
// s * steps + t. Gates are side by side in a row: `hidden` numbers of the first gate, then those of the
// next one. n is N * hidden.

typedef unsigned long long count_t;

#define FOR_EACH(i, n)                                                                             \
  for (count_t i = blockIdx.x * (count_t)blockDim.x + threadIdx.x; i < (n);                        \
       i += (count_t)gridDim.x * blockDim.x)

// Number i of a vector, 0 if there is none.
template <class T> __device__ float at(const T *numbers, count_t i) {
  return numbers ? (float)numbers[i] : 0.0f;
}

// The arguments of a step. gates (N, T, G hidden) are the products with the input before the step, and
// the gates after it. b (N, G hidden) are the products with h, and a null pointer if h is 0. c is the
// cell state before and after the step. extra (N, T, hidden) is kept for the backward.
#define STEP                                                                                       \
  float *gates, float *extra, float *c, const float *b, const number_t *bias_ih,                   \
      const number_t *bias_hh, number_t *h, number_t *ys, count_t t, count_t steps,                \
      count_t hidden, count_t n

// extra is b_n.
extern "C" __global__ void gru_step(STEP) {
  FOR_EACH(i, n) {
    count_t sequence = i / hidden, unit = i % hidden, row = sequence * steps + t;
    float *gate = gates + row * 3 * hidden + unit, as[3], bs[3];
    for (unsigned k = 0; k < 3; k++) {
      as[k] = gate[k * hidden] + at(bias_ih, k * hidden + unit);
      bs[k] = at(b, (sequence * 3 + k) * hidden + unit) + at(bias_hh, k * hidden + unit);
    }
    float r = sigmoid(as[0] + bs[0]), z = sigmoid(as[1] + bs[1]), m = tanhf(as[2] + r * bs[2]);
    gate[0] = r;
    gate[hidden] = z;
    gate[2 * hidden] = m;
    extra[row * hidden + unit] = bs[2];
    float next = m + z * (h[i] - m);
    h[i] = next;
    ys[row * hidden + unit] = next;
  }
}

// extra is the cell state before the step.
extern "C" __global__ void lstm_step(STEP) {
  FOR_EACH(i, n) {
    count_t sequence = i / hidden, unit = i % hidden, row = sequence * steps + t;
    float *gate = gates + row * 4 * hidden + unit;
    for (unsigned k = 0; k < 4; k++) {
      float sum = gate[k * hidden] + at(bias_ih, k * hidden + unit) +
                  at(b, (sequence * 4 + k) * hidden + unit) + at(bias_hh, k * hidden + unit);
      gate[k * hidden] = k == 2 ? tanhf(sum) : sigmoid(sum);
    }
    extra[row * hidden + unit] = c[i];
    c[i] = gate[hidden] * c[i] + gate[0] * gate[2 * hidden];
    float next = gate[3 * hidden] * tanhf(c[i]);
    h[i] = next;
    ys[row * hidden + unit] = next;
  }
}

// The arguments of a step's backward. da (N, T, G hidden) and db (N, G hidden) are the gradients of the
// products with the input and with h. all_db (N, T, G hidden) has db too, unless it equals da. dh is the
// gradient of h after the step, without the part through ys, and then of h before it, without the part
// through db. dc is the gradient of c after the step, and then before it.
#define STEP_BACK                                                                                  \
  number_t *da, number_t *all_db, number_t *db, float *dh, float *dc, const number_t *dys,         \
      const float *gates, const float *extra, const number_t *h_prev, count_t t, count_t steps,    \
      count_t hidden, count_t n

extern "C" __global__ void gru_step_back(STEP_BACK) {
  FOR_EACH(i, n) {
    count_t sequence = i / hidden, unit = i % hidden, row = sequence * steps + t;
    count_t place = row * 3 * hidden + unit, own = sequence * 3 * hidden + unit;
    float r = gates[place], z = gates[place + hidden], m = gates[place + 2 * hidden];
    float d = dh[i] + dys[row * hidden + unit];
    float dm = d * (1.0f - z) * (1.0f - m * m);
    float dz = d * (h_prev[row * hidden + unit] - m) * z * (1.0f - z);
    float dr = dm * extra[row * hidden + unit] * r * (1.0f - r);
    float das[3] = {dr, dz, dm}, dbs[3] = {dr, dz, dm * r};
    dh[i] = d * z;
    for (unsigned k = 0; k < 3; k++) {
      da[place + k * hidden] = das[k];
      db[own + k * hidden] = dbs[k];
      all_db[place + k * hidden] = dbs[k];
    }
  }
}

extern "C" __global__ void lstm_step_back(STEP_BACK) {
  FOR_EACH(i, n) {
    count_t sequence = i / hidden, unit = i % hidden, row = sequence * steps + t;
    count_t place = row * 4 * hidden + unit, own = sequence * 4 * hidden + unit;
    float in = gates[place], f = gates[place + hidden];
    float g = gates[place + 2 * hidden], o = gates[place + 3 * hidden];
    float c_prev = extra[row * hidden + unit], top = tanhf(f * c_prev + in * g);
    float d = dh[i] + dys[row * hidden + unit], dcell = dc[i] + d * o * (1.0f - top * top);
    float das[4] = {dcell * g * in * (1.0f - in), dcell * c_prev * f * (1.0f - f),
                    dcell * in * (1.0f - g * g), d * top * o * (1.0f - o)};
    dc[i] = dcell * f;
    dh[i] = 0.0f;
    for (unsigned k = 0; k < 4; k++) {
      da[place + k * hidden] = das[k];
      db[own + k * hidden] = das[k];
    }
  }
}

// to (N, T, hidden) = the hidden state before each step. Without h0 it is 0 at first. n is the number of
// elements.
extern "C" __global__ void previous(number_t *to, const number_t *ys, const number_t *h0,
                                    count_t steps, count_t hidden, count_t n) {
  FOR_EACH(i, n) {
    count_t row = i / hidden, unit = i % hidden, sequence = row / steps;
    to[i] = row % steps ? (float)ys[i - hidden] : at(h0, sequence * hidden + unit);
  }
}
