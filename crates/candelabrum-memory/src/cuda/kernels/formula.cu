// The kernels of an optimizer's formula, which update many parameters in one launch. The text of
// sums.cu comes before this text, and the formula follows. The formula defines
//
//   __device__ void sums(float p, float g, State &s, const Scalars &k, double *sum);
//   __device__ void update(float &p, float g, State &s, const Scalars &k, const double *sum);
//
// `update` computes the next value of one element. If it needs sums over all elements of the
// parameter, `sums` runs first: it adds one element's part to sum[0] and sum[1]. Otherwise `sum` is a
// null pointer.
//
// Each parameter is divided into shares of SHARE elements. The shares of all parameters are numbered
// in the order of the parameters, and owners[share] is the number of the share's parameter.

#define SETS 16    // sets of scalars in one launch
#define PIECE 1024 // elements that one block updates; divides SHARE

struct Scalars {
  double k[8];
};

struct Sets {
  Scalars set[SETS];
};

// The elements of the state vectors.
struct State {
  float a, b, c;
};

struct Param {
  float *value;
  const float *grad;
  float *state[3]; // null pointers where the formula has fewer vectors
  count_t len;
  count_t first; // the number of its first share
  count_t set;   // the number of its set of scalars
};

__device__ void sums(float p, float g, State &s, const Scalars &k, double *sum);
__device__ void update(float &p, float g, State &s, const Scalars &k, const double *sum);

// An average that moves to next by a share. With a share of 1 it is next, whatever it was. The same as
// `Average` in average.rs of the optimizers.
__device__ float moved(float old, float next, double share) {
  if (share > 0.5) return next + (float)(1.0 - share) * (old - next);
  return old + (float)share * (next - old);
}

__device__ State load(const Param &param, count_t i) {
  State s;
  s.a = param.state[0] ? param.state[0][i] : 0.0f;
  s.b = param.state[1] ? param.state[1][i] : 0.0f;
  s.c = param.state[2] ? param.state[2][i] : 0.0f;
  return s;
}

__device__ void store(const State &s, const Param &param, count_t i) {
  if (param.state[0]) param.state[0][i] = s.a;
  if (param.state[1]) param.state[1][i] = s.b;
  if (param.state[2]) param.state[2][i] = s.c;
}

// partials[2 b] and partials[2 b + 1] = the sums over the b-th share. A block runs for each share.
extern "C" __global__ void partial_sums(double *partials, const Param *params,
                                        const unsigned *owners, Sets sets, count_t) {
  Param param = params[owners[blockIdx.x]];
  Scalars k = sets.set[param.set];
  count_t start = (blockIdx.x - param.first) * SHARE;
  count_t end = start + SHARE < param.len ? start + SHARE : param.len;
  double sum[2] = {0, 0};
  for (count_t i = start + threadIdx.x; i < end; i += BLOCK) {
    State s = load(param, i);
    sums(param.value[i], param.grad[i], s, k, sum);
    store(s, param, i);
  }
  double first = block_sum(sum[0]), second = block_sum(sum[1]);
  if (threadIdx.x == 0) {
    partials[2 * blockIdx.x] = first;
    partials[2 * blockIdx.x + 1] = second;
  }
}

// sum[2 p] and sum[2 p + 1] = the sums over parameter p. A block runs for each parameter.
extern "C" __global__ void add_sums(double *sum, const double *partials, const Param *params,
                                    count_t) {
  count_t start = params[blockIdx.x].first;
  count_t end = start + (params[blockIdx.x].len + SHARE - 1) / SHARE;
  double own[2] = {0, 0};
  for (count_t i = start + threadIdx.x; i < end; i += BLOCK) {
    own[0] += partials[2 * i];
    own[1] += partials[2 * i + 1];
  }
  double first = block_sum(own[0]), second = block_sum(own[1]);
  if (threadIdx.x == 0) {
    sum[2 * blockIdx.x] = first;
    sum[2 * blockIdx.x + 1] = second;
  }
}

// A block runs for each piece of each share.
extern "C" __global__ void update_all(const Param *params, const unsigned *owners,
                                      const double *sum, Sets sets, count_t) {
  unsigned share = blockIdx.x / (SHARE / PIECE), piece = blockIdx.x % (SHARE / PIECE);
  unsigned owner = owners[share];
  Param param = params[owner];
  Scalars k = sets.set[param.set];
  count_t start = (share - param.first) * SHARE + piece * PIECE;
  count_t end = start + PIECE < param.len ? start + PIECE : param.len;
  for (count_t i = start + threadIdx.x; i < end; i += BLOCK) {
    State s = load(param, i);
    float p = param.value[i];
    update(p, param.grad[i], s, k, sum ? sum + 2 * owner : 0);
    param.value[i] = p;
    store(s, param, i);
  }
}
