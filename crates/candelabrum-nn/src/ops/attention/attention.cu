// Attention, block by block. attention.rs has the algorithm and its sources.
//
// A block of threads works on a tile of 64 queries and 64 keys of a head at a time. Thread (y, x) of 16 x 16
// has the scores of queries y + 16 i with keys x + 16 j (i, j < 4). Sums of products over the size of a head
// read the operands in strips of 16 columns from shared memory, sums over keys or over queries read 32 whole
// rows. All sums are f32. NVRTC is told not to fuse a product and a sum, so the text says fmaf.

typedef unsigned long long count_t;

#define BLOCK 256               // threads per block
#define SIDE 64                 // the queries of a tile, and its keys
#define LANES 16                // threads that share a row of a tile
#define STRIP 16                // columns of a strip
#define DEPTH 32                // rows in shared memory where columns are summed
#define STRIP_PITCH (STRIP + 4) // numbers between two rows: neighbours are in other banks
#define PITCH (SIDE + 4)
#define INFINITE __int_as_float(0x7f800000)

// Two blocks of the largest kernels fit into a multiprocessor.
#define BOUNDS __launch_bounds__(BLOCK, 2)

// What the kernels know of an attention: the parameters of each kernel, and the same as a structure. `saved`
// has the angles of the positions, `angles` numbers, and then the logarithm of each query's sum.
#define PARAMETERS                                                                                 \
  const number_t *q, const number_t *k, const number_t *v, const number_t *mask, float *saved,     \
      count_t angles, count_t q_step, count_t k_step, count_t k_first, count_t v_first,            \
      count_t mask_sequence, count_t mask_head, count_t mask_query, count_t sequences,             \
      count_t queries, count_t keys, count_t heads, count_t group, count_t dim, count_t causal,    \
      float scale

struct Attention {
  const number_t *q, *k, *v, *mask;
  float *saved;
  count_t angles, mask_sequence, mask_head;
  int q_step, k_step, mask_query, sequences, queries, keys, heads, group, dim;
  bool causal;
  float scale;

  // The number of keys that a query sees: the last query sees all, and a number after it none.
  __device__ int visible(int query) const {
    return query >= queries ? 0 : causal ? query + 1 + keys - queries : keys;
  }

  // The number of the first query among the positions of the keys.
  __device__ int shift() const { return causal ? keys - queries : 0; }

  // Where the numbers for the queries of a head begin, one for each.
  __device__ count_t first(int sequence, int head) const {
    return ((count_t)sequence * heads + head) * queries;
  }
};

#define ATTENTION                                                                                  \
  {q, k + k_first, v + v_first, mask, saved, angles, mask_sequence, mask_head, (int)q_step,        \
   (int)k_step, (int)mask_query, (int)sequences, (int)queries, (int)keys, (int)heads, (int)group,  \
   (int)dim, causal != 0, scale}

struct __align__(4 * sizeof(number_t)) Quad { number_t at[4]; };

// Four columns of a row are read and written at once. Where rows are rotated, they are the elements i, i + 1,
// dim / 2 + i and dim / 2 + i + 1, so the two coordinates that turn together are in one thread. The order of
// columns does not matter to a sum over them.
__device__ int columns_of(int dim, bool rotated) { return rotated ? (dim / 2 + 1) / 2 * 4 : dim; }

struct Columns {
  int first, third; // the second one follows the first, and the fourth the third
  bool has[3];      // whether there are a second, a third and a fourth one

  __device__ Columns(int column, int dim, bool rotated) {
    int half = dim / 2;
    first = rotated ? column / 2 : column;
    third = rotated ? half + first : first + 2;
    has[0] = first + 1 < (rotated ? half : dim);
    has[1] = third < dim;
    has[2] = third + 1 < dim;
  }
};

// Whether four columns lie at an address that is a multiple of their size.
__device__ bool is_aligned(const number_t *data, int dim) {
  return dim % 4 == 0 && (count_t)data % sizeof(Quad) == 0;
}

