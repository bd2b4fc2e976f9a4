// SPDX-License-Identifier: Apache-2.0
#include "ronde/persistent.h"

#include <memory>
#include <utility>

#include "core/src/base/after_fork.h"
#include "core/src/base/rank_list.h"
#include "core/src/loop/engine.h"
#include "ronde/error.h"

namespace ronde {

/// A persistent operation of one engine, which it does not keep alive.
class PersistentState {
 public:
  PersistentState(const std::shared_ptr<Engine>& engine, Preparation preparation)
      : engine_(engine), rank_(engine->topology().rank), preparation_(std::move(preparation)) {}

  ~PersistentState() {
    if (fork_depth() != fork_depth_) return;
    if (const auto engine = engine_.lock()) engine->submitter().unprepare(preparation_);
  }
  PersistentState(const PersistentState&) = delete;
  PersistentState& operator=(const PersistentState&) = delete;

  bool has_ended() const noexcept { return engine_.expired(); }

  Work start(Start start) {
    if (fork_depth() != fork_depth_) throw error_after_fork(name() + ": PersistentOp::start()");
    const std::shared_ptr<Engine> engine = engine_.lock();
    if (!engine) {
      throw UsageError(rank_name(rank_) + ": " + name() +
                       ": the Runtime that prepared it has ended: prepare it again");
    }
    try {
      return engine->submitter().start(preparation_, std::move(start));
    } catch (const GroupError&) {
      engine->note_told();
      throw;
    }
  }

 private:
  std::string name() const { return display_name(*preparation_.spec, preparation_.spec->name); }

  const std::weak_ptr<Engine> engine_;
  const int rank_;  ///< of the group
  const Preparation preparation_;
  const int fork_depth_ = fork_depth();
};

PersistentOp::operator bool() const noexcept {
  return state_ != nullptr && !state_->has_ended();
}

Work PersistentOp::start(Start start) const {
  if (!state_) throw UsageError("a PersistentOp was started that Runtime::prepare() did not make");
  return state_->start(std::move(start));
}

PersistentOp Engine::prepare(Request request) {
  return PersistentOp(std::make_shared<PersistentState>(shared_from_this(),
                                                        submitter_->prepare(std::move(request))));
}

}  // namespace ronde
