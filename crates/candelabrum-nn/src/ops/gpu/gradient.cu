// The place of a parameter's gradient, in f32 or in the type of the numbers. One of the two pointers is 0, and both are
// if the gradient is not wanted.
struct Gradient {
  float *wide;
  number_t *narrow;

  __device__ void put(unsigned long long place, float value) const {
    if (wide) wide[place] = value;
    if (narrow) narrow[place] = value;
  }
};
