// SPDX-License-Identifier: Apache-2.0
#include "core/src/sim/network.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

namespace ronde {
namespace {

/// What a network sends at once: less does not share a link.
constexpr double kPacketBytes = 1500;

/// Returns the largest message that takes no longer on a link than the gap, or is a packet.
double small_bytes_of(const NetworkCosts& costs) {
  if (costs.gap_per_byte <= 0) return std::numeric_limits<double>::infinity();
  return std::max(kPacketBytes, costs.gap / costs.gap_per_byte);
}

}  // namespace

SimulatedNetwork::SimulatedNetwork(EventQueue& events, const SimulationOptions& options)
    : events_(events),
      options_(options),
      bytes_per_ns_(1e-9 / options.network.gap_per_byte),
      small_bytes_(small_bytes_of(options.network)),
      gap_(from_s(options.network.gap)),
      latency_(from_s(options.network.latency)) {
  for (const int host : options.host_of) ranks_.push_back({.host = static_cast<Index>(host)});
  const std::size_t hosts = std::ranges::max(options.host_of) + std::size_t{1};
  out_.resize(hosts);
  in_.resize(hosts);
}

TimePoint SimulatedNetwork::time(int rank) const noexcept {
  return std::max(events_.now(), of(rank).busy_until);
}

void SimulatedNetwork::charge(int rank, Duration duration) noexcept {
  of(rank).busy_until = time(rank) + duration;
  of(rank).charged += duration;
}

Duration SimulatedNetwork::charged(int rank) const noexcept {
  return of(rank).charged;
}

void SimulatedNetwork::at(TimePoint time, int rank, Action action) {
  events_.at(time,
             [this, rank, action = std::move(action)]() mutable { act(rank, std::move(action)); });
}

void SimulatedNetwork::act(int rank, Action action) {
  if (of(rank).life == Life::Runs) {
    action();
  } else if (of(rank).life == Life::Stopped) {
    of(rank).held.push_back(std::move(action));
  }
}

void SimulatedNetwork::cut(int rank) {
  Rank& dead = of(rank);
  dead.life = Life::Dead;
  dead.held.clear();
  remove_flows(dead.host, [&](Index index) { return messages_[index].from == rank; });
  for (const Index index : ended_) messages_.take(index);
}

void SimulatedNetwork::stop(int rank) noexcept {
  if (of(rank).life == Life::Runs) of(rank).life = Life::Stopped;
}

void SimulatedNetwork::go_on(int rank) {
  if (of(rank).life != Life::Stopped) return;
  of(rank).life = Life::Runs;
  for (Action& held : std::exchange(of(rank).held, {})) at(events_.now(), rank, std::move(held));
}

void SimulatedNetwork::send(int from, int to, std::uint64_t bytes, bool is_control,
                            TimePoint posted, Action left, Action arrived) {
  const Index index =
      messages_.add({from, to, bytes, is_control, posted, std::move(left), std::move(arrived)});
  // An event also where it is due, as the caller expects no call before this one returns.
  events_.at(posted, [this, index] { enter(index); });
}

/// Sends a message within its host, or has it begin g after the last one of the host.
void SimulatedNetwork::enter(Index index) {
  const Message& message = messages_[index];
  const Rank& sender = of(message.from);
  if (sender.life == Life::Dead) return void(messages_.take(index));
  if (sender.host == of(message.to).host) {
    const HostCosts& costs = options_.host;
    const auto bytes = static_cast<double>(message.is_control ? 0 : message.bytes);
    return leave(index, from_s(costs.message_latency + bytes * costs.bytes_shared));
  }
  TimePoint& next = out_[sender.host].next_begin;
  const TimePoint begins = std::max(next, events_.now());
  next = begins + gap_;
  if (begins == events_.now()) return begin(index);
  events_.at(begins, [this, index] { begin(index); });
}

void SimulatedNetwork::begin(Index index) {
  const Message& message = messages_[index];
  if (of(message.from).life == Life::Dead) return void(messages_.take(index));
  const auto bytes = static_cast<double>(message.bytes);
  if (bytes <= small_bytes_) {
    return leave(index, from_s(bytes * options_.network.gap_per_byte) + latency_);
  }
  const Index link_out = of(message.from).host;
  const Index link_in = of(message.to).host;
  flows_.resize(messages_.size());
  flows_[index] = {link_out, link_in, bytes, 0, events_.now()};
  out_[link_out].flows.push_back(index);
  in_[link_in].push_back(index);
  share(out_[link_out].flows);
  share(in_[link_in]);
}

/// Gives the flows of a link their rates, after their number has changed. If the end of one has
/// become later, the event of before stays, and finds that.
void SimulatedNetwork::share(const std::vector<Index>& flows) {
  for (const Index index : flows) {
    Flow& flow = flows_[index];
    LinkOut& out = out_[flow.link_out];
    const std::size_t sharing = std::max(out.flows.size(), in_[flow.link_in].size());
    const double rate = bytes_per_ns_ / static_cast<double>(sharing);
    if (rate == flow.rate) continue;
    flow.bytes -= flow.rate * static_cast<double>((events_.now() - flow.since).count());
    flow.since = events_.now();
    if (rate > std::exchange(flow.rate, rate)) await_end(flow);
  }
}

void SimulatedNetwork::await_end(const Flow& flow) {
  const TimePoint end = end_of(flow);
  LinkOut& out = out_[flow.link_out];
  if (end >= out.next_end) return;
  out.next_end = end;
  events_.at(end, [this, link_out = flow.link_out] {
    if (out_[link_out].next_end == events_.now()) end_flows(link_out);
  });
}

TimePoint SimulatedNetwork::end_of(const Flow& flow) {
  // Rounding errors are far below a thousandth of a nanosecond.
  const double left = std::ceil(std::max(flow.bytes / flow.rate - 1e-3, 0.0));
  return flow.since + Duration(static_cast<Duration::rep>(left));
}

void SimulatedNetwork::end_flows(Index link_out) {
  out_[link_out].next_end = TimePoint::max();
  remove_flows(link_out, [this](Index index) { return end_of(flows_[index]) <= events_.now(); });
  for (const Index index : out_[link_out].flows) await_end(flows_[index]);
  for (const Index index : ended_) leave(index, latency_);
}

/// Moves the flows that are over to ended_.
template <typename IsOver>
void SimulatedNetwork::remove_flows(Index link_out, IsOver is_over) {
  ended_.clear();
  std::erase_if(out_[link_out].flows, [&](Index index) {
    if (!is_over(index)) return false;
    ended_.push_back(index);
    return true;
  });
  for (const Index index : ended_) std::erase(in_[flows_[index].link_in], index);
  share(out_[link_out].flows);
  for (const Index index : ended_) share(in_[flows_[index].link_in]);
}

/// The bytes of a message are on their way.
void SimulatedNetwork::leave(Index index, Duration until_arrival) {
  events_.at(events_.now() + until_arrival, [this, index] { arrive(index); });
  Message& message = messages_[index];
  if (message.left) act(message.from, std::exchange(message.left, nullptr));
}

void SimulatedNetwork::arrive(Index index) {
  const int to = messages_[index].to;
  if (of(to).life == Life::Stopped) return of(to).held.push_back([this, index] { arrive(index); });
  const Message message = messages_.take(index);
  if (of(to).life == Life::Dead) return;
  const bool is_reported = message.is_control || of(message.from).host != of(to).host;
  if (is_reported && options_.on_message) {
    options_.on_message({message.from, to, message.bytes, message.is_control,
                         message.posted.time_since_epoch(), events_.now().time_since_epoch()});
  }
  if (message.arrived) message.arrived();
}

}  // namespace ronde
