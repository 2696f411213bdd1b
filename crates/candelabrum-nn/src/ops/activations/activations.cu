// Activations and their derivatives. The texts of packs.cu and sigmoid.cu come before. The number of an
// activation is that of `code` in activations.rs. n is the number of numbers, a multiple of a pack.

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

template <unsigned V>
__device__ void activate_all(number_t *ys, const number_t *xs, const number_t *bias, count_t plane,
                             count_t channels, count_t activation, count_t n) {
  FOR_EACH(j, n / V) {
    Pack<V> pack = load<V>(xs ? xs : ys, j * V);
    count_t channel = bias ? j * V / plane % channels : 0;
    FOR_VALUES(k) {
      float x = pack.values[k];
      pack.values[k] = apply(bias ? x + bias[plane == 1 ? channel + k : channel] : x, activation);
    }
    store<V>(ys, j * V, pack);
  }
}

// ys = activation(xs + bias). Number i gets bias i / plane % channels. Without xs, ys changes in
// place. A pack is in one plane, or in one row of planes of one number.
extern "C" __global__ void activate(number_t *ys, const number_t *xs, const number_t *bias, count_t plane,
                                    count_t channels, count_t activation, count_t packs, count_t n) {
  BY_PACKS(activate_all<V>(ys, xs, bias, plane, channels, activation, n))
}

template <unsigned V>
__device__ void differentiate_all(number_t *dxs, const number_t *dys, const number_t *reference,
                                  count_t activation, count_t n) {
  FOR_EACH(j, n / V) {
    Pack<V> d = load<V>(dys ? dys : dxs, j * V), r = load<V>(reference, j * V);
    FOR_VALUES(k) d.values[k] = times_derivative(d.values[k], r.values[k], activation);
    store<V>(dxs, j * V, d);
  }
}

// dxs = dys * activation'(reference). Without dys, dxs changes in place.
extern "C" __global__ void differentiate(number_t *dxs, const number_t *dys, const number_t *reference,
                                         count_t activation, count_t packs, count_t n) {
  BY_PACKS(differentiate_all<V>(dxs, dys, reference, activation, n))
}

template <unsigned V>
__device__ void add_all(number_t *sums, const number_t *xs, const number_t *ys, count_t activation,
                        count_t n) {
  FOR_EACH(j, n / V) {
    Pack<V> x = load<V>(xs, j * V), y = load<V>(ys, j * V);
    FOR_VALUES(k) x.values[k] = apply(x.values[k] + y.values[k], activation);
    store<V>(sums, j * V, x);
  }
}

// sums = activation(xs + ys)
extern "C" __global__ void add(number_t *sums, const number_t *xs, const number_t *ys, count_t activation,
                               count_t packs, count_t n) {
  BY_PACKS(add_all<V>(sums, xs, ys, activation, n))
}
