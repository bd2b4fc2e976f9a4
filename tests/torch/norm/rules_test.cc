// SPDX-License-Identifier: Apache-2.0
// Exchanges of batch norms over all ranks: their names, how many there are, process sets, and what
// is refused.
#include <chrono>

#include "batches.h"

using namespace ronde_test;
using ronde::SyncBatchNorm1d;
using ronde::SyncBatchNorm2d;
using ronde::SyncBatchNormOptions;

namespace {

constexpr auto kSoon = std::chrono::milliseconds(300);

std::uint64_t exchanges() {
  return counter("sync_batch_norm", "exchanges");
}

/// What running `layers` on inputs of their own gives: results, gradients, buffers.
Tensors outcome(const std::vector<SyncBatchNorm2d>& layers, bool together) {
  Tensors inputs;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const std::int64_t features = layers[i]->options.num_features();
    inputs.push_back(mine(batches(uneven, {features, 3, 2}, 10 + i, at::kFloat)).requires_grad_());
  }
  Tensors results;
  if (together) {
    results = ronde::sync_batch_norm({layers.begin(), layers.end()}, inputs);
  } else {
    for (std::size_t i = 0; i < layers.size(); ++i) {
      results.push_back(layers[i].ptr()->forward(inputs[i]));
    }
  }
  at::Tensor loss = at::zeros({});
  for (const at::Tensor& result : results) loss = loss + result.pow(3).sum();
  loss.backward();
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const auto& layer = *layers[i];
    for (const at::Tensor& tensor : {inputs[i].grad(), layer.weight.grad(), layer.bias.grad(),
                                     layer.running_mean, layer.running_var}) {
      results.push_back(tensor);
    }
  }
  return results;
}

std::vector<SyncBatchNorm2d> three_layers() {
  return {SyncBatchNorm2d(3), SyncBatchNorm2d(SyncBatchNormOptions(5).momentum(std::nullopt)),
          SyncBatchNorm2d(SyncBatchNormOptions(2).eps(0.1))};
}

}  // namespace

TEST_CASE("several layers share their exchanges, with the same bits") {
  use_ronde();
  const std::uint64_t before = exchanges();
  const Tensors apart = outcome(three_layers(), false);
  const std::uint64_t between = exchanges();
  const std::uint64_t layers = counter("sync_batch_norm", "layers");
  const std::uint64_t bytes = counter("sync_batch_norm", "bytes");
  const Tensors together = outcome(three_layers(), true);
  const bool alone = ronde::size() == 1;
  CHECK(between - before == (alone ? 0U : 6U));
  CHECK(exchanges() - between == (alone ? 0U : 2U));
  CHECK(counter("sync_batch_norm", "layers") - layers == (alone ? 0U : 3U));
  // Of 3, 5 and 2 features: 1 + 3 * 2 + 2 * 10 doubles forward, 2 * 10 backward.
  CHECK(counter("sync_batch_norm", "bytes") - bytes == (alone ? 0U : 8U * 47U));
  REQUIRE(apart.size() == together.size());
  for (std::size_t i = 0; i < apart.size(); ++i) {
    CAPTURE(i);
    CHECK(torch::equal(apart[i], together[i]));
  }
}

TEST_CASE("layers of other kinds and modes run together") {
  use_ronde();
  SyncBatchNorm1d line(2);
  SyncBatchNorm2d plane(3);
  SyncBatchNorm2d still(3);
  still->eval();
  const at::Tensor x = normal({4, 2}, 1, at::kFloat);
  const at::Tensor y = normal({4, 3, 2, 2}, 2, at::kFloat);
  const Tensors results = ronde::sync_batch_norm({line, *still, plane}, {x, y, y});
  CHECK(torch::equal(results[1], still->forward(y)));
  CHECK(torch::equal(results[0], SyncBatchNorm1d(2)->forward(x)));
  CHECK(torch::equal(results[2], SyncBatchNorm2d(3)->forward(y)));
}

