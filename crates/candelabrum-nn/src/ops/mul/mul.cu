// The product of two tensors of one shape, element by element. packs.cu comes before this text.

template <unsigned V>
__device__ void multiply_all(number_t *zs, const number_t *xs, const number_t *ys, count_t n) {
  FOR_EACH(j, n / V) {
    Pack<V> x = load<V>(xs, j * V), y = load<V>(ys, j * V);
    FOR_VALUES(k) x.values[k] = (float)x.values[k] * (float)y.values[k];
    store<V>(zs, j * V, x);
  }
}

// zs = xs * ys. n is the number of elements.
extern "C" __global__ void multiply(number_t *zs, const number_t *xs, const number_t *ys,
                                    count_t packs, count_t n) {
  BY_PACKS(multiply_all<V>(zs, xs, ys, n))
}
