// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

// The arithmetic of batch normalisation in parts: statistics of one rank's batch, their
// combination, and the results from all ranks' values, without communication and autograd.
//
// Inputs are [N, C, ...], values per channel [C].
namespace ronde::detail {

/// Statistics of the batches of all ranks together, per channel: double, on the CPU.
struct Moments {
  double count = 0;     ///< values per channel
  at::Tensor mean;      ///< 0, as `variance`, if there are no values
  at::Tensor variance;  ///< divided by `count`
};

/// Whether the dtype is f16 or bf16.
bool is_half(const at::Tensor& tensor);

/// Returns the number of values per channel.
std::int64_t values_per_channel(const at::Tensor& input);

/// Writes a rank's part into `row` ([1 + 2 C], double, zeros, without gaps): the count of values,
/// the means, and the sums of squared deviations from them.
void write_moments(const at::Tensor& input, const at::Tensor& row);

/// Combines the ranks' rows ([ranks, 1 + 2 C]) in their order, so that all get the same bits.
///
/// T. F. Chan, G. H. Golub, R. J. LeVeque: Updating formulae and a pairwise algorithm for computing
/// sample variances, Stanford STAN-CS-79-773 (1979), of two samples: no difference of large
/// squares.
Moments combine_moments(const at::Tensor& rows);

/// Parameters of a normalisation, per channel, on the input's device, in its dtype (half types:
/// f32).
struct Normalization {
  at::Tensor mean;
  at::Tensor variance;
  at::Tensor invstd;  ///< 1 / sqrt(variance + eps)
  double eps = 0;
  double count = 0;  ///< of all ranks' values per channel
};

Normalization normalization_of(const Moments& moments, double eps, const at::Tensor& input);

/// (input - mean) * invstd * weight + bias, in the input's dtype and memory format; weight and bias
/// may be undefined.
at::Tensor normalize(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias,
                     const Normalization& how);

/// [2, C], dtype and device of `how`: the sums over this rank's values of the gradient, and of the
/// gradient times the normalised input.
at::Tensor gradient_sums(const at::Tensor& gradient, const at::Tensor& input,
                         const Normalization& how);

/// weight * invstd * (gradient - sums[0] / count - normalised input * sums[1] / count): the
/// gradient of the input, where `sums` ([2, C], double, on the CPU) are those of all ranks.
///
/// S. Ioffe, C. Szegedy: Batch normalization, ICML 2015, section 3, with the terms collected.
at::Tensor gradient_of_input(const at::Tensor& gradient, const at::Tensor& input,
                             const at::Tensor& weight, const Normalization& how,
                             const at::Tensor& sums);

}  // namespace ronde::detail
