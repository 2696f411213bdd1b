// The messages of the sparse strategies: positions, ascending, then as many values.

typedef unsigned long long count_t;

#define FOR_EACH(i, n)                                                                             \
  for (count_t i = blockIdx.x * (count_t)blockDim.x + threadIdx.x; i < (n);                        \
       i += (count_t)gridDim.x * blockDim.x)

// A message with room for n elements: the first `count` elements of `words`, which has room for
// `room`, and zeros behind them.
extern "C" __global__ void pack(unsigned *message, const unsigned *words, count_t room, count_t count,
                                count_t n) {
  FOR_EACH(i, n) {
    message[i] = i < count ? words[i] : 0;
    message[n + i] = i < count ? words[room + i] : 0;
  }
}

// Adds n elements to the `len` values. Their positions start at words[first], and their own values
// `room` words later. The positions in a message differ, so no two threads add to one value. A
// position that is none sets *wrong.
extern "C" __global__ void add_elements(float *values, count_t len, unsigned *wrong,
                                        const unsigned *words, count_t first, count_t room,
                                        count_t n) {
  FOR_EACH(i, n) {
    unsigned at = words[first + i];
    if (at < len) {
      values[at] += __uint_as_float(words[first + room + i]);
    } else {
      *wrong = 1;
    }
  }
}

// Puts n elements, whose places are at words[first], into the `len` values bit for bit: a sum would make
// another NaN of a NaN, and 0 of a -0.
extern "C" __global__ void place_elements(unsigned *values, count_t len, const unsigned *words,
                                          count_t first, count_t room, count_t n) {
  FOR_EACH(i, n) {
    unsigned at = words[first + i];
    if (at < len) values[at] = words[first + room + i];
  }
}

// Divides the n values. After a wrong position the first value becomes NaN.
extern "C" __global__ void divide(float *values, float divisor, const unsigned *wrong, count_t n) {
  FOR_EACH(i, n) {
    values[i] = i == 0 && *wrong ? __int_as_float(0x7fc00000) : values[i] / divisor;
  }
}
