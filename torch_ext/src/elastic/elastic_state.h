// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ronde/torch/elastic.h"
#include "torch_ext/src/checkpoint/loader.h"
#include "torch_ext/src/checkpoint/stop_signals.h"
#include "torch_ext/src/common/counters.h"
#include "torch_ext/src/optimizer/step_observer.h"
#include "torch_ext/src/training/sampler_ledger.h"

namespace ronde::elastic {

/// Keeps what a step began with, and gives the state to ranks that lack it.
///
/// Thread-safety: none.
class State::Impl final : public detail::StepObserver {
 public:
  /// `step`: State::step.
  explicit Impl(std::int64_t& step) : step_(step) {}

  void add(detail::NamedObject object, DistributedSampler* sampler);
  void after_step(std::function<void()> function) { after_step_.push_back(std::move(function)); }

  /// Gives every rank of the group the state of the last step that any of them has completed, or
  /// where none has any, what rank 0 has or resumes from. Collective.
  void enter(const Options& options, int slot);
  /// Signals by which this rank leaves the job; they outlive the steps.
  void drain_by(const detail::StopSignals& signals) { drains_ = &signals; }

  void begin(const void* optimizer, const DistributedOptimizerOptions& options,
             std::string_view kind) override;
  void change() noexcept override { is_whole_ = false; }
  void commit(int passes) override;

 private:
  struct Sampler {
    std::string name;
    DistributedSampler* sampler;
    EpochPlace place = {};                  ///< behind the batches of the steps
    std::optional<std::size_t> ahead = {};  ///< batches that the loader takes ahead
  };

  std::vector<int> holders(bool resumes);
  void begin_job(const std::function<std::int64_t()>& load);
  void receive(const std::vector<int>& holders);
  void save_buffers();
  void restore_buffers();
  void keep_copy();
  void restore_copy();
  void use_batches(Sampler& sampler, int passes);
  void seed_generators() const;

  std::int64_t& step_;
  std::vector<detail::NamedObject> objects_;
  std::vector<Sampler> samplers_;
  std::vector<std::function<void()>> after_step_;
  bool has_state_ = false;                             ///< this process was in a group
  bool is_whole_ = true;                               ///< the objects are those of step_
  const void* optimizer_ = nullptr;                    ///< that steps in this group
  int steps_per_round_ = 1, steps_with_batches_ = 1;   ///< of Options
  int steps_ = 0, passes_ = 0;                         ///< of the present round, those with batches
  detail::LoadedCheckpoint copy_;                      ///< of the state before the round
  std::uint64_t copied_bytes_ = 0;                     ///< that the log has told of
  std::shared_ptr<detail::ElasticCounters> counters_;  ///< of this group
  const detail::StopSignals* drains_ = nullptr;
  std::uint64_t seed_ = 0;
  int slot_ = 0;
  /// Buffers, such as those of batch norms, and their values at the end of the last step.
  std::vector<std::pair<at::Tensor, at::Tensor>> buffers_;
};

}  // namespace ronde::elastic