TEST_CASE("steps have the names of the step before, also of a layer used twice") {
  use_ronde();
  SyncBatchNorm2d layer(3);
  SyncBatchNorm2d other(3);
  const Tensors all = batches(three_each, {3, 2, 2}, 1, at::kFloat);
  const auto step = [&] {
    const at::Tensor x = mine(all).clone().requires_grad_();
    other->forward(layer->forward(layer->forward(x).relu())).pow(3).sum().backward();
    return x.grad();
  };
  const at::Tensor first = step();
  const std::uint64_t misses = counter("response_cache", "misses");
  const std::uint64_t before = exchanges();
  for (int i = 0; i < 3; ++i) CHECK(torch::equal(step(), first));
  CHECK(counter("response_cache", "misses") == misses);
  CHECK(exchanges() - before == (ronde::size() == 1 ? 0U : 18U));
  const auto one_process = [&] {
    torch::nn::BatchNorm2d same(3);
    torch::nn::BatchNorm2d another(3);
    const at::Tensor x = at::cat(all).requires_grad_();
    another->forward(same->forward(same->forward(x).relu())).pow(3).sum().backward();
    return x.grad();
  };
  CHECK(near(first, rows_of_mine(one_process(), all), 1e-4));
}

TEST_CASE("without a gradient of an input backward exchanges nothing", "[n1][n2]") {
  use_ronde();
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
  CHECK(exchanges() - before == (ronde::size() == 1 ? 0U : 2U));
}

TEST_CASE("only some ranks' inputs have a gradient", "[n2][n3]") {
  use_ronde();
  SyncBatchNorm1d layer(2);
  torch::nn::BatchNorm1d whole(2);
  layer->to(at::kDouble);
  whole->to(at::kDouble);
  const Tensors all = batches(three_each, {2}, 4);
  const at::Tensor x = mine(all).clone().set_requires_grad(ronde::rank() == 0);
  layer->forward(x).pow(3).sum().backward();
  const at::Tensor joined = at::cat(all).requires_grad_();
  whole->forward(joined).pow(3).sum().backward();
  if (ronde::rank() == 0) CHECK(near(x.grad(), rows_of_mine(joined.grad(), all), 1e-10));
  CHECK(near(sum_over_ranks(layer->weight.grad()), whole->weight.grad(), 1e-10));
  const auto twice = usage_error([&] {
    torch::autograd::grad({layer->forward(x).pow(3).sum()}, {layer->weight}, {}, std::nullopt,
                          true);
  });
  CHECK(contains(twice, "create_graph"));
}

TEST_CASE("ranks that differ are told so, all of them", "[n2][n3]") {
  use_ronde();
  SyncBatchNorm1d layer(2);
  const at::Tensor mean = layer->running_mean.clone();
  const at::Tensor x = normal({3, 2}, 1, at::kFloat).set_requires_grad(ronde::rank() == 0);
  layer->weight.set_requires_grad(false);
  layer->bias.set_requires_grad(false);
  const std::string records = usage_error([&] { layer->forward(x); });
  CAPTURE(records);
  CHECK(contains(records, "the same requires_grad and grad mode"));
  CHECK(contains(records, "rank 0: the input's gradient\n  rank 1: nothing"));

  const int other = ronde::rank() == 0 ? 3 : 2;
  SyncBatchNorm1d features(other);
  const std::string single_layer = usage_error([&] { features->forward(at::ones({4, other})); });
  CAPTURE(single_layer);
  CHECK(contains(single_layer, "the ranks' layers differ:\n  rank 0: 3 features\n  rank 1: 2"));
  SyncBatchNorm1d second(5 - other);
  const std::string swapped = usage_error([&] {
    ronde::sync_batch_norm({features, second}, {at::ones({4, other}), at::ones({4, 5 - other})});
  });
  CAPTURE(swapped);
  CHECK(contains(swapped,
                 "the ranks' layers differ:\n  rank 0: 3 + 2 features\n  rank 1: 2 + 3 features"));

  // One value over all ranks.
  const std::int64_t rows = ronde::rank() == 0 ? 1 : 0;
  const std::string single = usage_error([&] { layer->forward(at::ones({rows, 2})); });
  CHECK(contains(single, "Expected more than 1 value per channel when training"));
  CHECK(torch::equal(layer->running_mean, mean));
  CHECK(layer->num_batches_tracked.item<std::int64_t>() == 0);
  layer->forward(x.detach());
  CHECK(layer->num_batches_tracked.item<std::int64_t>() == 1);
}

