// SPDX-License-Identifier: Apache-2.0
// A program for tests of elastic jobs: elastic_train FOLDER STEPS [MODE ...] [SLOT:STEP:HOW ...].
// Trains a small net with dropout and batch norm on a number of ranks that divides 48, and fails
// unless each sample was seen once in each epoch. The rank in SLOT fails at STEP, once in the job:
// HOW is kill or stop (in the body), term (it is told to leave), abort (it fails the group and
// lives), change (killed while the optimizer changes parameters), between (killed between the steps
// of a round), save (killed while it saves a checkpoint), set (killed in an operation of a process
// set), throw (a user's error), or enter (killed as it enters the body of a group from that step).
// MODE is round (two optimizers), save (a checkpoint every 20 steps, from which a job goes on whose
// ranks are all lost), set (an operation of a process set in each step), large (each body gathers
// 32 MiB of each rank), or norms (State has the buffers of ResNet-50, too; stats() is printed).
// Rank 0 prints the digest of the parameters in the end.
#include <malloc.h>
#include <ronde/torch.h>
#include <torch/torch.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

namespace {

constexpr std::int64_t kSamples = 240;
constexpr std::int64_t kBatch = 48;
constexpr std::int64_t kLargestBatch = 12;  // of a rank, in one pass
constexpr std::int64_t kSavePeriod = 20;

/// The batch norms of ResNet-50, without their places in it.
torch::nn::Sequential norms_of_resnet50() {
  torch::nn::Sequential norms(torch::nn::BatchNorm2d(64));
  std::int64_t width = 64;
  for (const int blocks : {3, 4, 6, 3}) {
    for (int block = 0; block < blocks; ++block) {
      for (const auto each : {width, width, 4 * width})
        norms->push_back(torch::nn::BatchNorm2d(each));
    }
    norms->push_back(torch::nn::BatchNorm2d(4 * width));
    width *= 2;
  }
  return norms;
}

class Training {
 public:
  Training(std::string folder, std::int64_t steps, std::vector<std::string> words)
      : folder_(std::move(folder)), steps_(steps), words_(std::move(words)) {
    state_.after_step([this] {
      fail_if_wanted("change", state_.step);
      seen_ += now_;
      schedule_.step();
    });
  }

  int run() {
    ronde::elastic::Options options{.seed = 7, .drain_signals = {SIGTERM}};
    if (has("round")) options.steps_per_round = 2, options.steps_with_batches = 1;
    if (has("save")) options.resume = [this] { return checkpoint()->resume().value_or(0); };
    return ronde::elastic::run(state_, options, [this] { train(); });
  }

  /// A part of the checkpoint that each rank writes.
  void save(torch::serialize::OutputArchive& /*archive*/) const {
    fail_if_wanted("save", state_.step);
  }
  void load(torch::serialize::InputArchive& /*archive*/) {}

 private:
  bool has(const std::string& word) const {
    return std::ranges::find(words_, word) != words_.end();
  }

  std::unique_ptr<ronde::Checkpoint> checkpoint() {
    auto saved = std::make_unique<ronde::Checkpoint>(folder_ + "/checkpoints",
                                                     ronde::CheckpointOptions{.overwrite = true});
    saved->add("net", net_).add("adam", adam_).add("schedule", schedule_).add("seen", seen_);
    saved->add("sampler", sampler_, [this] { return (state_.step * kBatch - 1) % kSamples + 1; });
    saved->add_local("fault", *this);
    return saved;
  }

  static std::ptrdiff_t entries(const std::string& folder) {
    const std::filesystem::directory_iterator all(folder);
    return std::distance(begin(all), end(all));
  }

  /// Returns how much malloc has given out, and how much is mapped to be shared. Resident memory
  /// would count what malloc keeps of threads that have ended, which differs from run to run.
  static std::size_t held_KiB() {
    const struct mallinfo2 heap = mallinfo2();
    std::size_t bytes = heap.uordblks + heap.hblkhd;
    std::ifstream mappings("/proc/self/maps");
    for (std::string line; std::getline(mappings, line);) {
      std::size_t begin = 0;
      std::size_t end = 0;
      char shared = 0;
      if (std::sscanf(line.c_str(), "%zx-%zx %*3c%c", &begin, &end, &shared) != 3)
        throw std::runtime_error("cannot read /proc/self/maps: " + line);
      if (shared == 's') bytes += end - begin;
    }
    return bytes / 1024;
  }

  /// Returns how much a process has mapped for itself, malloc's heaps and stacks among it.
  static long private_KiB() {
    std::ifstream status("/proc/self/status");
    long amount = -1;
    for (std::string line; amount < 0 && std::getline(status, line);)
      std::sscanf(line.c_str(), "VmData: %ld kB", &amount);
    return amount;
  }

