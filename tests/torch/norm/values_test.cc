// SPDX-License-Identifier: Apache-2.0
// The values of a batch norm over all ranks, against LibTorch's own in one process, in f64, for the
// batches of all ranks joined.
#include "tests/torch/norm/batches.h"

namespace ronde_test::values_test {
namespace {

using ronde::SyncBatchNormOptions;
using torch::nn::BatchNormOptions;

constexpr std::int64_t kFeatures = 5;

struct Case {
  std::string name;
  int dimensions;
  std::vector<std::int64_t> sample;
  Samples samples;
  BatchNormOptions options = BatchNormOptions(kFeatures);
  at::ScalarType dtype = at::kDouble;
  at::ScalarType parameters = at::kDouble;
  double tolerance = 1e-11;
  bool channels_last = false, strided = false;
};

BatchNormOptions plain() {
  return BatchNormOptions(kFeatures);
}

std::vector<Case> cases() {
  const auto three = three_each;
  const auto last = none_on_the_last;
  return {
      {"2d", 2, {5, 4, 3}, three},
      {"2d, uneven", 2, {5, 4, 3}, uneven},
      {"2d, none on the last", 2, {5, 4, 3}, last},
      {"2d, none on the first", 2, {5, 4, 3}, none_on_the_first},
      {"1d of two dimensions", 1, {5}, three},
      {"1d of two dimensions, none on the last", 1, {5}, last},
      {"1d of three dimensions, uneven", 1, {5, 7}, uneven},
      {"3d, uneven", 3, {5, 2, 3, 2}, uneven},
      {"3d, channels last", 3, {5, 2, 3, 2}, last, plain(), at::kDouble, at::kDouble, 1e-11, true},
      {"channels last", 2, {5, 4, 3}, uneven, plain(), at::kDouble, at::kDouble, 1e-11, true},
      {"any strides", 2, {5, 4, 3}, uneven, plain(), at::kDouble, at::kDouble, 1e-11, false, true},
      {"cumulative average", 2, {5, 2, 2}, uneven, plain().momentum(std::nullopt)},
      {"momentum and eps", 2, {5, 2, 2}, uneven, plain().momentum(0.7).eps(0.3)},
      {"not affine", 2, {5, 2, 2}, last, plain().affine(false)},
      {"not tracked", 2, {5, 2, 2}, uneven, plain().track_running_stats(false)},
      {"neither", 1, {5}, three, plain().affine(false).track_running_stats(false)},
      {"f32", 2, {5, 4, 3}, uneven, plain(), at::kFloat, at::kFloat, 2e-5},
      {"f32, channels last", 2, {5, 4, 3}, last, plain(), at::kFloat, at::kFloat, 2e-5, true},
      {"bf16", 2, {5, 4, 3}, uneven, plain(), at::kBFloat16, at::kBFloat16, 6e-2},
      {"bf16, mixed", 2, {5, 4, 3}, last, plain(), at::kBFloat16, at::kFloat, 3e-2},
      {"bf16, channels last", 2, {5, 4, 3}, uneven, plain(), at::kBFloat16, at::kFloat, 3e-2, true},
      {"f16", 2, {5, 4, 3}, last, plain(), at::kHalf, at::kHalf, 1e-2},
      {"f16, mixed", 1, {5}, three, plain(), at::kHalf, at::kFloat, 1e-2},
  };
}

at::Tensor laid_out(const Case& one, const at::Tensor& tensor) {
  if (one.strided) return tensor.transpose(1, 3).contiguous().transpose(1, 3);
  if (!one.channels_last) return tensor;
  return tensor.contiguous(one.dimensions == 2 ? at::MemoryFormat::ChannelsLast
                                               : at::MemoryFormat::ChannelsLast3d);
}

/// Parameters that are neither ones nor zeros, the same for both.
template <typename Layer>
void fill(Layer& layer) {
  const at::NoGradGuard no_grad;
  if (!layer.weight.defined()) return;
  // Exact in every dtype.
  layer.weight.copy_(normal(layer.weight.sizes(), 1, at::kFloat).to(at::kBFloat16));
  layer.bias.copy_(normal(layer.bias.sizes(), 2, at::kFloat).to(at::kBFloat16));
}

/// One forward and backward of both.
template <typename Ours, typename Theirs>
void check_step(const Case& one, Ours& ours, Theirs& theirs, std::int64_t step) {
  CAPTURE(step);
  const Tensors all = batches(one.samples, one.sample, step, one.dtype);
  Tensors weights = batches(one.samples, one.sample, 50 + step);
  if (one.strided) {
    for (at::Tensor& each : weights) {
      each = step % 2 == 0 ? each.narrow(1, 0, 1).expand_as(each) : laid_out(one, each);
    }
  }
  const at::Tensor input = laid_out(one, mine_of(all).clone()).requires_grad_();
  const at::Tensor whole = at::cat(all).to(at::kDouble).requires_grad_();
  const at::Tensor result = ours.forward(input), expected = theirs.forward(whole);
  CHECK(result.scalar_type() == one.dtype);
  CHECK(near(result, rows_of_mine(expected, all), one.tolerance));
  if (!one.strided) CHECK(result.is_contiguous(input.suggest_memory_format()));
  REQUIRE(ours.running_mean.defined() == theirs.running_mean.defined());
  if (ours.running_mean.defined()) {
    CHECK(near(ours.running_mean, theirs.running_mean, one.tolerance));
    CHECK(near(ours.running_var, theirs.running_var, one.tolerance));
    CHECK(torch::equal(ours.num_batches_tracked, theirs.num_batches_tracked));
    CHECK(same_on_all_ranks(ours.running_mean));
    CHECK(same_on_all_ranks(ours.running_var));
  }
  ours.zero_grad();
  theirs.zero_grad();
  result.backward(mine_of(weights).to(one.dtype));
  expected.backward(at::cat(weights));
  // Gradients of halves are rounded where they are much larger than their results.
  const double scale = std::max(1.0, whole.grad().abs().max().item<double>());
  CHECK(input.grad().scalar_type() == one.dtype);
  CHECK(near(input.grad() / scale, rows_of_mine(whole.grad(), all) / scale, one.tolerance));
  if (!ours.weight.defined()) return;
  const auto check_sum = [&](const at::Tensor& own, const at::Tensor& of_all) {
    const double largest = of_all.abs().max().item<double>();
    CHECK(near(sum_over_ranks(own) / largest, of_all / largest, one.tolerance));
  };
  check_sum(ours.weight.grad(), theirs.weight.grad());
  check_sum(ours.bias.grad(), theirs.bias.grad());
}

/// A layer of all ranks, and LibTorch's for one process, which is of f64.
template <typename Ours, typename Theirs>
void check_case(const Case& one) {
  Ours ours(one.options);
  Theirs theirs(one.options);
  ours->to(one.parameters);
  theirs->to(at::kDouble);
  fill(*ours);
  fill(*theirs);
  for (std::int64_t step = 1; step <= 3; ++step) check_step(one, *ours, *theirs, step);
  ours->eval();
  theirs->eval();
  check_step(one, *ours, *theirs, 4);
}

TEST_CASE("a batch norm over all ranks is that of one process with the whole batch") {
  for (const Case& one : cases()) {
    CAPTURE(one.name);
    if (one.dimensions == 1) check_case<ronde::SyncBatchNorm1d, torch::nn::BatchNorm1d>(one);
    if (one.dimensions == 2) check_case<ronde::SyncBatchNorm2d, torch::nn::BatchNorm2d>(one);
    if (one.dimensions == 3) check_case<ronde::SyncBatchNorm3d, torch::nn::BatchNorm3d>(one);
  }
}

TEST_CASE("on one rank it has the bits of LibTorch's", "[n1]") {
  const at::ScalarType dtype = GENERATE(at::kFloat, at::kDouble, at::kBFloat16);
  const at::Tensor batch = normal({4, kFeatures, 3, 2}, 1, dtype);
  const auto outcome = [&](auto layer) {
    layer->to(dtype);
    const at::Tensor x = batch.clone().requires_grad_();
    const at::Tensor result = layer->forward(x);
    result.pow(3).sum().backward();
    return Tensors{result, x.grad(), layer->weight.grad(), layer->running_mean, layer->running_var};
  };
  CHECK(equal(outcome(ronde::SyncBatchNorm2d(kFeatures)),
              outcome(torch::nn::BatchNorm2d(kFeatures))));
}

TEST_CASE("the gradient of halves is rounded once, where it is a small difference", "[n2][n4]") {
  const at::ScalarType dtype = GENERATE(at::kBFloat16, at::kHalf);
  CAPTURE(c10::toString(dtype));
  const double epsilon = dtype == at::kHalf ? std::ldexp(1, -10) : std::ldexp(1, -7);
  ronde::SyncBatchNorm2d ours(kFeatures);
  torch::nn::BatchNorm2d theirs(kFeatures);
  theirs->to(at::kDouble);
  const Tensors all = batches(three_each, {kFeatures, 4, 3}, 21, dtype);
  // A constant, whose part of the gradient is nothing, and little else.
  Tensors of_results = batches(three_each, {kFeatures, 4, 3}, 22);
  for (at::Tensor& one : of_results) one = (1 + one.sin().mul(8 * epsilon)).to(dtype);
  const at::Tensor input = mine_of(all).clone().requires_grad_();
  ours->forward(input).backward(mine_of(of_results));
  const at::Tensor whole = at::cat(all).to(at::kDouble).requires_grad_();
  theirs->forward(whole).backward(at::cat(of_results).to(at::kDouble));
  const at::Tensor expected = rows_of_mine(whole.grad(), all);
  // Half a unit in the last place, and what f32 has lost of terms of the size of one.
  const at::Tensor most = expected.abs() * (epsilon / 2) + 2e-6;
  const at::Tensor off = (input.grad().to(at::kDouble) - expected).abs() / most;
  CHECK(off.max().item<double>() <= 1);
}

TEST_CASE("statistics of values far from zero keep their digits") {
  // The mean of squares less the square of the mean has two digits left here in f32.
  ronde::SyncBatchNorm1d ours(BatchNormOptions(2).momentum(1.0));
  const at::Tensor own = normal({64, 2}, 7 + ronde::rank());
  const at::Tensor input = (own + 1e3 + 3.0 * ronde::rank()).to(at::kFloat);
  ours->forward(input);
  const at::Tensor whole = ronde::allgather(input).to(at::kDouble);
  CHECK(near(ours->running_mean, whole.mean(0), 1e-6));
  CHECK(near(ours->running_var, whole.var(0), 1e-4));
}

TEST_CASE("no values on any rank, or one each, are what they are in one process") {
  ronde::SyncBatchNorm2d ours(3);
  torch::nn::BatchNorm2d theirs(3);
  for (const auto& sample : {std::vector<std::int64_t>{0, 3, 4, 4}, {2, 3, 0, 4}}) {
    const at::Tensor input = at::zeros(sample).requires_grad_();
    const at::Tensor result = ours->forward(input);
    CHECK(result.sizes() == theirs->forward(at::zeros(sample)).sizes());
    result.sum().backward();
    CHECK(input.grad().sizes() == input.sizes());
    CHECK(equal({ours->weight.grad(), ours->bias.grad()}, {at::zeros({3}), at::zeros({3})}));
    CHECK(equal(ours->buffers(), theirs->buffers()));
  }
  if (ronde::size() == 1) return;
  // LibTorch would refuse this on each rank.
  ours->forward(at::full({1, 3, 1, 1}, ronde::rank() + 1.0));
  CHECK(near(ours->running_mean, at::full({3}, 0.1 * (mean_rank() + 1)), 1e-6));
}

}  // namespace
}  // namespace ronde_test::values_test
