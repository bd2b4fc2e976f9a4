// SPDX-License-Identifier: Apache-2.0
#include <cstdlib>
#include <set>

#include "core/src/base/fingerprint.h"
#include "tests/torch/toy.h"

namespace ronde_test::replicas_test {
namespace {

const std::vector<std::string> kDiffers = {
    "\"toy\"",          "the ranks differ",     "rank 1 has \"parameter p: f64 [4]",
    "where rank 0 has", "broadcast_parameters", "synchronize()"};

TEST_CASE("parameters that differ are noticed in the first step, until broadcast", "[n2][n4]") {
  for (const auto op : {ReduceOp::Average, ReduceOp::Adasum}) {
    WrappedToy toy({.name = "toy", .op = op});
    if (ronde::rank() == 1) change(toy.p, 1.0);
    const at::Tensor before = toy.p.detach().clone();
    for (int attempt = 0; attempt < 2; ++attempt) check_refused([&] { train(toy); }, kDiffers);
    CHECK(torch::equal(toy.p, before));
    ronde::broadcast_parameters(toy.names);
    train(toy, 3);
    toy.check_values(-2.0);
  }
}

TEST_CASE("an option of the inner optimizer that differs is noticed, and named", "[n2]") {
  Toy toy(ronde::rank() == 1 ? 0.5 : 1.0);
  DistributedOptimizer optimizer(toy.sgd, toy.names);
  toy.backward(1.0);
  check_refused([&] { optimizer.synchronize(); },
                {"rank 1 has \"option lr of the parameter group of \"p\": 0.5\"",
                 "where rank 0 has", "broadcast_optimizer_state()"});
  optimizer.zero_grad();
  ronde::broadcast_optimizer_state(toy.sgd);
  train(toy, optimizer, 1);
  toy.check_values(0.0);
}

TEST_CASE("local parameters, and the options of their groups, may differ", "[n2]") {
  Toy toy;
  const at::Tensor own = toy.add("own");
  change(own, ronde::rank());
  static_cast<torch::optim::SGDOptions&>(toy.sgd.param_groups()[1].options())
      .lr(ronde::rank() + 1.0);
  DistributedOptimizer optimizer(toy.sgd, toy.names,
                                 {.local_parameters = {own}, .scale_local_gradients = false});
  train(toy, optimizer, 1);
  CHECK(near(toy.p, full({4}, 0.0), 1e-14));
  CHECK(near(own, full({4}, 0.0), 1e-14));
}

TEST_CASE("parameters that are added later are compared in the next step", "[n2]") {
  WrappedToy toy({.name = "toy"});
  train(toy);
  change(toy.add("late"), ronde::rank());
  toy.optimizer.add_parameters(toy.names);
  check_refused([&] { train(toy); }, {"rank 1 has \"parameter late: f64 [4]"});
  ronde::broadcast_parameters(toy.names);
  train(toy);
}

TEST_CASE("ranks that join before their first step compare once all have joined", "[n2]") {
  WrappedToy toy({.name = "toy"});
  if (ronde::rank() == 0) train(toy, 2);
  const int last = ronde::join();
  CHECK(last == 0);
  check_refused([&] { train(toy); }, kDiffers);
  ronde::broadcast_parameters(toy.names, last);
  train(toy, 2);
  toy.check_values(-3.0);
}

TEST_CASE("ranks that have joined are left out of the comparison", "[n4]") {
  WrappedToy toy({.name = "toy"});
  if (ronde::rank() != 2) {
    if (ronde::rank() == 1) change(toy.p, 1.0);
    const std::string text = check_refused([&] { train(toy); }, kDiffers);
    CHECK_FALSE(contains(text, "rank 2"));
    toy.optimizer.zero_grad();
  }
  ronde::join();
}

TEST_CASE("RONDE_CHECK_REPLICAS=3 compares every three steps and sees a flipped bit", "[n2][own]") {
  setenv("RONDE_CHECK_REPLICAS", "3", 1);
  use_ronde();
  WrappedToy toy({.name = "toy"});
  train(toy);
  // The first bit of the exponent of p[3]: no update rounds it away.
  train(toy, 2);
  if (ronde::rank() == 1) static_cast<std::uint8_t*>(toy.p.data_ptr())[3 * 8 + 7] ^= 0x40;
  check_refused([&] { train(toy); }, kDiffers);
  // In between a drift is an error, too.
  ronde::broadcast_parameters(toy.names);
  train(toy);
  if (ronde::rank() == 1) change(toy.p, 1e-6);
  check_refused([&] { train(toy); }, {"rank 1 has \"parameter \"p\", elements 0 to 3"});
  ronde::broadcast_parameters(toy.names);
  train(toy, 3);
}

TEST_CASE("check_replicas compares parameters, whatever their strides, and no buffers", "[n2]") {
  torch::nn::BatchNorm1d net(3);
  change(net->running_mean, ronde::rank());
  ronde::check_replicas(*net);
  const at::Tensor matrix = normal({3, 2}, 1);
  Names names;
  names.insert("matrix", ronde::rank() == 1 ? matrix.t().contiguous().t() : matrix);
  ronde::check_replicas(names);
  if (ronde::rank() == 1) change(net->bias, 1.0);
  check_refused([&] { ronde::check_replicas(*net); },
                {"ronde::check_replicas", "rank 1 has \"parameter bias", "where rank 0 has"});
  const ProcessSet alone = ronde::add_process_set({0});
  if (ronde::rank() == 0) ronde::check_replicas(*net, alone);
  if (ronde::rank() == 1) {
    check_refused([&] { ronde::check_replicas(*net, alone); }, {"is not in process set"});
  }
  ronde::remove_process_set(alone);
}

TEST_CASE("a fingerprint tells arrays apart that differ in one bit, or in their length", "[n1]") {
  std::set<std::uint64_t> seen;
  std::vector<std::byte> bytes;
  std::size_t arrays = 0;
  const auto add = [&] {
    seen.insert(ronde::detail::fingerprint_of_words(bytes.data(), bytes.size()));
    ++arrays;
  };
  for (std::size_t size = 0; size <= 70; ++size) {
    bytes.assign(size, std::byte{0});
    add();
    for (std::size_t bit = 0; bit < 8 * size; ++bit) {
      bytes[bit / 8] ^= std::byte{1} << (bit % 8);
      add();
      bytes[bit / 8] ^= std::byte{1} << (bit % 8);
    }
  }
  CHECK(seen.size() == arrays);
}

}  // namespace
}  // namespace ronde_test::replicas_test