  void train() {
    const auto share = ronde::share_batch(kBatch, kLargestBatch);
    std::ostringstream line;
    line << "enters: slot " << slot() << " is rank " << ronde::rank() << " of " << ronde::size()
         << " from step " << state_.step << ", process " << getpid() << " with "
         << entries("/proc/self/fd") << " descriptors, " << entries("/proc/self/task")
         << " threads, " << held_KiB() << " KiB of " << private_KiB() << ", its launcher with "
         << entries("/proc/" + std::to_string(getppid()) + "/fd") << " descriptors\n";
    std::cout << line.str() << std::flush;
    fail_if_wanted("enter", state_.step);
    if (has("large")) static_cast<void>(ronde::allgather(torch::ones({std::int64_t{1} << 23})));
    const ronde::DistributedOptimizerOptions options{.backward_passes_per_step = share.passes,
                                                     .average_aggregated_gradients = true};
    ronde::DistributedOptimizer optimizer(adam_, net_->named_parameters(), options);
    std::optional<ronde::DistributedOptimizer> second;
    if (has("round")) second.emplace(second_adam_, second_->named_parameters(), options);
    const auto saved = has("save") ? checkpoint() : nullptr;
    const auto set =
        has("set") ? ronde::add_process_set({0, ronde::size() - 1}) : ronde::kGlobalSet;
    sampler_.reset();
    while (state_.step < steps_) {
      if (has("norms")) cold_.add_(1);  // as a real step leaves the caches
      now_.zero_();
      optimizer.zero_grad();
      if (second) second->zero_grad();
      for (int pass = 0; pass < share.passes; ++pass) backward(share.batch);
      now_ = ronde::allreduce(now_, {.name = "seen", .op = ronde::ReduceOp::Sum});
      for (const char* const how : {"kill", "stop", "throw", "abort", "term"})
        fail_if_wanted(how, state_.step);
      if (has("set")) use(set);
      optimizer.step();
      fail_if_wanted("between", state_.step);
      if (second) second->step();
      check_samples();
      if (saved && state_.step % kSavePeriod == 0) saved->save(state_.step);
    }
    if (ronde::rank() == 0) {
      std::cout << "digest " << digest() << std::endl;
      if (has("norms")) std::cout << "stats " << ronde::stats() << std::endl;
    }
  }

  void use(ronde::ProcessSet set) const {
    if (!ronde::rank_in(set)) return;
    at::Tensor large = torch::ones({std::int64_t{1} << 18});
    const auto work = ronde::allreduce_async_(large, {.name = "in a set", .process_set = set});
    fail_if_wanted("set", state_.step);
    static_cast<void>(work.wait());
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
    at::Tensor y = net_->forward(torch::sin(x));
    if (has("round")) y = y + second_->forward(torch::cos(x));
    torch::mse_loss(y, torch::cos(x.slice(1, 2, 3))).backward();
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
    if (!has(fault) || std::filesystem::exists(done)) return;
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
    for (const auto& parameters : {net_->parameters(), second_->parameters()}) {
      for (const at::Tensor& parameter : parameters) {
        const auto* const bytes = static_cast<const unsigned char*>(parameter.const_data_ptr());
        for (std::size_t i = 0; i < parameter.nbytes(); ++i)
          hash = (hash ^ bytes[i]) * 1099511628211ULL;
      }
    }
    return hash;
  }

  const std::string folder_;
  const std::int64_t steps_;
  const std::vector<std::string> words_;
  torch::nn::Sequential net_{torch::nn::Linear(8, 32), torch::nn::BatchNorm1d(32),
                             torch::nn::Dropout(0.1), torch::nn::Tanh(), torch::nn::Linear(32, 1)};
  torch::optim::Adam adam_{net_->parameters(), 0.002};
  torch::optim::StepLR schedule_{adam_, 50, 0.9};
  torch::nn::Linear second_{8, 1};
  torch::optim::Adam second_adam_{second_->parameters(), 0.002};
  torch::nn::Sequential norms_ = has("norms") ? norms_of_resnet50() : torch::nn::Sequential();
  at::Tensor cold_ = torch::zeros({has("norms") ? std::int64_t{1} << 24 : 1});
  ronde::DistributedSampler sampler_{kSamples, {.seed = 7}};
  at::Tensor seen_ = torch::zeros({kSamples}, at::kLong);  ///< how often, by all ranks
  at::Tensor now_ = torch::zeros({kSamples}, at::kLong);   ///< in the step that runs
  ronde::elastic::State state_{{"net", net_},
                               {"adam", adam_},
                               {"schedule", schedule_},
                               {"second", second_},
                               {"second_adam", second_adam_},
                               {"norms", norms_},
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
