// SPDX-License-Identifier: Apache-2.0
#include "support.h"
#include "torch_ext/src/agreement.h"

using namespace ronde_test;
using ronde::detail::disagreement;
using ronde::detail::Statement;

namespace {

// Everything a module can hold: frozen and 0-dim and integer tensors, an absent bias, tied weights.
struct NormNetImpl : torch::nn::Module {
  explicit NormNetImpl(std::uint64_t seed, std::int64_t width = 4) {
    conv = register_module("conv", torch::nn::Conv2d(torch::nn::Conv2dOptions(3, width, 3)));
    norm = register_module("norm", torch::nn::BatchNorm2d(width));
    head =
        register_module("head", torch::nn::Linear(torch::nn::LinearOptions(width, 2).bias(false)));
    tied = register_parameter("tied", head->weight);
    frozen = register_parameter("frozen", torch::empty({3}), /*requires_grad=*/false);
    const torch::NoGradGuard no_grad;
    for (auto& parameter : parameters()) {
      parameter.copy_(normal(parameter.sizes(), seed++, at::kFloat));
    }
    norm->running_mean.fill_(static_cast<double>(seed));
    norm->num_batches_tracked.fill_(static_cast<std::int64_t>(seed));
  }
  torch::nn::Conv2d conv{nullptr};
  torch::nn::BatchNorm2d norm{nullptr};
  torch::nn::Linear head{nullptr};
  at::Tensor tied;
  at::Tensor frozen;
};
TORCH_MODULE(NormNet);

std::uint64_t own_seed() {
  return 10 + 100 * static_cast<std::uint64_t>(ronde::rank());
}
std::uint64_t seed_of(int rank) {
  return 10 + 100 * static_cast<std::uint64_t>(rank);
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
  use_ronde();
  for (int root = 0; root < ronde::size(); ++root) {
    NormNet net(own_seed());
    net->conv->to(at::kDouble);
    ronde::broadcast_parameters(*net, root);
    NormNet expected(seed_of(root));
    expected->conv->to(at::kDouble);
    check_equal(*net, *expected);
    CHECK(net->conv->weight.requires_grad());
    CHECK_FALSE(net->frozen.requires_grad());
  }
}

TEST_CASE("broadcast_parameters keeps memory formats, which may differ between ranks") {
  use_ronde();
  const NormNet net(own_seed());
  if (ronde::rank() % 2 == 0) {
    const torch::NoGradGuard no_grad;
    net->conv->weight.set_data(net->conv->weight.contiguous(at::MemoryFormat::ChannelsLast));
  }
  const auto strides = net->conv->weight.strides().vec();
  ronde::broadcast_parameters(*net);
  check_equal(*net, *NormNet(seed_of(0)));
  CHECK(net->conv->weight.strides().vec() == strides);
}

TEST_CASE("broadcast_parameters takes a dictionary, undefined tensors included", "[n2]") {
  use_ronde();
  torch::OrderedDict<std::string, at::Tensor> tensors;
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
  use_ronde();
  const int last = ronde::size() - 1;
  const NormNet net(own_seed(), ronde::rank() == last ? 5 : 4);
  const at::Tensor before = flatten(net->parameters());
  const std::string text = usage_error([&] { ronde::broadcast_parameters(*net); });
  CAPTURE(text);
  CHECK(
      contains(text, "rank " + std::to_string(last) + " has \"parameter tied: f32 [2, 5] on cpu"));
  CHECK(contains(text, "where rank 0 has \"parameter tied: f32 [2, 4] on cpu"));
  CHECK(torch::equal(flatten(net->parameters()), before));
}

TEST_CASE("a parameter that only one rank has is named on all ranks", "[n2][n4]") {
  use_ronde();
  torch::OrderedDict<std::string, at::Tensor> tensors;
  tensors.insert("a", at::ones({2}));
  if (ronde::rank() == 1) tensors.insert("extra", at::ones({3}));
  const std::string text = usage_error([&] { ronde::broadcast_parameters(tensors, 0); });
  CAPTURE(text);
  CHECK(contains(text, "rank 1 has \"extra: f32 [3] on cpu\" where rank 0 has nothing more"));
}

TEST_CASE("what one rank cannot broadcast is refused on all ranks", "[n2]") {
  use_ronde();
  torch::OrderedDict<std::string, at::Tensor> tensors;
  tensors.insert("mask", ronde::rank() == 1 ? at::ones({1}).expand({2, 2}) : at::ones({2, 2}));
  const std::string text = usage_error([&] { ronde::broadcast_parameters(tensors, 0); });
  CAPTURE(text);
  CHECK(contains(text, "rank 1: mask"));
  CHECK(contains(text, "contiguous()"));
}

TEST_CASE("a root rank that does not exist, or differs, is refused on all ranks", "[n2]") {
  use_ronde();
  const NormNet net(1);
  const std::string outside = usage_error([&] { ronde::broadcast_parameters(*net, 2); });
  CAPTURE(outside);
  CHECK(contains(outside, "root_rank is 2"));
  const std::string differs =
      usage_error([&] { ronde::broadcast_parameters(*net, ronde::rank()); });
  CAPTURE(differs);
  CHECK(contains(differs, "rank 1 has \"root rank 1\" where rank 0 has \"root rank 0\""));
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

namespace {

using OptimizerFactory =
    std::function<std::unique_ptr<torch::optim::Optimizer>(std::vector<at::Tensor>, double lr)>;

template <typename Optimizer, typename Options>
OptimizerFactory factory(const Options& options) {
  return [options](std::vector<at::Tensor> parameters, double lr) {
    Options own = options;
    own.set_lr(lr);
    return std::make_unique<Optimizer>(std::move(parameters), own);
  };
}

const std::vector<std::pair<std::string, OptimizerFactory>> kOptimizers = {
    {"SGD", factory<torch::optim::SGD>(torch::optim::SGDOptions(1).momentum(0.9))},
    {"Adam", factory<torch::optim::Adam>(torch::optim::AdamOptions(1).amsgrad(true))},
    {"AdamW", factory<torch::optim::AdamW>(torch::optim::AdamWOptions(1))},
    {"RMSprop",
     factory<torch::optim::RMSprop>(torch::optim::RMSpropOptions(1).momentum(0.5).centered(true))},
    {"Adagrad", factory<torch::optim::Adagrad>(torch::optim::AdagradOptions(1).lr_decay(0.1))},
    {"LBFGS", factory<torch::optim::LBFGS>(torch::optim::LBFGSOptions(1).max_iter(3))},
};

// A parameter vector that an optimiser moves towards `goal`.
struct Problem {
  explicit Problem(const OptimizerFactory& make, double lr)
      : a(normal({3, 2}, 1).requires_grad_()), b(normal({4}, 2).requires_grad_()) {
    optimizer = make({a, b}, lr);
  }
  void steps(int count, double goal) {
    for (int i = 0; i < count; ++i) {
      optimizer->step([&] {
        optimizer->zero_grad();
        at::Tensor loss = (a - goal).pow(2).sum() + (b * a.sum() - goal).pow(2).sum();
        loss.backward();
        return loss;
      });
    }
  }
  at::Tensor a;
  at::Tensor b;
  std::unique_ptr<torch::optim::Optimizer> optimizer;
};

}  // namespace

TEST_CASE("broadcast_optimizer_state makes every optimiser go on as the root's would") {
  use_ronde();
  for (const auto& [name, make] : kOptimizers) {
    // The root has stepped; of the others one is fresh and the rest have other state.
    for (const int root : {0, ronde::size() - 1}) {
      CAPTURE(name, root);
      const bool is_root = ronde::rank() == root;
      Problem mine(make, is_root ? 0.02 : 0.5);
      if (is_root) mine.steps(4, 1.0);
      if (!is_root && ronde::rank() % 2 == 0) mine.steps(2, -3.0);
      torch::OrderedDict<std::string, at::Tensor> parameters;
      parameters.insert("a", mine.a);
      parameters.insert("b", mine.b);
      ronde::broadcast_parameters(parameters, root);
      ronde::broadcast_optimizer_state(*mine.optimizer, root);
      Problem expected(make, 0.02);
      expected.steps(4, 1.0);
      CHECK(mine.optimizer->param_groups()[0].options().get_lr() == 0.02);
      // Equal state shows in equal further steps.
      expected.steps(3, 2.0);
      mine.steps(3, 2.0);
      CHECK(torch::equal(mine.a, expected.a));
      CHECK(torch::equal(mine.b, expected.b));
    }
  }
}

TEST_CASE("state that the root does not have is dropped", "[n2]") {
  use_ronde();
  for (const auto& [name, make] : kOptimizers) {
    CAPTURE(name);
    Problem mine(make, 0.02);
    if (ronde::rank() != 0) mine.steps(3, 1.0);
    ronde::broadcast_optimizer_state(*mine.optimizer, 0);
    // Adagrad has state from the beginning.
    CHECK(mine.optimizer->state().size() == Problem(make, 0.02).optimizer->state().size());
  }
}

TEST_CASE("options of every parameter group follow the root's", "[n2]") {
  use_ronde();
  const at::Tensor a = at::ones({2}).requires_grad_();
  const at::Tensor b = at::ones({2}).requires_grad_();
  const double lr = ronde::rank() == 0 ? 0.25 : 1.0;
  torch::optim::Adam adam(
      {torch::optim::OptimizerParamGroup({a}, std::make_unique<torch::optim::AdamOptions>(lr)),
       torch::optim::OptimizerParamGroup({b}, std::make_unique<torch::optim::AdamOptions>(lr / 2))},
      torch::optim::AdamOptions(lr));
  ronde::broadcast_optimizer_state(adam, 0);
  CHECK(adam.param_groups()[0].options().get_lr() == 0.25);
  CHECK(adam.param_groups()[1].options().get_lr() == 0.125);
}

TEST_CASE("optimisers that differ are refused on all ranks", "[n2]") {
  use_ronde();
  const at::Tensor p = at::ones({2}).requires_grad_();
  torch::optim::Adam adam({p}, 0.1);
  torch::optim::AdamW adamw({p}, 0.1);
  torch::optim::Optimizer& mine =
      ronde::rank() == 0 ? static_cast<torch::optim::Optimizer&>(adam) : adamw;
  const std::string text = usage_error([&] { ronde::broadcast_optimizer_state(mine, 0); });
  CAPTURE(text);
  CHECK(
      contains(text, "rank 1 has \"torch::optim::AdamW\" where rank 0 has \"torch::optim::Adam\""));
}

namespace {

class Unsaved : public torch::optim::Optimizer {
 public:
  explicit Unsaved(std::vector<at::Tensor> parameters)
      : Optimizer(std::move(parameters), std::make_unique<torch::optim::SGDOptions>(0.1)) {}
  at::Tensor step(LossClosure /*closure*/ = nullptr) override { return {}; }
};

}  // namespace

TEST_CASE("an optimiser without save and load is refused on all ranks", "[n2]") {
  use_ronde();
  Unsaved optimizer({at::ones({2}).requires_grad_()});
  const std::string text = usage_error([&] { ronde::broadcast_optimizer_state(optimizer, 0); });
  CAPTURE(text);
  CHECK(contains(text, "save() and load()"));
}
