// SPDX-License-Identifier: Apache-2.0
#include "train.h"

#include <ronde/torch.h>

#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>

#include "common/program.h"
#include "common/trainer.h"

namespace edsr {
namespace {

constexpr std::int64_t kPatchesPerPhotograph = 32;
constexpr double kReportSeconds = 10;

/// Returns the samples of an epoch: whole batches, so that none is dropped on any number of ranks.
std::int64_t samples_per_epoch(const Options& options, std::size_t photographs) {
  const std::int64_t wanted = static_cast<std::int64_t>(photographs) * kPatchesPerPhotograph;
  return (wanted + options.batch - 1) / options.batch * options.batch;
}

/// Returns what must be the same for a run to resume from a checkpoint of another, as JSON.
std::string describe_run(const Options& options, std::int64_t samples) {
  const EdsrOptions& network = options.network;
  return nlohmann::json{{"blocks", network.blocks}, {"features", network.features},
                        {"scale", network.scale},   {"residual_scale", network.residual_scale},
                        {"batch", options.batch},   {"patch", options.patch},
                        {"samples", samples},       {"seed", options.seed}}
      .dump();
}

/// Keeps budget, reports and checkpoints around the steps. Collective.
class Bookkeeper {
 public:
  Bookkeeper(ronde::Checkpoint& checkpoint, Position& position, const Options& options,
             const std::function<double()>& gain)
      : checkpoint_(checkpoint), position_(position), options_(options), gain_(gain) {
    if (is_used_up(options_, position_) && ronde::rank() == 0) {
      std::printf(
          "nothing left to train: the checkpoint has used %lld steps and %g minutes, so it is only "
          "evaluated; to train on, raise --steps or --minutes\n",
          static_cast<long long>(position_.step), position_.seconds / 60);
    }
  }

  bool finished() const { return is_stopped_ || is_good_ || is_used_up(options_, position_); }

  void step_done(const torch::Tensor& loss) {
    const double rate = learning_rate(options_, position_.step);
    loss_ = loss.detach();
    losses_ = losses_ + loss_;
    ++position_.step;
    ++position_.step_in_epoch;
    position_.seconds = agreed_seconds();
    is_stopped_ = checkpoint_.should_stop();
    if (position_.step == 1) position_.loss_first = mean_loss();
    if (options_.until_gain && position_.seconds >= next_evaluation_) evaluate();
    if (position_.seconds >= next_report_) report(rate);
    if (options_.checkpoint_every > 0 && position_.step % options_.checkpoint_every == 0) save();
  }

  TrainingResult finish() {
    if (position_.step > start_.step) save();
    checkpoint_.wait();
    return {.position = position_,
            .images = (position_.step - start_.step) * options_.batch,
            .seconds = position_.seconds - start_.seconds,
            .is_stopped = is_stopped_ && !is_good_ && !is_used_up(options_, position_)};
  }

 private:
  using Clock = std::chrono::steady_clock;

  /// Returns rank 0's training time on all ranks. By clocks of their own they would stop at
  /// different steps, and wait for each other for ever.
  double agreed_seconds() const {
    const double own =
        start_.seconds + std::chrono::duration<double>(Clock::now() - start_time_).count();
    return ronde::broadcast(torch::tensor({own}, torch::kFloat64), {.name = "clock"})
        .item<double>();
  }

  /// Returns the last step's loss, averaged over the ranks. Waits for a GPU.
  double mean_loss() const {
    const torch::Tensor own = torch::stack({loss_, losses_}).to(torch::kFloat64).cpu();
    const torch::Tensor means = ronde::allreduce(own, {.name = "loss"});
    if (torch::isfinite(means).all().item<bool>()) return means[0].item<double>();
    throw example::InputError("training has diverged: by step " + std::to_string(position_.step) +
                              " a loss was not finite; lower --lr");
  }

  /// Ends training once it has reached the gain that was wanted. Takes a sixth of the time at most.
  void evaluate() {
    is_good_ = gain_() >= *options_.until_gain;
    const double before = std::exchange(position_.seconds, agreed_seconds());
    next_evaluation_ = position_.seconds + 5 * (position_.seconds - before);
  }

  /// Prints the time that the steps since the last report took on rank 0.
  void report(double rate) {
    const double loss = mean_loss();
    const ronde::Figures now = ronde::figures();  // of this rank, since init
    const auto mean_ms = [](const ronde::Distribution& after, const ronde::Distribution& before) {
      const auto count = static_cast<double>(after.count() - before.count());
      const auto total_ns = static_cast<double>(after.total_ns() - before.total_ns());
      return count > 0 ? total_ns / 1e6 / count : 0;
    };
    const double step_ms = mean_ms(now.step_time, before_.step_time);
    const double exposed_ms = mean_ms(now.exposed, before_.exposed);
    const auto images = static_cast<double>(now.samples - before_.samples) * ronde::size();
    const double images_per_s = images / (now.seconds - before_.seconds);
    before_ = now;
    if (ronde::rank() == 0) {
      std::printf(
          "step %lld: loss %.5f, rate %.2e, %.1f ms a step, %.1f ms of it waiting for gradients, "
          "%.1f images/s\n",
          static_cast<long long>(position_.step), loss, rate, step_ms, exposed_ms, images_per_s);
    }
    next_report_ = position_.seconds + kReportSeconds;
  }

