// SPDX-License-Identifier: Apache-2.0
// A program for tests of elastic jobs: elastic_train FOLDER STEPS [SLOT:STEP:HOW ...]. Trains a
// small net with dropout and batch norm on any number of ranks up to four, and fails unless each
// sample was seen once in each epoch. The rank in SLOT fails at STEP, once in the job: HOW is kill
// or stop (in the body), term (it is told to leave), abort (it fails the group and lives), change
// (killed while the optimizer changes parameters), throw (a user's error), or enter (killed as it
// enters the body of a group from that step). Rank 0 prints the digest of the parameters in the
// end.
#include <ronde/torch.h>
#include <torch/torch.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <sstream>
#include <string>
#include <vector>

namespace {

constexpr std::int64_t kSamples = 120;
constexpr std::int64_t kBatch = 12;
constexpr std::int64_t kLargestBatch = 3;  // of a rank, in one pass

class Training {
 public:
  Training(std::string folder, std::int64_t steps, std::vector<std::string> faults)
      : folder_(std::move(folder)), steps_(steps), faults_(std::move(faults)) {
    state_.after_step([this] {
      fail_if_wanted("change", state_.step);
      seen_ += now_;
      schedule_.step();
    });
  }

  int run() {
    return ronde::elastic::run(state_, {.seed = 7, .drain_signals = {SIGTERM}},
                               [this] { train(); });
  }

 private:
  static std::ptrdiff_t entries(const char* folder) {
    const std::filesystem::directory_iterator all(folder);
    return std::distance(begin(all), end(all));
  }

  void train() {
    const auto share = ronde::share_batch(kBatch, kLargestBatch);
    std::ostringstream line;
    line << "enters: slot " << slot() << " is rank " << ronde::rank() << " of " << ronde::size()
         << " from step " << state_.step << ", process " << getpid() << " with "
         << entries("/proc/self/fd") << " descriptors, " << entries("/proc/self/task")
         << " threads\n";
    std::cout << line.str() << std::flush;
    fail_if_wanted("enter", state_.step);
    ronde::DistributedOptimizer optimizer(
        adam_, net_->named_parameters(),
        {.backward_passes_per_step = share.passes, .average_aggregated_gradients = true});
    sampler_.reset();
    while (state_.step < steps_) {
      now_.zero_();
      optimizer.zero_grad();
      for (int pass = 0; pass < share.passes; ++pass) backward(share.batch);
      now_ = ronde::allreduce(now_, {.name = "seen", .op = ronde::ReduceOp::Sum});
      for (const char* const how : {"kill", "stop", "throw", "abort", "term"})
        fail_if_wanted(how, state_.step);
      optimizer.step();
      check_samples();
    }
    if (ronde::rank() == 0) std::cout << "digest " << digest() << std::endl;
  }

  void backward(std::int64_t batch) {
    auto indices = sampler_.next(static_cast<std::size_t>(batch));
    if (!indices) {
      sampler_.reset();
      indices = sampler_.next(static_cast<std::size_t>(batch));
    }
    const at::Tensor rows =
        torch::tensor(std::vector<std::int64_t>(indices->begin(), indices->end()), at::kLong);
    now_.index_add_(0, rows, torch::ones_like(rows));
    const at::Tensor x = rows.to(at::kFloat).unsqueeze(1) * torch::arange(1, 9) * 0.37;
    torch::mse_loss(net_->forward(torch::sin(x)), torch::cos(x.slice(1, 2, 3))).backward();
  }

  void check_samples() const {
    const std::int64_t in_epoch = state_.step * kBatch % kSamples;
    if (in_epoch == 0 && (seen_ != state_.step * kBatch / kSamples).any().item<bool>()) {
      throw std::runtime_error("samples were left out, or seen twice, up to step " +
                               std::to_string(state_.step));
    }
  }

  static int slot() { return std::atoi(std::getenv("RANK")); }

  void fail_if_wanted(const std::string& how, std::int64_t step) const {
    const std::string fault = std::to_string(slot()) + ":" + std::to_string(step) + ":" + how;
    const std::string done = folder_ + "/" + fault;
    if (std::ranges::find(faults_, fault) == faults_.end() || std::filesystem::exists(done)) return;
    std::ofstream(done).close();
    std::cout << "fails: " << fault << std::endl;
    if (how == "abort") return ronde::abort("it is wanted");
    if (how == "term") return static_cast<void>(raise(SIGTERM));
    if (how == "throw") throw std::runtime_error("a user's error");
    raise(how == "stop" ? SIGSTOP : SIGKILL);
  }

  /// FNV-1a of the parameters' bits.
  std::uint64_t digest() const {
    std::uint64_t hash = 14695981039346656037ULL;
    for (const at::Tensor& parameter : net_->parameters()) {
      const auto* const bytes = static_cast<const unsigned char*>(parameter.const_data_ptr());
      for (std::size_t i = 0; i < parameter.nbytes(); ++i)
        hash = (hash ^ bytes[i]) * 1099511628211ULL;
    }
    return hash;
  }

  const std::string folder_;
  const std::int64_t steps_;
  const std::vector<std::string> faults_;
  torch::nn::Sequential net_{torch::nn::Linear(8, 32), torch::nn::BatchNorm1d(32),
                             torch::nn::Dropout(0.1), torch::nn::Tanh(), torch::nn::Linear(32, 1)};
  torch::optim::Adam adam_{net_->parameters(), 0.002};
  torch::optim::StepLR schedule_{adam_, 50, 0.9};
  ronde::DistributedSampler sampler_{kSamples, {.seed = 7}};
  at::Tensor seen_ = torch::zeros({kSamples}, at::kLong);  ///< how often, by all ranks
  at::Tensor now_ = torch::zeros({kSamples}, at::kLong);   ///< in the step that runs
  ronde::elastic::State state_{{"net", net_},
                               {"adam", adam_},
                               {"schedule", schedule_},
                               {"sampler", sampler_},
                               {"seen", seen_}};
};

}  // namespace

int main(int count, char** words) {
  if (count < 3) return 2;
  try {
    torch::set_num_threads(1);
    torch::manual_seed(1);
    return Training(words[1], std::stoll(words[2]), {words + 3, words + count}).run();
  } catch (const std::exception& error) {
    std::cerr << error.what() << std::endl;
    return EXIT_FAILURE;
  }
}
