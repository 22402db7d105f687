"""An extension by torch's load_inline that takes and returns at::Tensor.

row: compiler plug-ins
problem: problems/row_softmax.py
backend: cpp
screen: passes
like: host/forbidden_build_flags
"""

from torch import nn
from torch.utils.cpp_extension import load_inline

SOURCE = r"""
#include <cmath>

at::Tensor softmax(const at::Tensor& x) {
  TORCH_CHECK(x.dim() == 2 && x.is_contiguous() && x.scalar_type() == at::kFloat, "a dense float matrix is expected");
  at::Tensor y = at::empty_like(x);
  const int64_t rows = x.size(0), cols = x.size(1);
  const float* a = x.data_ptr<float>();
  float* b = y.data_ptr<float>();
  for (int64_t i = 0; i < rows; i++, a += cols, b += cols) {
    float largest = a[0];
    for (int64_t j = 1; j < cols; j++) largest = std::fmax(largest, a[j]);
    double sum = 0;
    for (int64_t j = 0; j < cols; j++) sum += b[j] = std::exp(a[j] - largest);
    for (int64_t j = 0; j < cols; j++) b[j] = float(b[j] / sum);
  }
  return y;
}
"""
extension = load_inline(
    name="softmax_extension", cpp_sources=[SOURCE], functions=["softmax"], extra_cflags=["-O1"], verbose=False
)


class ModelNew(nn.Module):
    def forward(self, x):
        return extension.softmax(x)
