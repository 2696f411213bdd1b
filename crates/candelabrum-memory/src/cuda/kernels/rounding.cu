// Rounds many runs of f32 numbers to number_t in one launch.

typedef unsigned long long count_t;

#define RUNS 64    // runs in one launch
#define PIECE 1024 // numbers that one block rounds

struct Runs {
  const float *from[RUNS];
  number_t *to[RUNS];
  count_t len[RUNS];
  count_t first[RUNS]; // the number of the run's first block, by which the runs are sorted
};

// A block runs for each piece of each run. Places without a run have a `first` after all blocks.
extern "C" __global__ void round_all(Runs runs, count_t) {
  unsigned run = 0;
  while (run + 1 < RUNS && runs.first[run + 1] <= blockIdx.x) run++;
  count_t start = (blockIdx.x - runs.first[run]) * PIECE, len = runs.len[run];
  count_t end = start + PIECE < len ? start + PIECE : len;
  for (count_t i = start + threadIdx.x; i < end; i += blockDim.x) {
    runs.to[run][i] = runs.from[run][i];
  }
}
