// rms_prop.rs: l2, keep, take, eps, momentum, step, centered (0 or 1).
// The state vectors are the squares, then the means if centered, then the velocity with momentum.

__device__ void sums(float, float, State &, const Scalars &, double *) {}

__device__ void update(float &p, float g, State &s, const Scalars &k, const double *) {
  float keep = (float)k.k[1], take = (float)k.k[2], eps = (float)k.k[3];
  float momentum = (float)k.k[4], step = (float)k.k[5];
  bool centered = k.k[6] != 0.0;
  g = g + (float)k.k[0] * p;
  s.a = keep * s.a + take * g * g;
  float squares = s.a;
  if (centered) {
    s.b = moved(s.b, g, k.k[2]);
    squares = s.a - s.b * s.b;
    // Not `fmaxf`, which would drop a NaN.
    squares = squares < 0.0f ? 0.0f : squares;
  }
  if (momentum == 0.0f) {
    p += step * g / (sqrtf(squares) + eps);
    return;
  }
  float &velocity = centered ? s.c : s.b;
  velocity = momentum * velocity + g / (sqrtf(squares) + eps);
  p += step * velocity;
}