// The rows of a head of a sequence.
struct Head {
  const number_t *data;
  int step, rows, dim; // numbers between two rows, the number of rows, numbers of a row
  int position;        // of the first row, or -1 if the rows are not rotated
  bool aligned;

  __device__ bool rotated() const { return position >= 0; }
  __device__ int columns() const { return columns_of(dim, rotated()); }

  // Four columns of a row, rotated. Outside of the head they are 0.
  __device__ float4 load(const float *angles, int row, int column) const {
    float4 x = {0.0f, 0.0f, 0.0f, 0.0f};
    if (row >= rows || column >= columns()) return x;
    const number_t *from = data + (long long)row * step;
    if (aligned && !rotated()) {
      Quad quad = *(const Quad *)(from + column);
      return {quad.at[0], quad.at[1], quad.at[2], quad.at[3]};
    }
    Columns own(column, dim, rotated());
    x.x = from[own.first];
    if (own.has[0]) x.y = from[own.first + 1];
    if (own.has[1]) x.z = from[own.third];
    if (own.has[2]) x.w = from[own.third + 1];
    if (!rotated()) return x;
    float4 a = *(const float4 *)(angles + (long long)(position + row) * columns() + column);
    return {x.x * a.x - x.z * a.z, x.y * a.y - x.w * a.w, x.z * a.x + x.x * a.z,
            x.w * a.y + x.y * a.w};
  }
};

__device__ Head queries_of(const Attention &a, int sequence, int head) {
  count_t first = (count_t)sequence * a.queries * a.q_step + (count_t)head * a.dim;
  int position = a.angles ? a.shift() : -1;
  return {a.q + first, a.q_step, a.queries, a.dim, position, is_aligned(a.q, a.dim)};
}

__device__ Head keys_of(const Attention &a, int sequence, int kv_head) {
  count_t first = (count_t)sequence * a.keys * a.k_step + (count_t)kv_head * a.dim;
  return {a.k + first, a.k_step, a.keys, a.dim, a.angles ? 0 : -1, is_aligned(a.k, a.dim)};
}

__device__ Head values_of(const Attention &a, int sequence, int kv_head) {
  count_t first = (count_t)sequence * a.keys * a.k_step + (count_t)kv_head * a.dim;
  return {a.v + first, a.k_step, a.keys, a.dim, -1, is_aligned(a.v, a.dim)};
}

// The results of a head, or their gradients.
__device__ Head results_of(const Attention &a, const number_t *ys, int sequence, int head) {
  int step = a.heads * a.dim;
  count_t first = (count_t)sequence * a.queries * step + (count_t)head * a.dim;
  return {ys + first, step, a.queries, a.dim, -1, is_aligned(ys, a.dim)};
}

// Writes four columns of a row, which are turned back if there are `angles`, those of the row.
__device__ void store(number_t *row, int dim, int column, float4 x, const float *angles,
                      bool aligned) {
  if (column >= columns_of(dim, angles)) return;
  if (aligned && !angles) {
    Quad quad;
    quad.at[0] = x.x, quad.at[1] = x.y, quad.at[2] = x.z, quad.at[3] = x.w;
    *(Quad *)(row + column) = quad;
    return;
  }
  if (angles) {
    float4 a = *(const float4 *)(angles + column);
    x = {x.x * a.x + x.z * a.z, x.y * a.y + x.w * a.w, x.z * a.x - x.x * a.z,
         x.w * a.y - x.y * a.w};
  }
  Columns own(column, dim, angles);
  row[own.first] = x.x;
  if (own.has[0]) row[own.first + 1] = x.y;
  if (own.has[1]) row[own.third] = x.z;
  if (own.has[2]) row[own.third + 1] = x.w;
}

// What a block of a grid works on. Blocks with much work come first: where a mask is causal, those are
// the last queries and the first keys.
struct Place {
  int head, sequence, column, tile;
};

__device__ Place place_of(const Attention &a, unsigned block, int heads, int width) {
  unsigned head = block % heads, rest = block / heads, parts = (a.dim + width - 1) / width;
  unsigned sequence = rest % a.sequences, tile = rest / a.sequences / parts;
  unsigned part = rest / a.sequences % parts;
  return {(int)head, (int)sequence, (int)part * width, (int)tile * SIDE};
}

