// SPDX-License-Identifier: Apache-2.0
// A network whose layers are divided among the ranks of a pipeline, and several such pipelines on
// parts of the data: HyPar-Flow (A. Awan et al., ISC 2020), with the schedules of two other
// studies.
#include <ATen/CPUGeneratorImpl.h>
#include <ronde/torch.h>
#include <sys/resource.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "common/files.h"
#include "common/program.h"
#include "part.h"
#include "schedule.h"

namespace pipeline {
namespace {

using Clock = std::chrono::steady_clock;

/// The axes of the grid of ranks. Neighbours along the second share a host, where there is one for
/// them: they send most.
enum Axis { kReplica, kStage };

struct Options {
  int stages = 0;  ///< 0: as many as ranks
  std::string schedule = "1f1b";
  int layers = 12;
  std::int64_t width = 64;
  std::int64_t batch = 96;
  int micro_batches = 4;
  std::int64_t steps = 15;
  int slow = 1;
  std::uint64_t seed = 1;
  std::filesystem::path losses;
};

Options parse_options(int argc, const char* const* argv) {
  CLI::App app(
      "Trains a network whose layers are divided among the ranks of a pipeline, on random numbers. "
      "Start it with mpiexec for several ranks; the losses do not depend on their number.",
      "pipeline");
  // The last one counts, so that a script's options can be overridden by what follows.
  app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  Options options;
  const auto add_count = [&app](const std::string& name, auto& value, const std::string& text) {
    return app.add_option(name, value, text)->check(CLI::Range(1, 1000000))->capture_default_str();
  };
  add_count("--stages", options.stages, "So many ranks hold a model together [all]")
      ->default_str("");
  app.add_option(
         "--schedule", options.schedule,
         "1f1b: in turn one pass forward and one backward; gems: two copies of the model in "
         "opposite directions; message-driven: the micro-batch that has come runs next")
      ->check(CLI::IsMember({"1f1b", "gems", "message-driven"}))
      ->capture_default_str();
  add_count("--layers", options.layers, "Layers of the network");
  add_count("--width", options.width, "Units of a layer");
  add_count("--batch", options.batch, "Samples of a step, of all ranks together");
  add_count("--micro-batches", options.micro_batches,
            "Parts into which a copy of the model divides its samples of a step");
  add_count("--steps", options.steps, "How many");
  add_count("--slow", options.slow,
            "Each fourth forward pass of the first stage takes so many times as long");
  app.add_option("--seed", options.seed, "Of the first weights and of the samples")
      ->capture_default_str();
  app.add_option("--losses", options.losses,
                 "Write the loss of each step to this file, one a line");
  example::parse_command_line(app, argc, argv);
  return options;
}

int copies_of(const Options& options) {
  return options.schedule == "gems" ? 2 : 1;
}

void check(const Options& options) {
  const int ranks = ronde::size();
  if (ranks % options.stages != 0) {
    throw CLI::ValidationError("--stages", "the " + std::to_string(ranks) +
                                               " ranks cannot be divided into pipelines of " +
                                               std::to_string(options.stages));
  }
  example::require_divisible("--layers", options.layers, options.stages,
                             "each stage has equally many layers");
  const std::int64_t copies = ranks / options.stages * copies_of(options);
  example::require_divisible("--batch", options.batch, copies * options.micro_batches,
                             "each of the " + std::to_string(copies) +
                                 " copies of the model divides its part into " +
                                 std::to_string(options.micro_batches) + " equal micro-batches");
  const auto seed = static_cast<std::int64_t>(options.seed);
  const torch::Tensor all = ronde::allgather(
      torch::tensor({options.batch, options.steps, seed}).unsqueeze(0), {.name = "options"});
  if (!(all == all[0]).all().item<bool>()) {  // messages and optimizers show other differences
    throw CLI::ValidationError("--batch, --steps, --seed", "they must be equal on all ranks");
  }
}

torch::optim::SGDOptions sgd_options() {
  return torch::optim::SGDOptions(1.0).momentum(0.9);
}

/// A stage that this rank holds, and its optimizer, which adds up the gradients of all copies.
struct Trained {
  Trained(const Options& options, int index, int passes, ronde::ProcessSet copies)
      : stage(options.layers, options.width, index, options.stages),
        set(copies),
        sgd(stage->parameters(), sgd_options()),
        optimizer(sgd, stage->named_parameters(),
                  {.name = "stage " + std::to_string(index),
                   .op = ronde::ReduceOp::Sum,
                   .process_set = copies,
                   .backward_passes_per_step = passes}) {}

