// Batch normalisation. packs.cu, gradient.cu and channels.cu come before this text.
//
// The statistics of a slice are its sum and the sum of the squares of its deviations from its mean (Chan, Golub
// and LeVeque, "Updating formulae and a pairwise algorithm for computing sample variances", 1979). A thread adds
// deviations from its first value, so a large mean costs no digits. The kernels after them begin with the
// sums over the slices of their channel, which each block computes for itself.

#define LINE 6                // numbers per channel: see line.rs
#define MOST_IN_A_BLOCK (BLOCK / 32) // slices of one block: a slice has 32 threads or more

template <unsigned V>
__device__ void slice_statistics(double *partials, const number_t *xs, SIZES) {
  WALK;
  Sum sum, squares;
  float first = walk.is_inside() ? (float)xs[walk.place()] : 0.0f;
  unsigned count = 0;
  FOR_PACKS(i) {
    Pack<V> pack = load<V>(xs, i);
    FOR_VALUES(k) {
      float deviation = pack.values[k] - first;
      sum.add(deviation);
      squares.add(deviation * deviation);
    }
    count += V;
  }
  double own = sum.all(), all = count;
  double total = add_lanes(walk.lane, walk.lanes, all * (double)first + own);
  double values = add_lanes(walk.lane, walk.lanes, all);
  double rest = 0.0;
  if (count) {
    double between = (double)first + own / all - total / values;
    rest = squares.all() - own / all * own + all * between * between;
  }
  rest = add_lanes(walk.lane, walk.lanes, rest);
  if (walk.is_first) {
    partials[walk.slice * 2] = total;
    partials[walk.slice * 2 + 1] = rest;
  }
}

// partials[s] = the sum of the s-th slice, and that of the squares of its deviations from its mean.
extern "C" __global__ void statistics(double *partials, const number_t *xs, SIZES) {
  BY_PACKS(slice_statistics<V>(partials, xs, SIZES_GIVEN))
}

// The partials of the channel, two per slice, in shared memory where the channel has several slices. Their block is
// the channel's alone then.
__device__ const double *of_slices(const double *partials, unsigned channel, count_t slices) {
  __shared__ double staged[2 * MOST_SLICES];
  const double *own = partials + channel * slices * 2;
  if (slices == 1) return own;
  for (unsigned i = threadIdx.x; i < 2 * (unsigned)slices; i += BLOCK) staged[i] = own[i];
  __syncthreads();
  return staged;
}

// A number per channel, if there are some.
__device__ float number(const number_t *numbers, unsigned channel, float otherwise) {
  return numbers ? (float)numbers[channel] : otherwise;
}

// The fused activation.
enum { NO_RECTIFIER, RELU, RELU6 };

// The function of a channel, as Line in line.rs: (x - shift) * scale + bias.
struct Line {
  float shift, rest, variance, inverse, scale, bias;

  __device__ void set(double mean, double of_variance, double eps, float weight, float summand) {
    shift = (float)mean;
    double behind = mean - (double)shift, root = 1.0 / sqrt(of_variance + eps);
    rest = (float)behind;
    variance = (float)of_variance;
    inverse = (float)root;
    scale = (float)(root * (double)weight);
    bias = (float)((double)summand - behind * (root * (double)weight));
  }
  __device__ float at(float x) const { return (x - shift) * scale + bias; }
  // The gradient before the activation.
  __device__ float dz(float x, float dy, count_t rectifier) const {
    if (!rectifier) return dy;
    float z = at(x);
    if (rectifier == RELU) return z <= 0.0f ? 0.0f : dy;
    return z > 0.0f && z < 6.0f ? dy : 0.0f;
  }
};

// What a layer normalises by. The pointers may be 0: `partials` or mean and variance are given, weight and bias if
// there are any, the running statistics in training, and the places of their values before, if these are
// not kept yet.
struct Statistics {
  const double *partials;
  const number_t *mean, *variance, *weight, *bias;
  float *running_mean, *running_variance, *mean_before, *variance_before;
  double eps, momentum;
};

// Moves a running statistic towards that of the batch.
__device__ void move(float *running, float *before, unsigned channel, double batch,
                     double momentum) {
  double old = (double)running[channel];
  if (before) before[channel] = (float)old;
  running[channel] = (float)(old + momentum * (batch - old));
}

// The line of a channel. The first slice of the channel writes it to memory, and moves the running statistics.
__device__ Line line_of(const Statistics &by, float *lines, unsigned channel, bool writes,
                        const double *own, count_t values, count_t slices, count_t share) {
  Line line;
  float weight = number(by.weight, channel, 1.0f), bias = number(by.bias, channel, 0.0f);
  if (!by.partials) {
    line.set(by.mean[channel], by.variance[channel], by.eps, weight, bias);
  } else {
    double count = (double)values, mean = of_channel(own, (unsigned)slices, 2) / count, sum = 0.0;
    for (unsigned slice = 0; slice < slices; slice++) {
      count_t left = values - slice * share, size = left < share ? left : share;
      double between = own[2 * slice] / (double)size - mean;
      sum += own[2 * slice + 1] + (double)size * between * between;
    }
    double variance = sum / count;
    if (variance < 0.0) variance = 0.0; // NaN stays NaN
    line.set(mean, variance, by.eps, weight, bias);
    if (writes && by.running_mean) {
      move(by.running_mean, by.mean_before, channel, (double)line.shift + (double)line.rest,
           by.momentum);
      move(by.running_variance, by.variance_before, channel,
           (double)line.variance * (count / (count - 1.0)), by.momentum);
    }
  }
  if (writes) {
    const float numbers[] = {line.shift, line.rest, line.variance,
                             line.inverse, line.scale, line.bias};
    for (unsigned i = 0; i < LINE; i++) lines[channel * LINE + i] = numbers[i];
  }
  return line;
}