// The operands of a head of queries, the gradients of its results, and its numbers for each query.
struct Operands {
  Head q, k, v, dy;
  const number_t *mask; // or a null pointer
  const float *logarithms, *deltas;

  // A score with what the mask adds to it.
  __device__ float masked(const Attention &a, float score, int query, int key) const {
    return mask ? score + mask[(count_t)query * a.mask_query + key] : score;
  }
};

__device__ Operands operands_of(const Attention &a, int sequence, int head, const number_t *dys,
                                const float *deltas) {
  const number_t *mask = a.mask + sequence * a.mask_sequence + head * a.mask_head;
  count_t first = a.first(sequence, head);
  return {queries_of(a, sequence, head),
          keys_of(a, sequence, head / a.group),
          values_of(a, sequence, head / a.group),
          results_of(a, dys, sequence, head),
          a.mask ? mask : nullptr,
          a.saved + a.angles + first,
          deltas + first};
}

// The shared memory of a block. What is the same for all threads is there too, so that it takes no registers.
struct __align__(16) Shared {
  float operands[2 * SIDE * STRIP_PITCH]; // two strips, or DEPTH rows of SIDE columns
  float weights[SIDE * PITCH];            // a number for each query and key of a tile
  Place place;
  Operands of;
};

__device__ int own_x() { return threadIdx.x % LANES; }
__device__ int own_y() { return threadIdx.x / LANES; }

// Sets what the threads of a block for queries share. The block has this width of columns.
__device__ void begin(const Attention &a, int width, const number_t *dys, const float *deltas,
                      Shared &shared) {
  if (threadIdx.x == 0) {
    Place place = place_of(a, blockIdx.x, a.heads, width);
    shared.place = place;
    shared.of = operands_of(a, place.sequence, place.head, dys, deltas);
  }
  __syncthreads();
}

// The weight of query y + 16 i and key x + 16 j of a tile.
__device__ float &own_weight(Shared &shared, int i, int j) {
  return shared.weights[(own_y() + LANES * i) * PITCH + own_x() + LANES * j];
}

__device__ float4 &four(float *at) { return *(float4 *)at; }

__device__ float4 scaled(float4 x, float factor) {
  return {x.x * factor, x.y * factor, x.z * factor, x.w * factor};
}

// sum += factor x
__device__ void add(float4 &sum, float factor, float4 x) {
  sum.x = fmaf(factor, x.x, sum.x);
  sum.y = fmaf(factor, x.y, sum.y);
  sum.z = fmaf(factor, x.z, sum.z);
  sum.w = fmaf(factor, x.w, sum.w);
}

// Adds the products of row `left_row` + y + 16 i of `left` with row `right_row` + x + 16 j of `right`.
__device__ void add_row_products(float (&sums)[4][4], const Head &left, int left_row, const Head &right,
                                 int right_row, const float *angles, Shared &shared) {
  float *lefts = shared.operands, *rights = shared.operands + SIDE * STRIP_PITCH;
  int line = threadIdx.x / 4, column = threadIdx.x % 4 * 4, at = line * STRIP_PITCH + column;
  int columns = left.columns();
#pragma unroll 1
  for (int first = 0; first < columns; first += STRIP) {
    __syncthreads(); // every thread has read what was here
    four(lefts + at) = left.load(angles, left_row + line, first + column);
    four(rights + at) = right.load(angles, right_row + line, first + column);
    __syncthreads();
#pragma unroll 1
    for (int c = 0; c < STRIP; c += 4) {
      float4 l[4];
#pragma unroll
      for (int i = 0; i < 4; i++) l[i] = four(lefts + (own_y() + LANES * i) * STRIP_PITCH + c);
#pragma unroll
      for (int j = 0; j < 4; j++) {
        float4 r = four(rights + (own_x() + LANES * j) * STRIP_PITCH + c);
#pragma unroll
        for (int i = 0; i < 4; i++) {
          float sum = fmaf(l[i].x, r.x, sums[i][j]);
          sum = fmaf(l[i].y, r.y, sum);
          sum = fmaf(l[i].z, r.z, sum);
          sums[i][j] = fmaf(l[i].w, r.w, sum);
        }
      }
    }
  }
}

