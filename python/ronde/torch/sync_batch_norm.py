# SPDX-License-Identifier: Apache-2.0
"""Batch norm over the batches of all ranks."""

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from ronde.torch.basics import size
from ronde.torch.operations import Sum, allreduce


class SyncBatchNorm(_BatchNorm):
    """As torch.nn.BatchNorm, with the mean and variance of all ranks' batches.

    Of any dimension, on the CPU and on GPUs. Batches may differ in size, and be empty on a rank.
    """

    def _check_input_dim(self, input: Tensor) -> None:
        if input.dim() < 2:
            raise ValueError(f"expected at least 2D input (got {input.dim()}D input)")

    def forward(self, input: Tensor) -> Tensor:
        """Normalises ``input``, of shape (batch, features, ...)."""
        if not self.training and self.track_running_stats or size() == 1:
            return super().forward(input)
        self._check_input_dim(input)
        mean, variance, count = _statistics(input)
        if self.training and self.num_batches_tracked is not None:
            assert self.running_mean is not None and self.running_var is not None
            self.num_batches_tracked.add_(1)
            momentum = (1.0 / float(self.num_batches_tracked) if self.momentum is None
                        else self.momentum)
            self.running_mean.lerp_(mean.detach().to(self.running_mean), momentum)
            unbiased = variance.detach() * (count / (count - 1))
            self.running_var.lerp_(unbiased.to(self.running_var), momentum)
        scale = (variance + self.eps).rsqrt()
        if self.affine:
            scale = scale * self.weight
        shift = self.bias - mean * scale if self.affine else -mean * scale
        row = (1, -1, *[1] * (input.dim() - 2))
        return torch.addcmul(shift.view(row), input, scale.view(row)).to(input.dtype)


def _statistics(input: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Mean and variance of each feature, and how many values that is of; autograd records it."""
    others = [d for d in range(input.dim()) if d != 1]
    values = input.to(torch.promote_types(input.dtype, torch.float32))
    own = values.numel() // max(values.shape[1], 1)
    if own:
        variance, mean = torch.var_mean(values, others, correction=0)
    else:
        variance = mean = values.sum(others)
    # A vector of other length has another name: names that repeat with one shape cost less.
    name = f"sync_batch_norm.{len(mean)}"
    sums = allreduce(torch.cat([mean.new_tensor([own]), mean * own]), name=name, op=Sum)
    count = sums[0].detach()
    if not input.is_cuda and count < 2:  # on a GPU it would be waited for
        raise ValueError(f"Expected more than 1 value per channel when training, got {int(count)}")
    total_mean = sums[1:] / count
    squares = (variance + (mean - total_mean).square()) * own
    return total_mean, allreduce(squares, name=name + ".squares", op=Sum) / count, count
