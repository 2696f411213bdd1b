// sgd.rs: lr, weight decay, momentum, 1 - dampening, kind (0: no velocity, 1: velocity, 2: Nesterov).

__device__ void sums(float, float, State &s, const Scalars &, double *sum) {
  if (s.a != 0.0f) sum[0] = 1.0; // some velocity is not 0
}

__device__ void update(float &p, float g, State &s, const Scalars &k, const double *sum) {
  float lr = (float)k.k[0], decay = (float)k.k[1], momentum = (float)k.k[2];
  g = g + decay * p;
  if (k.k[4] == 0.0) {
    p -= lr * g;
    return;
  }
  // There are sums only with dampening.
  float take = sum && sum[0] != 0.0 ? (float)k.k[3] : 1.0f;
  s.a = momentum * s.a + take * g;
  p = k.k[4] == 2.0 ? p - lr * (g + momentum * s.a) : p - lr * s.a;
}
