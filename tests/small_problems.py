"""References as text."""

LINEAR = """
    import torch
    import torch.nn as nn

    class Model(nn.Module):
        def __init__(self, features, groups):
            super().__init__()
            self.linear = nn.Linear(features, features)
            self.norm = nn.GroupNorm(groups, features)

        def forward(self, x):
            return torch.relu(self.norm(self.linear(x)))

    def get_inputs():
        return [torch.rand(32, 24)]

    def get_init_inputs():
        return [24, 4]
"""
