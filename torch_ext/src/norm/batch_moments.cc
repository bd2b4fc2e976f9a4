// SPDX-License-Identifier: Apache-2.0
#include "torch_ext/src/norm/batch_moments.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <tuple>
#include <vector>

// Note [LibTorch's kernels for parts of a batch norm]
//
// On CUDA LibTorch has a kernel for each part. On the CPU its operations do not match the parts,
// but are vectorised for all memory formats, and multi-threaded:
//  - batch_norm_update_stats: mean and variance, in two passes, accumulated in double.
//  - native_batch_norm with given statistics: input * a + b with a and b per channel. Forward is
//    that, and so is each term of the input's gradient.
//  - native_batch_norm_backward without the input's gradient: both sums, in one pass.
// A backward therefore reads the batch five times and writes it twice; LibTorch: four times and
// once.
namespace ronde::detail {
namespace {

at::TensorOptions statistics_of(const at::Tensor& input) {
  return input.options().dtype(is_half(input) ? at::kFloat : input.scalar_type());
}

/// The kernels are fast for dense tensors only, and some of CUDA's require them.
at::Tensor dense(const at::Tensor& tensor) {
  return tensor.contiguous(tensor.suggest_memory_format());
}

/// Converts parameters as the CPU's kernels require beside an input of a half type.
at::Tensor as_statistics(const at::Tensor& parameter, const at::Tensor& input) {
  return parameter.defined() ? parameter.to(statistics_of(input).dtype()) : parameter;
}

/// Returns mean and variance, [2, C].
at::Tensor own_moments(const at::Tensor& input) {
  at::Tensor running;
  // Without a tensor here the CPU's kernel would round statistics to half types.
  if (input.is_cpu() && is_half(input)) {
    running = at::zeros({input.size(1)}, statistics_of(input));
  }
  const auto [mean, variance] = at::batch_norm_update_stats(dense(input), running, running, 0.0);
  return at::stack({mean, variance});
}

/// input * scale + (offset - mean * scale), per channel; all but the input may be in double.
at::Tensor scaled(const at::Tensor& input, const at::Tensor& scale, const at::Tensor& offset,
                  const at::Tensor& mean) {
  const auto options = statistics_of(input);
  const at::Tensor ones = at::ones({input.size(1)}, options);
  return std::get<0>(at::native_batch_norm(input, scale.to(options), offset.to(options),
                                           mean.to(options), ones, false, 0.0, 0.0));
}

/// [C] as [C, 1, 1] for [N, C, H, W], in its dtype.
at::Tensor spread(const at::Tensor& values, const at::Tensor& like) {
  std::vector<std::int64_t> shape(static_cast<std::size_t>(like.dim() - 1), 1);
  shape[0] = values.numel();
  return values.to(like.scalar_type()).view(shape);
}

at::Tensor gradient_on_cuda(const at::Tensor& gradient, const at::Tensor& input,
                            const at::Tensor& weight, const Normalization& how,
                            const at::Tensor& sums) {
  // The kernel adds up counts of 32 bits.
  std::vector<int> counts;
  constexpr std::int64_t kMost = 1 << 30;
  for (auto rest = static_cast<std::int64_t>(how.count); rest > 0; rest -= kMost) {
    counts.push_back(static_cast<int>(std::min(rest, kMost)));
  }
  const at::Tensor count = at::tensor(counts, at::kInt).to(input.device());
  const at::Tensor of_all = sums.to(how.mean.options());
  return at::batch_norm_backward_elemt(gradient, input, how.mean, how.invstd, weight, of_all[0],
                                       of_all[1] / how.invstd, count);
}

}  // namespace

bool is_half(const at::Tensor& tensor) {
  return tensor.scalar_type() == at::kHalf || tensor.scalar_type() == at::kBFloat16;
}

std::int64_t values_per_channel(const at::Tensor& input) {
  std::int64_t count = input.size(0);
  for (std::int64_t i = 2; i < input.dim(); ++i) count *= input.size(i);
  return count;
}

void write_moments(const at::Tensor& input, const at::Tensor& row) {
  const std::int64_t count = values_per_channel(input);
  if (count == 0) return;
  const std::int64_t features = input.size(1);
  row.narrow(0, 1, 2 * features).view({2, features}).copy_(own_moments(input));
  row.narrow(0, 1 + features, features).mul_(static_cast<double>(count));
  row[0] = static_cast<double>(count);
}

Moments combine_moments(const at::Tensor& rows) {
  const std::int64_t features = (rows.size(1) - 1) / 2;
  Moments all{0, at::zeros({features}, at::kDouble), at::zeros({features}, at::kDouble)};
  double* const mean = all.mean.mutable_data_ptr<double>();
  double* const deviations = all.variance.mutable_data_ptr<double>();
  for (std::int64_t rank = 0; rank < rows.size(0); ++rank) {
    const double* const row = rows.select(0, rank).const_data_ptr<double>();
    if (row[0] == 0) continue;
    const double total = all.count + row[0];
    const double share = row[0] / total;
    const double between = all.count * share;
    for (std::int64_t i = 0; i < features; ++i) {
      const double difference = row[1 + i] - mean[i];
      mean[i] += difference * share;
      deviations[i] += row[1 + features + i] + difference * difference * between;
    }
    all.count = total;
  }
  if (all.count > 0) all.variance.div_(all.count);
  return all;
}

Normalization normalization_of(const Moments& moments, double eps, const at::Tensor& input) {
  const auto options = statistics_of(input);
  return {moments.mean.to(options), moments.variance.to(options),
          (moments.variance + eps).rsqrt_().to(options), eps, moments.count};
}

at::Tensor normalize(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias,
                     const Normalization& how) {
  if (input.numel() == 0) return at::empty_like(input);
  const at::Tensor batch = dense(input);
  if (input.is_cuda()) {
    return at::batch_norm_elemt(batch, weight, bias, how.mean, how.invstd, how.eps);
  }
  return std::get<0>(at::native_batch_norm(batch, as_statistics(weight, input),
                                           as_statistics(bias, input), how.mean, how.variance,
                                           false, 0.0, how.eps));
}

at::Tensor gradient_sums(const at::Tensor& gradient, const at::Tensor& input,
                         const Normalization& how) {
  if (input.numel() == 0) return at::zeros({2, input.size(1)}, statistics_of(input));
  const at::Tensor batch = dense(input);
  const at::Tensor of_batch = gradient.contiguous(batch.suggest_memory_format());
  if (input.is_cuda()) {
    const auto [of_ones, of_deviations, of_weight, of_bias] = at::batch_norm_backward_reduce(
        of_batch, batch, how.mean, how.invstd, {}, true, false, false);
    return at::stack({of_ones, of_deviations * how.invstd});
  }
  const auto [of_input, of_weight, of_bias] = at::native_batch_norm_backward(
      of_batch, batch, {}, {}, {}, how.mean, how.invstd, true, how.eps, {false, true, true});
  return at::stack({of_bias, of_weight});
}

at::Tensor gradient_of_input(const at::Tensor& gradient, const at::Tensor& input,
                             const at::Tensor& weight, const Normalization& how,
                             const at::Tensor& sums) {
  if (input.numel() == 0) return at::empty_like(input);
  const at::Tensor batch = dense(input);
  const at::Tensor of_batch = gradient.contiguous(batch.suggest_memory_format());
  if (input.is_cuda()) return gradient_on_cuda(of_batch, batch, weight, how, sums);
  if (is_half(input)) {
    // Only the sum is rounded, as its terms may be far larger.
    return gradient_of_input(of_batch.to(at::kFloat), batch.to(at::kFloat), weight, how, sums)
        .to(input.scalar_type());
  }
  const at::Tensor invstd = how.invstd.to(at::kDouble);
  const at::Tensor scale = weight.defined() ? invstd * weight : invstd;
  const at::Tensor slopes = sums * scale / -how.count;
  at::Tensor result = scaled(batch, slopes[1] * invstd, slopes[0], how.mean);
  return result.addcmul_(of_batch, spread(scale, input));
}

}  // namespace ronde::detail
