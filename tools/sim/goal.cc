// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <map>
#include <ostream>
#include <utility>

#include "tools/sim/scenario.h"

namespace ronde::tool {
namespace {

using Time = Simulation::Time;
using Label = std::uint64_t;

/// A message at one of its ends, or a mark of the program.
struct Happening {
  enum class Kind { Receive, Mark, Join, Send };
  Time at;
  Kind kind;
  std::string message = {};  ///< in GOAL
};

/// Writes what a rank does: its program on one processor, its engine on another.
class Schedule {
 public:
  Schedule(Time begin, Time overhead, std::ostream& out)
      : mark_at_(begin), last_at_(begin), overhead_(overhead), out_(out) {}

  void add(const Happening& next) {
    switch (next.kind) {
      case Happening::Kind::Receive:
        messages_.push_back(label(next.message, {}));
        break;
      case Happening::Kind::Mark:
        mark_ = compute(next.at - mark_at_, " cpu 1", {});
        mark_at_ = next.at;
        break;
      case Happening::Kind::Join:
        mark_ = compute(next.at - last_at_, " cpu 1", messages_);
        mark_at_ = next.at;
        break;
      case Happening::Kind::Send:
        const Label before = compute(next.at - last_at_ - overhead_, "", messages_);
        messages_ = {label(next.message, {before})};
        break;
    }
    const bool is_receive = next.kind == Happening::Kind::Receive;
    last_at_ = std::max(last_at_, next.at + (is_receive ? overhead_ : Time{0}));
  }

 private:
  /// Computing, once the last mark and `before` are reached.
  Label compute(Time time, const std::string& where, std::vector<Label> before) {
    if (mark_ > 0) before.push_back(mark_);
    return label("calc " + std::to_string(std::max(Time{0}, time).count()) + where, before);
  }
  Label label(const std::string& text, const std::vector<Label>& before) {
    out_ << 'l' << ++labels_ << ": " << text << '\n';
    for (const Label each : before) out_ << 'l' << labels_ << " requires l" << each << '\n';
    return labels_;
  }

  Label labels_ = 0;
  Label mark_ = 0;  ///< the last one; 0: none
  Time mark_at_;
  std::vector<Label> messages_;  ///< the last one sent, and those received since
  Time last_at_;                 ///< of all
  const Time overhead_;
  std::ostream& out_;
};

std::string text_of(const SimulatedMessage& message, bool is_send, Label tag) {
  return (is_send ? "send " : "recv ") + std::to_string(message.bytes) + "b " +
         (is_send ? "to " + std::to_string(message.to) : "from " + std::to_string(message.from)) +
         " tag " + std::to_string(tag);
}

}  // namespace

void write_goal(const Outcome& outcome, const NetworkCosts& costs, std::ostream& out) {
  using Kind = Happening::Kind;
  std::vector<std::vector<Happening>> ranks(outcome.marks.size());
  Time begin = Time::max();
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    begin = std::min(begin, outcome.marks[rank].front().at);
    for (const Mark& mark : outcome.marks[rank]) {
      ranks[rank].push_back({mark.at, mark.has_waited ? Kind::Join : Kind::Mark});
    }
  }
  std::map<std::pair<int, int>, Label> tags;
  for (const SimulatedMessage& message : outcome.messages) {
    const Label tag = tags[{message.from, message.to}]++;
    ranks[static_cast<std::size_t>(message.from)].push_back(
        {message.sent, Kind::Send, text_of(message, true, tag)});
    ranks[static_cast<std::size_t>(message.to)].push_back(
        {message.arrived, Kind::Receive, text_of(message, false, tag)});
  }
  const Time overhead(static_cast<std::int64_t>(costs.overhead * 1e9));
  out << "num_ranks " << ranks.size() << "\n";
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    std::ranges::stable_sort(ranks[rank], {}, &Happening::at);
    out << "\nrank " << rank << " {\n";
    Schedule schedule(begin, overhead, out);
    for (const Happening& next : ranks[rank]) schedule.add(next);
    out << "}\n";
  }
}

}  // namespace ronde::tool
