// What candidates of the rehearsal compute: y = 2 x + 1.
#ifdef KW_HOST
#include "kw_host.h"
#else
#define KW_EXPORT(kernel)
#endif

extern "C" __global__ void affine(const float* x, float* y, unsigned count) {
  for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) y[i] = 2.0f * x[i] + 1.0f;
}
KW_EXPORT(affine)
