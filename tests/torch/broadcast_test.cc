// SPDX-License-Identifier: Apache-2.0
#include "tests/torch/support.h"

namespace ronde_test::broadcast_test {
namespace {

// Everything a module can hold: frozen and 0-dim and integer tensors, an absent bias, tied weights.
struct NormNetImpl : torch::nn::Module {
  explicit NormNetImpl(std::int64_t seed, std::int64_t width = 4) {
    conv = register_module("conv", torch::nn::Conv2d(torch::nn::Conv2dOptions(3, width, 3)));
    norm = register_module("norm", torch::nn::BatchNorm2d(width));
    head =
        register_module("head", torch::nn::Linear(torch::nn::LinearOptions(width, 2).bias(false)));
    tied = register_parameter("tied", head->weight);
    frozen = register_parameter("frozen", torch::empty({3}), /*requires_grad=*/false);
    fill_normal(parameters(), 100 * seed);
    norm->running_mean.fill_(static_cast<double>(seed));
    norm->num_batches_tracked.fill_(seed);
  }
  torch::nn::Conv2d conv{nullptr};
  torch::nn::BatchNorm2d norm{nullptr};
  torch::nn::Linear head{nullptr};
  at::Tensor tied, frozen;
};
TORCH_MODULE(NormNet);

void check_equal(const Names& all, const Names& expected) {
  for (const auto& item : all) {
    CAPTURE(item.key());
    CHECK(torch::equal(item.value(), expected[item.key()]));
  }
}

TEST_CASE("broadcast_parameters gives every rank the root's parameters and buffers") {
  for (int root = 0; root < ronde::size(); ++root) {
    NormNet net(1 + ronde::rank()), expected(1 + root);
    net->conv->to(at::kDouble);
    expected->conv->to(at::kDouble);
    if (ronde::rank() % 2 == 0) {  // memory formats may differ
      net->conv->weight.set_data(net->conv->weight.contiguous(at::MemoryFormat::ChannelsLast));
    }
    const auto strides = net->conv->weight.strides().vec();
    ronde::broadcast_parameters(*net, root);
    check_equal(net->named_parameters(), expected->named_parameters());
    check_equal(net->named_buffers(), expected->named_buffers());
    CHECK(net->conv->weight.strides().vec() == strides);
    CHECK(net->conv->weight.requires_grad());
    CHECK_FALSE(net->frozen.requires_grad());
  }
}

TEST_CASE("broadcast_parameters takes a dictionary, undefined tensors included", "[n2]") {
  const Names tensors = {{"a", at::full({2}, ronde::rank() + 5.0)},
                         {"none", at::Tensor()},
                         {"b", at::full({}, ronde::rank() + 7, at::kLong)}};
  ronde::broadcast_parameters(tensors, 0);
  CHECK(torch::equal(tensors["a"], at::full({2}, 5.0)));
  CHECK_FALSE(tensors["none"].defined());
  CHECK(tensors["b"].item<std::int64_t>() == 7);
}

TEST_CASE("what differs between ranks, or one cannot broadcast, is refused on all", "[n2][n4]") {
  const int last = ronde::size() - 1;
  const bool is_last = ronde::rank() == last;
  const std::string who = "rank " + std::to_string(last);
  const NormNet net(ronde::rank(), is_last ? 5 : 4);
  const at::Tensor before = flatten(net->parameters());
  const Names same = {{"a", at::ones({2})}};
  const Names more = {{"a", at::ones({2})}, {"extra", at::ones({3})}};
  const Names expanded = {{"a", at::ones({1}).expand({2})}};
  const std::vector<std::pair<std::function<void()>, std::vector<std::string>>> rows = {
      {[&] { ronde::broadcast_parameters(*net); },
       {who + " has \"parameter tied: f32 [2, 5] on cpu",
        "where rank 0 has \"parameter tied: f32 [2, 4] on cpu"}},
      {[&] { ronde::broadcast_parameters(is_last ? more : same); },
       {who + " has \"extra: f32 [3] on cpu\" where rank 0 has nothing more"}},
      {[&] { ronde::broadcast_parameters(is_last ? expanded : same); },
       {who + " has \"a: f32 [2] on cpu, elements of which share memory (strides [0])\""}},
      {[&] { ronde::broadcast_parameters(same, ronde::size()); },
       {"root_rank is " + std::to_string(ronde::size())}},
      {[&] { ronde::broadcast_parameters(same, ronde::rank()); },
       {"rank 1 has \"root rank 1\" where rank 0 has \"root rank 0\""}},
  };
  for (const auto& [call, parts] : rows) check_refused(call, parts);
  CHECK(torch::equal(flatten(net->parameters()), before));
}

TEST_CASE("optimizers of other classes, or without save and load, are refused on all", "[n2]") {
  class Unsaved : public torch::optim::Optimizer {
   public:
    explicit Unsaved(Tensors parameters)
        : Optimizer(std::move(parameters), std::make_unique<torch::optim::SGDOptions>(0.1)) {}
    at::Tensor step(LossClosure /*closure*/ = nullptr) override { return {}; }
  };
  const at::Tensor p = at::ones({2}).requires_grad_();
  Unsaved optimizer({p});
  check_refused([&] { ronde::broadcast_optimizer_state(optimizer, 0); }, {"save() and load()"});
  torch::optim::Adam adam({p}, 0.1);
  torch::optim::AdamW adamw({p}, 0.1);
  torch::optim::Optimizer& mine =
      ronde::rank() == 0 ? static_cast<torch::optim::Optimizer&>(adam) : adamw;
  check_refused([&] { ronde::broadcast_optimizer_state(mine, 0); },
                {"rank 1 has \"torch::optim::AdamW\" where rank 0 has \"torch::optim::Adam\""});
}

}  // namespace
}  // namespace ronde_test::broadcast_test
