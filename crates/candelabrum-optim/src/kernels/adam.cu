// adam.rs: l2, shrink, take1, keep2, take2, root, eps, step.

__device__ void sums(float, float, State &, const Scalars &, double *) {}

__device__ float descent(const Scalars &k, float m, float squares) {
  float root = (float)k.k[5], eps = (float)k.k[6], step = (float)k.k[7];
  return step * m / (sqrtf(squares) / root + eps);
}

__device__ void average(float &p, float g, State &s, const Scalars &k) {
  float keep2 = (float)k.k[3], take2 = (float)k.k[4];
  g = g + (float)k.k[0] * p;
  p *= (float)k.k[1];
  s.a = moved(s.a, g, k.k[2]);
  s.b = keep2 * s.b + take2 * g * g;
}

__device__ void update(float &p, float g, State &s, const Scalars &k, const double *) {
  average(p, g, s, k);
#ifdef AMSGRAD
  // Not `fmaxf`, which would drop a NaN.
  s.c = s.c > s.b ? s.c : s.b;
  p += descent(k, s.a, s.c);
#else
  p += descent(k, s.a, s.b);
#endif
}