// Copies DEPTH rows with SIDE columns to shared memory.
__device__ void stage(const Head &head, int row, int column, const float *angles, Shared &shared) {
  __syncthreads(); // every thread has read what was here, and has written its weights
#pragma unroll
  for (int i = 0; i < DEPTH; i += LANES) {
    int line = own_y() + i;
    float4 own = head.load(angles, row + line, column + 4 * own_x());
    four(shared.operands + line * PITCH + 4 * own_x()) = own;
  }
  __syncthreads();
}

// sums[c][i] += row y + 16 i of the weights times the rows of `right` from `row` to `end`, in four columns
// of each chunk of SIDE columns from `column` on.
template <int CHUNKS>
__device__ void add_products(float4 (&sums)[CHUNKS][4], const Head &right, int row, int end, int column,
                             const float *angles, Shared &shared) {
#pragma unroll
  for (int c = 0; c < CHUNKS; c++) {
    if (column + c * SIDE >= right.columns()) continue;
#pragma unroll 1
    for (int depth = 0; depth < SIDE && row + depth < end; depth += DEPTH) {
      stage(right, row + depth, column + c * SIDE, angles, shared);
      float *lefts = shared.weights + depth, *rights = shared.operands + 4 * own_x();
#pragma unroll 2
      for (int k = 0; k < DEPTH; k += 4) {
        float4 l[4];
#pragma unroll
        for (int i = 0; i < 4; i++) l[i] = four(lefts + (own_y() + LANES * i) * PITCH + k);
        float4 r = four(rights + k * PITCH);
#pragma unroll
        for (int i = 0; i < 4; i++) add(sums[c][i], l[i].x, r);
        r = four(rights + (k + 1) * PITCH);
#pragma unroll
        for (int i = 0; i < 4; i++) add(sums[c][i], l[i].y, r);
        r = four(rights + (k + 2) * PITCH);
#pragma unroll
        for (int i = 0; i < 4; i++) add(sums[c][i], l[i].z, r);
        r = four(rights + (k + 3) * PITCH);
#pragma unroll
        for (int i = 0; i < 4; i++) add(sums[c][i], l[i].w, r);
      }
    }
  }
}

// As `add_products` with the transposed weights: sums[c][i] belongs to column 4 y + i of the weights.
template <int CHUNKS>
__device__ void add_turned_products(float4 (&sums)[CHUNKS][4], const Head &right, int row, int end,
                                    int column, const float *angles, Shared &shared) {
#pragma unroll
  for (int c = 0; c < CHUNKS; c++) {
    if (column + c * SIDE >= right.columns()) continue;
#pragma unroll 1
    for (int depth = 0; depth < SIDE && row + depth < end; depth += DEPTH) {
      stage(right, row + depth, column + c * SIDE, angles, shared);
      float *lefts = shared.weights + depth * PITCH + 4 * own_y();
      float *rights = shared.operands + 4 * own_x();
#pragma unroll 4
      for (int k = 0; k < DEPTH; k++) {
        float4 l = four(lefts + k * PITCH), r = four(rights + k * PITCH);
        add(sums[c][0], l.x, r);
        add(sums[c][1], l.y, r);
        add(sums[c][2], l.z, r);
        add(sums[c][3], l.w, r);
      }
    }
  }
}

// The largest number of the threads that share a row. NaN does not count.
__device__ float row_max(float own) {
#pragma unroll
  for (int distance = LANES / 2; distance > 0; distance /= 2) {
    float other = __shfl_xor_sync(0xffffffff, own, distance);
    own = other > own ? other : own;
  }
  return own;
}

// The sum over the threads that share a row, in a fixed order.
__device__ float row_sum(float own) {
#pragma unroll
  for (int distance = LANES / 2; distance > 0; distance /= 2) {
    own += __shfl_xor_sync(0xffffffff, own, distance);
  }
  return own;
}

