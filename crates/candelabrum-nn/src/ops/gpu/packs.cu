// Packs: numbers that a thread loads and stores at once, by one instruction of 16 bytes.

typedef unsigned long long count_t;

#define WIDE (16 / sizeof(number_t)) // numbers of a wide pack

template <unsigned V> struct alignas(V * sizeof(number_t)) Pack {
  number_t values[V];
};

#define FOR_EACH(i, n)                                                                             \
  for (count_t i = blockIdx.x * (count_t)blockDim.x + threadIdx.x; i < (n);                        \
       i += (count_t)gridDim.x * blockDim.x)
#define FOR_VALUES(k) for (unsigned k = 0; k < V; k++)

template <unsigned V> __device__ Pack<V> load(const number_t *values, count_t i) {
  return *(const Pack<V> *)(values + i);
}
template <unsigned V> __device__ void store(number_t *values, count_t i, const Pack<V> &pack) {
  *(Pack<V> *)(values + i) = pack;
}

// Calls a function template with packs of WIDE numbers if `packs`, and otherwise with packs of one. The addresses of
// wide packs are multiples of 16 bytes.
#define BY_PACKS(call)                                                                             \
  if (packs) {                                                                                     \
    constexpr unsigned V = WIDE;                                                                   \
    call;                                                                                          \
  } else {                                                                                         \
    constexpr unsigned V = 1;                                                                      \
    call;                                                                                          \
  }
