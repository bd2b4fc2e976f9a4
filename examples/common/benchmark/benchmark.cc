// SPDX-License-Identifier: Apache-2.0
#include "common/benchmark/benchmark.h"

#include <ronde/torch.h>

#include <cstdarg>
#include <cstdio>
#include <memory>
#include <optional>
#include <stdexcept>
#include <vector>

#include "common/benchmark/cache_use.h"
#include "common/benchmark/efficiency.h"
#include "common/benchmark/statistics.h"
#include "common/benchmark/step_graph.h"
#include "common/checksum.h"
#include "common/data/files.h"
#include "common/device.h"
#include "common/errors.h"

namespace example {
namespace {

constexpr double kConfidence = 1.96;  // standard deviations that hold 95 % of a normal distribution
constexpr double kMsPerSecond = 1000;
/// A run that does not resume replaces the checkpoints of former ones.
const ronde::CheckpointOptions kOverwrite = {.overwrite = true};

/// Prints on rank 0.
[[gnu::format(printf, 1, 2)]] void say(const char* format, ...) {
  if (ronde::rank() != 0) return;
  std::va_list values;
  va_start(values, format);
  std::vprintf(format, values);
  va_end(values);
}

void require_identical(const Trainer& trainer) {
  if (parameters_identical(trainer.module())) return;
  throw std::runtime_error(
      "the ranks' parameters differ after training together; please report this as a bug of Ronde");
}

/// One benchmark on this rank.
class Benchmark {
 public:
  Benchmark(const Workload& workload, const BenchmarkOptions& options)
      : workload_(workload), options_(options), device_(choose_device(options.device)) {}

  void throughput() const;
  void efficiency() const;

 private:
  const char* device_name() const { return device_.is_cuda() ? "GPU" : "CPU"; }
  Precision precision() const {
    return {.amp = options_.amp, .fp16_allreduce = options_.fp16_allreduce};
  }
  std::unique_ptr<StepGraph> make_graph() const {
    return options_.cuda_graph ? make_cuda_graph(device_) : nullptr;
  }
  Trainer make(Link link) const {
    return {workload_.make_task(device_), workload_.learning_rate, link, precision(), make_graph()};
  }
  double images_per_s(double seconds) const {
    return static_cast<double>(options_.batch_size * options_.num_batches_per_iter) / seconds;
  }
  void introduce() const;
  void warm_up(Trainer& trainer) const;
  double step_ms(Trainer& trainer) const;
  void say_efficiency(const Efficiency& result) const;
  void say_round(std::int64_t number, const Round& round) const;
  void say_step(const char* kind, double ms) const;
  static void say_cache(const std::optional<CacheUse>& cache);

