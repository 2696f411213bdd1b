// The kernels of an optimizer's formula, which follows after this text. The formula defines
//
//   struct State { float a, b, c; };                          the state vectors' elements
//   __device__ void sums(float p, float g, State &s, const Scalars &k, double *sum);
//   __device__ void update(float &p, float g, State &s, const Scalars &k, const double *sum);
//
// `update` computes the next value of one element. If it needs sums over all elements of the
// parameter, `sums` runs first: it adds one element's part to sum[0] and sum[1]. Otherwise `sum` is a
// null pointer.

typedef unsigned long long count_t;

#define BLOCK 256  // threads per block
#define SHARE 8192 // elements per block of `partial_sums`

struct Scalars {
  double k[8];
};

struct State {
  float a, b, c;
};

__device__ void sums(float p, float g, State &s, const Scalars &k, double *sum);
__device__ void update(float &p, float g, State &s, const Scalars &k, const double *sum);

__device__ State load(const float *a, const float *b, const float *c, count_t i) {
  State s;
  s.a = a ? a[i] : 0.0f;
  s.b = b ? b[i] : 0.0f;
  s.c = c ? c[i] : 0.0f;
  return s;
}

__device__ void store(const State &s, float *a, float *b, float *c, count_t i) {
  if (a) a[i] = s.a;
  if (b) b[i] = s.b;
  if (c) c[i] = s.c;
}

__device__ Scalars scalars(double k0, double k1, double k2, double k3, double k4, double k5,
                           double k6, double k7) {
  Scalars s = {{k0, k1, k2, k3, k4, k5, k6, k7}};
  return s;
}

// partials[2 b] and partials[2 b + 1] = the sums over the b-th SHARE elements.
extern "C" __global__ void partial_sums(double *partials, const float *value, const float *grad,
                                        float *a, float *b, float *c, double k0, double k1,
                                        double k2, double k3, double k4, double k5, double k6,
                                        double k7, count_t n) {
  __shared__ double first[BLOCK], second[BLOCK];
  Scalars k = scalars(k0, k1, k2, k3, k4, k5, k6, k7);
  count_t start = (count_t)blockIdx.x * SHARE, end = start + SHARE < n ? start + SHARE : n;
  double sum[2] = {0, 0};
  for (count_t i = start + threadIdx.x; i < end; i += BLOCK) {
    State s = load(a, b, c, i);
    sums(value[i], grad[i], s, k, sum);
    store(s, a, b, c, i);
  }
  first[threadIdx.x] = sum[0];
  second[threadIdx.x] = sum[1];
  for (unsigned width = BLOCK / 2; width > 0; width /= 2) {
    __syncthreads();
    if (threadIdx.x < width) {
      first[threadIdx.x] += first[threadIdx.x + width];
      second[threadIdx.x] += second[threadIdx.x + width];
    }
  }
  if (threadIdx.x == 0) {
    partials[2 * blockIdx.x] = first[0];
    partials[2 * blockIdx.x + 1] = second[0];
  }
}

// sum[0] and sum[1] = the sums of n pairs of partials. One block runs it.
extern "C" __global__ void add_sums(double *sum, const double *partials, count_t n) {
  __shared__ double first[BLOCK], second[BLOCK];
  double own[2] = {0, 0};
  for (count_t i = threadIdx.x; i < n; i += BLOCK) {
    own[0] += partials[2 * i];
    own[1] += partials[2 * i + 1];
  }
  first[threadIdx.x] = own[0];
  second[threadIdx.x] = own[1];
  for (unsigned width = BLOCK / 2; width > 0; width /= 2) {
    __syncthreads();
    if (threadIdx.x < width) {
      first[threadIdx.x] += first[threadIdx.x + width];
      second[threadIdx.x] += second[threadIdx.x + width];
    }
  }
  if (threadIdx.x == 0) {
    sum[0] = first[0];
    sum[1] = second[0];
  }
}

extern "C" __global__ void update_all(float *value, const float *grad, float *a, float *b, float *c,
                                      const double *sum, double k0, double k1, double k2, double k3,
                                      double k4, double k5, double k6, double k7, count_t n) {
  Scalars k = scalars(k0, k1, k2, k3, k4, k5, k6, k7);
  for (count_t i = blockIdx.x * (count_t)blockDim.x + threadIdx.x; i < n;
       i += (count_t)gridDim.x * blockDim.x) {
    State s = load(a, b, c, i);
    float p = value[i];
    update(p, grad[i], s, k, sum);
    value[i] = p;
    store(s, a, b, c, i);
  }
}
