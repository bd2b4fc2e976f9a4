// SPDX-License-Identifier: Apache-2.0
#include "tools/run/launcher/membership.h"

#include <algorithm>
#include <tuple>
#include <utility>

// Note [Members of an elastic job]
// A rank whose group has failed, or that has just started, asks the launcher for the next group.
// Once every process of the job has asked or ended, those that ask make it: the launcher numbers
// it, tells each its rank, and passes the addresses by which they meet. So there is one decision,
// in one place, and a part of the job that cannot reach the launcher makes no group of its own: its
// agent ends it.
//   rank: ask             the number of its last group (0: none), whether that had started, the
//                         slot that it blames (-1), RONDE_STALL_ABORT_S and RONDE_INIT_TIMEOUT_S
//   launcher: members     of group `number`: the slots by rank; whether an earlier one had started,
//                         and no rank is left that was there before
//   rank: put             an address, which the launcher passes to all members
//   launcher: grow        to one member: processes that have come wait for the group after `number`
//   rank: leave           it will end, and gets no replacement
//   rank: fail            it will end, and the job with it: why
//   launcher: void        a member has ended: a start of group `number` that is under way fails
// A process that does not ask while others do is ended: where one of them blames it, after five
// seconds, else after RONDE_STALL_ABORT_S and two seconds, a new one after RONDE_INIT_TIMEOUT_S. A
// rank that its agent knows to be stopped while others run is ended after RONDE_STALL_ABORT_S. One
// that wakes up late finds that it was killed. Where its agent does not do that, as it is stopped,
// too, its host is lost.

