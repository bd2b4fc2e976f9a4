// SPDX-License-Identifier: Apache-2.0
// A network whose layers are divided among the ranks of a pipeline, and several such pipelines on
// parts of the data: HyPar-Flow (A. Awan et al., ISC 2020), with the schedules of two other
// studies.
#include <ATen/CPUGeneratorImpl.h>
#include <ronde/torch.h>
#include <sys/resource.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <map>
#include <memory>
#include <set>
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

  int copies() const { return schedule == "gems" ? 2 : 1; }
};

Options parse_options(int argc, const char* const* argv) {
  CLI::App app(
      "Trains a network whose layers are divided among the ranks of a pipeline, on random numbers. "
      "Start it with mpiexec for several ranks; the losses do not depend on their number.",
      "pipeline");
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

void check(const Options& options) {
  example::require_groups("--stages", options.stages);
  example::require_divisible("--layers", options.layers, options.stages,
                             "each stage has equally many layers");
  const std::int64_t copies = std::int64_t{ronde::size()} / options.stages * options.copies();
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

/// A stage that this rank holds, and its optimizer, which adds up the gradients of all copies.
struct Trained {
  Trained(const Options& options, int index, int passes, ronde::ProcessSet copies)
      : stage(options.layers, options.width, index, options.stages),
        sgd(stage->parameters(), torch::optim::SGDOptions(1.0).momentum(0.9)),
        optimizer(sgd, stage->named_parameters(),
                  {.name = "stage " + std::to_string(index),
                   .op = ronde::ReduceOp::Sum,
                   .process_set = copies,
                   .backward_passes_per_step = passes}) {}

  Stage stage;
  torch::optim::SGD sgd;
  ronde::DistributedOptimizer optimizer;
};

/// This rank's stages, one for each copy of the model that its pipeline holds.
class Pipeline {
 public:
  explicit Pipeline(const Options& options)
      : grid_({ronde::size() / options.stages, options.stages}),
        shape_{options.stages, options.copies(), options.micro_batches},
        orders_(options.schedule == "message-driven" ? message_driven_orders(shape_)
                                                     : fixed_orders(shape_)),
        holders_(make_holders()) {
    std::map<int, int> uses;  // of stages by copies: both share the middle one of three
    for (int copy = 0; copy < shape_.copies; ++copy) ++uses[stage_of(copy)];
    for (const auto& [stage, count] : uses) {
      torch::manual_seed(options.seed);  // each stage draws the whole model
      trained_[stage] =
          std::make_unique<Trained>(options, stage, count * shape_.micro_batches, holders_);
    }
    for (int copy = 0; copy < shape_.copies; ++copy) {
      parts_.emplace_back(trained_[stage_of(copy)]->stage, shape_, copy, grid_.set(kStage),
                          arrivals_, options.slow);
    }
  }

  /// Trains one step on [batch, width] samples, the same on all ranks. Returns the loss, the same
  /// on all ranks too.
  double step(const torch::Tensor& inputs, const torch::Tensor& targets) {
    for (const auto& [stage, trained] : trained_) trained->optimizer.zero_grad();
    for (int copy = 0; copy < shape_.copies; ++copy) {
      part(copy).begin({share(inputs, copy), share(targets, copy), double(targets.numel())});
    }
    ronde::barrier();
    run_passes();
    double loss = 0;
    for (Part& part : parts_) loss += part.finish();
    for (const auto& [stage, trained] : trained_) trained->optimizer.step();
    return ronde::allreduce(torch::tensor(loss, torch::kFloat64),
                            {.name = "loss", .op = ronde::ReduceOp::Sum})
        .item<double>();
  }

  /// Throws ronde::UsageError if copies of a stage differ.
  void check_copies() const {
    for (const auto& [stage, trained] : trained_) ronde::check_replicas(*trained->stage, holders_);
  }

  /// Prints where the time of the ranks went, and their memory. Collective.
  void report(const Options& options) const {
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    const auto over_ranks = [](const char* name, const std::vector<double>& mine,
                               ronde::ReduceOp op) {
      return ronde::allreduce(torch::tensor(mine, torch::kFloat64), {.name = name, .op = op});
    };
    const torch::Tensor mean = over_ranks("busy", busy_, ronde::ReduceOp::Average);
    const torch::Tensor longest = over_ranks("all", all_, ronde::ReduceOp::Max);
    const torch::Tensor memory =
        over_ranks("memory", {double(usage.ru_maxrss) / 1024}, ronde::ReduceOp::Max);
    if (ronde::rank() != 0) return;
    const double step = longest.median().item<double>();
    std::printf("idle %.1f %% of the ranks' time, %.1f %% in the Gantt chart of the schedule\n",
                100 * (1 - mean / longest).median().item<double>(),
                100 * draw_chart(shape_, orders_, options.slow).idle);
    std::printf("%.1f ms a step, %.0f samples a second, peak memory of a rank %.0f MiB\n",
                1000 * step, double(options.batch) / step, memory.item<double>());
  }

 private:
  int stage_of(int copy) const { return shape_.stage_of(grid_.coordinate(kStage), copy); }
  Part& part(int copy) { return parts_[static_cast<std::size_t>(copy)]; }

  /// Makes the set of the ranks that hold this one's stages.
  ronde::ProcessSet make_holders() const {
    const std::set<int> places = {stage_of(0), stage_of(shape_.copies - 1)};
    std::vector<int> ranks;
    for (int replica = 0; replica < grid_.size(kReplica); ++replica) {
      for (const int place : places) ranks.push_back(grid_.rank_at({replica, place}));
    }
    return ronde::create_process_set(ranks);
  }

  /// Returns the micro-batches of a copy of the model.
  std::vector<torch::Tensor> share(const torch::Tensor& samples, int copy) const {
    const std::int64_t copies = grid_.size(kReplica) * shape_.copies;
    const int own = grid_.coordinate(kReplica) * shape_.copies + copy;
    return samples.chunk(copies)[static_cast<std::size_t>(own)].chunk(shape_.micro_batches);
  }

  void run_passes() {
    Order order = orders_[static_cast<std::size_t>(grid_.coordinate(kStage))];
    const auto seconds_since = [](Clock::time_point begin) {
      return std::chrono::duration<double>(Clock::now() - begin).count();
    };
    double busy = 0;
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
      busy += seconds_since(begin);
    }
    busy_.push_back(busy);
    all_.push_back(seconds_since(start));
  }

  const ronde::Grid grid_;
  const Shape shape_;
  const std::vector<Order> orders_;  ///< by rank of the pipeline
  const ronde::ProcessSet holders_;  ///< of the same stages
  ronde::CompletionQueue arrivals_;
  std::map<int, std::unique_ptr<Trained>> trained_;  ///< by stage
  std::vector<Part> parts_;                          ///< by copy
  // Seconds, by step.
  std::vector<double> busy_;  ///< with passes
  std::vector<double> all_;   ///< from the begin of a step to the end of its passes
};

/// Returns the loss of each step; the same on all ranks.
std::vector<double> train(const Options& options) {
  Pipeline pipeline(options);
  if (ronde::rank() == 0) {
    std::printf("grid %d x %d: pipelines x stages, schedule %s, %d x %d micro-batches a pipeline\n",
                ronde::size() / options.stages, options.stages, options.schedule.c_str(),
                options.copies(), options.micro_batches);
  }
  const auto random = at::make_generator<at::CPUGeneratorImpl>(options.seed);
  std::vector<double> losses;
  for (std::int64_t step = 0; step < options.steps; ++step) {
    // Every rank draws the samples of all.
    const torch::Tensor inputs =
        torch::randn({options.batch, options.width}, random, torch::kFloat64);
    losses.push_back(pipeline.step(inputs, inputs.abs()));
  }
  if (ronde::rank() == 0) {
    std::printf("loss %.6f in the first step, %.6f in the last\n", losses.front(), losses.back());
  }
  pipeline.report(options);
  pipeline.check_copies();
  if (ronde::rank() == 0) std::puts("all copies of a stage are equal to the last bit");
  return losses;
}

int run(Options options) {
  if (options.stages == 0) options.stages = ronde::size();
  check(options);
  example::write_numbers(options.losses, "--losses", 1, [&] { return train(options); });
  return 0;
}

}  // namespace
}  // namespace pipeline

int main(int argc, char** argv) {
  return example::run_program("pipeline", argc, argv, [](int count, const char* const* words) {
    return pipeline::run(pipeline::parse_options(count, words));
  });
}
