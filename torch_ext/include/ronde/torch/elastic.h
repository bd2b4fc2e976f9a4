// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ronde/reform.h"
#include "ronde/torch/checkpoint_object.h"
#include "ronde/torch/distributed_sampler.h"

/// Training that goes on when a rank dies: docs/elastic.md.
namespace ronde::elastic {

/// What a rank that joins a running job needs: objects that are equal on all ranks between two
/// steps, and the number of steps taken.
///
/// Thread-safety: none; use it on the thread that trains.
class State {
 public:
  /// An object as Checkpoint::add takes it, which outlives the State, under a name of its own.
  class Object {
   public:
    /// Anything but a sampler.
    template <typename T>
    Object(std::string name, T& object)
        : name_(std::move(name)), object_(detail::checkpoint_object(object)) {}
    /// The place that is kept is behind the batches that steps have used, one for each backward
    /// pass, also where a loader with workers takes batches ahead.
    Object(std::string name, DistributedSampler& sampler);

   private:
    friend class State;
    std::string name_;
    detail::CheckpointObject object_;
    DistributedSampler* sampler_ = nullptr;
  };

  /// Throws UsageError for a name that is empty, has a "/", or comes twice.
  State(std::initializer_list<Object> objects);
  ~State();
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  /// Adds a function that each step calls once, at its end: what else a step changes (schedulers,
  /// averages of weights) is changed there, so that it belongs to the step. It must not call Ronde.
  void after_step(std::function<void()> function);

  /// The steps taken, or rounds of them, to be read: DistributedOptimizer::step() adds one.
  std::int64_t step = 0;

  class Impl;
  /// For ronde::elastic::run().
  Impl& impl() noexcept { return *impl_; }

 private:
  std::unique_ptr<Impl> impl_;
};

/// Options of run(). Equal on all ranks.
struct Options {
  /// The job ends where fewer ranks are left; `ronde run --min-ranks` goes before it.
  int min_ranks = 1;
  /// Before each step LibTorch's generators are seeded from this, the rank's slot and the step, so
  /// that a step that is repeated draws the same numbers.
  std::uint64_t seed = 0;
  /// Signals, such as {SIGTERM}, after which a rank of an elastic job leaves at the end of its
  /// step: run() returns, and the others go on without it. Not those that stop the whole job
  /// (CheckpointOptions::stop_signals).
  std::vector<int> drain_signals = {};
  /// Where a round of the training loop steps several times, as with two optimizers: how often.
  /// State::step then counts rounds, at whose end all that a step does here is done. A copy of the
  /// State is kept for each round; the log says what it takes.
  int steps_per_round = 1;
  /// So many steps of a round, the first ones, use a batch of the State's samplers in each backward
  /// pass, and the others none. 0: all do.
  int steps_with_batches = 0;
  /// Called on all ranks of a group where none has a state, as when the job begins: loads the
  /// objects from a checkpoint (Checkpoint::resume()), and returns its step, or 0. Null: none.
  std::function<std::int64_t()> resume = {};
};

/// Runs `body` in the groups of an elastic job (`ronde run --elastic`), one after the other: starts
/// Ronde, gives every rank the state of the step that was last completed, and calls `body`, which
/// constructs the DistributedOptimizer, and trains until state.step is what it wants. Where a rank
/// is lost, the GroupError ends the body, and all this begins again with those that live, and
/// replacements. Then ronde::shutdown(). Returns 0, the exit code.
///
/// A step is repeated only if no rank has completed it; one that any rank has completed is taken
/// over by all. So nothing goes back, and the body must not change the state between two steps but
/// in after_step().
///
/// In a job that is not elastic it calls ronde::init(), unless the program has, and the body once.
///
/// Throws what the body throws, but GroupErrors of an elastic job; UsageError if the program has
/// called ronde::init() in an elastic job, if objects of the State differ between ranks, for LBFGS,
/// Adasum of deltas, local parameters, and a second optimizer where a round is one step; Error if
/// no rank is left that holds the state of a whole step, or the launcher is gone.
int run(State& state, const Options& options, const std::function<void()>& body);

}  // namespace ronde::elastic
