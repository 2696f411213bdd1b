// Sums over groups of rows. The threads of a block take 32 columns of one group side by side, and 8 of them
// share a column, so the order of additions is fixed. Sums are f32.

typedef unsigned long long count_t;

#define ROWS 256   // rows per group
#define COLUMNS 32 // columns per block
#define LANES 8    // threads per column

// sums[g, c] = the sum of column c over the g-th ROWS rows of values (rows, columns). A block runs for each group and
// each COLUMNS columns.
extern "C" __global__ void sum_groups(float *sums, const number_t *values, count_t rows,
                                      count_t columns, count_t) {
  __shared__ float parts[LANES][COLUMNS];
  unsigned lane = threadIdx.x / COLUMNS, place = threadIdx.x % COLUMNS;
  count_t tiles = (columns + COLUMNS - 1) / COLUMNS, group = blockIdx.x / tiles;
  count_t column = blockIdx.x % tiles * COLUMNS + place;
  count_t start = group * ROWS, end = start + ROWS < rows ? start + ROWS : rows;
  float sum = 0.0f;
  if (column < columns)
    for (count_t row = start + lane; row < end; row += LANES) sum += values[row * columns + column];
  parts[lane][place] = sum;
  __syncthreads();
  if (lane != 0 || column >= columns) return;
  for (unsigned i = 1; i < LANES; i++) sum += parts[i][place];
  sums[group * columns + column] = sum;
}