  Stage stage;
  ronde::ProcessSet set;
  torch::optim::SGD sgd;
  ronde::DistributedOptimizer optimizer;
};

/// How long the passes of a step took, and all of it from its start; seconds.
struct Times {
  double busy = 0;
  double all = 0;
};

/// This rank's stages, one for each copy of the model that its pipeline holds.
class Pipeline {
 public:
  explicit Pipeline(const Options& options)
      : options_(options),
        grid_({ronde::size() / options.stages, options.stages}),
        shape_{options.stages, copies_of(options), options.micro_batches} {
    std::map<int, int> uses;  // of stages by copies: both share the middle one of three
    for (int copy = 0; copy < shape_.copies; ++copy) ++uses[stage_of(copy)];
    const std::vector<ronde::ProcessSet> sets = make_sets();
    for (const auto& [stage, count] : uses) {
      torch::manual_seed(options.seed);  // each stage draws the whole model
      const int set = std::min(stage, mirror(stage));
      trained_[stage] = std::make_unique<Trained>(options, stage, count * shape_.micro_batches,
                                                  sets[static_cast<std::size_t>(set)]);
    }
    for (int copy = 0; copy < shape_.copies; ++copy) {
      parts_.emplace_back(trained_[stage_of(copy)]->stage, shape_, copy, grid_.set(kStage),
                          arrivals_, options.slow);
    }
  }

  const Shape& shape() const { return shape_; }

  std::vector<Order> orders() const {
    return options_.schedule == "message-driven" ? message_driven_orders(shape_)
                                                 : fixed_orders(shape_);
  }

  /// Trains one step on [batch, width] samples, the same on all ranks. Returns the loss, the same
  /// on all ranks too.
  double step(const torch::Tensor& inputs, const torch::Tensor& targets, Times& times) {
    for (const auto& [stage, trained] : trained_) trained->optimizer.zero_grad();
    for (int copy = 0; copy < shape_.copies; ++copy) {
      part(copy).begin({share(inputs, copy), share(targets, copy), double(targets.numel())});
    }
    ronde::barrier();
    times = run_passes();
    double loss = 0;
    for (Part& part : parts_) loss += part.finish();
    for (const auto& [stage, trained] : trained_) trained->optimizer.step();
    return ronde::allreduce(torch::tensor(loss, torch::kFloat64),
                            {.name = "loss", .op = ronde::ReduceOp::Sum})
        .item<double>();
  }

  /// Throws ronde::UsageError if copies of a stage differ.
  void check_copies() const {
    for (const auto& [stage, trained] : trained_) {
      ronde::check_replicas(*trained->stage, trained->set);
    }
  }

 private:
  int stage_of(int copy) const { return shape_.stage_of(grid_.coordinate(kStage), copy); }
  /// Returns the stage of the last copy on the rank that holds `stage` of the first.
  int mirror(int stage) const { return shape_.stage_of(stage, shape_.copies - 1); }
  Part& part(int copy) { return parts_[static_cast<std::size_t>(copy)]; }

  /// Makes the sets of all ranks that hold a copy of a stage, by stage; stages that have the same
  /// ranks share one, at the place of the first.
  std::vector<ronde::ProcessSet> make_sets() const {
    std::vector<ronde::ProcessSet> sets;
    for (int stage = 0; stage <= mirror(stage) && stage < shape_.stages; ++stage) {
      std::vector<int> ranks;
      for (int replica = 0; replica < grid_.size(kReplica); ++replica) {
        ranks.push_back(grid_.rank_at({replica, stage}));
        if (mirror(stage) != stage) ranks.push_back(grid_.rank_at({replica, mirror(stage)}));
      }
      sets.push_back(ronde::add_process_set(ranks));
    }
    return sets;
  }

  /// Returns the micro-batches of a copy of the model.
  std::vector<torch::Tensor> share(const torch::Tensor& samples, int copy) const {
    const std::int64_t copies = grid_.size(kReplica) * shape_.copies;
    const int own = grid_.coordinate(kReplica) * shape_.copies + copy;
    return samples.chunk(copies)[static_cast<std::size_t>(own)].chunk(shape_.micro_batches);
  }