TEST_CASE("an input that does not fit is refused before anything is sent", "[n1][n2]") {
  use_ronde();
  SyncBatchNorm2d layer(SyncBatchNormOptions(3).name("refusing"));
  const auto refused = [&](const at::Tensor& x) { return usage_error([&] { layer->forward(x); }); };
  const std::string dimensions = refused(at::ones({2, 3, 4}));
  CAPTURE(dimensions);
  CHECK(contains(dimensions,
                 "ronde::SyncBatchNorm2d(\"refusing\"): expected 4D input (got 3D input)"));
  CHECK(contains(refused(at::ones({2, 4, 1, 1})), "4 channels, but the layer has 3 features"));
  CHECK(contains(refused(at::ones({2, 3, 1, 1}, at::kLong)), "floating point"));
  CHECK(contains(refused(at::ones({2, 3, 1, 1}, at::kDouble)), "but weight is f32 [3] on cpu"));
  CHECK(contains(refused(at::Tensor()), "undefined"));
  CHECK(
      contains(usage_error([&] { SyncBatchNorm1d(2)->forward(at::ones({2})); }), "2D or 3D input"));
  CHECK(
      contains(usage_error([&] { ronde::sync_batch_norm({layer}, {}); }), "1 layers and 0 inputs"));
  if (ronde::size() == 1) {
    CHECK(contains(refused(at::ones({1, 3, 1, 1})), "Expected more than 1 value per channel"));
  }
}

TEST_CASE("of several layers none has changed where one is refused", "[n1]") {
  use_ronde();
  SyncBatchNorm2d first(3);
  SyncBatchNorm2d second(3);
  const at::Tensor mean = first->running_mean.clone();
  const std::string text = usage_error([&] {
    ronde::sync_batch_norm({first, second}, {at::ones({2, 3, 1, 1}), at::ones({1, 3, 1, 1})});
  });
  CHECK(contains(text, "Expected more than 1 value per channel"));
  CHECK(torch::equal(first->running_mean, mean));
  CHECK(first->num_batches_tracked.item<std::int64_t>() == 0);
}

TEST_CASE("layers of process sets have the batches of their ranks", "[n2][n3][n4]") {
  use_ronde();
  const std::vector<int> first = {0};
  std::vector<int> rest;
  for (int rank = ronde::size() - 1; rank > 0; --rank) rest.push_back(rank);
  const ronde::ProcessSet alone = ronde::add_process_set(first);
  const ronde::ProcessSet others = ronde::add_process_set(rest);
  const ronde::ProcessSet here = ronde::rank() == 0 ? alone : others;
  SyncBatchNorm1d layer(SyncBatchNormOptions(2).process_set(here).momentum(1.0));
  const Tensors all = batches(uneven, {2}, 4, at::kFloat);
  Tensors of_set;
  for (const int rank : ronde::ranks_of(here))
    of_set.push_back(all[static_cast<std::size_t>(rank)]);
  if (at::cat(of_set).size(0) > 1) {
    layer->forward(mine(all));
    CHECK(near(layer->running_mean, at::cat(of_set).mean(0), 1e-5));
  }
  SyncBatchNorm1d foreign(SyncBatchNormOptions(2).process_set(ronde::rank() == 0 ? others : alone));
  const std::string text = usage_error([&] { foreign->forward(mine(all)); });
  CHECK(contains(text, "is not in process set"));
  SyncBatchNorm1d everybody(2);
  const std::string prefix = "rank " + std::to_string(ronde::rank()) + ": ";
  CHECK(contains(usage_error([&] {
                   ronde::sync_batch_norm({everybody, layer}, {mine(all), mine(all)});
                 }),
                 prefix + "ronde::sync_batch_norm: \"layer"));
  foreign->eval();
  CHECK(foreign->forward(mine(all)).sizes() == mine(all).sizes());
}

TEST_CASE("a rank that does not come is named with the layer", "[n2]") {
  use_ronde();
  SyncBatchNorm2d layer(SyncBatchNormOptions(3).name("waiting").timeout(kSoon));
  const at::Tensor x = normal({4, 3, 2, 2}, 1, at::kFloat).requires_grad_();
  // Rank 1 comes once rank 0 has given up, and is told so.
  const auto given_up = [](const std::function<void()>& function) {
    if (ronde::rank() == 1) ronde::barrier();
    const std::string text = usage_error(function);
    if (ronde::rank() == 0) ronde::barrier();
    return text;
  };
  const std::string forward = given_up([&] { layer->forward(x); });
  CAPTURE(forward);
  CHECK(contains(forward, "'sync_batch_norm/waiting' timed out on rank 0"));
  CHECK(contains(forward, "not been submitted by rank 1"));
  const at::Tensor result = layer->forward(x);
  const std::string backward = given_up([&] { result.sum().backward(); });
  CAPTURE(backward);
  CHECK(contains(backward, "'gradient of sync_batch_norm/waiting' timed out on rank 0"));
}
