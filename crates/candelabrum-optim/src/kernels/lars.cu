// lars.rs: lr, weight decay, momentum, trust coefficient (0: no trust ratio).

__device__ void sums(float p, float g, State &, const Scalars &, double *sum) {
  sum[0] += (double)p * p;
  sum[1] += (double)g * g;
}

__device__ void update(float &p, float g, State &s, const Scalars &k, const double *sum) {
  double rate = k.k[0];
  if (k.k[3] != 0.0) {
    double value = sqrt(sum[0]), grad = sqrt(sum[1]);
    if (value > 0.0 && grad > 0.0) rate *= k.k[3] * value / (grad + k.k[1] * value);
  }
  s.a = (float)k.k[2] * s.a + (float)rate * (g + (float)k.k[1] * p);
  p -= s.a;
}
