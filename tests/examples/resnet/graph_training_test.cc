// SPDX-License-Identifier: Apache-2.0
// Steps whose forward and backward are captured, with a graph that needs no GPU.
#include "tests/torch/support.h"

#include <limits>
#include <stdexcept>

#include "workload.h"

namespace resnet::graphs {
namespace {

using example::Link;
using example::Task;
using example::Trainer;

constexpr double kRate = 0.01;
constexpr std::uint64_t kGradients = 62;  // of ResNet-18

Task make_task() {
  const Options options{.model = "resnet18", .image_size = 32, .benchmark = {.batch_size = 2}};
  return make_workload(options).make_task(torch::kCPU);
}

std::vector<at::Tensor> state_of(const torch::nn::Module& module) {
  std::vector<at::Tensor> all = module.parameters();
  for (const at::Tensor& buffer : module.buffers()) all.push_back(buffer);
  return all;
}

bool same_bits(const Task& a, const Task& b) {
  const auto left = state_of(*a.module);
  const auto right = state_of(*b.module);
  for (std::size_t i = 0; i < left.size(); ++i) {
    if (!torch::equal(left[i], right[i])) return false;
  }
  return left.size() == right.size();
}

/// As CUDA's: in a capture all code runs and no number is computed. A replay calls no hook and puts
/// the numbers where the gradients were when they were captured; a gradient that was there before
/// is added to.
class FakeGraph final : public example::StepGraph {
 public:
  FakeGraph(Task task, int& replays) : task_(std::move(task)), replays_(replays) {}

  std::optional<c10::Stream> stream() const override { return {}; }

  void capture(const std::function<void()>& work) override {
    std::vector<at::Tensor> before;
    for (const at::Tensor& tensor : state_of(*task_.module)) {
      before.push_back(tensor.detach().clone());
    }
    for (const at::Tensor& parameter : task_.module->parameters()) {
      adds_.push_back(parameter.grad().defined());
    }
    work();
    const at::NoGradGuard no_grad;
    const auto state = state_of(*task_.module);
    for (std::size_t i = 0; i < state.size(); ++i) state[i].copy_(before[i]);
    for (const at::Tensor& parameter : task_.module->parameters()) {
      gradients_.push_back(parameter.grad());
      if (!adds_[gradients_.size() - 1]) {
        gradients_.back().fill_(std::numeric_limits<double>::quiet_NaN());
      }
    }
  }

  void replay() override {
    const auto computed = torch::autograd::grad({task_.loss()}, task_.module->parameters());
    const at::NoGradGuard no_grad;
    for (std::size_t i = 0; i < computed.size(); ++i) {
      if (adds_[i]) {
        gradients_[i].add_(computed[i]);
      } else {
        gradients_[i].copy_(computed[i]);
      }
    }
    ++replays_;
  }

 private:
  Task task_;
  int& replays_;
  std::vector<bool> adds_;
  std::vector<at::Tensor> gradients_;
};

/// A trainer whose graph is a fake.
struct Captured {
  explicit Captured(Link link, example::Precision precision = {})
      : trainer(task, kRate, link, precision, std::make_unique<FakeGraph>(task, replays)) {}

  Task task = make_task();
  int replays = 0;
  Trainer trainer;
};

std::uint64_t operations() {
  return ronde_test::counted("submission", "operations");
}

}  // namespace

TEST_CASE("steps that are replayed end with the same bits, and only connected ranks reduce") {
  ronde_test::use_ronde();
  struct Case {
    Link link;
    example::Precision precision;
  };
  for (const Case& one :
       {Case{Link::connected, {}}, Case{Link::connected, {.fp16_allreduce = true}},
        Case{Link::unconnected, {}}, Case{Link::in_step, {}}}) {
    INFO("link " << static_cast<int>(one.link) << ", fp16 " << one.precision.fp16_allreduce);
    const Task plain_task = make_task();
    Trainer plain(plain_task, kRate, one.link, one.precision);
    plain.run(5);
    Captured captured(one.link, one.precision);
    captured.trainer.run(2);
    captured.trainer.capture();
    const auto executed = ronde_test::counted("execution", "bytes");
    CHECK(captured.trainer.time(3) > 0);
    CHECK(captured.replays == 3);
    CHECK(same_bits(plain_task, captured.task));
    if (one.link != Link::connected) {
      CHECK(ronde_test::counted("execution", "bytes") == executed);
    } else {
      CHECK(ronde_test::same_on_all_ranks(ronde_test::flatten(captured.task.module->parameters())));
    }
  }
}

TEST_CASE("a capture submits nothing, and each replayed step reduces every gradient once") {
  ronde_test::use_ronde();
  Captured captured(Link::connected);
  captured.trainer.run(1);
  const at::Tensor start = ronde_test::flatten(captured.task.module->parameters());
  const std::uint64_t submitted = operations();
  captured.trainer.capture();
  CHECK(operations() == submitted);
  CHECK(captured.replays == 0);
  CHECK(torch::equal(ronde_test::flatten(captured.task.module->parameters()), start));
  for (std::uint64_t step = 1; step <= 4; ++step) {
    captured.trainer.run(1);
    CHECK(operations() == submitted + step * kGradients);
  }
}

TEST_CASE("a capture takes a graph, and takes place once", "[n1]") {
  ronde_test::use_ronde();
  Trainer plain(make_task(), kRate, Link::connected);
  CHECK_THROWS_AS(plain.capture(), std::logic_error);
  Captured captured(Link::connected);
  captured.trainer.run(1);
  captured.trainer.capture();
  CHECK_THROWS_AS(captured.trainer.capture(), std::logic_error);
}

}  // namespace resnet::graphs
