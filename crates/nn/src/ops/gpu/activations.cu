// Activations and their derivatives. The text of sigmoid.cu comes before. The number of an activation is
// that of `code` in activations.rs.

typedef unsigned long long count_t;

#define FOR_EACH(i, n)                                                                             \
  for (count_t i = blockIdx.x * (count_t)blockDim.x + threadIdx.x; i < (n);                        \
       i += (count_t)gridDim.x * blockDim.x)

#define SQRT_HALF 0.70710678118654752f    // 1 / sqrt(2)
#define SQRT_2_PI 0.79788456080286536f    // sqrt(2 / pi)
#define DENSITY_AT_0 0.39894228040143268f // 1 / sqrt(2 pi)

__device__ float apply(float x, count_t activation) {
  switch (activation) {
  case 1: return x <= 0.0f ? 0.0f : x; // NaN stays NaN
  case 2: return 0.5f * x * (1.0f + erff(x * SQRT_HALF));
  case 3: return 0.5f * x * (1.0f + tanhf(SQRT_2_PI * (x + 0.044715f * x * x * x)));
  case 4: return x * sigmoid(x);
  case 5: return sigmoid(x);
  case 6: return tanhf(x);
  case 7: return x <= 0.0f ? 0.0f : x >= 6.0f ? 6.0f : x;
  default: return x;
  }
}

// The derivative of all but relu and relu6, by the result r for sigmoid and tanh, and by the input r for
// the others.
__device__ float derivative(float r, count_t activation) {
  switch (activation) {
  case 2: return 0.5f * (1.0f + erff(r * SQRT_HALF)) + r * DENSITY_AT_0 * expf(-0.5f * r * r);
  case 3: {
    float t = tanhf(SQRT_2_PI * (r + 0.044715f * r * r * r));
    return 0.5f * (1.0f + t) +
           0.5f * r * (1.0f - t * t) * SQRT_2_PI * (1.0f + 3.0f * 0.044715f * r * r);
  }
  case 4: {
    float s = sigmoid(r);
    return s * (1.0f + r * (1.0f - s));
  }
  case 5: return r * (1.0f - r);
  case 6: return 1.0f - r * r;
  default: return 1.0f;
  }
}

// d times the derivative. A relu or relu6 that was off passes nothing, not even a NaN.
__device__ float times_derivative(float d, float r, count_t activation) {
  switch (activation) {
  case 1: return r <= 0.0f ? 0.0f : d;
  case 7: return r > 0.0f && r < 6.0f ? d : 0.0f; // nothing passes at NaN
  default: return d * derivative(r, activation);
  }
}

// ys = activation(xs + bias). Number i gets bias i / plane % channels. Without xs, ys changes in
// place.
extern "C" __global__ void activate(number_t *ys, const number_t *xs, const number_t *bias, count_t plane,
                                    count_t channels, count_t activation, count_t n) {
  FOR_EACH(i, n) {
    float x = xs ? xs[i] : ys[i];
    ys[i] = apply(bias ? x + bias[i / plane % channels] : x, activation);
  }
}

// dxs = dys * activation'(reference). Without dys, dxs changes in place.
extern "C" __global__ void differentiate(number_t *dxs, const number_t *dys, const number_t *reference,
                                         count_t activation, count_t n) {
  FOR_EACH(i, n) {
    float d = dys ? dys[i] : dxs[i];
    dxs[i] = times_derivative(d, reference[i], activation);
  }
}

// sums = activation(xs + ys)
extern "C" __global__ void add(number_t *sums, const number_t *xs, const number_t *ys, count_t activation,
                               count_t n) {
  FOR_EACH(i, n) sums[i] = apply(xs[i] + ys[i], activation);
}
