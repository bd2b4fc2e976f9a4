// SPDX-License-Identifier: Apache-2.0
#include "training/train.h"

#include <ronde/torch.h>

#include <algorithm>
#include <iostream>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "common/device.h"
#include "common/errors.h"
#include "images/photo_dataset.h"
#include "training/group.h"
#include "training/loss_curve.h"
#include "training/progress_line.h"
#include "training/scalars.h"
#include "training/schedule.h"

namespace edsr {
namespace {

constexpr std::int64_t kPatchesPerPhotograph = 32;

void set_learning_rate(torch::optim::Adam& adam, double learning_rate) {
  for (auto& group : adam.param_groups()) group.options().set_lr(learning_rate);
}

/// What happens around the steps: clock, loss curve, progress, checkpoints.
class Bookkeeper {
 public:
  Bookkeeper(RunCheckpoint& checkpoint, const Options& options, const RunConfig& config,
             const Position& start, const std::function<double()>& gain)
      : checkpoint_(checkpoint),
        options_(options),
        config_(config),
        schedule_(options),
        gain_(gain),
        start_(start),
        position_(start),
        clock_(start.seconds),
        curve_(options.output / kLossCurveName, start.step),
        scalars_(options.output / kScalarsName, start.step),
        line_(ronde::rank() == 0, options.progress_seconds) {
    // The run before may have been killed after it had saved its last step.
    if (finished() && ronde::rank() == 0) {
      std::cout << "nothing left to train: the checkpoint has used " << start.step << " steps and "
                << start.seconds / 60 << " minutes, so it is only evaluated; to train on, raise "
                << "--steps or --minutes" << std::endl;
    }
  }

  const Position& position() const { return position_; }
  bool finished() const {
    return is_stopped_ || is_good_ || schedule_.finished(position_.step, clock_.seconds());
  }
  double learning_rate() const { return schedule_.learning_rate(position_.step); }

  /// Notes the step just done. Collective about once a second.
  void step_done(const torch::Tensor& loss) {
    const double learning_rate_used = learning_rate();
    ++position_.step;
    ++position_.step_in_epoch;
    curve_.add(position_.step, learning_rate_used, loss);
    is_stopped_ = checkpoint_.should_stop();
    const bool agreed = clock_.step_done();
    if (agreed && options_.until_gain && clock_.seconds() >= next_look_) look();
    const bool last = finished();
    if (last && !agreed) clock_.agree();
    if (agreed || last) report(learning_rate_used);
    if (options_.checkpoint_every > 0 && position_.step % options_.checkpoint_every == 0) save();
  }

  void epoch_done() {
    ++position_.epoch;
    position_.step_in_epoch = 0;
  }

  TrainingResult finish() {
    const double seconds = clock_.seconds() - start_.seconds;
    if (position_.step > start_.step) save();
    checkpoint_.finish();
    const bool is_done = is_good_ || schedule_.finished(position_.step, clock_.seconds());
    return {position_, images(), seconds, is_stopped_ && !is_done};
  }

 private:
  /// Ends training if it has reached what was wanted. Looking takes a sixth of the time at most.
  void look() {
    const double before = clock_.seconds();
    is_good_ = gain_() >= *options_.until_gain;
    clock_.agree();
    next_look_ = clock_.seconds() + 5 * (clock_.seconds() - before);
  }

  std::int64_t images() const { return (position_.step - start_.step) * config_.batch; }

  void report(double learning_rate_used) {
    curve_.flush();
    if (start_.step == 0) position_.loss_first = curve_.first();
    scalars_.write(position_.step, curve_.latest());
    const double seconds = clock_.seconds();
    line_.show(position_.step, schedule_.fraction(position_.step, seconds), seconds,
               curve_.latest(), learning_rate_used,
               static_cast<double>(images()) / std::max(seconds - start_.seconds, 1e-9));
  }

  void save() {
    curve_.flush();
    position_.loss_last = curve_.latest();
    position_.seconds = clock_.seconds();
    checkpoint_.save(position_);
  }

