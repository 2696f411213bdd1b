// lars.rs: lr, weight decay, momentum, trust coefficient (0: no trust ratio).

__device__ void sums(float p, float g, State &, const Scalars &, double *sum) {
  sum[0] += (double)p * p;
  sum[1] += (double)g * g;
}

__device__ void update(float &p, float g, State &s, const Scalars &k, const double *sum) {
  double rate = k.k[0];
  if (k.k[3] != 0.0) {
    double value = sqrt(sum[0]), length = k.k[3] * value, divisor = sqrt(sum[1]) + k.k[1] * value;
    rate *= length > 0.0 && divisor > 0.0 ? length / divisor : 1.0;
  }
  s.a = (float)k.k[2] * s.a + (float)rate * (g + (float)k.k[1] * p);
  p -= s.a;
}