  Times run_passes() {
    Order order = orders()[static_cast<std::size_t>(grid_.coordinate(kStage))];
    const auto seconds_since = [](Clock::time_point begin) {
      return std::chrono::duration<double>(Clock::now() - begin).count();
    };
    Times times;
    const Clock::time_point start = Clock::now();
    while (!order.empty()) {
      const auto pass =
          order.take([this](const Pass& next) { return part(next.copy).ready(next); });
      if (!pass) {
        arrivals_.next(std::chrono::nanoseconds::max());
        continue;
      }
      const Clock::time_point begin = Clock::now();
      part(pass->copy).run(*pass);
      times.busy += seconds_since(begin);
    }
    times.all = seconds_since(start);
    return times;
  }

  const Options options_;
  const ronde::Grid grid_;
  const Shape shape_;
  ronde::CompletionQueue arrivals_;
  std::map<int, std::unique_ptr<Trained>> trained_;  ///< by stage
  std::vector<Part> parts_;                          ///< by copy
};

/// Prints where the time of the ranks went, and their memory. Collective.
void report(const Options& options, const Pipeline& pipeline, const std::vector<Times>& steps) {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  std::vector<double> busy;
  std::vector<double> longest;
  for (const Times& step : steps) {
    busy.push_back(step.busy);
    longest.push_back(step.all);
  }
  longest.push_back(double(usage.ru_maxrss) / 1024);
  const torch::Tensor sums = ronde::allreduce(torch::tensor(busy, torch::kFloat64),
                                              {.name = "busy", .op = ronde::ReduceOp::Average});
  const torch::Tensor most = ronde::allreduce(torch::tensor(longest, torch::kFloat64),
                                              {.name = "longest", .op = ronde::ReduceOp::Max});
  if (ronde::rank() != 0) return;
  const torch::Tensor all = most.slice(0, 0, -1);
  const double idle = draw_chart(pipeline.shape(), pipeline.orders(), options.slow).idle;
  const double step = all.median().item<double>();
  std::printf("idle %.1f %% of the ranks' time, %.1f %% in the Gantt chart of the schedule\n",
              100 * (1 - sums / all).median().item<double>(), 100 * idle);
  std::printf("%.1f ms a step, %.0f samples a second, peak memory of a rank %.0f MiB\n",
              1000 * step, double(options.batch) / step, most[-1].item<double>());
}

/// Returns the loss of each step; the same on all ranks.
std::vector<double> train(const Options& options) {
  Pipeline pipeline(options);
  const Shape& shape = pipeline.shape();
  if (ronde::rank() == 0) {
    std::printf("grid %d x %d: pipelines x stages, schedule %s, %d x %d micro-batches a pipeline\n",
                ronde::size() / shape.stages, shape.stages, options.schedule.c_str(), shape.copies,
                shape.micro_batches);
  }
  const auto random = at::make_generator<at::CPUGeneratorImpl>(options.seed);
  std::vector<double> losses;
  std::vector<Times> times(static_cast<std::size_t>(options.steps));
  for (Times& step : times) {
    // Every rank draws the samples of all.
    const torch::Tensor inputs =
        torch::randn({options.batch, options.width}, random, torch::kFloat64);
    losses.push_back(pipeline.step(inputs, inputs.abs(), step));
  }
  if (ronde::rank() == 0) {
    std::printf("loss %.6f in the first step, %.6f in the last\n", losses.front(), losses.back());
  }
  report(options, pipeline, times);
  pipeline.check_copies();
  return losses;
}

int run(Options options) {
  if (options.stages == 0) options.stages = ronde::size();
  check(options);
  const bool writes = ronde::rank() == 0 && !options.losses.empty();
  if (writes) example::prepare_file(options.losses, "--losses");
  const std::vector<double> losses = train(options);
  if (ronde::rank() == 0) std::printf("all copies of a stage are equal to the last bit\n");
  if (writes) example::write_csv(options.losses, losses, 1);
  return 0;
}

}  // namespace
}  // namespace pipeline

int main(int argc, char** argv) {
  return example::run_program("pipeline", argc, argv, [](int count, const char* const* words) {
    return pipeline::run(pipeline::parse_options(count, words));
  });
}