template <unsigned V>
__device__ void normalise_slice(number_t *ys, const number_t *xs, float *lines,
                                const Statistics &by, count_t rectifier, SIZES) {
  __shared__ Line shared[MOST_IN_A_BLOCK];
  WALK;
  const double *own = by.partials ? of_slices(by.partials, walk.channel, slices) : 0;
  Line &of_slice = shared[threadIdx.x / walk.lanes];
  if (walk.lane == 0) {
    bool writes = walk.is_first && walk.slice % (unsigned)slices == 0;
    of_slice = line_of(by, lines, walk.channel, writes, own, batch * plane, slices, share);
  }
  __syncthreads();
  Line line = of_slice;
  FOR_PACKS(i) {
    Pack<V> pack = load<V>(xs, i);
    FOR_VALUES(k) {
      float z = line.at(pack.values[k]);
      if (rectifier && z <= 0.0f) z = 0.0f;
      pack.values[k] = rectifier == RELU6 && z > 6.0f ? 6.0f : z;
    }
    store<V>(ys, i, pack);
  }
}

extern "C" __global__ void normalise(number_t *ys, const number_t *xs, float *lines,
                                     const double *partials, const number_t *mean,
                                     const number_t *variance, const number_t *weight,
                                     const number_t *bias, float *running_mean,
                                     float *running_variance, float *mean_before,
                                     float *variance_before, double eps, double momentum,
                                     count_t rectifier, SIZES) {
  const Statistics by = {partials,     mean,        variance,        weight, bias,    running_mean,
                         running_variance, mean_before, variance_before, eps,    momentum};
  BY_PACKS(normalise_slice<V>(ys, xs, lines, by, rectifier, SIZES_GIVEN))
}

__device__ Line load_line(const float *lines, unsigned channel) {
  const float *from = lines + channel * LINE;
  return {from[0], from[1], from[2], from[3], from[4], from[5]};
}

template <unsigned V>
__device__ void gradient_sums_of_slice(double *partials, const number_t *xs, const number_t *dys,
                                       const float *lines, count_t rectifier, SIZES) {
  WALK;
  Line line = load_line(lines, walk.channel);
  Sum sum, dot;
  FOR_PACKS(i) {
    Pack<V> x = load<V>(xs, i), dy = load<V>(dys, i);
    FOR_VALUES(k) {
      float dz = line.dz(x.values[k], dy.values[k], rectifier);
      sum.add(dz);
      dot.add(dz * (x.values[k] - line.shift));
    }
  }
  double total = add_lanes(walk.lane, walk.lanes, sum.all());
  double weighted = add_lanes(walk.lane, walk.lanes, dot.all());
  if (walk.is_first) {
    partials[walk.slice * 2] = total;
    partials[walk.slice * 2 + 1] = weighted;
  }
}

// partials[s] = the sums of dz, and of dz (x - shift), in the s-th slice.
extern "C" __global__ void gradient_sums(double *partials, const number_t *xs, const number_t *dys,
                                         const float *lines, count_t rectifier, SIZES) {
  BY_PACKS(gradient_sums_of_slice<V>(partials, xs, dys, lines, rectifier, SIZES_GIVEN))
}

// The numbers by which the gradient of the input is computed: dz - (x - shift) slope + constant.
struct Factors {
  float slope, constant;
};

template <unsigned V>
__device__ void differentiate_slice(number_t *dxs, const Gradient &dw, const Gradient &db,
                                    const number_t *xs, const number_t *dys, const float *lines,
                                    const double *partials, count_t training, count_t rectifier,
                                    SIZES) {
  __shared__ Factors shared[MOST_IN_A_BLOCK];
  WALK;
  Line line = load_line(lines, walk.channel);
  const double *own = partials ? of_slices(partials, walk.channel, slices) : 0;
  Factors &of_slice = shared[threadIdx.x / walk.lanes];
  if (walk.lane == 0 && partials) {
    double count = (double)(batch * plane);
    double inverse = (double)line.inverse, rest = (double)line.rest;
    double sum = of_channel(own, (unsigned)slices, 2);
    double dot = of_channel(own + 1, (unsigned)slices, 2);
    double weighted = inverse * (dot - rest * sum), slope = inverse * weighted / count;
    of_slice = {(float)slope, (float)(rest * slope - sum / count)};
    if (walk.is_first && walk.slice % (unsigned)slices == 0) {
      dw.put(walk.channel, (float)weighted);
      db.put(walk.channel, (float)sum);
    }
  }
  __syncthreads();
  if (!dxs) return;
  Factors factors = {0.0f, 0.0f};
  if (training) factors = of_slice;
  FOR_PACKS(i) {
    Pack<V> pack = load<V>(xs, i), dy = load<V>(dys, i);
    FOR_VALUES(k) {
      float x = pack.values[k], dz = line.dz(x, dy.values[k], rectifier);
      float change = training ? dz - (x - line.shift) * factors.slope + factors.constant : dz;
      pack.values[k] = line.scale * change;
    }
    store<V>(dxs, i, pack);
  }
}

// The gradients of the input, the weight and the bias, as far as they are wanted. partials may be 0 if neither the
// parameters' gradients nor those of the statistics (training) are needed.
extern "C" __global__ void differentiate(number_t *dxs, float *dw_wide, number_t *dw, float *db_wide,
                                         number_t *db, const number_t *xs, const number_t *dys,
                                         const float *lines, const double *partials,
                                         count_t training, count_t rectifier, SIZES) {
  const Gradient weight = {dw_wide, dw}, bias = {db_wide, db};
  BY_PACKS(differentiate_slice<V>(dxs, weight, bias, xs, dys, lines, partials, training, rectifier,
                                  SIZES_GIVEN))
}