  const Workload& workload_;
  const BenchmarkOptions& options_;
  torch::Device device_;
};

void Benchmark::introduce() const {
  say("Model: %s\n", workload_.model.c_str());
  say("Batch size: %lld\n", static_cast<long long>(options_.batch_size));
  say("Number of %ss: %d\n", device_name(), ronde::size());
  if (options_.cuda_graph) say("CUDA graph: forward and backward are replayed\n");
}

/// Before anything is measured: with --cuda-graph also the capture.
void Benchmark::warm_up(Trainer& trainer) const {
  trainer.run(options_.num_warmup_batches);
  if (options_.cuda_graph) trainer.capture();
}

void Benchmark::throughput() const {
  introduce();
  const Link link = options_.no_distributed ? Link::unconnected : Link::connected;
  if (link == Link::unconnected) say("Unconnected: the ranks exchange nothing\n");
  Trainer trainer = make(link);
  std::optional<ronde::Checkpoint> checkpoint;
  if (!options_.checkpoint.empty()) checkpoint.emplace(options_.checkpoint, kOverwrite);
  if (checkpoint) trainer.add_to(*checkpoint);
  const std::int64_t done = options_.resume ? checkpoint->resume().value_or(0) : 0;
  if (done > 0 && done >= options_.num_iters) {
    throw InputError("the checkpoint is of iteration " + std::to_string(done) +
                     ": nothing is left; raise --num-iters");
  }
  if (done > 0) say("Resumed after iteration #%lld\n", static_cast<long long>(done - 1));
  say("Running warmup...\n");
  warm_up(trainer);
  say("Running benchmark...\n");
  std::vector<double> rates;
  for (std::int64_t i = done; i < options_.num_iters; ++i) {
    // Unconnected ranks would drift apart, and one that trains alone has the machine for itself.
    if (link == Link::unconnected) ronde::barrier();
    rates.push_back(images_per_s(trainer.time(options_.num_batches_per_iter)));
    say("Iter #%lld: %.1f img/sec per %s\n", static_cast<long long>(i), rates.back(),
        device_name());
    if (checkpoint) checkpoint->save(i + 1);
  }
  if (checkpoint) checkpoint->wait();
  if (link == Link::connected) require_identical(trainer);
  const double rate = mean(rates);
  const double spread = kConfidence * standard_deviation(rates);
  const int ranks = ronde::size();
  say("Img/sec per %s: %.1f +-%.1f\n", device_name(), rate, spread);
  say("Total img/sec on %d %s(s): %.1f +-%.1f\n", ranks, device_name(), ranks * rate,
      ranks * spread);
  say_cache(cache_use(ronde::default_runtime().stats()));
}

/// Starts on all ranks at once, so that their cores are busy alike whether they are connected or
/// not. The mean over the ranks.
double Benchmark::step_ms(Trainer& trainer) const {
  ronde::barrier();
  trainer.run(options_.num_warmup_batches);
  const double seconds = trainer.time(options_.num_batches_per_iter);
  const double mine = kMsPerSecond * seconds / static_cast<double>(options_.num_batches_per_iter);
  return ronde::allreduce(torch::tensor({mine}, torch::kFloat64), {.name = "step time"})
      .item<double>();
}

void Benchmark::efficiency() const {
  introduce();
  Trainer connected = make(Link::connected);
  Trainer unconnected = make(Link::unconnected);
  std::optional<Trainer> in_step;
  if (options_.in_step)
    in_step.emplace(workload_.make_task(device_), workload_.learning_rate, Link::in_step,
                    precision(), make_graph());
  say("Running warmup...\n");
  warm_up(connected);
  warm_up(unconnected);
  if (in_step) warm_up(*in_step);
  say("Running benchmark...\n");
  std::vector<Round> rounds;
  for (std::int64_t i = 0; i < options_.num_iters; ++i) {
    Round round;
    // Who goes first alternates: a machine that slows down steadily is fair to both.
    if (i % 2 == 0) round.step_ms_unconnected = step_ms(unconnected);
    if (i % 2 == 0 && in_step) round.step_ms_in_step = step_ms(*in_step);
    round.step_ms = step_ms(connected);
    if (i % 2 != 0 && in_step) round.step_ms_in_step = step_ms(*in_step);
    if (i % 2 != 0) round.step_ms_unconnected = step_ms(unconnected);
    say_round(i, round);
    rounds.push_back(round);
  }
  require_identical(connected);
  const Efficiency result = summarize(rounds);
  say_efficiency(result);
  const std::optional<CacheUse> cache = cache_use(ronde::default_runtime().stats());
  say_cache(cache);
  if (!options_.json.empty() && ronde::rank() == 0) {
    write_text(options_.json, to_json(workload_.model, ronde::size(), result, cache));
  }
}

void Benchmark::say_efficiency(const Efficiency& result) const {
  say_step("Unconnected", result.median.step_ms_unconnected);
  if (result.median.step_ms_in_step) say_step("In step", *result.median.step_ms_in_step);
  say_step("Distributed", result.median.step_ms);
  if (result.median.step_ms_in_step) {
    say("Scaling efficiency without exchange: %.1f %%\n", 100 * result.median.efficiency_in_step());
  }
  say("Scaling efficiency on %d %s(s): %.1f %% (rounds: %.1f to %.1f %%)\n", ronde::size(),
      device_name(), 100 * result.median.efficiency(), 100 * result.lowest, 100 * result.highest);
}

void Benchmark::say_round(std::int64_t number, const Round& round) const {
  say("Round #%lld: %.2f ms a step unconnected, %.2f ms distributed, efficiency %.1f %%\n",
      static_cast<long long>(number), round.step_ms_unconnected, round.step_ms,
      100 * round.efficiency());
}

void Benchmark::say_step(const char* kind, double ms) const {
  const double rate = static_cast<double>(options_.batch_size) * kMsPerSecond / ms;
  say("%s: %.2f ms a step, %.1f img/sec per %s\n", kind, ms, rate, device_name());
}

/// Of rank 0's, since init.
void Benchmark::say_cache(const std::optional<CacheUse>& cache) {
  if (!cache) return;
  say("Registration cache: %llu hits of %llu uses (%.1f %%)\n",
      static_cast<unsigned long long>(cache->hits), static_cast<unsigned long long>(cache->uses),
      100 * cache->hit_rate());
}

}  // namespace

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