// The results `ys` of 64 queries in CHUNKS * SIDE columns, and the logarithms of their sums.
template <int CHUNKS> __device__ void attend(const Attention &a, number_t *ys) {
  __shared__ Shared shared;
  begin(a, CHUNKS * SIDE, nullptr, nullptr, shared);
  const Place &place = shared.place;
  const Operands &of = shared.of;
  int query = (a.queries - 1) / SIDE * SIDE - place.tile;
  float4 sums[CHUNKS][4] = {};
  float top[4], total[4];
  for (int i = 0; i < 4; i++) top[i] = -INFINITE, total[i] = 0.0f;
  int last = query + SIDE < a.queries ? query + SIDE - 1 : a.queries - 1, end = a.visible(last);
#pragma unroll 1
  for (int key = 0; key < end; key += SIDE) {
    float scores[4][4] = {};
    add_row_products(scores, of.q, query, of.k, key, a.saved, shared);
#pragma unroll
    for (int i = 0; i < 4; i++) {
      int row = query + own_y() + LANES * i, visible = a.visible(row);
      float largest = -INFINITE;
#pragma unroll
      for (int j = 0; j < 4; j++) {
        int column = key + own_x() + LANES * j;
        float score = -INFINITE;
        if (column < visible) score = of.masked(a, scores[i][j] * a.scale, row, column);
        largest = score > largest ? score : largest; // a missed NaN makes the sum NaN
        scores[i][j] = score;
      }
      largest = row_max(largest);
      float before = top[i];
      top[i] = largest > before ? largest : before;
      // With nothing but minus infinity so far, all exponentials are 0.
      float shift = top[i] == -INFINITE ? 0.0f : top[i], sum = 0.0f;
#pragma unroll
      for (int j = 0; j < 4; j++) {
        float weight = expf(scores[i][j] - shift);
        sum += weight;
        own_weight(shared, i, j) = weight;
      }
      float correction = expf(before - shift);
      total[i] = total[i] * correction + sum;
#pragma unroll
      for (int c = 0; c < CHUNKS; c++) sums[c][i] = scaled(sums[c][i], correction);
    }
    add_products(sums, of.v, key, end, place.column, a.saved, shared);
  }
  count_t step = (count_t)a.heads * a.dim;
  bool aligned = is_aligned(ys, a.dim);
#pragma unroll
  for (int i = 0; i < 4; i++) {
    float sum = row_sum(total[i]);
    int row = query + own_y() + LANES * i;
    if (row >= a.queries) continue;
    // A query that sees no key has the result 0. Its logarithm makes its probabilities 0 in the backward.
    float factor = sum == 0.0f ? 0.0f : 1.0f / sum;
    if (place.column == 0 && own_x() == 0) {
      float *logarithms = a.saved + a.angles + a.first(place.sequence, place.head);
      logarithms[row] = sum == 0.0f ? INFINITE : top[i] + logf(sum);
    }
    count_t at = ((count_t)place.sequence * a.queries + row) * step + (count_t)place.head * a.dim;
#pragma unroll
    for (int c = 0; c < CHUNKS; c++) {
      float4 x = scaled(sums[c][i], factor);
      store(ys + at, a.dim, place.column + c * SIDE + 4 * own_x(), x, nullptr, aligned);
    }
  }
}

