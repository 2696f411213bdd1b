// ada_grad.rs: l2, step, eps.

__device__ void sums(float, float, State &, const Scalars &, double *) {}

__device__ void update(float &p, float g, State &s, const Scalars &k, const double *) {
  float step = (float)k.k[1], eps = (float)k.k[2];
  g = g + (float)k.k[0] * p;
  s.a += g * g;
  p += step * g / (sqrtf(s.a) + eps);
}
