// Sums over groups of rows. A thread adds one column of one group, row after row, so the order of
// additions is fixed. Sums are f32.

typedef unsigned long long count_t;

#define ROWS 256 // rows per group

// sums[g, c] = the sum of column c over the g-th ROWS rows of values (rows, columns). n is the number
// of sums.
extern "C" __global__ void sum_groups(float *sums, const number_t *values, count_t rows,
                                      count_t columns, count_t n) {
  for (count_t i = blockIdx.x * (count_t)blockDim.x + threadIdx.x; i < n;
       i += (count_t)gridDim.x * blockDim.x) {
    count_t group = i / columns, column = i % columns;
    count_t start = group * ROWS, end = start + ROWS < rows ? start + ROWS : rows;
    float sum = 0.0f;
    for (count_t row = start; row < end; row++) sum += values[row * columns + column];
    sums[i] = sum;
  }
}
