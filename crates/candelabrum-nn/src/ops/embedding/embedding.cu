// Rows of a table by index. The texts of indices.cu and gradient.cu come before.
//
// The gradient of the table needs no atomic additions. The positions are sorted by index first, and
// positions with the same index stay in their order. Then one thread adds up one column of all rows
// of one index, so the order of additions is that of the positions.

typedef unsigned long long count_t;

#define FOR_EACH(i, n)                                                                             \
  for (count_t i = blockIdx.x * (count_t)blockDim.x + threadIdx.x; i < (n);                        \
       i += (count_t)gridDim.x * blockDim.x)

// ys (positions, dim). An index that is no row of the table gives a row of NaN. To the rows of each
// sequence of `length` positions those of `others` are added, if there are any. n is the number of elements.
extern "C" __global__ void select_rows(number_t *ys, const number_t *weight, const number_t *others,
                                       const void *indices, count_t size, count_t vocabulary, count_t dim,
                                       count_t length, count_t n) {
  FOR_EACH(i, n) {
    long long index = index_at(indices, size, i / dim);
    bool is_row = index >= 0 && (count_t)index < vocabulary;
    float y = is_row ? (float)weight[index * dim + i % dim] : NOT_A_NUMBER;
    ys[i] = others ? y + others[i % (length * dim)] : y;
  }
}

// dp (rows, dim), of which the first `length` are the sums of dys (sequences, length, dim) over the sequences,
// in their order. The other rows are 0. n is the number of elements of dp.
extern "C" __global__ void sum_sequences(float *wide, number_t *dp, const number_t *dys, count_t sequences,
                                         count_t length, count_t dim, count_t n) {
  FOR_EACH(i, n) {
    count_t sequence = length * dim;
    float sum = 0.0f;
    for (count_t s = 0; s < sequences && i < sequence; s++) sum += dys[s * sequence + i];
    Gradient{wide, dp}.put(i, sum);
  }
}

#define BLOCK 256     // threads per block
#define TILE 2048     // keys that a block sorts at once
#define NOTHING ~0ull // the key of a position without a gradient, which is last in the order

// A key has the index in its upper half, and the position in its lower half.
__device__ count_t key_at(const void *indices, count_t size, count_t vocabulary, count_t padding,
                          count_t position) {
  long long index = index_at(indices, size, position);
  bool is_trained = index >= 0 && (count_t)index < vocabulary && (count_t)index != padding;
  return is_trained ? (count_t)index << 32 | position : NOTHING;
}

__device__ void exchange(count_t *a, count_t *b, bool ascending) {
  count_t x = *a, y = *b;
  if ((x > y) == ascending) {
    *a = y;
    *b = x;
  }
}

// Merges in a bitonic sorting network: exchanges keys at a distance of `first`, then of half of it,
// and so on down to 1. Runs of `run` keys are sorted in alternating directions. The tile starts at
// key `start` of all keys.
__device__ void merge(count_t *tile, count_t len, count_t start, count_t run, count_t first) {
  for (count_t distance = first; distance > 0; distance /= 2) {
    __syncthreads();
    for (count_t pair = threadIdx.x; pair < len / 2; pair += BLOCK) {
      count_t low = 2 * pair - (pair & (distance - 1));
      exchange(tile + low, tile + low + distance, ((start + low) & run) == 0);
    }
  }
}

// Makes the keys of the positions, and sorts each tile. Each block has one tile of `tile` keys. n is
// the number of keys, a power of two. The keys after the last position are NOTHING.
extern "C" __global__ void sort_tiles(count_t *keys, const void *indices, count_t size,
                                      count_t vocabulary, count_t padding, count_t positions,
                                      count_t tile, count_t n) {
  __shared__ count_t own[TILE];
  count_t start = blockIdx.x * tile;
  for (count_t i = threadIdx.x; i < tile; i += BLOCK) {
    count_t position = start + i;
    own[i] = position < positions ? key_at(indices, size, vocabulary, padding, position) : NOTHING;
  }
  for (count_t run = 2; run <= tile; run *= 2) merge(own, tile, start, run, run / 2);
  __syncthreads();
  for (count_t i = threadIdx.x; i < tile; i += BLOCK) keys[start + i] = own[i];
}

// One step of a merge over several tiles. n is the number of pairs.
extern "C" __global__ void merge_step(count_t *keys, count_t run, count_t distance, count_t n) {
  FOR_EACH(pair, n) {
    count_t low = 2 * pair - (pair & (distance - 1));
    exchange(keys + low, keys + low + distance, (low & run) == 0);
  }
}

// The last steps of a merge, within each tile. n is the number of keys.
extern "C" __global__ void merge_tiles(count_t *keys, count_t run, count_t n) {
  __shared__ count_t own[TILE];
  count_t start = (count_t)blockIdx.x * TILE;
  for (count_t i = threadIdx.x; i < TILE; i += BLOCK) own[i] = keys[start + i];
  merge(own, TILE, start, run, TILE / 2);
  __syncthreads();
  for (count_t i = threadIdx.x; i < TILE; i += BLOCK) keys[start + i] = own[i];
}

// dw[index] = the sum of the rows of dys at the positions with this index. Other rows stay. The thread of
// the first such position adds the others. n is the number of elements of dys.
extern "C" __global__ void sum_positions(float *wide, number_t *dw, const number_t *dys,
                                         const count_t *keys, count_t positions, count_t dim,
                                         count_t n) {
  FOR_EACH(i, n) {
    count_t at = i / dim, column = i % dim, index = keys[at] >> 32;
    if (keys[at] == NOTHING || (at > 0 && keys[at - 1] >> 32 == index)) continue;
    float sum = 0.0f;
    for (; at < positions && keys[at] >> 32 == index; at++) {
      sum += dys[(keys[at] & 0xffffffff) * dim + column];
    }
    Gradient{wide, dw}.put(index * dim + column, sum);
  }
}
