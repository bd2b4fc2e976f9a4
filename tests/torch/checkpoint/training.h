// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <set>

#include "tests/support/processes/temporary_folder.h"
#include "tests/torch/support.h"

/// Runs that save and resume.
namespace ronde_test::checkpoints {

namespace fs = std::filesystem;

/// That of rank 0, on all ranks.
class SharedFolder {
 public:
  SharedFolder() : path_(folder_.path().string()) { ronde::broadcast_object(path_); }
  ~SharedFolder() { ronde::barrier(); }

  fs::path path() const { return path_; }

 private:
  const ronde::test::TemporaryFolder folder_;
  std::string path_;
};

constexpr std::int64_t kSamples = 48;

struct Options {
  int seed = 1;
  std::size_t batch = 2;
  ronde::CheckpointOptions checkpoint = {};
};

/// Everything that a training program has.
struct Training {
  Training(const fs::path& folder, const Options& options)
      : set(options.checkpoint.process_set),
        batch(options.batch),
        adam(net->parameters(), torch::optim::AdamOptions(0.01).amsgrad(true)),
        optimizer(adam, net->named_parameters(), {.process_set = set}),
        warmup(adam, {.steps = 7, .scale = 3}),
        other(Tensors{torch::ones({2}, torch::requires_grad())}, 1.0),
        decay(other, 4, 0.5),
        sampler(static_cast<std::size_t>(kSamples), {.seed = 11, .process_set = set}),
        checkpoint(folder, options.checkpoint) {
    fill_normal(net->parameters(), options.seed);
    ronde::broadcast_parameters(*net, 0, set);
    ronde::seed_all_ranks(static_cast<std::uint64_t>(options.seed), set);
    checkpoint.add("net", net).add("adam", optimizer).add("warmup", warmup);
    checkpoint.add("other", other).add("decay", decay);
    checkpoint.add("sampler", sampler).add("loss", loss).add("mask", mask).add("note", note);
    checkpoint.add("scaler", scaler).add_local("own", own);
    mask = torch::arange(kSamples);
  }

  void run(int until, const std::set<int>& saves = {}) {
    while (steps < until) {
      if (!begun) sampler.reset();
      begun = true;
      const auto indices = sampler.next(batch);
      if (!indices) {
        begun = false;
        continue;
      }
      step(*indices);
      if (saves.contains(steps)) checkpoint.save(steps);
    }
  }

  /// Runs until this step, and saves it.
  void save_at(int step) {
    run(step, {step});
    checkpoint.wait();
  }

  void step(const std::vector<std::size_t>& indices) {
    Tensors rows;
    for (const std::size_t index : indices) {
      rows.push_back(normal({1, 5}, static_cast<std::int64_t>(index), at::kFloat));
      seen.push_back(static_cast<std::int64_t>(index));
    }
    const at::Tensor data = torch::cat(rows);
    optimizer.zero_grad();
    const at::Tensor result = net->forward(data.slice(1, 0, 4));
    const at::Tensor value = torch::mse_loss(result, data.slice(1, 4));
    scaler.scale(value).backward();
    scaler.step(optimizer);
    scaler.update();
    warmup.step();
    decay.step();
    loss = value.item<double>();
    note = "step " + std::to_string(++steps);
    own += static_cast<std::int64_t>(indices[0]);
  }

  std::optional<std::int64_t> resume() {
    const std::optional<std::int64_t> step = checkpoint.resume();
    steps = static_cast<int>(step.value_or(0));
    return step;
  }

  /// All that must come back, and what is drawn next. Buffers are rank 0's.
  std::string state() {
    std::string all = note + " " + std::to_string(loss) + " " + std::to_string(own) + " " +
                      std::to_string(sampler.position()) + " " +
                      std::to_string(scaler.get_scale()) + " " +
                      std::to_string(other.param_groups()[0].options().get_lr());
    Tensors tensors = {flatten(net->parameters()), torch::rand({3})};
    if (ronde::rank() == 0) tensors.push_back(flatten(net->buffers()));
    for (const at::Tensor& tensor : tensors) {
      all.append(static_cast<const char*>(tensor.const_data_ptr()), tensor.nbytes());
    }
    return all;
  }

  ProcessSet set;
  std::size_t batch;
  torch::nn::Sequential net{torch::nn::Linear(4, 8), torch::nn::BatchNorm1d(8), torch::nn::ReLU(),
                            torch::nn::Dropout(0.4), torch::nn::Linear(8, 1)};
  torch::optim::Adam adam;
  DistributedOptimizer optimizer;
  ronde::WarmupLR warmup;
  torch::optim::SGD other;
  torch::optim::StepLR decay;
  ronde::DistributedSampler sampler;
  ronde::GradScaler scaler{{.init_scale = 1024, .growth_interval = 4}};
  ronde::Checkpoint checkpoint;
  double loss = 0;
  std::int64_t own = 0;
  at::Tensor mask;
  std::string note;
  std::vector<std::int64_t> seen;
  int steps = 0;
  bool begun = false;
};

inline std::vector<fs::path> files_in(const fs::path& folder, const std::string& ending) {
  std::vector<fs::path> all;
  for (const auto& file : fs::recursive_directory_iterator(folder)) {
    if (file.path().string().ends_with(ending)) all.push_back(file.path());
  }
  std::sort(all.begin(), all.end());
  return all;
}

/// On rank 0, between two barriers.
inline void on_rank_0(const std::function<void()>& action) {
  ronde::barrier();
  if (ronde::rank() == 0) action();
  ronde::barrier();
}

/// Changes one bit of the tensor `mask`, and returns whether this part has it.
inline bool damage_mask(const fs::path& part) {
  std::string bytes = ronde::test::read_text(part);
  const std::size_t at = bytes.find(std::string("\x15\0\0\0\0\0\0\0\x16\0\0\0", 12));
  if (at == std::string::npos) return false;
  bytes[at + 3] ^= 1;
  ronde::test::write_bytes(part, bytes);
  return true;
}

inline fs::path newest_in(const fs::path& folder) {
  return files_in(folder, "manifest.json").back().parent_path();
}

inline void damage_newest(const fs::path& folder) {
  int damaged = 0;
  for (const fs::path& part : files_in(newest_in(folder), ".pt")) damaged += damage_mask(part);
  REQUIRE(damaged == 1);
}

/// Saves at these steps, in a run of its own.
inline void save_run(const fs::path& folder, const std::set<int>& steps, Options options = {}) {
  Training training(folder, options);
  CHECK_FALSE(training.resume());
  training.run(*steps.rbegin(), steps);
  training.checkpoint.wait();
}

}  // namespace ronde_test::checkpoints
