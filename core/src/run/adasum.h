// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "core/src/run/fusion_buffer.h"
#include "ronde/plugin/backend.h"

namespace ronde {

// Note [Adasum]
// Adasum adds two gradients less what each has of the other (Maleki et al., "Scaling Distributed
// Training with Adaptive Summation", MLSys 2021, arXiv:2006.02924, section 3):
//
//   Adasum(a, b) = (1 - a.b / (2 a.a)) a + (1 - a.b / (2 b.b)) b
//
// so the sum of orthogonal vectors, the average of equal ones, and Adasum(s a, s b) is s times
// Adasum(a, b). If either is zero the result is their sum: a rank that adds nothing brings zeros.
//
// More than two vectors make a tree: neighbours in the order of ranks are combined level by level,
// and the last of an odd number goes up a level as it is. So n ranks have ceil(log2 n) levels, and
// where n is a power of two it is the paper's recursive halving. The result depends on the order of
// ranks. a and b are whole tensors, never a fused bucket: fusing changes no bit.
//
// Every backend can do it, as it is made of what each has: an alltoall gives every rank its part of
// all vectors, as a reducescatter would cut each tensor. On a level each rank computes the dot
// products of its parts and allgathers them, three f64 a pair and tensor; all add them in the order
// of ranks, and so have the same factors for their parts. A last allgather puts the results
// together. Of B bytes a rank sends 2 (n-1)/n B, as in a ring allreduce, in ceil(log2 n) + 2
// rounds.
//
// Halves are computed in f32, with one rounding at the end. Dot products are f64; a level combines
// in f64 and rounds to f32, or stays in f64 for f64. With a wire_dtype the inputs are scaled and
// rounded to it before they travel, and so is the result, as in other allreduces. A NaN or infinity
// makes NaN of the whole tensor on all ranks, unless all it meets is zeros. Vectors of f64 whose
// a.a leaves the range of f64 (elements beyond about 1e154, or all below 1e-162) are combined as
// NaN or as a sum.

/// Starts an allreduce with ReduceOp::Adasum, on a backend for plain segment lists that moves the
/// wire type. `scratch` holds as many whole tensors at a time as fit: twice the bytes of their
/// elements on the wire, and those of an f32 or f64 where that is another type. A tensor that does
/// not fit gets memory of its own while it is worked on.
std::unique_ptr<Operation> adasum(Backend& backend, const AllreduceCall& call, int rank, int size,
                                  FusionBuffer& scratch);

}  // namespace ronde
