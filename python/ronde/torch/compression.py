# SPDX-License-Identifier: Apache-2.0
"""Compression of tensors that are reduced."""

from typing import Any

import torch
from torch import Tensor


class NoneCompressor:
    """Sends tensors as they are. A class of your own has the same two functions."""

    wire_dtype: torch.dtype | None = None  # in which floating-point tensors travel

    @classmethod
    def compress(cls, tensor: Tensor) -> tuple[Tensor, Any]:
        """Returns what travels, and what decompress() needs."""
        narrows = cls.wire_dtype is not None and tensor.is_floating_point()
        return tensor.to(cls.wire_dtype) if narrows else tensor, tensor.dtype

    @staticmethod
    def decompress(tensor: Tensor, ctx: Any) -> Tensor:
        """Returns the tensor in its own type again."""
        return tensor.to(ctx)


class FP16Compressor(NoneCompressor):
    """Sends floating-point tensors in 16 bits."""

    wire_dtype = torch.float16


class BF16Compressor(NoneCompressor):
    """As fp16, with the range of float32."""

    wire_dtype = torch.bfloat16


class Compression:
    """The compressions that there are."""

    none, fp16, bf16 = NoneCompressor, FP16Compressor, BF16Compressor
