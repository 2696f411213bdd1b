// Batch normalisation. channels.cu comes before this text.

#define LINE 6 // numbers per channel: see line.rs

#define FOR_CHANNELS(c, n)                                                                         \
  for (count_t c = blockIdx.x * (count_t)blockDim.x + threadIdx.x; c < (n);                        \
       c += (count_t)gridDim.x * blockDim.x)

// The mean of a channel, rounded, by the partial sums of its slices.
__device__ float first_mean(const double *sums, count_t channel, count_t slices, double count) {
  return (float)(of_channel(sums, channel, slices, 1) / count);
}

// partials[s] = the sums of the deviations from the first mean, and of their squares, in the s-th
// slice.
extern "C" __global__ void deviations(double *partials, const number_t *xs, const double *means,
                                      SIZES) {
  WALK;
  float first = first_mean(means, walk.channel, slices, (double)(batch * plane));
  Sum sums[2];
  FOR_SLICE(i) {
    float deviation = xs[i] - first;
    sums[0].add(deviation);
    sums[1].add(deviation * deviation);
  }
  add_lanes(walk, sums, partials);
}

// A number per channel, if there are some.
__device__ float number(const number_t *numbers, count_t channel, float otherwise) {
  return numbers ? (float)numbers[channel] : otherwise;
}

// As Line::new in line.rs.
__device__ void save_line(float *line, float shift, double rest, double variance, double eps,
                          float weight, float bias) {
  double inverse = 1.0 / sqrt(variance + eps), scale = inverse * (double)weight;
  line[0] = shift;
  line[1] = (float)rest;
  line[2] = (float)variance;
  line[3] = (float)inverse;
  line[4] = (float)scale;
  line[5] = (float)((double)bias - rest * scale);
}

// The lines of all channels by the statistics of the batch, as in moments.rs. n is the number of
// channels.
extern "C" __global__ void lines_of_batch(float *lines, const double *sums, const double *partials,
                                          const number_t *weight, const number_t *bias, double eps,
                                          count_t values, count_t slices, count_t n) {
  double count = (double)values;
  FOR_CHANNELS(c, n) {
    float first = first_mean(sums, c, slices, count);
    double error = of_channel(partials, c, slices, 2) / count;
    double mean = (double)first + error;
    float shift = (float)mean;
    double variance = of_channel(partials + 1, c, slices, 2) / count - error * error;
    if (variance < 0.0) variance = 0.0; // NaN stays NaN
    save_line(lines + c * LINE, shift, ((double)first - (double)shift) + error, variance, eps,
              number(weight, c, 1.0f), number(bias, c, 0.0f));
  }
}

// The lines of all channels by known statistics.
extern "C" __global__ void lines_of_running(float *lines, const number_t *mean,
                                            const number_t *variance, const number_t *weight,
                                            const number_t *bias, double eps, count_t n) {
  FOR_CHANNELS(c, n)
    save_line(lines + c * LINE, mean[c], 0.0, (double)variance[c], eps, number(weight, c, 1.0f),
              number(bias, c, 0.0f));
}

// Moves the running means (unbiased = 0) or variances towards those of the batch. unbiased is the
// factor from the biased variance to the unbiased one.
extern "C" __global__ void move_running(float *running, const float *lines, double momentum,
                                        double unbiased, count_t n) {
  FOR_CHANNELS(c, n) {
    const float *line = lines + c * LINE;
    double batch = unbiased == 0.0 ? (double)line[0] + (double)line[1] : (double)line[2] * unbiased;
    double old = (double)running[c];
    running[c] = (float)(old + momentum * (batch - old));
  }
}

// The fused activation.
enum { NO_RECTIFIER, RELU, RELU6 };

struct Line {
  float shift, rest, inverse, scale, bias;

  __device__ Line(const float *from)
      : shift(from[0]), rest(from[1]), inverse(from[3]), scale(from[4]), bias(from[5]) {}
  __device__ float at(float x) const { return (x - shift) * scale + bias; }
  // The gradient before the activation.
  __device__ float dz(float x, float dy, count_t rectifier) const {
    if (!rectifier) return dy;
    float z = at(x);
    if (rectifier == RELU) return z <= 0.0f ? 0.0f : dy;
    return z > 0.0f && z < 6.0f ? dy : 0.0f;
  }
};

extern "C" __global__ void normalise(number_t *ys, const number_t *xs, const float *lines,
                                     count_t rectifier, SIZES) {
  WALK;
  Line line(lines + walk.channel * LINE);
  FOR_SLICE(i) {
    float z = line.at(xs[i]);
    if (rectifier && z <= 0.0f) z = 0.0f;
    ys[i] = rectifier == RELU6 && z > 6.0f ? 6.0f : z;
  }
}

// partials[s] = the sums of dz, and of dz (x - shift), in the s-th slice.
extern "C" __global__ void gradient_sums(double *partials, const number_t *xs, const number_t *dys,
                                         const float *lines, count_t rectifier, SIZES) {
  WALK;
  Line line(lines + walk.channel * LINE);
  Sum sums[2];
  FOR_SLICE(i) {
    float x = xs[i], dz = line.dz(x, dys[i], rectifier);
    sums[0].add(dz);
    sums[1].add(dz * (x - line.shift));
  }
  add_lanes(walk, sums, partials);
}

// The gradients of weight and bias, if they are wanted, and the two numbers per channel by which
// the gradient of the input is computed. n is the number of channels.
extern "C" __global__ void totals(number_t *dw, number_t *db, float *factors, const double *partials,
                                  const float *lines, count_t values, count_t slices, count_t n) {
  double count = (double)values;
  FOR_CHANNELS(c, n) {
    Line line(lines + c * LINE);
    double inverse = (double)line.inverse, rest = (double)line.rest;
    double sum = of_channel(partials, c, slices, 2), dot = of_channel(partials + 1, c, slices, 2);
    double weighted = inverse * (dot - rest * sum), slope = inverse * weighted / count;
    if (dw) dw[c] = (float)weighted;
    if (db) db[c] = (float)sum;
    if (factors) {
      factors[2 * c] = (float)slope;
      factors[2 * c + 1] = (float)(rest * slope - sum / count);
    }
  }
}

// The gradient of the input. Without factors, the statistics were known.
extern "C" __global__ void differentiate(number_t *dxs, const number_t *xs, const number_t *dys,
                                         const float *lines, const float *factors, count_t rectifier,
                                         SIZES) {
  WALK;
  Line line(lines + walk.channel * LINE);
  float slope = factors ? factors[2 * walk.channel] : 0.0f;
  float constant = factors ? factors[2 * walk.channel + 1] : 0.0f;
  FOR_SLICE(i) {
    float x = xs[i], dz = line.dz(x, dys[i], rectifier);
    dxs[i] = line.scale * (factors ? dz - (x - line.shift) * slope + constant : dz);
  }
}
