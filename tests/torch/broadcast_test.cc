// SPDX-License-Identifier: Apache-2.0
#include "support.h"
#include "torch_ext/src/agreement.h"

namespace ronde_test::broadcast_test {

using ronde::detail::disagreement;
using ronde::detail::Statement;

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
    fill_normal(parameters(), seed);
    norm->running_mean.fill_(static_cast<double>(seed));
    norm->num_batches_tracked.fill_(seed);
  }
  torch::nn::Conv2d conv{nullptr};
  torch::nn::BatchNorm2d norm{nullptr};
  torch::nn::Linear head{nullptr};
  at::Tensor tied;
  at::Tensor frozen;
};
TORCH_MODULE(NormNet);

NormNet net_of(int rank) {
  return NormNet(10 + 100 * rank);
}

void check_equal(const torch::nn::Module& a, const torch::nn::Module& b) {
  for (const auto& item : a.named_parameters()) {
    CAPTURE(item.key());
    CHECK(torch::equal(item.value(), b.named_parameters()[item.key()]));
  }
  for (const auto& item : a.named_buffers()) {
    CAPTURE(item.key());
    CHECK(torch::equal(item.value(), b.named_buffers()[item.key()]));
  }
}

}  // namespace

TEST_CASE("broadcast_parameters gives every rank the root's parameters and buffers") {
  for (int root = 0; root < ronde::size(); ++root) {
    NormNet net = net_of(ronde::rank());
    net->conv->to(at::kDouble);
    ronde::broadcast_parameters(*net, root);
    NormNet expected = net_of(root);
    expected->conv->to(at::kDouble);
    check_equal(*net, *expected);
    CHECK(net->conv->weight.requires_grad());
    CHECK_FALSE(net->frozen.requires_grad());
  }
}

TEST_CASE("broadcast_parameters keeps memory formats, which may differ between ranks") {
  const NormNet net = net_of(ronde::rank());
  if (ronde::rank() % 2 == 0) {
    const torch::NoGradGuard no_grad;
    net->conv->weight.set_data(net->conv->weight.contiguous(at::MemoryFormat::ChannelsLast));
  }
  const auto strides = net->conv->weight.strides().vec();
  ronde::broadcast_parameters(*net);
  check_equal(*net, *net_of(0));
  CHECK(net->conv->weight.strides().vec() == strides);
}

TEST_CASE("broadcast_parameters takes a dictionary, undefined tensors included", "[n2]") {
  Names tensors;
  tensors.insert("a", at::full({2}, ronde::rank() + 5.0));
  tensors.insert("none", at::Tensor());
  tensors.insert("b", at::full({}, ronde::rank() + 7, at::kLong));
  ronde::broadcast_parameters(tensors, 0);
  CHECK(torch::equal(tensors["a"], at::full({2}, 5.0)));
  CHECK_FALSE(tensors["none"].defined());
  CHECK(tensors["b"].item<std::int64_t>() == 7);
}

TEST_CASE("models that differ are refused on all ranks, with each one's first difference",
          "[n2][n4]") {
  const int last = ronde::size() - 1;
  const NormNet net(ronde::rank(), ronde::rank() == last ? 5 : 4);
  const at::Tensor before = flatten(net->parameters());
  check_refused([&] { ronde::broadcast_parameters(*net); },
                {"rank " + std::to_string(last) + " has \"parameter tied: f32 [2, 5] on cpu",
                 "where rank 0 has \"parameter tied: f32 [2, 4] on cpu"});
  CHECK(torch::equal(flatten(net->parameters()), before));
}

TEST_CASE("a parameter that only one rank has is named on all ranks", "[n2][n4]") {
  Names tensors;
  tensors.insert("a", at::ones({2}));
  if (ronde::rank() == 1) tensors.insert("extra", at::ones({3}));
  check_refused([&] { ronde::broadcast_parameters(tensors, 0); },
                {"rank 1 has \"extra: f32 [3] on cpu\" where rank 0 has nothing more"});
}

