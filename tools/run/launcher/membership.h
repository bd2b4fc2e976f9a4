// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tools/run/base/frames.h"
#include "tools/run/base/poll.h"

namespace ronde::tool::launch {

/// Decides which ranks of an elastic job make its group: Note [Members of an elastic job]. A slot
/// is the place of a rank in the job, which its replacement takes over.
///
/// Thread-safety: none.
class Membership {
 public:
  struct Actions {
    std::function<void(int slot, const Json& message)> tell;
    std::function<void(int slot)> replace;  ///< starts a process in a slot whose last one has ended
    std::function<void(int slot)> kill;
    std::function<void(int slot)> lose_host;  ///< of a slot; calls end() for all slots there
    std::function<void(const std::string& why)> give_up;
    std::function<void(const std::string& text)> say;
  };
  struct Rules {
    int slots = 0;
    int min_ranks = 0;     ///< 0: what the program asks for
    int replacements = 0;  ///< how many may be started
  };
  Membership(Actions actions, Rules rules) : actions_(std::move(actions)), rules_(rules) {}

  /// Takes a message of the process in `slot`. Throws Json::exception if it makes no sense.
  void take(int slot, const Json& message);
  enum class End { Done, Failed, HostLost };
  /// The process in `slot` has ended; `was_in_group`: a group may have started with it. Returns
  /// whether another one takes its place.
  bool end(int slot, End how, bool was_in_group);
  /// The process in `slot` was stopped by a signal, or resumes.
  void stop(int slot, bool is_stopped);

  /// When look() is to be called, if nothing happens before.
  Clock::time_point next_look() const noexcept { return look_at_; }
  /// Ends processes that others have waited for too long.
  void look();

  /// Whether the process in `slot` has said that it leaves the job.
  bool leaves(int slot) const { return is_used() && processes_.at(slot).leaves; }
  /// Slots without a process, for which there may be a place on another host.
  std::vector<int> empty_slots() const { return slots_in(Process::State::Gone); }
  /// Whether the process in `slot` waits for the next group.
  bool asks(int slot) const { return processes_.at(slot).state == Process::State::Asking; }
  /// The slots whose processes do.
  std::vector<int> asking_slots() const { return slots_in(Process::State::Asking); }
  /// A process is started in an empty slot.
  void fill(int slot) { processes_.at(slot) = {}; }

  /// Whether a process of the job has asked to be a member, as only elastic programs do.
  bool is_used() const noexcept { return !processes_.empty(); }
  /// Whether a rank has come to the end of the program.
  bool is_done() const;

 private:
  struct Process {
    enum class State { Busy, Asking, Done, Gone };
    State state = State::Busy;
    Json asked = {};
    Clock::time_point since = Clock::now();
    Clock::time_point asked_at{};
    bool is_member = false;  ///< of the present group
    bool is_first = false;   ///< no group had started before its first one
    std::optional<Clock::time_point> stopped_at = {};  ///< by a signal
    std::optional<Clock::time_point> killed_at = {};
    bool leaves = false;
    bool is_cut_off = false;  ///< from other members; it is killed, and not replaced where it was
  };

  std::vector<int> slots_in(Process::State state) const;
  bool is_new(int slot) const;
  bool others_run(int slot) const;
  void end_stopped();
  bool blames(const Process& process, int slot) const;
  std::pair<Clock::time_point, std::string> limit_for(int slot, int waiting) const;
  void decide();
  bool excludes_late(const std::vector<int>& asking);
  void await(const std::vector<int>& asking);
  void ask_to_grow(const std::vector<int>& asking);
  bool excludes_unreachable(const std::vector<int>& asking);
  bool excludes_cut_off(const std::vector<int>& asking);
  int fewest(const std::vector<int>& asking) const;
  void announce(const std::vector<int>& members);
  void tell_members(const Json& message);
  void kill(int slot, const std::string& why);

  const Actions actions_;
  const Rules rules_;
  std::map<int, Process> processes_;  ///< by slot
  int number_ = 0;                    ///< of the present group
  int grows_after_ = 0;               ///< a member of this group was told that others have come
  int grower_ = -1;                   ///< its slot
  bool had_started_ = false;          ///< a group of the job, on one of its ranks
  int failed_starts_ = 0;             ///< in a row
  int replaced_ = 0;
  std::string failure_;  ///< why the job cannot go on beyond the present group
  Clock::time_point look_at_ = Clock::time_point::max();
};

}  // namespace ronde::tool::launch
