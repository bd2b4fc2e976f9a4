// SPDX-License-Identifier: Apache-2.0
// Exchanges of batch norms over all ranks: their names, how many there are, process sets, and what
// is refused.
#include "tests/torch/norm/batches.h"

namespace ronde_test::rules_test {
namespace {

using ronde::SyncBatchNorm1d;
using ronde::SyncBatchNorm2d;
using ronde::SyncBatchNormOptions;

constexpr auto kSoon = std::chrono::milliseconds(300);
/// Long enough for both ranks, even on a slow machine.
constexpr auto kPatience = std::chrono::seconds(5);

/// Rank 0 gives up after that. The other one waits until it is told so.
std::chrono::nanoseconds on_rank_0(std::chrono::nanoseconds timeout) {
  return ronde::rank() == 0 ? timeout : std::chrono::nanoseconds(0);
}

std::uint64_t exchanges() {
  return counted("sync_batch_norm", "exchanges");
}

/// One rank alone has none.
std::uint64_t unless_alone(std::uint64_t count) {
  return ronde::size() == 1 ? 0 : count;
}

TEST_CASE("each layer has one exchange forward and one backward, which are counted") {
  const auto counts = [] {
    return std::vector{counted("sync_batch_norm", "layers"), exchanges(),
                       counted("sync_batch_norm", "bytes")};
  };
  const std::vector<std::uint64_t> before = counts();
  std::uint64_t bytes = 0;
  for (const std::int64_t features : {3, 5}) {
    SyncBatchNorm2d layer(features);
    const at::Tensor x = normal({4, features, 3, 2}, 1, at::kFloat).requires_grad_();
    layer->forward(x).pow(3).sum().backward();
    bytes += 8 * static_cast<std::uint64_t>(3 + 2 * features + 2 * features);
  }
  const std::vector<std::uint64_t> after = counts();
  CHECK(after[0] - before[0] == unless_alone(2));
  CHECK(after[1] - before[1] == unless_alone(4));
  CHECK(after[2] - before[2] == unless_alone(bytes));
}

TEST_CASE("steps have the names of the step before, also of a layer used twice") {
  SyncBatchNorm2d layer(3), other(3);
  const Tensors all = batches(three_each, {3, 2, 2}, 1, at::kFloat);
  const auto gradient = [](const at::Tensor& batch, auto& twice, auto& once) {
    const at::Tensor x = batch.clone().requires_grad_();
    once->forward(twice->forward(twice->forward(x).relu())).pow(3).sum().backward();
    return x.grad();
  };
  const auto step = [&] { return gradient(mine_of(all), layer, other); };
  const at::Tensor first = step();
  const std::uint64_t misses = counted("response_cache", "misses");
  const std::uint64_t before = exchanges();
  for (int i = 0; i < 3; ++i) CHECK(torch::equal(step(), first));
  CHECK(counted("response_cache", "misses") == misses);
  CHECK(exchanges() - before == unless_alone(18));
  torch::nn::BatchNorm2d same(3), another(3);
  CHECK(near(first, rows_of_mine(gradient(at::cat(all), same, another), all), 1e-4));
}

TEST_CASE("without a gradient of an input backward exchanges nothing", "[n1][n2]") {
  SyncBatchNorm2d layer(3);
  const std::uint64_t before = exchanges();
  const at::Tensor x = normal({4, 3, 2, 2}, 1, at::kFloat);
  layer->forward(x).pow(3).sum().backward();
  CHECK(layer->weight.grad().abs().sum().item<float>() > 0);
  layer->eval();
  layer->forward(x.clone().requires_grad_()).sum().backward();
  layer->train();
  {
    const at::NoGradGuard no_grad;
    CHECK_FALSE(layer->forward(x).requires_grad());
  }
  CHECK(exchanges() - before == unless_alone(2));
}

TEST_CASE("only some ranks' inputs have a gradient", "[n2][n3]") {
  SyncBatchNorm1d layer(2);
  torch::nn::BatchNorm1d whole(2);
  layer->to(at::kDouble);
  whole->to(at::kDouble);
  const Tensors all = batches(three_each, {2}, 4);
  const at::Tensor x = mine_of(all).clone().set_requires_grad(ronde::rank() == 0);
  layer->forward(x).pow(3).sum().backward();
  const at::Tensor joined = at::cat(all).requires_grad_();
  whole->forward(joined).pow(3).sum().backward();
  if (ronde::rank() == 0) CHECK(near(x.grad(), rows_of_mine(joined.grad(), all), 1e-10));
  CHECK(near(sum_over_ranks(layer->weight.grad()), whole->weight.grad(), 1e-10));
}

at::Tensor gradient_of(const at::Tensor& loss, const at::Tensor& of, bool create_graph) {
  return torch::autograd::grad({loss}, {of}, {}, /*retain_graph=*/true, create_graph)[0];
}

TEST_CASE("second derivatives over several ranks are refused, and first ones stay") {
  SyncBatchNorm2d layer(SyncBatchNormOptions(3).name("once"));
  torch::nn::BatchNorm2d whole(3);
  layer->to(at::kDouble);
  whole->to(at::kDouble);
  const Tensors all = batches(uneven, {3, 2, 2}, 6);
  const at::Tensor x = mine_of(all).clone().requires_grad_();
  const at::Tensor loss = layer->forward(x).pow(3).sum();
  const at::Tensor of_parameters = layer->forward(x.detach()).pow(3).sum();
  const std::uint64_t before = exchanges();
  const std::vector<std::pair<at::Tensor, at::Tensor>> rows = {
      {loss, x}, {loss, layer->weight}, {of_parameters, layer->bias}};
  for (const auto& [result, of] : rows) {
    const auto twice = [&, &from = result, &to = of] { return gradient_of(from, to, true); };
    if (ronde::size() == 1) {
      CHECK(twice().requires_grad());
    } else {
      check_refused(twice, {"ronde::SyncBatchNorm2d(\"once\"): ", "without create_graph"});
    }
  }
  CHECK(exchanges() == before);
  const at::Tensor joined = at::cat(all).requires_grad_();
  whole->forward(joined).pow(3).sum().backward();
  CHECK(near(gradient_of(loss, x, false), rows_of_mine(joined.grad(), all), 1e-10));
  layer->eval();
  CHECK(gradient_of(layer->forward(x).pow(3).sum(), x, true).requires_grad());
}

TEST_CASE("ranks that differ are told so, all of them", "[n2][n3]") {
  SyncBatchNorm1d layer(2);
  const at::Tensor mean = layer->running_mean.clone();
  const at::Tensor x = normal({3, 2}, 1, at::kFloat).set_requires_grad(ronde::rank() == 0);
  layer->weight.set_requires_grad(false);
  layer->bias.set_requires_grad(false);
  check_refused([&] { layer->forward(x); }, {"the same requires_grad and grad mode",
                                             "rank 0: the input's gradient\n  rank 1: nothing"});

  const int other = ronde::rank() == 0 ? 3 : 2;
  SyncBatchNorm1d features(other);
  const at::Tensor ones = at::ones({4, other});
  check_refused([&] { features->forward(ones); },
                {"the ranks' layers differ:\n  rank 0: 3 features\n  rank 1: 2"});

  // One value over all ranks.
  const at::Tensor one_row = at::ones({ronde::rank() == 0 ? 1 : 0, 2});
  check_refused([&] { layer->forward(one_row); },
                {"Expected more than 1 value per channel when training"});
  CHECK(torch::equal(layer->running_mean, mean));
  CHECK(layer->num_batches_tracked.item<std::int64_t>() == 0);
  layer->forward(x.detach());
  CHECK(layer->num_batches_tracked.item<std::int64_t>() == 1);
}

TEST_CASE("an input that does not fit is refused before anything is sent", "[n1][n2]") {
  SyncBatchNorm2d layer(SyncBatchNormOptions(3).name("refusing"));
  const std::vector<std::pair<at::Tensor, std::string>> refusals = {
      {at::ones({2, 3, 4}),
       "ronde::SyncBatchNorm2d(\"refusing\"): expected 4D input (got 3D input)"},
      {at::ones({2, 4, 1, 1}), "4 channels, but the layer has 3 features"},
      {at::ones({2, 3, 1, 1}, at::kLong), "floating point"},
      {full({2, 3, 1, 1}, 1), "but weight is f32 [3] on cpu"},
      {at::Tensor(), "undefined"}};
  for (const auto& [input, part] : refusals) {
    check_refused([&, &x = input] { layer->forward(x); }, {part});
  }
  check_refused([&] { SyncBatchNorm1d(2)->forward(at::ones({2})); }, {"2D or 3D input"});
  if (ronde::size() > 1) return;
  const at::Tensor one_value = at::ones({1, 3, 1, 1});
  check_refused([&] { layer->forward(one_value); }, {"Expected more than 1 value per channel"});
  CHECK(torch::equal(layer->running_mean, at::zeros({3})));
  CHECK(layer->num_batches_tracked.item<std::int64_t>() == 0);
}

TEST_CASE("layers of process sets have the batches of their ranks", "[n2][n3][n4]") {
  std::vector<int> rest;
  for (int rank = ronde::size() - 1; rank > 0; --rank) rest.push_back(rank);
  const ProcessSet alone = ronde::add_process_set({0});
  const ProcessSet others = ronde::add_process_set(rest);
  const ProcessSet here = ronde::rank() == 0 ? alone : others;
  SyncBatchNorm1d layer(SyncBatchNormOptions(2).process_set(here).momentum(1.0));
  const Tensors all = batches(uneven, {2}, 4, at::kFloat);
  Tensors of_set;
  for (const int rank : ronde::ranks_of(here)) of_set.push_back(all[index(rank)]);
  if (at::cat(of_set).size(0) > 1) {
    layer->forward(mine_of(all));
    CHECK(near(layer->running_mean, at::cat(of_set).mean(0), 1e-5));
  }
  SyncBatchNorm1d foreign(SyncBatchNormOptions(2).process_set(ronde::rank() == 0 ? others : alone));
  check_refused([&] { foreign->forward(mine_of(all)); },
                {"ronde::SyncBatchNorm1d: ", "is not in process set"});
  foreign->eval();
  CHECK(foreign->forward(mine_of(all)).sizes() == mine_of(all).sizes());
  for (const ProcessSet set : {alone, others}) ronde::remove_process_set(set);
}

TEST_CASE("a rank that does not come is named with the layer", "[n2]") {
  SyncBatchNorm2d layer(SyncBatchNormOptions(3).name("waiting").timeout(on_rank_0(kSoon)));
  const at::Tensor x = normal({4, 3, 2, 2}, 1, at::kFloat).requires_grad_();
  // Rank 1 comes once rank 0 has given up, and is told so.
  const auto given_up = [](const std::function<void()>& function) {
    if (ronde::rank() == 1) ronde::barrier();
    const std::string text = usage_error(function);
    if (ronde::rank() == 0) ronde::barrier();
    return text;
  };
  check_contains(given_up([&] { layer->forward(x); }),
                 {"'sync_batch_norm/waiting' timed out on rank 0", "not been submitted by rank 1"});
  // The layer keeps its name, and its forward succeeds.
  *layer = *SyncBatchNorm2d(SyncBatchNormOptions(3).timeout(on_rank_0(kPatience)));
  const at::Tensor result = layer->forward(x);
  check_contains(given_up([&] { result.sum().backward(); }),
                 {"'gradient of sync_batch_norm/waiting' timed out on rank 0"});
}

}  // namespace
}  // namespace ronde_test::rules_test