  void save() {
    position_.loss_last = mean_loss();
    checkpoint_.save(position_.step);
  }

  ronde::Checkpoint& checkpoint_;
  Position& position_;
  const Options& options_;
  const std::function<double()>& gain_;
  const Position start_ = position_;
  const Clock::time_point start_time_ = Clock::now();
  ronde::Figures before_ = ronde::figures();
  torch::Tensor loss_;                       ///< of the last step, on this rank
  torch::Tensor losses_ = torch::zeros({});  ///< of all: one that is not finite stays in the sum
  double next_evaluation_ = 0;
  double next_report_ = 0;
  bool is_stopped_ = false;
  bool is_good_ = false;
};

/// Loads the newest checkpoint, if there is one. `config` is what was added to it.
void resume(ronde::Checkpoint& checkpoint, Position& position, std::string& config,
            const Options& options) {
  const std::string wanted = config;
  const std::optional<std::int64_t> step = checkpoint.resume();
  if (!step) return;
  position.step = *step;
  if (config == wanted) return;
  throw example::InputError("checkpoint in " + checkpoint_folder(options).string() +
                            " was written by a different run (" + config + " there, " + wanted +
                            " here); give the same options and photographs, or start anew without "
                            "--resume");
}

void set_learning_rate(torch::optim::Adam& adam, double learning_rate) {
  for (auto& group : adam.param_groups()) group.options().set_lr(learning_rate);
}

/// Returns the output as f32; with `amp` the network computes in bf16.
torch::Tensor forward(Edsr& network, const torch::Tensor& input, bool amp) {
  const ronde::Autocast autocast(input.device().type(), torch::kBFloat16, amp);
  return network->forward(input).to(torch::kFloat32);
}

}  // namespace

std::filesystem::path checkpoint_folder(const Options& options) {
  const std::filesystem::path& given = options.benchmark.checkpoint;
  return given.empty() ? options.output / "checkpoint" : given;
}

bool is_used_up(const Options& options, const Position& position) {
  return (options.steps > 0 && position.step >= options.steps) ||
         (options.minutes > 0 && position.seconds >= options.minutes * 60);
}

double learning_rate(const Options& options, std::int64_t step) {
  return std::ldexp(options.learning_rate, -static_cast<int>(step / options.lr_halve_every));
}

TrainingResult train(Edsr& network, std::shared_ptr<const std::vector<Photograph>> photographs,
                     torch::Device device, const Options& options,
                     const std::function<double()>& gain) {
  const std::int64_t samples = samples_per_epoch(options, photographs->size());
  const auto local_batch = static_cast<std::size_t>(options.batch / ronde::size());
  network->to(device);
  torch::optim::Adam adam(network->parameters(), options.learning_rate);
  ronde::DistributedOptimizer optimizer(adam, network->named_parameters(),
                                        {.samples_per_step = local_batch});

  Position position;
  std::string config = describe_run(options, samples);
  // A run that does not resume replaces the checkpoints of former ones.
  ronde::Checkpoint checkpoint(checkpoint_folder(options),
                               {.overwrite = true, .stop_signals = {SIGTERM}});
  checkpoint.add("network", network).add("adam", adam).add("config", config);
  checkpoint.add("epoch", position.epoch).add("step in epoch", position.step_in_epoch);
  checkpoint.add("seconds", position.seconds).add("first loss", position.loss_first);
  checkpoint.add("last loss", position.loss_last);
  if (options.benchmark.resume) resume(checkpoint, position, config, options);
  ronde::broadcast_parameters(*network, /*root_rank=*/0);
  ronde::broadcast_optimizer_state(adam, 0);

  PhotoDataset dataset(std::move(photographs), {.patch = options.patch,
                                                .scale = options.network.scale,
                                                .samples = samples,
                                                .seed = options.seed});
  ronde::DistributedSampler sampler(static_cast<std::size_t>(samples), {.seed = options.seed});
  auto loader = torch::data::make_data_loader(
      dataset.map(torch::data::transforms::Stack<>()), sampler,
      torch::data::DataLoaderOptions(local_batch).workers(options.workers));
  Bookkeeper run(checkpoint, position, options, gain);
  while (!run.finished()) {
    dataset.set_epoch(position.epoch);
    sampler.set_epoch(static_cast<std::size_t>(position.epoch),
                      static_cast<std::size_t>(position.step_in_epoch * options.batch));
    std::optional<ronde::Span> load("load batch");  // for `ronde prof report`
    for (const auto& batch : *loader) {
      load->add_bytes(batch.data.nbytes() + batch.target.nbytes());
      load.reset();
      set_learning_rate(adam, learning_rate(options, position.step));
      optimizer.zero_grad();
      const torch::Tensor output =
          forward(network, example::send_to(batch.data, device), options.benchmark.amp);
      const torch::Tensor loss = torch::l1_loss(output, example::send_to(batch.target, device));
      loss.backward();
      optimizer.step();
      run.step_done(loss);
      if (run.finished()) break;
      load.emplace("load batch");
    }
    if (position.step_in_epoch * options.batch == samples) {
      ++position.epoch;
      position.step_in_epoch = 0;
    }
  }
  const TrainingResult result = run.finish();
  ronde::check_replicas(*network);
  return result;
}

}  // namespace edsr
