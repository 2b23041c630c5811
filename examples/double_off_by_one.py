"""A candidate for double.py with two mistakes: one element too many, and no gradient."""

import torch.nn as nn
from torch.utils.cpp_extension import load_inline

cuda = r"""
__global__ void twice(const float* x, float* y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i <= n) y[i] = 2 * x[i];
}

torch::Tensor run(torch::Tensor x) {
  x = x.contiguous();
  auto y = torch::empty_like(x);
  twice<<<x.numel() / 256 + 1, 256>>>(x.data_ptr<float>(), y.data_ptr<float>(), x.numel());
  return y;
}
"""
ext = load_inline(
    name="double_off_by_one", cpp_sources="torch::Tensor run(torch::Tensor x);", cuda_sources=cuda, functions=["run"]
)


class ModelNew(nn.Module):
    def forward(self, x):
        return ext.run(x)