TEST_CASE("what one rank cannot broadcast is refused on all ranks", "[n2]") {
  Names tensors;
  tensors.insert("mask", ronde::rank() == 1 ? at::ones({1}).expand({2, 2}) : at::ones({2, 2}));
  check_refused([&] { ronde::broadcast_parameters(tensors, 0); }, {"rank 1: mask", "contiguous()"});
}

TEST_CASE("a root rank that does not exist, or differs, is refused on all ranks", "[n2]") {
  const NormNet net(1);
  check_refused([&] { ronde::broadcast_parameters(*net, 2); }, {"root_rank is 2"});
  check_refused([&] { ronde::broadcast_parameters(*net, ronde::rank()); },
                {"rank 1 has \"root rank 1\" where rank 0 has \"root rank 0\""});
}

TEST_CASE("disagreement gives each rank's problem, or its first difference from rank 0", "[n1]") {
  CHECK(disagreement("s", {{.lines = {"a"}}, {.lines = {"a"}}}).empty());
  const std::string differ =
      disagreement("s", {{.lines = {"a", "b"}}, {.lines = {"a"}}, {.lines = {"a", "c", "d"}}});
  CHECK(contains(differ, "rank 1 has nothing more where rank 0 has \"b\""));
  CHECK(contains(differ, "rank 2 has \"c\" where rank 0 has \"b\""));
  const std::string problem =
      disagreement("s", {{.lines = {"a"}}, {.lines = {"b"}, .problem = "no"}});
  CHECK(contains(problem, "rank 1: no"));
  CHECK_FALSE(contains(problem, "rank 0"));
}

TEST_CASE("broadcast_optimizer_state makes Adam go on as the root's would") {
  // State of every optimizer, in every pair of states: torch.state.optimizer_state.
  const auto step = [](torch::optim::Adam& adam, const at::Tensor& p, double goal) {
    adam.zero_grad();
    (p - goal).pow(2).sum().backward();
    adam.step();
  };
  for (const int root : {0, ronde::size() - 1}) {
    CAPTURE(root);
    const bool is_root = ronde::rank() == root;
    const at::Tensor mine = ones_parameter({3});
    const at::Tensor expected = ones_parameter({3});
    torch::optim::Adam adam({mine}, is_root ? 0.02 : 0.5);
    torch::optim::Adam oracle({expected}, 0.02);
    if (is_root) step(adam, mine, 4.0);
    step(oracle, expected, 4.0);
    ronde::broadcast_parameters({{"p", mine}}, root);
    ronde::broadcast_optimizer_state(adam, root);
    CHECK(adam.param_groups()[0].options().get_lr() == 0.02);
    for (int i = 0; i < 3; ++i) {
      step(adam, mine, 2.0);
      step(oracle, expected, 2.0);
    }
    CHECK(torch::equal(mine, expected));
  }
}

TEST_CASE("optimisers that differ are refused on all ranks", "[n2]") {
  const at::Tensor p = at::ones({2}).requires_grad_();
  torch::optim::Adam adam({p}, 0.1);
  torch::optim::AdamW adamw({p}, 0.1);
  torch::optim::Optimizer& mine =
      ronde::rank() == 0 ? static_cast<torch::optim::Optimizer&>(adam) : adamw;
  check_refused([&] { ronde::broadcast_optimizer_state(mine, 0); },
                {"rank 1 has \"torch::optim::AdamW\" where rank 0 has \"torch::optim::Adam\""});
}

TEST_CASE("an optimiser without save and load is refused on all ranks", "[n2]") {
  class Unsaved : public torch::optim::Optimizer {
   public:
    explicit Unsaved(Tensors parameters)
        : Optimizer(std::move(parameters), std::make_unique<torch::optim::SGDOptions>(0.1)) {}
    at::Tensor step(LossClosure /*closure*/ = nullptr) override { return {}; }
  };
  Unsaved optimizer({at::ones({2}).requires_grad_()});
  check_refused([&] { ronde::broadcast_optimizer_state(optimizer, 0); }, {"save() and load()"});
}

}  // namespace ronde_test::broadcast_test
