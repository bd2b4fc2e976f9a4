// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/optim/optimizer.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ronde/process_set.h"
#include "torch_ext/src/common/agreement.h"
#include "torch_ext/src/gradients/optimizer_parameters.h"
#include "torch_ext/src/state/object_bytes.h"

namespace ronde::detail {

/// Compares the ranks' copies of what a DistributedOptimizer trains, as often as
/// RONDE_CHECK_REPLICAS says.
///
/// Note [Comparing replicas]
/// The ranks compare in a reduction of gradients, once all gradients are submitted and before any
/// rank steps. They must choose the same reduction, but a rank that has joined misses some: so they
/// count from the end of the set's last join, after which all have to train alike again. The
/// comparison uses operations of its own, so the schedule of all other steps stays as it is.
///
/// Note [Digests of steps]
/// In every step one reduction carries a digest (Request::digest) of the rank's numbers of
/// reductions and steps, its learning rates, and a window of its parameters and their state on the
/// CPU, which moves from step to step. If the digests differ, the ranks compare lines of text to
/// find the cause: one has dropped a step, schedules its rates by its own loss, or has written its
/// parameters. Rates are compared as f32, and differing windows only warn unless
/// RONDE_CHECK_REPLICAS has a number: processors of other hosts may round the optimizer's
/// arithmetic differently. With adasum_of_deltas a parameter's change carries the digest, which is
/// compared in the next step, and the optimizer's state is each rank's own.
class ReplicaCheck {
 public:
  /// Texts begin with `subject`. `options` outlive this.
  ReplicaCheck(const torch::optim::Optimizer& inner, std::string subject,
               const DistributedOptimizerOptions& options);

  /// Adds parameters, except local ones, to those that are compared.
  void watch(const std::vector<NamedParameter>& parameters);

  /// Returns the digest of this step for one of its reductions; 0 if nothing is compared. Call it
  /// once in each step.
  std::uint64_t digest();

  /// Submits the comparison, if one is due. Call it in each step. Collective.
  void start();

  /// Records whether the last digests agreed; if not, finish() compares their contents.
  void record_digests(bool agree) {
    if (!agree) differing_ = digested_;
  }

  /// Waits for the comparison, and compares the contents of digests that differed. Throws
  /// UsageError on all ranks of the set if the ranks differ, or warns. Collective.
  void finish();

  /// Counts a step of the inner optimizer.
  void count_step() noexcept { ++steps_; }

 private:
  /// A range of the elements of a parameter.
  struct Piece {
    std::size_t parameter = 0;
    std::int64_t first = 0;
    std::int64_t end = 0;
  };

  /// A group of the inner optimizer with parameters that are not local; others are each rank's own.
  struct Group {
    std::size_t index = 0;
    std::string text;  ///< names it by the first of these parameters
    bool has_rate = false;
  };
  /// The contents of a digest.
  struct Digested {
    std::uint64_t reductions = 0;
    std::uint64_t steps = 0;
    std::vector<double> rates;  ///< of groups_
    std::vector<Piece> window;
  };

  void restart() noexcept;
  void restart_after_join();
  bool is_due();
  const torch::optim::OptimizerOptions* options_of(const Group& group) const;
  double rate_of(const Group& group) const;
  StateSlots state_of(const NamedParameter& named) const;
  std::vector<std::string> describe_options() const;
  std::vector<std::string> describe_tensors() const;
  std::vector<std::string> describe_progress(const Digested& digested) const;
  std::vector<std::string> describe_window(const Digested& digested) const;
  void advance_window();
  std::vector<std::pair<std::string, std::uint64_t>> fingerprints(const Piece& piece) const;
  std::string difference(std::vector<std::string> lines, const char* advice) const;
  void refuse(const std::string& difference);
  void compare_window(const Digested& digested);

  const torch::optim::Optimizer& inner_;
  const std::string subject_;
  const DistributedOptimizerOptions& options_;
  const ProcessSet set_;
  const std::optional<std::uint64_t> period_;  ///< replica_check_period(); none for one rank
  std::vector<NamedParameter> parameters_;
  std::vector<Group> groups_;
  std::uint64_t joins_;                   ///< of the set, when `reductions_` was 0
  std::uint64_t reductions_ = 0;          ///< so far
  std::uint64_t steps_ = 0;               ///< of the inner optimizer, so far
  std::optional<Comparison> comparison_;  ///< between start() and finish()
  Digested digested_;                     ///< in the last digest
  std::optional<Digested> differing_;     ///< for finish() to compare; alike on all ranks
  Piece next_;                            ///< where the next window begins
  std::int64_t window_bytes_ = 0;
  int unexplained_ = 0;     ///< digests that differed though no line did
  bool has_window_ = true;  ///< false once a difference was reported, alike on all ranks
};

}  // namespace ronde::detail
