// SPDX-License-Identifier: Apache-2.0
#include <sstream>

#include "tests/torch/norm/batches.h"

namespace ronde_test::models_test {
namespace {

using torch::nn::BatchNorm2d;
using torch::nn::BatchNorm2dImpl;
using torch::nn::Conv2d;
using torch::nn::Conv2dOptions;
using torch::nn::Sequential;

/// A Sequential that can be part of another.
struct BlockImpl : torch::nn::SequentialImpl {
  using SequentialImpl::SequentialImpl;
  at::Tensor forward(const at::Tensor& x) { return SequentialImpl::forward(x); }
};
TORCH_MODULE(Block);

struct ResidualImpl : torch::nn::Module {
  ResidualImpl() { register_module("body", body); }
  at::Tensor forward(const at::Tensor& x) { return x + body->forward(x); }
  Sequential body{Conv2d(Conv2dOptions(4, 4, 3).padding(1)), BatchNorm2d(4)};
};
TORCH_MODULE(Residual);

Sequential small_net() {
  return Sequential({{"conv", Conv2d(Conv2dOptions(2, 4, 3).padding(1))},
                     {"bn", BatchNorm2d(torch::nn::BatchNorm2dOptions(4).eps(1e-3).momentum(0.2))},
                     {"relu", torch::nn::ReLU()},
                     {"block", Block(Conv2d(Conv2dOptions(4, 4, 1)), BatchNorm2d(4))},
                     {"residual", Residual()},
                     {"pool", torch::nn::AdaptiveAvgPool2d(1)},
                     {"flat", torch::nn::Flatten()},
                     {"head", torch::nn::Linear(4, 3)}});
}

template <typename Layer>
const Layer* find(const torch::nn::Module& root, const std::string& path) {
  const auto modules = root.named_modules();
  const auto* const module = modules.find(path);
  return module == nullptr ? nullptr : (*module)->as<Layer>();
}

/// Members, in which LibTorch's batch norms cannot be exchanged.
struct DeclaredImpl : torch::nn::Module {
  DeclaredImpl() {
    register_module("bn1", bn1);
    register_module("list", list);
    register_module("seq", seq);
  }
  torch::nn::BatchNorm1d bn1{3};
  torch::nn::ModuleList list{torch::nn::Linear(1, 1), BatchNorm2d(4)};
  Sequential seq{Conv2d(Conv2dOptions(2, 4, 3)), BatchNorm2d(4)};
};

struct SpecialImpl : BatchNorm2dImpl {
  using BatchNorm2dImpl::BatchNorm2dImpl;
  at::Tensor forward(const at::Tensor& x) { return -BatchNorm2dImpl::forward(x); }
};

struct OursImpl : torch::nn::Cloneable<OursImpl> {
  OursImpl() { reset(); }
  void reset() override { bn = register_module("bn", ronde::SyncBatchNorm2d(4)); }
  ronde::SyncBatchNorm2d bn = nullptr;
};

template <typename From, typename To>
void copy_state(const From& from, To& to) {
  std::stringstream stream;
  torch::save(from, stream);
  torch::load(to, stream);
}

/// Runs the module a few times, so that its buffers say something.
template <typename Module>
void run(Module& module) {
  for (std::int64_t step = 0; step < 3; ++step)
    module->forward(normal({4, 3, 2, 2}, step, at::kFloat) + 1);
}

template <typename A, typename B>
void check_same_state(const A& a, const B& b) {
  const auto same = [](const auto& one, const auto& other) {
    REQUIRE(one.keys() == other.keys());
    for (const auto& item : one) {
      const at::Tensor& there = other[item.key()];
      REQUIRE(item.value().defined() == there.defined());
      if (there.defined()) CHECK(torch::equal(item.value(), there));
    }
  };
  same(a.named_parameters(), b.named_parameters());
  same(a.named_buffers(), b.named_buffers());
}

TEST_CASE("batch norms in Sequentials are exchanged, with all that they have", "[n1][n2]") {
  Sequential net = small_net();
  net->to(at::kDouble);
  const auto* const before = find<BatchNorm2dImpl>(*net, "bn");
  REQUIRE(before != nullptr);
  before->weight.detach().fill_(2.5);
  before->running_mean.fill_(0.5);
  before->bias.set_requires_grad(false);
  const at::Tensor weight = before->weight, running_mean = before->running_mean;
  const auto keys = net->named_parameters().keys();
  const auto buffers = net->named_buffers().keys();
  net->ptr(3)->eval();
  CHECK(ronde::convert_sync_batch_norm(*net, {.name = "net."}) == 3);

  CHECK(net->named_parameters().keys() == keys);
  CHECK(net->named_buffers().keys() == buffers);
  const auto* const after = find<ronde::SyncBatchNorm2dImpl>(*net, "bn");
  REQUIRE(after != nullptr);
  CHECK(net->ptr(1).get() == after);
  CHECK(after->weight.is_same(weight));
  CHECK(net->named_parameters()["bn.weight"].is_same(weight));
  CHECK_FALSE(after->bias.requires_grad());
  CHECK(after->options.eps() == 1e-3);
  CHECK(after->options.momentum() == 0.2);
  CHECK(after->running_mean.scalar_type() == at::kDouble);
  CHECK(after->running_mean.data_ptr() == running_mean.data_ptr());
  CHECK(after->is_training());
  CHECK(after->wire_name().starts_with("net.bn"));
  const auto* const nested = find<ronde::SyncBatchNorm2dImpl>(*net, "block.1");
  REQUIRE(nested != nullptr);
  CHECK_FALSE(nested->is_training());
  CHECK(find<ronde::SyncBatchNorm2dImpl>(*net, "residual.body.1") != nullptr);
  CHECK(ronde::convert_sync_batch_norm(*net) == 0);
  CHECK(net->forward(normal({2, 2, 5, 5}, 1)).sizes() == at::IntArrayRef({2, 3}));
}

TEST_CASE("a batch norm that several places share stays shared", "[n1]") {
  const auto shared = std::make_shared<BatchNorm2dImpl>(4);
  Sequential net(shared, shared, torch::nn::BatchNorm3d(2), torch::nn::BatchNorm1d(2));
  CHECK(ronde::convert_sync_batch_norm(*net) == 3);
  CHECK(net->ptr(0) == net->ptr(1));
  CHECK(net->ptr(0)->as<ronde::SyncBatchNorm2dImpl>() != nullptr);
  CHECK(net->ptr(2)->as<ronde::SyncBatchNorm3dImpl>() != nullptr);
  CHECK(net->ptr(3)->as<ronde::SyncBatchNorm1dImpl>() != nullptr);
}

TEST_CASE("batch norms elsewhere are refused by path, and nothing changes", "[n1]") {
  DeclaredImpl model;
  const std::string text =
      check_refused([&] { ronde::convert_sync_batch_norm(model); },
                    {"inside a torch::nn::Sequential only",
                     "\n  bn1: torch::nn::BatchNorm1dImpl, to be a ronde::SyncBatchNorm1d",
                     "\n  list.1: torch::nn::BatchNorm2dImpl, to be a ronde::SyncBatchNorm2d"});
  CHECK_FALSE(contains(text, "seq"));
  CHECK(model.seq->ptr(1)->as<BatchNorm2dImpl>() != nullptr);

  BatchNorm2d alone(4);
  check_refused([&] { ronde::convert_sync_batch_norm(*alone); }, {"the module itself"});
  Sequential special{std::make_shared<SpecialImpl>(4)};
  check_refused([&] { ronde::convert_sync_batch_norm(*special); }, {"\n  0: "});
}

TEST_CASE("checkpoints of LibTorch's batch norm and ours load into each other", "[n1][n2]") {
  using torch::nn::BatchNorm2dOptions;
  for (const auto& options : {BatchNorm2dOptions(3), BatchNorm2dOptions(3).affine(false),
                              BatchNorm2dOptions(3).track_running_stats(false)}) {
    BatchNorm2d theirs(options);
    ronde::SyncBatchNorm2d ours(options);
    BatchNorm2d back(options);
    run(theirs);
    copy_state(theirs, ours);
    check_same_state(*ours, *theirs);
    run(ours);
    copy_state(ours, back);
    check_same_state(*back, *ours);
  }
  const Sequential net = small_net();
  Sequential converted = small_net(), third = small_net();
  ronde::convert_sync_batch_norm(*converted);
  copy_state(net, converted);
  check_same_state(*converted, *net);
  copy_state(converted, third);
  check_same_state(*third, *net);
}

TEST_CASE("copies are layers of their own, with their own names", "[n1][n2]") {
  OursImpl model;
  model.bn = model.replace_module("bn", ronde::SyncBatchNorm2d(3));
  run(model.bn);
  OursImpl original;
  const auto clone = std::dynamic_pointer_cast<OursImpl>(original.clone());
  CHECK(clone->bn->wire_name() != original.bn->wire_name());
  ronde::SyncBatchNorm2d named(ronde::SyncBatchNormOptions(3).name("mine"));
  ronde::SyncBatchNorm2d again(ronde::SyncBatchNormOptions(3).name("mine"));
  const auto copy = std::dynamic_pointer_cast<ronde::SyncBatchNorm2dImpl>(named->clone());
  CHECK(named->wire_name() == "mine");
  CHECK(again->wire_name() == "mine #2");
  CHECK(copy->wire_name() == "mine #3");
  CHECK_FALSE(copy->weight.is_same(named->weight));
  ronde::SyncBatchNorm2dImpl assigned(3);
  const std::string own = assigned.wire_name();
  assigned = *named;
  CHECK(assigned.wire_name() == own);
}

/// Trains on all ranks, whose losses add up to that of one process, or in one process.
void train(Sequential& net, const Samples& samples, bool together) {
  torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.01).momentum(0.5));
  std::optional<DistributedOptimizer> optimizer;
  if (together) {
    ronde::convert_sync_batch_norm(*net);  // the optimizer knows the parameters already
    optimizer.emplace(sgd, net->named_parameters(),
                      DistributedOptimizerOptions{.op = ReduceOp::Sum});
  }
  for (std::int64_t step = 0; step < 30; ++step) {
    const Tensors all = batches(samples, {2, 5, 5}, step);
    const at::Tensor whole = at::cat(all), x = together ? mine_of(all) : whole;
    const at::Tensor target = x.mean({2, 3}).matmul(full({2, 3}, 1));
    together ? optimizer->zero_grad() : sgd.zero_grad();
    ((net->forward(x) - target).square().sum() / whole.size(0)).backward();
    together ? optimizer->step() : sgd.step();
  }
}

TEST_CASE("training with converted batch norms is training in one process with the whole batch") {
  for (const Samples& samples : {Samples(three_each), Samples(none_on_the_last)}) {
    torch::manual_seed(3);
    Sequential alone = small_net(), together = small_net();
    alone->to(at::kDouble);
    together->to(at::kDouble);
    copy_state(alone, together);
    train(alone, samples, false);
    train(together, samples, true);
    const auto state = [](const Sequential& net) {
      return at::cat({flatten(net->parameters()), flatten(net->buffers())});
    };
    CHECK(near(state(together), state(alone), 1e-8));
    CHECK(same_on_all_ranks(state(together)));
  }
}

}  // namespace
}  // namespace ronde_test::models_test