namespace ronde::tool::launch {
namespace {

/// The far side of a link that is cut may notice a few seconds later.
constexpr Clock::duration kBlamedTime = std::chrono::seconds(5);
/// After RONDE_STALL_ABORT_S the others have found a rank that does not answer.
constexpr Clock::duration kStallSlack = std::chrono::seconds(2);
/// A driver of GPUs may take seconds to let a process go.
constexpr Clock::duration kLongestKill = std::chrono::seconds(30);
constexpr int kMostFailedStarts = 5;

std::string list_of(const std::vector<int>& slots) {
  std::string text;
  for (const int slot : slots) text += (text.empty() ? "" : ", ") + std::to_string(slot);
  return text;
}

}  // namespace

std::vector<int> Membership::slots_in(Process::State state) const {
  std::vector<int> slots;
  for (const auto& [slot, process] : processes_) {
    if (process.state == state) slots.push_back(slot);
  }
  return slots;
}

bool Membership::is_done() const {
  return !slots_in(Process::State::Done).empty();
}

void Membership::tell_members(const Json& message) {
  for (const auto& [slot, process] : processes_) {
    const bool lives =
        process.state == Process::State::Busy || process.state == Process::State::Asking;
    if (process.is_member && lives) actions_.tell(slot, message);
  }
}

void Membership::take(int slot, const Json& message) {
  if (processes_.empty()) {
    for (int each = 0; each < rules_.slots; ++each) processes_[each];
  }
  if (message.contains("put") && message.at("number") == number_) tell_members(message);
  Process& process = processes_.at(slot);
  if (message.contains("leave")) {  // the others need not wait for its end
    process.leaves = true;
    process.state = Process::State::Gone;
    if (std::exchange(process.is_member, false)) tell_members({{"void", number_}});
    return decide();
  }
  if (message.contains("fail")) failure_ = message.at("fail");
  if (!message.contains("ask")) return;
  process.state = Process::State::Asking;
  process.asked = message.at("ask");
  process.asked_at = Clock::now();
  had_started_ = had_started_ || process.asked.at("started");
  decide();
}

bool Membership::end(int slot, End how, bool was_in_group) {
  if (!is_used()) return false;
  Process& process = processes_.at(slot);
  const bool was_member = std::exchange(process.is_member, false);
  process.state = how == End::Done ? Process::State::Done : Process::State::Gone;
  had_started_ = had_started_ || was_in_group;  // it may be the last one that could have told
  if (was_member) tell_members({{"void", number_}});
  if (how != End::Done && !failure_.empty()) {
    actions_.give_up(failure_);
    return false;
  }
  const bool is_replaced = how == End::Failed && !process.leaves && !process.is_cut_off &&
                           !is_done() && replaced_ < rules_.replacements;
  if (is_replaced) {
    ++replaced_;
    process = {};
    actions_.say("slot " + std::to_string(slot) + " gets replacement " + std::to_string(replaced_) +
                 " of " + std::to_string(rules_.replacements));
    actions_.replace(slot);
  }
  decide();
  return is_replaced;
}

void Membership::stop(int slot, bool is_stopped) {
  if (!is_used()) return;
  if (!is_stopped && !others_run(slot)) {  // all of them were, and the others may resume now
    for (auto& [each, process] : processes_) {
      if (process.stopped_at) process.stopped_at = Clock::now();
    }
  }
  auto& stopped_at = processes_.at(slot).stopped_at;
  stopped_at = is_stopped ? std::optional(Clock::now()) : std::nullopt;
  decide();
}

void Membership::look() {
  decide();
}

/// Forms the next group if all have asked.
void Membership::decide() {
  look_at_ = Clock::time_point::max();
  end_stopped();
  const std::vector<int> asking = slots_in(Process::State::Asking);
  if (asking.empty()) return;
  if (!slots_in(Process::State::Busy).empty()) {
    ask_to_grow(asking);
    return await(asking);
  }
  if (excludes_late(asking) || excludes_cut_off(asking) || excludes_unreachable(asking)) return;
  const int needed = fewest(asking);
  if (static_cast<int>(asking.size()) < needed) {
    actions_.give_up(std::to_string(asking.size()) + " ranks are left, and the job needs " +
                     std::to_string(needed));
    return;
  }
  announce(asking);
}

bool Membership::others_run(int slot) const {
  return std::ranges::any_of(processes_, [slot](const auto& entry) {
    const auto& [other, process] = entry;
    return other != slot && process.is_member && !process.stopped_at;
  });
}

/// Ends members that others have waited for since a signal stopped them.
void Membership::end_stopped() {
  for (const int slot : slots_in(Process::State::Busy)) {
    const Process& process = processes_.at(slot);
    if (!process.is_member || !process.stopped_at || process.killed_at || !others_run(slot))
      continue;
    const double limit_s = process.asked.at("stall_s");
    if (limit_s <= 0) continue;
    const auto until = *process.stopped_at + seconds_of(limit_s);
    if (until <= Clock::now()) {
      kill(slot, "rank " + std::to_string(slot) + " has been stopped for " + text_of(limit_s) +
                     " s (RONDE_STALL_ABORT_S)");
    } else {
      look_at_ = std::min(look_at_, until);
    }
  }
}

bool Membership::is_new(int slot) const {
  return processes_.at(slot).asked.at("number") == 0;
}

/// New processes have nothing to go on from where the job is done, and would begin it again.
bool Membership::excludes_late(const std::vector<int>& asking) {
  const auto is_late = [this](int slot) { return is_new(slot); };
  if (!is_done() || !std::ranges::all_of(asking, is_late)) return false;
  for (const int slot : asking) {
    processes_.at(slot).state = Process::State::Busy;  // until its end
    kill(slot, "slot " + std::to_string(slot) + " has come as the job was done");
  }
  return true;
}

/// A job whose first ranks are done needs no number of ranks for its end.
int Membership::fewest(const std::vector<int>& asking) const {
  if (is_done()) return 1;
  int most = rules_.min_ranks;
  for (const int slot : asking) {
    if (rules_.min_ranks > 0) break;
    most = std::max(most, processes_.at(slot).asked.at("min_ranks").get<int>());
  }
  return most;
}

/// Where all that ask are new, a rank of the group that works is told of them.
void Membership::ask_to_grow(const std::vector<int>& asking) {
  const auto has_come = [this](int slot) { return is_new(slot); };
  if (number_ == 0 || grows_after_ == number_ || !std::ranges::all_of(asking, has_come)) return;
  const auto busy = slots_in(Process::State::Busy);
  const auto is_member = [this](int slot) { return processes_.at(slot).is_member; };
  if (!std::ranges::all_of(busy, is_member)) return;  // others start
  grows_after_ = number_;
  grower_ = busy.front();
  actions_.tell(busy.front(), {{"grow", number_}});
}

/// Ends processes that the others have waited for, and sets the time of the next look.
void Membership::await(const std::vector<int>& asking) {
  const auto now = Clock::now();
  for (const int slot : slots_in(Process::State::Busy)) {
    const Process& process = processes_.at(slot);
    auto until = Clock::time_point::max();
    std::string why;
    if (process.killed_at) {
      until = *process.killed_at + kLongestKill;
      if (until <= now) return actions_.lose_host(slot);
    } else {
      for (const int other : asking) {
        auto [limit, its_reason] = limit_for(slot, other);
        if (limit < until) std::tie(until, why) = std::tie(limit, its_reason);
      }
    }
    if (until <= now) {
      kill(slot, why);
    } else {
      look_at_ = std::min(look_at_, until);
    }
  }
}

/// Returns until when `waiting`, which asks, waits for the process in `slot`, and why no longer.
std::pair<Clock::time_point, std::string> Membership::limit_for(int slot, int waiting) const {
  const std::pair never(Clock::time_point::max(), std::string());
  const Process& process = processes_.at(slot);
  const Process& other = processes_.at(waiting);
  const auto begin = std::max(other.asked_at, process.since);
  // What an earlier process of the slot is blamed for is not the fault of a new one.
  if (process.is_member && blames(other, slot)) {
    return {begin + kBlamedTime, "rank " + std::to_string(slot) + " does not answer the others"};
  }
  // New processes wait for the group to end its step as long as that takes.
  if (process.is_member && is_new(waiting)) return never;
  const double limit_s = other.asked.at(process.is_member ? "stall_s" : "start_s");
  if (limit_s <= 0) return never;
  return {begin + seconds_of(limit_s) + (process.is_member ? kStallSlack : Clock::duration()),
          "slot " + std::to_string(slot) + " has not come to the others within " +
              text_of(limit_s) + " s"};
}

/// One that was asked to end the group for others to join is not to be blamed for that.
bool Membership::blames(const Process& process, int slot) const {
  const bool was_asked = grows_after_ == number_ && slot == grower_;
  return process.asked.at("blames") == slot && !was_asked;
}

void Membership::kill(int slot, const std::string& why) {
  processes_.at(slot).killed_at = Clock::now();
  look_at_ = std::min(look_at_, Clock::now() + kLongestKill);
  actions_.say(why + ": it is killed");
  actions_.kill(slot);
}

/// Ranks that can talk to each other name the same rank when their group fails. Where they name
/// several that live, a link between them is cut: the most that agree go on, of as many those with
/// the lowest slot.
bool Membership::excludes_cut_off(const std::vector<int>& asking) {
  std::map<int, std::vector<int>> sides;  // by the slot that they blame
  for (const int slot : asking) {
    const Json& asked = processes_.at(slot).asked;
    const int blamed = asked.at("blames");
    const auto other = processes_.find(blamed);
    const bool lives = other != processes_.end() && other->second.state == Process::State::Asking &&
                       other->second.asked.at("number") == number_;
    const bool is_blamed = lives && blames(processes_.at(slot), blamed);
    if (asked.at("number") == number_ && asked.at("started") && is_blamed) {
      sides[blamed].push_back(slot);
    }
  }
  if (sides.size() < 2) return false;
  const auto is_smaller = [](const auto& one, const auto& other) {
    const auto& [a, b] = std::tie(one.second, other.second);
    return a.size() != b.size() ? a.size() < b.size() : a.front() > b.front();
  };
  const int kept = std::ranges::max_element(sides, is_smaller)->first;
  for (const auto& [blamed, side] : sides) {
    for (const int slot : side) {
      if (blamed == kept) break;
      processes_.at(slot).state = Process::State::Busy;  // until its end
      processes_.at(slot).is_cut_off = true;
      kill(slot, "rank " + std::to_string(slot) + " is cut off from " + list_of(sides.at(kept)));
    }
  }
  return true;
}

/// Where groups fail to start, the slot that most ranks blame is left out.
bool Membership::excludes_unreachable(const std::vector<int>& asking) {
  std::map<int, std::size_t> blamed;
  for (const int slot : asking) {
    const Json& asked = processes_.at(slot).asked;
    if (asked.at("number") != number_ || asked.at("started")) continue;
    ++blamed[asked.at("blames").get<int>()];
  }
  std::size_t votes = 0;
  for (const auto& [slot, count] : blamed) votes += count;
  failed_starts_ = number_ > 0 && votes == asking.size() ? failed_starts_ + 1 : 0;
  if (failed_starts_ > kMostFailedStarts) {
    actions_.give_up("the ranks have failed to meet " + std::to_string(failed_starts_) + " times");
    return true;
  }
  for (const auto& [slot, count] : blamed) {
    const bool is_there = std::ranges::find(asking, slot) != asking.end();
    if (!is_there || 2 * count <= asking.size() || failed_starts_ < 2) continue;
    processes_.at(slot).state = Process::State::Busy;  // until its end
    processes_.at(slot).is_cut_off = true;             // as another one in its place would be
    kill(slot, "rank " + std::to_string(slot) + " cannot be reached by the others");
    return true;
  }
  return false;
}

void Membership::announce(const std::vector<int>& members) {
  ++number_;
  failure_.clear();
  if (number_ > 1) {
    actions_.say("group " + std::to_string(number_) + " of the job: " +
                 std::to_string(members.size()) + " ranks, slots " + list_of(members));
  }
  for (auto& [slot, process] : processes_) process.is_member = false;
  bool goes_on = had_started_;
  for (const int slot : members) {
    Process& process = processes_.at(slot);
    process.is_member = true;
    process.is_first = process.is_first || !had_started_;
    process.state = Process::State::Busy;
    goes_on = goes_on && !process.is_first;
  }
  for (const int slot : members) {
    actions_.tell(
        slot, {{"members", members}, {"number", number_}, {"slot", slot}, {"goes_on", goes_on}});
  }
}

}  // namespace ronde::tool::launch