  RunCheckpoint& checkpoint_;
  const Options& options_;
  const RunConfig& config_;
  Schedule schedule_;
  const std::function<double()>& gain_;
  Position start_;
  Position position_;
  GroupClock clock_;
  LossCurve curve_;
  Scalars scalars_;
  ProgressLine line_;
  double next_look_ = 0;
  bool is_stopped_ = false;
  bool is_good_ = false;
};

/// How long a step waits for its batch: ronde prof report says when that is the limit.
constexpr std::string_view kLoadSpan = "load batch";

/// With `amp` in bf16; the result is f32 in any case.
torch::Tensor forward(Edsr& network, const torch::Tensor& input, bool amp) {
  const ronde::Autocast autocast(input.device().type(), torch::kBFloat16, amp);
  return network->forward(input).to(torch::kFloat32);
}

}  // namespace

std::filesystem::path checkpoint_folder(const Options& options) {
  const std::filesystem::path& given = options.benchmark.checkpoint;
  return given.empty() ? options.output / kCheckpointName : given;
}

RunConfig run_config(const Options& options, std::size_t photographs) {
  // Whole batches make an epoch, so that no sample is dropped whatever the number of ranks.
  const std::int64_t wanted = static_cast<std::int64_t>(photographs) * kPatchesPerPhotograph;
  const std::int64_t batches = (wanted + options.batch - 1) / options.batch;
  return {.network = options.network,
          .batch = options.batch,
          .patch = options.patch,
          .samples = batches * options.batch,
          .seed = options.seed};
}

TrainingResult train(Edsr& network, std::shared_ptr<const std::vector<Photograph>> photographs,
                     torch::Device device, const Options& options,
                     const std::function<double()>& gain) {
  const RunConfig config = run_config(options, photographs->size());
  network->to(device);
  torch::optim::Adam adam(network->parameters(), options.learning_rate);
  const auto local_batch = static_cast<std::size_t>(options.batch / ronde::size());
  ronde::DistributedOptimizer optimizer(adam, network->named_parameters(),
                                        {.samples_per_step = local_batch});
  RunCheckpoint checkpoint(checkpoint_folder(options), network, adam, config);
  const Position start = options.benchmark.resume ? checkpoint.resume() : Position();
  ronde::broadcast_parameters(*network, /*root_rank=*/0);
  ronde::broadcast_optimizer_state(adam, 0);

  PhotoDataset dataset(std::move(photographs), {.patch = options.patch,
                                                .scale = options.network.scale,
                                                .samples = config.samples,
                                                .seed = options.seed});
  ronde::DistributedSampler sampler(static_cast<std::size_t>(config.samples),
                                    {.seed = options.seed});
  auto loader = torch::data::make_data_loader(
      dataset.map(torch::data::transforms::Stack<>()), sampler,
      torch::data::DataLoaderOptions(local_batch).workers(options.workers));

  Bookkeeper run(checkpoint, options, config, start, gain);
  while (!run.finished()) {
    const Position& position = run.position();
    dataset.set_epoch(position.epoch);
    sampler.set_epoch(static_cast<std::size_t>(position.epoch),
                      static_cast<std::size_t>(position.step_in_epoch * config.batch));
    std::optional<ronde::Span> load(kLoadSpan);
    for (const auto& batch : *loader) {
      load->add_bytes(batch.data.nbytes() + batch.target.nbytes());
      load.reset();
      set_learning_rate(adam, run.learning_rate());
      optimizer.zero_grad();
      const torch::Tensor output =
          forward(network, example::send_to(batch.data, device), options.benchmark.amp);
      const torch::Tensor loss = torch::l1_loss(output, example::send_to(batch.target, device));
      loss.backward();
      optimizer.step();
      run.step_done(loss);
      if (run.finished()) break;
      load.emplace(kLoadSpan);
    }
    load.reset();
    if (position.step_in_epoch * config.batch == config.samples) run.epoch_done();
  }
  return run.finish();
}

}  // namespace edsr