// Makes the probabilities p of a tile its weights, or with SLOPES the gradients of its scores,
// p (dy v^T - delta). A query that does not see a key gives 0.
template <bool SLOPES>
__device__ void set_weights(const Attention &a, int query, int key, Shared &shared) {
  const Operands &of = shared.of;
  float products[4][4] = {};
  add_row_products(products, of.q, query, of.k, key, a.saved, shared);
#pragma unroll
  for (int i = 0; i < 4; i++) {
    int row = query + own_y() + LANES * i, visible = a.visible(row);
    float logarithm = visible > 0 ? of.logarithms[row] : 0.0f;
#pragma unroll
    for (int j = 0; j < 4; j++) {
      int column = key + own_x() + LANES * j;
      float p = 0.0f;
      if (column < visible) {
        p = expf(of.masked(a, products[i][j] * a.scale, row, column) - logarithm);
      }
      own_weight(shared, i, j) = p;
      products[i][j] = 0.0f;
    }
  }
  if (!SLOPES) return;
  add_row_products(products, of.dy, query, of.v, key, a.saved, shared);
#pragma unroll
  for (int i = 0; i < 4; i++) {
    int row = query + own_y() + LANES * i;
    float delta = row < a.queries ? of.deltas[row] : 0.0f;
#pragma unroll
    for (int j = 0; j < 4; j++) own_weight(shared, i, j) *= products[i][j] - delta;
  }
}

// The gradients of 64 keys, or of their values, in CHUNKS * SIDE columns. Blocks for the keys and blocks for
// the values take turns: the scores are computed by both, and the sums of both would not fit into the registers
// of one block beside another block.
template <int CHUNKS, bool OF_VALUES>
__device__ void key_gradients(const Attention &a, number_t *to, const number_t *dys, const float *deltas,
                              Shared &shared) {
  if (threadIdx.x == 0) {
    shared.place = place_of(a, blockIdx.x / 2, a.heads / a.group, CHUNKS * SIDE);
  }
  __syncthreads();
  const Place &place = shared.place;
  int key = place.tile;
  float4 sums[CHUNKS][4] = {};
  // The first query that sees one of these keys.
  int begin = a.causal && key > a.shift() ? key - a.shift() : 0;
#pragma unroll 1
  for (int head = place.head * a.group; head < (place.head + 1) * a.group; head++) {
    __syncthreads(); // every thread has read the operands of the head before
    if (threadIdx.x == 0) shared.of = operands_of(a, place.sequence, head, dys, deltas);
    __syncthreads();
#pragma unroll 1
    for (int query = begin / SIDE * SIDE; query < a.queries; query += SIDE) {
      set_weights<!OF_VALUES>(a, query, key, shared);
      const Head &right = OF_VALUES ? shared.of.dy : shared.of.q;
      add_turned_products(sums, right, query, a.queries, place.column, a.saved, shared);
    }
  }
  bool aligned = is_aligned(to, a.dim);
#pragma unroll
  for (int i = 0; i < 4; i++) {
    int row = key + 4 * own_y() + i;
    if (row >= a.keys) continue;
    count_t at = ((count_t)place.sequence * a.keys + row) * a.k_step + (count_t)place.head * a.dim;
    const float *angles = a.saved + (count_t)row * columns_of(a.dim, true);
    const float *own = !OF_VALUES && a.angles ? angles : nullptr;
#pragma unroll
    for (int c = 0; c < CHUNKS; c++) {
      float4 x = scaled(sums[c][i], OF_VALUES ? 1.0f : a.scale);
      store(to + at, a.dim, place.column + c * SIDE + 4 * own_x(), x, own, aligned);
    }
  }
}

// The gradients of 64 queries in CHUNKS * SIDE columns.
template <int CHUNKS>
__device__ void query_gradients(const Attention &a, number_t *dqs, const number_t *dys,
                                const float *deltas) {
  __shared__ Shared shared;
  begin(a, CHUNKS * SIDE, dys, deltas, shared);
  const Place &place = shared.place;
  int query = (a.queries - 1) / SIDE * SIDE - place.tile;
  float4 dq[CHUNKS][4] = {};
  int last = query + SIDE < a.queries ? query + SIDE - 1 : a.queries - 1, end = a.visible(last);
#pragma unroll 1
  for (int key = 0; key < end; key += SIDE) {
    set_weights<true>(a, query, key, shared);
    add_products(dq, shared.of.k, key, end, place.column, a.saved, shared);
  }
  bool aligned = is_aligned(dqs, a.dim);
#pragma unroll
  for (int i = 0; i < 4; i++) {
    int row = query + own_y() + LANES * i;
    if (row >= a.queries) continue;
    count_t at = ((count_t)place.sequence * a.queries + row) * a.q_step + (count_t)place.head * a.dim;
    const float *own = a.angles ? a.saved + (count_t)(row + a.shift()) * columns_of(a.dim, true) : nullptr;
#pragma unroll
    for (int c = 0; c < CHUNKS; c++) {
      float4 x = scaled(dq[c][i], a.scale);
      store(dqs + at, a.dim, place.column + c * SIDE + 4 * own_x(), x, own, aligned);
    }
  }
}

