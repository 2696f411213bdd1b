// The logistic function. This text is put before kernels that use it.

__device__ float sigmoid(float x) {
  float e = expf(-fabsf(x));
  return (x < 0.0f ? e : 1.0f) / (1.0f + e);
}
