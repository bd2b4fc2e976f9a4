// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <map>
#include <ostream>
#include <utility>

#include "tools/sim/scenario.h"

namespace ronde::tool {
namespace {

using Time = Simulation::Time;

/// A message at one of its ends.
struct End {
  Time at;
  bool is_send;
  const SimulatedMessage* message;
  std::uint64_t tag;

  std::string text() const {
    return (is_send ? "send " : "recv ") + std::to_string(message->bytes) + "b " +
           (is_send ? "to " + std::to_string(message->to)
                    : "from " + std::to_string(message->from)) +
           " tag " + std::to_string(tag);
  }
};

/// Writes what a rank does. Between its messages it computes, or waits for what is no message, such
/// as other ranks of its host.
class Schedule {
 public:
  Schedule(Time begin, Time overhead, std::ostream& out)
      : at_(begin), overhead_(overhead), out_(out) {}

  void add(const End& end) {
    if (end.is_send) {
      compute_until(end.at);
      label(end.text());
      require(std::exchange(before_, {label_}));
    } else {
      label(end.text());
      before_.push_back(label_);
    }
    at_ = std::max(at_, end.at) + (end.is_send ? Time{0} : overhead_);
  }

  void compute_until(Time end) {
    const Time computed = std::max(Time{0}, end - at_ - overhead_);
    label("calc " + std::to_string(computed.count()));
    require(std::exchange(before_, {label_}));
  }

 private:
  void label(const std::string& text) { out_ << 'l' << ++label_ << ": " << text << '\n'; }
  void require(const std::vector<std::uint64_t>& before) {
    for (const std::uint64_t each : before) out_ << 'l' << label_ << " requires l" << each << '\n';
  }

  Time at_;
  const Time overhead_;
  std::ostream& out_;
  std::uint64_t label_ = 0;
  std::vector<std::uint64_t> before_;  ///< what the next computing comes after
};

}  // namespace

void write_goal(const Outcome& outcome, const NetworkCosts& costs, std::ostream& out) {
  std::vector<std::vector<End>> ends(outcome.begins.size());
  std::map<std::pair<int, int>, std::uint64_t> tags;
  for (const SimulatedMessage& message : outcome.messages) {
    const std::uint64_t tag = tags[{message.from, message.to}]++;
    ends[static_cast<std::size_t>(message.from)].push_back({message.sent, true, &message, tag});
    ends[static_cast<std::size_t>(message.to)].push_back({message.arrived, false, &message, tag});
  }
  const Time begin = *std::ranges::min_element(outcome.begins);
  const auto overhead =
      std::chrono::duration_cast<Time>(std::chrono::duration<double>(costs.overhead));
  out << "num_ranks " << ends.size() << "\n";
  for (std::size_t rank = 0; rank < ends.size(); ++rank) {
    std::ranges::stable_sort(ends[rank], {}, &End::at);
    out << "\nrank " << rank << " {\n";
    Schedule schedule(begin, overhead, out);
    for (const End& end : ends[rank]) schedule.add(end);
    schedule.compute_until(outcome.ends[rank]);
    out << "}\n";
  }
}

}  // namespace ronde::tool
