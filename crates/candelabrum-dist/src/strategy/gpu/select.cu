// Takes the elements that a sparse strategy sends out of a bucket: the K largest in magnitude, or all
// from a threshold on.
//
// 1. A radix select (Alabi et al., "Fast k-Selection Algorithms for Graphics Processing Units", ACM
//    JEA 17, 2012) finds the K-th largest key, digit by digit from the highest one. `histogram`
//    counts the keys that begin with the digits found so far by their next digit. `choose` takes the
//    digit at which the count from above reaches K. It is exact, and its time depends neither on K
//    nor on equal keys. A threshold needs no search.
// 2. A stable compaction (Harris et al., "Parallel Prefix Sum (Scan) with CUDA", GPU Gems 3, chapter
//    39, 2007) brings the elements together. `count` counts them by block, `add_up` makes each count
//    the sum of the counts before it, and `take_out` writes each element to its place. So positions
//    are ascending.
//
// Only counts are added by atomic operations. A sum of whole numbers does not depend on the order.

typedef unsigned long long count_t;

#define BLOCK 256            // threads per block
#define EACH 8               // neighbours that one thread takes
#define SHARE (BLOCK * EACH) // numbers per block of `count` and `take_out`
#define HISTOGRAM 8192       // numbers per block of `histogram`
#define BINS 2048            // values of the longest digit

// The elements to be taken: all with a key above `bound` and at most `most`, and the first `ties`
// with the key `bound`.
struct Selection {
  int bound, most;
  unsigned ties;
};

// The magnitude of a number as an integer with the same order. A NaN is above infinity.
__device__ int key(unsigned bits) { return (int)(bits & 0x7fffffff); }

// The selection at its start. One block runs it.
extern "C" __global__ void begin(Selection *selection, count_t bound, count_t most, count_t ties,
                                 count_t n) {
  if (threadIdx.x > 0) return;
  selection->bound = (int)bound;
  selection->most = (int)most;
  selection->ties = (unsigned)ties;
}

// Adds to bins[d] the number of keys whose digit at `shift` is d, and whose higher digits are those
// of the bound. The digit has `bits` bits.
extern "C" __global__ void histogram(unsigned *bins, const Selection *selection,
                                     const unsigned *values, count_t shift, count_t bits, count_t n) {
  __shared__ unsigned own[BINS];
  for (unsigned d = threadIdx.x; d < BINS; d += BLOCK) own[d] = 0;
  __syncthreads();
  count_t start = (count_t)blockIdx.x * HISTOGRAM;
  count_t end = start + HISTOGRAM < n ? start + HISTOGRAM : n;
  unsigned higher = (unsigned)(shift + bits), found = (unsigned)selection->bound >> higher;
  for (count_t i = start + threadIdx.x; i < end; i += BLOCK) {
    unsigned own_key = (unsigned)key(values[i]);
    if (own_key >> higher == found) atomicAdd(own + (own_key >> shift & ((1u << bits) - 1)), 1u);
  }
  __syncthreads();
  for (unsigned d = threadIdx.x; d < BINS; d += BLOCK) {
    if (own[d] > 0) atomicAdd(bins + d, own[d]);
  }
}

// The sum of the numbers of the threads before this one, and the sum of all.
__device__ count_t scan(count_t own, count_t *all) {
  __shared__ count_t warps[BLOCK / 32];
  unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  count_t sum = own;
  for (unsigned distance = 1; distance < 32; distance *= 2) {
    count_t before = __shfl_up_sync(0xffffffff, sum, distance);
    if (lane >= distance) sum += before;
  }
  __syncthreads(); // every thread has read the result of the call before
  if (lane == 31) warps[warp] = sum;
  __syncthreads();
  *all = 0;
  for (unsigned w = 0; w < BLOCK / 32; w++) {
    if (w == warp) sum += *all;
    *all += warps[w];
  }
  return sum - own;
}

// Appends to the bound the digit at `shift` of the key for which `ties` elements were looked for.
// Then `ties` is the number to be looked for among the keys that begin with the bound. Empties the
// n = BINS bins. One block runs it.
extern "C" __global__ void choose(unsigned *bins, Selection *selection, count_t shift, count_t n) {
  unsigned end = BINS - threadIdx.x * EACH, ties = selection->ties; // from the highest digit down
  unsigned own[EACH];
  count_t sum = 0, all;
  for (unsigned i = 0; i < EACH; i++) {
    own[i] = bins[end - 1 - i];
    bins[end - 1 - i] = 0;
    sum += own[i];
  }
  count_t above = scan(sum, &all);
  if (above >= ties || above + sum < ties) return;
  unsigned i = 0;
  for (; above + own[i] < ties; i++) above += own[i];
  selection->bound |= (int)((end - 1 - i) << shift);
  selection->ties = (unsigned)(ties - above);
}

// One element above the bound in the upper half, or one at the bound in the lower half. Sums of them
// count both kinds.
__device__ count_t kind(unsigned bits, const Selection &selection) {
  int own = key(bits);
  if (own == selection.bound) return 1;
  return own > selection.bound && own <= selection.most ? 1ull << 32 : 0;
}

// The number of elements that are taken, of these.
__device__ count_t taken_of(count_t kinds, const Selection &selection) {
  count_t ties = kinds & 0xffffffff;
  return (kinds >> 32) + (ties < selection.ties ? ties : selection.ties);
}

// blocks[b] = the elements among the b-th SHARE numbers, by kind.
extern "C" __global__ void count(count_t *blocks, const Selection *selection, const unsigned *values,
                                 count_t n) {
  count_t start = (count_t)blockIdx.x * SHARE, end = start + SHARE < n ? start + SHARE : n;
  count_t own = 0, all;
  for (count_t i = start + threadIdx.x; i < end; i += BLOCK) own += kind(values[i], *selection);
  scan(own, &all);
  if (threadIdx.x == 0) blocks[blockIdx.x] = all;
}

// Makes blocks[b] the sum of the counts before it. *taken = the number of elements that are taken. n
// is the number of counts. One block runs it.
extern "C" __global__ void add_up(count_t *blocks, unsigned *taken, const Selection *selection,
                                  count_t n) {
  count_t before = 0, all;
  for (count_t start = 0; start < n; start += BLOCK) {
    count_t b = start + threadIdx.x, own = b < n ? blocks[b] : 0;
    count_t sum = before + scan(own, &all);
    if (b < n) blocks[b] = sum;
    before += all;
  }
  if (threadIdx.x == 0) *taken = (unsigned)taken_of(before, *selection);
}

// Moves the elements to `words`: up to `room` positions, and as many values behind them. Zeros remain
// in their places. Elements without room stay where they are.
extern "C" __global__ void take_out(unsigned *words, count_t room, unsigned *values,
                                    const count_t *blocks, const Selection *selection, count_t n) {
  count_t start = (count_t)blockIdx.x * SHARE + threadIdx.x * EACH;
  count_t end = start + EACH < n ? start + EACH : n;
  count_t own = 0, all;
  for (count_t i = start; i < end; i++) own += kind(values[i], *selection);
  count_t before = blocks[blockIdx.x] + scan(own, &all);
  for (count_t i = start; i < end; i++) {
    unsigned bits = values[i];
    count_t at = taken_of(before, *selection);
    before += kind(bits, *selection);
    if (taken_of(before, *selection) == at || at >= room) continue;
    words[at] = (unsigned)i;
    words[room + at] = bits;
    values[i] = 0;
  }
}