// The kernels for heads of up to 64 columns, and for larger ones in parts of 128 columns. n is the number of
// blocks.
#define KERNELS(WIDTH)                                                                             \
  extern "C" __global__ void BOUNDS attention_##WIDTH(number_t *ys, PARAMETERS, count_t n) {       \
    attend<WIDTH / SIDE>(ATTENTION, ys);                                                           \
  }                                                                                                \
  extern "C" __global__ void BOUNDS attention_key_gradients_##WIDTH(                               \
      number_t *dks, number_t *dvs, const number_t *dys, const float *deltas, PARAMETERS,          \
      count_t n) {                                                                                 \
    __shared__ Shared shared;                                                                      \
    if (blockIdx.x % 2 == 0) {                                                                     \
      if (dks) key_gradients<WIDTH / SIDE, false>(ATTENTION, dks + k_first, dys, deltas, shared);  \
    } else if (dvs) {                                                                              \
      key_gradients<WIDTH / SIDE, true>(ATTENTION, dvs + v_first, dys, deltas, shared);            \
    }                                                                                              \
  }                                                                                                \
  extern "C" __global__ void BOUNDS attention_query_gradients_##WIDTH(                             \
      number_t *dqs, const number_t *dys, const float *deltas, PARAMETERS, count_t n) {            \
    query_gradients<WIDTH / SIDE>(ATTENTION, dqs, dys, deltas);                                    \
  }
KERNELS(64)
KERNELS(128)

// deltas[sequence, head, query] = the sum of dy y. n is the number of rows (sequence, query, head).
extern "C" __global__ void attention_deltas(float *deltas, const number_t *ys, const number_t *dys,
                                            count_t queries, count_t heads, count_t dim, count_t n) {
  count_t row = blockIdx.x * (count_t)(BLOCK / LANES) + own_y();
  float sum = 0.0f;
  if (row < n) {
    const number_t *y = ys + row * dim, *dy = dys + row * dim;
    for (count_t i = own_x(); i < dim; i += LANES) sum = fmaf(dy[i], y[i], sum);
  }
  sum = row_sum(sum);
  if (row >= n || own_x() != 0) return;
  count_t head = row % heads, query = row / heads % queries, sequence = row / heads / queries;
  deltas[(sequence * heads + head) * queries + query] = sum;
}

// The cosines of the angles by which elements 2 i and 2 i + 1 of the first half of a head turn, and then
// their sines, for each position. In f64 as on the CPU. n is the number of such groups of four. A pair of elements
// keeps a share of its speed, and the rest is divided by `factor` (`Slowing` in rotary.rs).
extern "C" __global__ void attention_angles(float *angles, double base, double factor, double constant,
                                            double by_speed, double by_pair, count_t offset,
                                            count_t dim, count_t n) {
  auto speed_of = [=](count_t pair) {
    double speed = pow(base, -2.0 * pair / dim);
    double kept = fmin(fmax(constant + by_speed * speed + by_pair * pair, 0.0), 1.0);
    return speed * (kept + (1.0 - kept) / factor);
  };
  count_t groups = columns_of(dim, true) / 4;
  for (count_t i = blockIdx.x * (count_t)BLOCK + threadIdx.x; i < n; i += (count_t)gridDim.x * BLOCK) {
    double position = offset + i / groups;
    count_t pair = i % groups * 2;
    double first = position * speed_of(pair), second = position * speed_of(pair + 1);
    four(angles + 4 * i) = {(float)cos(first), (float)cos(second), (float)sin(first),
                            (float)sin(second)};
  }
}
