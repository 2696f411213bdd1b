// lamb.rs: take1, keep2, take2, scale1, scale2, eps, weight decay, -lr.

__device__ float direction(float p, const State &s, const Scalars &k) {
  float scale1 = (float)k.k[3], scale2 = (float)k.k[4], eps = (float)k.k[5], decay = (float)k.k[6];
  return s.a * scale1 / (sqrtf(s.b * scale2) + eps) + decay * p;
}

__device__ void sums(float p, float g, State &s, const Scalars &k, double *sum) {
  float keep2 = (float)k.k[1], take2 = (float)k.k[2];
  s.a = moved(s.a, g, k.k[0]);
  s.b = keep2 * s.b + take2 * g * g;
#ifndef NO_TRUST_RATIO
  double r = direction(p, s, k);
  sum[0] += (double)p * p;
  sum[1] += r * r;
#endif
}

__device__ void update(float &p, float, State &s, const Scalars &k, const double *sum) {
  double value = sqrt(sum[0]), step = sqrt(sum[1]);
  double ratio = value > 0.0 && step > 0.0 ? value / step : 1.0;
  p += (float)(k.k[7] * ratio) * direction(p, s, k);
}
