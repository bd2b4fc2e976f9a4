// SPDX-License-Identifier: Apache-2.0
// A program for chaos.py to break: chaos_train FOLDER STEPS. Trains a small net on any number of
// ranks up to four, saves every 20 steps, and fails unless each sample was seen once in each epoch.
// Where it is told to stop it saves and ends well, so that a later start goes on.
#include <ronde/torch.h>
#include <torch/torch.h>

#include <csignal>
#include <cstdlib>
#include <iostream>
#include <string>

namespace {

constexpr std::int64_t kSamples = 120;
constexpr std::int64_t kBatch = 12;
constexpr std::int64_t kLargestBatch = 3;  // of a rank, in one pass
constexpr std::int64_t kSaveEvery = 20;

class Training {
 public:
  explicit Training(const std::string& folder)
      : share_(ronde::share_batch(kBatch, kLargestBatch)),
        adam_(net_->parameters(), 0.002),
        optimizer_(
            adam_, net_->named_parameters(),
            {.backward_passes_per_step = share_.passes, .average_aggregated_gradients = true}),
        sampler_(kSamples, {.seed = 7}),
        checkpoint_(folder, {.stop_signals = {SIGTERM}}) {
    checkpoint_.add("net", net_).add("adam", optimizer_).add("sampler", sampler_);
    checkpoint_.add("seen", seen_);
    step_ = checkpoint_.resume().value_or(0);
    ronde::broadcast_parameters(*net_, 0);
    sampler_.reset();
  }

  void run(std::int64_t steps) {
    if (ronde::rank() == 0) std::cout << "from step " << step_ << std::endl;
    while (step_ < steps && !checkpoint_.should_stop()) {
      step();
      if (step_ % kSaveEvery == 0) save();
    }
    checkpoint_.save(step_);
    checkpoint_.wait();
    if (step_ < steps || ronde::rank() != 0) return;
    const torch::NoGradGuard no_grad;
    std::cout << "loss " << loss_of(torch::arange(kSamples)).item<double>() << std::endl;
  }

 private:
  void step() {
    at::Tensor now = torch::zeros_like(seen_);
    optimizer_.zero_grad();
    for (int pass = 0; pass < share_.passes; ++pass) {
      auto indices = sampler_.next(static_cast<std::size_t>(share_.batch));
      if (!indices) {
        sampler_.reset();
        indices = sampler_.next(static_cast<std::size_t>(share_.batch));
      }
      const at::Tensor rows =
          torch::tensor(std::vector<std::int64_t>(indices->begin(), indices->end()), at::kLong);
      now.index_add_(0, rows, torch::ones_like(rows));
      loss_of(rows).backward();
    }
    optimizer_.step();
    seen_ += ronde::allreduce(now, {.name = "seen", .op = ronde::ReduceOp::Sum});
    ++step_;
    const std::int64_t in_epoch = step_ * kBatch % kSamples;
    if (in_epoch == 0 && (seen_ != step_ * kBatch / kSamples).any().item<bool>()) {
      throw std::runtime_error("samples were left out, or seen twice, up to step " +
                               std::to_string(step_));
    }
  }

  at::Tensor loss_of(const at::Tensor& rows) {
    const at::Tensor x = rows.to(at::kFloat).unsqueeze(1) * torch::arange(1, 9) * 0.37;
    return torch::mse_loss(net_->forward(torch::sin(x)), torch::cos(x.slice(1, 2, 3)));
  }

  /// Training goes on where a disk is full.
  void save() {
    try {
      checkpoint_.save(step_);
    } catch (const ronde::UsageError& error) {
      if (ronde::rank() == 0) std::cout << error.what() << std::endl;
    }
  }

  ronde::BatchShare share_;
  torch::nn::Sequential net_{torch::nn::Linear(8, 32), torch::nn::Tanh(), torch::nn::Linear(32, 1)};
  torch::optim::Adam adam_;
  ronde::DistributedOptimizer optimizer_;
  ronde::DistributedSampler sampler_;
  at::Tensor seen_ = torch::zeros({kSamples}, at::kLong);  ///< how often, by all ranks
  ronde::Checkpoint checkpoint_;
  std::int64_t step_ = 0;
};

}  // namespace

int main(int count, char** words) {
  if (count != 3) return 2;
  try {
    torch::set_num_threads(1);
    torch::manual_seed(1);
    ronde::init();
    Training(words[1]).run(std::stoll(words[2]));
    ronde::shutdown();
  } catch (const std::exception& error) {
    std::cerr << error.what() << std::endl;
    return EXIT_FAILURE;
  }
  return EXIT_SUCCESS;
}
