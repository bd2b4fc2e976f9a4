// SPDX-License-Identifier: Apache-2.0
#include "common/benchmark.h"

#include <ronde/torch.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdarg>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>

#include "common/files.h"
#include "common/program.h"

namespace example {
namespace {

constexpr double kConfidence = 1.96;  // standard deviations that hold 95 % of a normal distribution
constexpr double kMsPerSecond = 1000;
/// A run that does not resume replaces the checkpoints of former ones.
const ronde::CheckpointOptions kOverwrite = {.overwrite = true};

/// Prints on rank 0.
[[gnu::format(printf, 1, 2)]] void print(const char* format, ...) {
  if (ronde::rank() != 0) return;
  std::va_list values;
  va_start(values, format);
  std::vprintf(format, values);
  va_end(values);
}

double mean(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

/// Returns the standard deviation of the values themselves, not an estimate from a sample.
double standard_deviation(const std::vector<double>& values) {
  const double center = mean(values);
  double squares = 0;
  for (const double value : values) squares += (value - center) * (value - center);
  return std::sqrt(squares / static_cast<double>(values.size()));
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

/// Returns how often, since init, Ronde found a buffer in the registration cache of its backend for
/// GPUs; nothing where the cache was never used, as on the CPU.
std::optional<double> registration_hit_rate() {
  std::uint64_t hits = 0;
  std::uint64_t uses = 0;
  for (const ronde::StatsGroup& group : ronde::default_runtime().stats()) {
    for (const auto& [name, count] : group.counters) {
      // A backend within another adds a prefix to the names.
      const bool is_hits = name.ends_with("registration_hits");
      if (is_hits) hits += count;
      if (is_hits || name.ends_with("registration_misses")) uses += count;
    }
  }
  if (uses == 0) return std::nullopt;
  return static_cast<double>(hits) / static_cast<double>(uses);
}

/// One benchmark on this rank.
class Benchmark {
 public:
  Benchmark(const Workload& workload, const BenchmarkOptions& options)
      : workload_(workload), options_(options), device_(choose_device(options.device)) {
    print("Model: %s\n", workload_.model.c_str());
    print("Batch size: %lld\n", static_cast<long long>(options_.batch_size));
    print("Number of %ss: %d\n", device_name(), ronde::size());
  }

  void throughput() const;
  void efficiency() const;

 private:
  const char* device_name() const { return device_.is_cuda() ? "GPU" : "CPU"; }
  Trainer make(Link link) const {
    return {workload_.make_task(device_), workload_.learning_rate, link,
            Precision{.amp = options_.amp, .fp16_allreduce = options_.fp16_allreduce}};
  }
  double step_ms(Trainer& trainer) const;
  void print_step(const char* kind, double ms) const;
  void write_json(const Efficiency& result) const;

  const Workload& workload_;
  const BenchmarkOptions& options_;
  torch::Device device_;
};

void Benchmark::throughput() const {
  const Link link = options_.no_distributed ? Link::unconnected : Link::connected;
  if (link == Link::unconnected) print("Unconnected: the ranks exchange nothing\n");
  Trainer trainer = make(link);
  std::optional<ronde::Checkpoint> checkpoint;
  if (!options_.checkpoint.empty()) checkpoint.emplace(options_.checkpoint, kOverwrite);
  if (checkpoint) trainer.add_to(*checkpoint);
  const std::int64_t done = options_.resume ? checkpoint->resume().value_or(0) : 0;
  if (done > 0 && done >= options_.num_iters) {
    throw InputError("the checkpoint is of iteration " + std::to_string(done) +
                     ": nothing is left; raise --num-iters");
  }
  if (done > 0) print("Resumed after iteration #%lld\n", static_cast<long long>(done - 1));
  print("Running warmup...\n");
  trainer.run(options_.num_warmup_batches);
  print("Running benchmark...\n");
  std::vector<double> rates;
  for (std::int64_t i = done; i < options_.num_iters; ++i) {
    // Unconnected ranks would drift apart, and one that trains alone has the machine for itself.
    if (link == Link::unconnected) ronde::barrier();
    const double seconds = trainer.time(options_.num_batches_per_iter);
    rates.push_back(static_cast<double>(options_.batch_size * options_.num_batches_per_iter) /
                    seconds);
    print("Iter #%lld: %.1f img/sec per %s\n", static_cast<long long>(i), rates.back(),
          device_name());
    if (checkpoint) checkpoint->save(i + 1);
  }
  if (checkpoint) checkpoint->wait();
  if (link == Link::connected) ronde::check_replicas(trainer.module());
  const double rate = mean(rates);
  const double spread = kConfidence * standard_deviation(rates);
  const int ranks = ronde::size();
  print("Img/sec per %s: %.1f +-%.1f\n", device_name(), rate, spread);
  print("Total img/sec on %d %s(s): %.1f +-%.1f\n", ranks, device_name(), ranks * rate,
        ranks * spread);
}

/// Starts on all ranks at once, so that their cores are equally busy whether they are connected or
/// not. Returns the mean over the ranks.
double Benchmark::step_ms(Trainer& trainer) const {
  ronde::barrier();
  trainer.run(options_.num_warmup_batches);
  const double seconds = trainer.time(options_.num_batches_per_iter);
  const double mine = kMsPerSecond * seconds / static_cast<double>(options_.num_batches_per_iter);
  return ronde::allreduce(torch::tensor({mine}, torch::kFloat64), {.name = "step time"})
      .item<double>();
}

void Benchmark::efficiency() const {
  Trainer connected = make(Link::connected);
  Trainer unconnected = make(Link::unconnected);
  print("Running warmup...\n");
  connected.run(options_.num_warmup_batches);
  unconnected.run(options_.num_warmup_batches);
  print("Running benchmark...\n");
  std::vector<Round> rounds;
  for (std::int64_t i = 0; i < options_.num_iters; ++i) {
    Round round;
    // The order alternates: a machine that slows down steadily is fair to both.
    if (i % 2 == 0) round.step_ms_unconnected = step_ms(unconnected);
    round.step_ms = step_ms(connected);
    if (i % 2 != 0) round.step_ms_unconnected = step_ms(unconnected);
    print("Round #%lld: %.2f ms a step unconnected, %.2f ms distributed, efficiency %.1f %%\n",
          static_cast<long long>(i), round.step_ms_unconnected, round.step_ms,
          100 * round.efficiency());
    rounds.push_back(round);
  }
  ronde::check_replicas(connected.module());
  const Efficiency result = summarize(rounds);
  print_step("Unconnected", result.median.step_ms_unconnected);
  print_step("Distributed", result.median.step_ms);
  print("Scaling efficiency on %d %s(s): %.1f %% (rounds: %.1f to %.1f %%)\n", ronde::size(),
        device_name(), 100 * result.median.efficiency(), 100 * result.lowest, 100 * result.highest);
  if (const auto rate = registration_hit_rate()) {
    print("Registration cache: %.1f %% hits\n", 100 * *rate);
  }
  if (!options_.json.empty() && ronde::rank() == 0) write_json(result);
}

void Benchmark::print_step(const char* kind, double ms) const {
  const double rate = static_cast<double>(options_.batch_size) * kMsPerSecond / ms;
  print("%s: %.2f ms a step, %.1f img/sec per %s\n", kind, ms, rate, device_name());
}

void Benchmark::write_json(const Efficiency& result) const {
  nlohmann::ordered_json json{
      {"model", workload_.model},
      {"ranks", ronde::size()},
      {"step_ms", result.median.step_ms},
      {"step_ms_unconnected", result.median.step_ms_unconnected},
      {"efficiency", result.median.efficiency()},
  };
  if (const auto rate = registration_hit_rate()) json["registration_hit_rate"] = *rate;
  write_text(options_.json, json.dump(2) + "\n");
}

}  // namespace

void add_benchmark_options(CLI::App& app, BenchmarkOptions& options) {
  const auto count = [&](const char* name, std::int64_t& value, const char* text) {
    return app.add_option(name, value, text)->capture_default_str()->group(kBenchmarkGroup);
  };
  const auto flag = [&](const char* name, bool& value, const char* text) {
    app.add_flag(name, value, text)->group(kBenchmarkGroup);
  };
  count("--batch-size", options.batch_size, "Images per rank and step")->check(CLI::PositiveNumber);
  count("--num-warmup-batches", options.num_warmup_batches,
        "Steps before measuring; with --efficiency before every round of each kind")
      ->check(CLI::NonNegativeNumber);
  count("--num-batches-per-iter", options.num_batches_per_iter, "Steps per iteration or round")
      ->check(CLI::PositiveNumber);
  count("--num-iters", options.num_iters, "Iterations, or with --efficiency rounds")
      ->check(CLI::PositiveNumber);
  app.add_option("--device", options.device,
                 "cpu, or cuda: a GPU of its own for each rank of a host")
      ->check(CLI::IsMember({"cpu", "cuda"}))
      ->capture_default_str()
      ->group(kBenchmarkGroup);
  flag("--amp", options.amp, "Mixed precision: compute in bf16 where that is safe (autocast)");
  flag("--fp16-allreduce", options.fp16_allreduce, "Send gradients as fp16");
  flag("--no-distributed", options.no_distributed,
       "Train ranks side by side that exchange nothing during steps");
  flag("--efficiency", options.efficiency,
       "Measure both kinds in turns, and print the scaling efficiency");
  app.add_option("--checkpoint", options.checkpoint,
                 "Folder for checkpoints: of a benchmark one for each iteration [none; training: "
                 "in --output]")
      ->group(kBenchmarkGroup);
  flag("--resume", options.resume, "Resume from the newest checkpoint, if there is one");
}

void check_benchmark_options(const BenchmarkOptions& options) {
  if (options.fp16_allreduce && options.no_distributed) {
    throw CLI::ExcludesError("--fp16-allreduce", "--no-distributed");
  }
  if (options.efficiency && options.no_distributed) {
    throw CLI::ExcludesError("--efficiency", "--no-distributed");
  }
  if (!options.checkpoint.empty() && (options.efficiency || options.no_distributed)) {
    throw CLI::ExcludesError("--checkpoint",
                             options.efficiency ? "--efficiency" : "--no-distributed");
  }
  if (options.resume && options.checkpoint.empty()) {
    throw CLI::RequiresError("--resume", "--checkpoint");
  }
  if (!options.json.empty() && !options.efficiency) {
    throw CLI::RequiresError("--json", "--efficiency");
  }
}

Efficiency summarize(const std::vector<Round>& rounds) {
  std::vector<double> connected;
  std::vector<double> unconnected;
  std::vector<double> ratios;
  for (const Round& round : rounds) {
    connected.push_back(round.step_ms);
    unconnected.push_back(round.step_ms_unconnected);
    ratios.push_back(round.efficiency());
  }
  const auto [lowest, highest] = std::minmax_element(ratios.begin(), ratios.end());
  return {{median(connected), median(unconnected)}, *lowest, *highest};
}

void run_benchmark(const Workload& workload, const BenchmarkOptions& options) {
  if (!options.json.empty() && ronde::rank() == 0) prepare_file(options.json, "--json");
  const Benchmark benchmark(workload, options);
  if (options.efficiency) {
    benchmark.efficiency();
  } else {
    benchmark.throughput();
  }
}

}  // namespace example
